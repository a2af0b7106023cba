"""FastMCP's client uses everything of a server; prints what it got as JSON.

Arguments as for `tour.py`; it speaks only the versions with `initialize`.
"""

import asyncio
import json
import sys

import mcp.types as types
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp.shared.exceptions import McpError

WAIT = 60


class Tour:
    """What the client hears."""

    def __init__(self, plan):
        self.plan = plan
        self.asked, self.logs = [], []
        self.updated = asyncio.Event()

    async def elicited(self, message, response_type, params, context):
        self.asked.append(["elicitation", message])
        content = {}
        for name, member in getattr(params, "requestedSchema", {}).get("properties", {}).items():
            if "default" in member:
                content[name] = member["default"]
            elif name in params.requestedSchema.get("required", ()):
                content[name] = {"string": "Ada", "boolean": True}.get(member["type"], 42)
        return ElicitResult(action="accept", content=content)

    async def sampled(self, messages, params, context):
        self.asked.append(["sampling", messages[0].content.text])
        return "sampled"

    async def logged(self, message):
        self.logs.append([message.level, message.data])

    async def message(self, message):
        root = getattr(message, "root", None)
        if isinstance(root, types.ResourceUpdatedNotification):
            self.updated.set()

    async def call(self, client, name, progress=None):
        given = self.plan["tools"].get(name, {})
        return await client.call_tool_mcp(name, given, progress_handler=progress)

    async def tool(self, client, name):
        self.asked, self.logs, reports = [], [], []

        async def progress(done, total, message):
            reports.append([done, total, message])

        try:
            result = dump(await self.call(client, name, progress))
        except (McpError, ToolError) as error:
            result = {"error": str(error)}
        for _ in range(20):  # callbacks run in tasks of their own
            await asyncio.sleep(0)
        if name.startswith("toggle-"):
            await self.call(client, name)
        return {"result": result, "asked": self.asked, "logs": self.logs, "progress": reports}

    async def watch(self, client):
        watched = self.plan["watch"]
        await client.session.subscribe_resource(watched["uri"])
        await self.call(client, watched["tool"])
        await asyncio.wait_for(self.updated.wait(), WAIT)
        await client.session.unsubscribe_resource(watched["uri"])
        await self.call(client, watched["tool"])
        return "updated"


def dump(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main(_era, plan, words):
    plan = json.loads(plan)
    tour, report = Tour(plan), {}
    if words[0].startswith("http"):
        transport = StreamableHttpTransport(words[0])
    else:
        transport = StdioTransport(words[0], words[1:], keep_alive=False)
    client = Client(
        transport,
        elicitation_handler=tour.elicited,
        sampling_handler=tour.sampled,
        roots=["file:///srv/data"],
        log_handler=tour.logged,
        message_handler=tour.message,
        client_info=types.Implementation(name="tour", version="1"),
    )
    async with client:
        await client.set_logging_level("debug")
        listed = {tool.name for tool in await client.list_tools()}
        report["tools"] = sorted(listed - {"lease_acquire", "lease_release", "mcp_release"})
        for name in report["tools"]:
            if name not in plan["skip"]:
                report[f"tool {name}"] = await tour.tool(client, name)
        report["prompts"] = sorted(prompt.name for prompt in await client.list_prompts())
        for name, arguments in plan["prompts"].items():
            report[f"prompt {name}"] = dump(await client.get_prompt_mcp(name, arguments))
        for reference, argument in plan["completions"]:
            done = await client.complete_mcp(types.PromptReference(**reference), argument)
            report[f"completion {reference['name']}"] = dump(done)
        report["resources"] = sorted(
            str(resource.uri) for resource in await client.list_resources()
        )
        for uri in plan["read"]:
            report[f"resource {uri}"] = dump(await client.read_resource_mcp(uri))
        if plan["watch"]:
            report["watch"] = await tour.watch(client)
        report["after"] = (await tour.tool(client, plan["last"]))["result"]
    print(json.dumps(report))


asyncio.run(main(*sys.argv[1:3], sys.argv[3:]))
