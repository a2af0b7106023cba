"""A server with prompts, resources, templates, completions and subscriptions, in both eras.

Each process keeps its own notes. Lists have pages of two. With the argument `broken=LIST` that
list fails, with `mute` subscriptions are not supported.
"""

import base64
import json
import sys

import mcp_types as types
from mcp.server import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated

WRITE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "text": {"type": "string"}},
    "required": ["name", "text"],
}
BROKEN = [word.removeprefix("broken=") for word in sys.argv if word.startswith("broken=")]
notes = {"a": "first", "b": "second", "secret/x": "hidden"}
prompts = ["greet", "secret_prompt", "plain"]
subscribers = {}
log = []
bus = InMemorySubscriptionBus()


def page(items, params, key, **extra):
    start = int((params and params.cursor) or 0)
    after = start + 2
    more = str(after) if after < len(items) else None
    return {key: items[start:after], "next_cursor": more, "ttl_ms": 0, "cache_scope": "private"}


def check(name):
    if name in BROKEN:
        raise MCPError(types.INTERNAL_ERROR, f"{name} is broken today")


async def list_tools(context, params):
    tools = [
        types.Tool(name="write", input_schema=WRITE),
        types.Tool(name="offer", input_schema={"type": "object"}),
        types.Tool(name="said", input_schema={"type": "object"}),
    ]
    return types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")


async def call_tool(context, params):
    arguments = params.arguments or {}
    if params.name == "write":
        await write(arguments["name"], arguments["text"])
    elif params.name == "offer":
        prompts.append(f"more{len(prompts)}")
        notes[f"more{len(notes)}"] = "more"
        await bus.publish(PromptsListChanged())
        await bus.publish(ResourcesListChanged())
        if context.protocol_version < "2026":
            await context.session.send_prompt_list_changed()
            await context.session.send_resource_list_changed()
    text = json.dumps(log)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def write(name, text):
    notes[name] = text
    uri = f"note://{name}"
    await bus.publish(ResourceUpdated(uri=uri))
    for prefix, session in list(subscribers.items()):
        if uri.startswith(prefix):
            await session.send_resource_updated(uri)


async def list_prompts(context, params):
    check("prompts")
    arguments = [types.PromptArgument(name="name", required=True)]
    items = [
        types.Prompt(name=name, description="Says hello", arguments=arguments) for name in prompts
    ]
    return types.ListPromptsResult(**page(items, params, "prompts"))


async def get_prompt(context, params):
    if params.name not in prompts:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    name = (params.arguments or {}).get("name")
    if name is None:
        raise MCPError(types.INVALID_PARAMS, "The argument name is missing")
    said = types.TextContent(type="text", text=f"{params.name}: hello {name}")
    message = types.PromptMessage(role="user", content=said)
    return types.GetPromptResult(description="A greeting", messages=[message])


async def list_resources(context, params):
    check("resources")
    items = [
        types.Resource(name=name, uri=f"note://{name}", mime_type="text/plain") for name in notes
    ]
    return types.ListResourcesResult(**page(items, params, "resources"))


async def list_templates(context, params):
    check("templates")
    items = [types.ResourceTemplate(name="note", uri_template="note://{name}")]
    return types.ListResourceTemplatesResult(**page(items, params, "resource_templates"))


async def read_resource(context, params):
    name = str(params.uri).removeprefix("note://")
    if name == "blob":
        blob = base64.b64encode(bytes(range(256))).decode()
        contents = [types.BlobResourceContents(uri=params.uri, blob=blob)]
    elif name in notes:
        contents = [types.TextResourceContents(uri=params.uri, text=notes[name])]
    else:
        raise MCPError(types.INVALID_PARAMS, f"Unknown resource: {params.uri}")
    return types.ReadResourceResult(contents=contents, ttl_ms=0, cache_scope="private")


async def complete(context, params):
    known = (params.context.arguments if params.context else None) or {}
    values = ["ada", "alan", "grace"] if params.ref.type == "ref/prompt" else list(notes)
    found = [value for value in values if value.startswith(params.argument.value)]
    found += [f"{key}={value}" for key, value in known.items()]
    return types.CompleteResult(completion=types.Completion(values=found, total=9, has_more=True))


async def subscribe(context, params):
    log.append(f"subscribe {params.uri}")
    subscribers[str(params.uri)] = context.session
    return types.EmptyResult()


async def unsubscribe(context, params):
    log.append(f"unsubscribe {params.uri}")
    subscribers.pop(str(params.uri), None)
    return types.EmptyResult()


class Listen(ListenHandler):
    """Logs the subscriptions."""

    async def __call__(self, context, params):
        uris = params.notifications.resource_subscriptions or []
        log.extend(f"subscribe {uri}" for uri in uris)
        try:
            return await super().__call__(context, params)
        finally:
            log.extend(f"unsubscribe {uri}" for uri in uris)


SUBSCRIPTIONS = (
    {}
    if "mute" in sys.argv
    else {
        "on_subscribe_resource": subscribe,
        "on_unsubscribe_resource": unsubscribe,
        "on_subscriptions_listen": Listen(bus),
    }
)
server = Server(
    "offering",
    version="0",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_completion=complete,
    **SUBSCRIPTIONS,
)
