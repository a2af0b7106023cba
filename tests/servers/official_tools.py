"""The tools of the servers built on the official package (`official_stdio`, `official_http`)."""

import json
import os

import mcp_types as types
from mcp.server import Server
from mcp.shared.exceptions import MCPError

ECHO = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NAMES = ("echo", "meta", "fail", "progress")


async def list_tools(context, params):
    tools = [types.Tool(name=name, input_schema=ECHO) for name in NAMES]
    return types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")


async def call_tool(context, params):
    arguments = params.arguments or {}
    if params.name == "echo":
        return said(arguments["text"])
    if params.name == "meta":
        return said(json.dumps(dict(context.meta or {}), default=str))
    if params.name == "fail":
        return said("it went wrong", is_error=True)
    if params.name == "progress":
        for step in range(3):
            await context.session.report_progress(step, 3)
        return said("done")
    raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")


def said(text, is_error=False):
    content = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, is_error=is_error)


server = Server(
    "official",
    version="0",
    instructions=os.environ.get("INSTRUCTIONS"),
    on_list_tools=list_tools,
    on_call_tool=call_tool,
)
