"""The official Python client 2.x uses everything of a server; prints what it got as JSON.

Arguments: the era, a plan as JSON (`tests/e2e/test_tours.py`), and the server's URL or command.
"""

import asyncio
import json
import sys

import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.subscriptions import listen

WAIT = 60


def fill(schema):
    """Return content for a form: the default, the first choice, or something of the type."""
    content = {}
    for name, member in schema.get("properties", {}).items():
        choices = member.get("enum") or [option["const"] for option in member.get("oneOf", [])]
        plain = {"string": "ada@example.com", "boolean": True, "integer": 42, "number": 42}
        if "default" in member:
            content[name] = member["default"]
        elif choices:
            content[name] = choices[0]
        elif member["type"] == "array":
            items = member["items"]
            content[name] = (items.get("enum") or [option["const"] for option in items["anyOf"]])[
                :1
            ]
        elif member.get("format") == "uri":
            content[name] = "https://example.com/"
        elif member.get("format") == "date":
            content[name] = "2026-01-01"
        else:
            content[name] = plain[member["type"]]
    return content


class Tour:
    """What one client hears."""

    def __init__(self, plan):
        self.plan = plan
        self.logs = []
        self.asked = []
        self.session = {}
        self.updated = asyncio.Event()

    async def elicited(self, context, params):
        self.asked.append(["elicitation", params.message])
        if isinstance(params, types.ElicitRequestFormParams):
            content = fill(params.requested_schema)
            return types.ElicitResult(action="accept", content=content)
        return types.ElicitResult(action="accept")

    async def sampled(self, context, params):
        self.asked.append(["sampling", params.messages[0].content.text])
        content = types.TextContent(type="text", text="sampled")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def roots(self, context):
        self.asked.append(["roots"])
        root = types.Root(uri="file:///srv/data", name="data")
        return types.ListRootsResult(roots=[root])

    async def logged(self, params):
        self.logs.append([params.level, params.data])

    async def message(self, message):
        if isinstance(message, types.ResourceUpdatedNotification):
            self.updated.set()

    def clear(self):
        self.logs, self.asked = [], []

    async def call(self, client, name, progress=None):
        given = self.plan["tools"].get(name, {}) | self.session
        result = await client.call_tool(name, given, progress_callback=progress)
        handle = (result.meta or {}).get("leaseway/session")
        if handle and client.protocol_version == "2026-07-28":
            self.session = {"session": handle}
        return result

    async def tool(self, client, name):
        self.clear()
        reports = []

        async def progress(done, total, message):
            reports.append([done, total, message])

        try:
            result = dump(await self.call(client, name, progress))
        except MCPError as error:
            result = {"error": [error.code, error.message]}
        except RuntimeError as error:  # of the client, which refuses the result
            result = {"refused": str(error)[:60]}
        for _ in range(20):  # callbacks run in tasks of their own
            await asyncio.sleep(0)
        if name.startswith("toggle-"):
            await self.call(client, name)
        return {"result": result, "asked": self.asked, "logs": self.logs, "progress": reports}

    async def watch(self, client):
        """Subscribe to a resource and have it updated."""
        watched = self.plan["watch"]
        if client.protocol_version == "2026-07-28":
            async with listen(client.session, resource_subscriptions=[watched["uri"]]) as events:
                await self.call(client, watched["tool"])
                await asyncio.wait_for(anext(aiter(events)), WAIT)
        else:
            await client.subscribe_resource(watched["uri"])
            await self.call(client, watched["tool"])
            await asyncio.wait_for(self.updated.wait(), WAIT)
            await client.unsubscribe_resource(watched["uri"])
        await self.call(client, watched["tool"])
        return "updated"

    async def cancel(self, client):
        """Cancel a call that would take long; the next one is answered."""
        begun = asyncio.Event()

        async def progress(done, total, message):
            begun.set()

        calling = asyncio.create_task(self.call(client, self.plan["cancel"], progress))
        await asyncio.wait_for(begun.wait(), WAIT)
        calling.cancel()
        await asyncio.wait([calling])
        return "cancelled" if calling.cancelled() else "finished"


def dump(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main(era, plan, words):
    plan = json.loads(plan)
    tour, report = Tour(plan), {}
    target = words[0]
    if not target.startswith("http"):
        target = stdio_client(StdioServerParameters(command=target, args=words[1:]))
    client = Client(
        target,
        mode=era,
        elicitation_callback=tour.elicited,
        sampling_callback=tour.sampled,
        list_roots_callback=tour.roots,
        logging_callback=tour.logged,
        message_handler=tour.message,
        log_level="debug" if era != "legacy" else None,
        client_info=types.Implementation(name="tour", version="1"),
    )
    async with client:
        if era == "legacy":
            await client.set_logging_level("debug")
        own = {"lease_acquire", "lease_release", "mcp_release"}
        names = {tool.name for tool in (await client.list_tools()).tools} - own
        report["tools"] = sorted(names)
        for name in sorted(names - set(plan["skip"])):
            report[f"tool {name}"] = await tour.tool(client, name)
        names = {tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools}
        report["tools at the end"] = sorted(names - own)
        report["prompts"] = sorted(prompt.name for prompt in (await client.list_prompts()).prompts)
        for name, arguments in plan["prompts"].items():
            report[f"prompt {name}"] = dump(await client.get_prompt(name, arguments))
        for reference, argument in plan["completions"]:
            kind = types.PromptReference if "name" in reference else types.ResourceTemplateReference
            done = await client.complete(kind(**reference), argument)
            report[f"completion {reference}"] = dump(done)
        report["resources"] = sorted(
            str(resource.uri) for resource in (await client.list_resources()).resources
        )
        templates = (await client.list_resource_templates()).resource_templates
        report["templates"] = sorted(template.uri_template for template in templates)
        for uri in plan["read"]:
            report[f"resource {uri}"] = dump(await client.read_resource(uri))
        if plan["watch"]:
            report["watch"] = await tour.watch(client)
        if plan["cancel"]:
            report["cancel"] = await tour.cancel(client)
        report["after"] = (await tour.tool(client, plan["last"]))["result"]
    print(json.dumps(report))


asyncio.run(main(*sys.argv[1:3], sys.argv[3:]))
