"""Tools of the official package's low-level server that use everything a transport must carry.

`echo`, `fail` and `error` answer; `progress` and `log` send notifications first; `ask` elicits
(legacy); `hold` never answers and `cancelled` counts its cancellations; `change` notifies of
changed tools (legacy); `big` answers with `size` bytes.
"""

import warnings

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

NAMES = ("echo", "fail", "error", "progress", "log", "ask", "hold", "cancelled", "change", "big")
SCHEMA = {"type": "object"}


def make_server():
    """Return a server with its own state."""
    cancelled = []

    async def list_tools(context, params):
        tools = [types.Tool(name=name, input_schema=SCHEMA) for name in NAMES]
        return types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")

    async def call_tool(context, params):
        arguments = params.arguments or {}
        session, key = context.session, context.request_id
        if params.name in PLAIN:
            return PLAIN[params.name](arguments)
        if params.name == "progress":
            for step in range(3):
                await session.report_progress(step, 3, f"step {step}")
            return said("done")
        if params.name == "log":
            with warnings.catch_warnings(action="ignore"):  # the package deprecates logging
                await session.send_log_message("warning", {"said": "it"}, "script", key)
            return said("logged")
        if params.name == "ask":
            answer = await session.elicit_form("Who?", SCHEMA, key)
            return said(f"{answer.action} {answer.content}")
        if params.name == "hold":
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(params.name)
        if params.name == "cancelled":
            return said(str(len(cancelled)))
        if params.name == "change":
            await session.send_tool_list_changed()
            return said("changed")
        raise MCPError(types.INVALID_PARAMS, "no such thing", {"why": "because"})

    return Server("script", version="0", on_list_tools=list_tools, on_call_tool=call_tool)


def said(text, is_error=False):
    content = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, is_error=is_error)


PLAIN = {
    "echo": lambda arguments: said(arguments.get("text", "")),
    "fail": lambda arguments: said("it went wrong", is_error=True),
    "big": lambda arguments: said("x" * arguments["size"]),
}


async def serve(server, receive, send):
    """Serve one connection: `receive` returns a message's JSON or None at the end; `send` sends."""
    incoming, reader = anyio.create_memory_object_stream(16)
    writer, outgoing = anyio.create_memory_object_stream(16)

    async def read():
        async with incoming:
            while (text := await receive()) is not None:
                message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
                await incoming.send(SessionMessage(message))

    async def write():
        async with outgoing:
            async for message in outgoing:
                await send(message.message.model_dump_json(by_alias=True, exclude_unset=True))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        await server.run(reader, writer, server.create_initialization_options())
        group.cancel_scope.cancel()
