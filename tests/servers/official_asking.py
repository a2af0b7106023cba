"""A low-level server of the official package with server requests, over stdio, in both eras.

`visit` elicits a name, samples a greeting and requests the roots, one after another (legacy, by
requests) or all at once (modern, by `input_required`); `weather` has structured output.
"""

import json

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
MESSAGES = [
    types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Greet."))
]


async def list_tools(context, params):
    tools = [
        types.Tool(name=name, input_schema={"type": "object"}) for name in ("visit", "weather")
    ]
    return types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")


async def call_tool(context, params):
    if params.name == "weather":
        return types.CallToolResult(
            content=[], structured_content={"day": "2026-11-22", "degrees": 4}
        )
    session = context.session
    if session.protocol_version >= "2026":
        return visit_modern(params)
    related = context.request_id
    person = await session.elicit_form("Who?", FORM, related)
    model = await session.create_message(MESSAGES, max_tokens=9, related_request_id=related)
    return said(person, model, await session.list_roots())


def visit_modern(params):
    given = params.input_responses
    if given:
        return said(given["person"], given["model"], given["folders"])
    form = types.ElicitRequestFormParams(message="Who?", requested_schema=FORM)
    sampling = types.CreateMessageRequestParams(messages=MESSAGES, max_tokens=9)
    return types.InputRequiredResult(
        request_state="first",
        input_requests={
            "person": types.ElicitRequest(params=form),
            "model": types.CreateMessageRequest(params=sampling),
            "folders": types.ListRootsRequest(),
        },
    )


def said(person, model, folders):
    visit = {
        "name": person.content["name"] if person.content else person.action,
        "greeting": model.content.text,
        "folders": [str(root.uri) for root in folders.roots],
    }
    content = [types.TextContent(type="text", text=json.dumps(visit))]
    return types.CallToolResult(content=content, structured_content=visit)


async def main():
    server = Server("asking", version="0", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


anyio.run(main)
