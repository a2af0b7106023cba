"""The kit as an MCP server, on the official package's low-level server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import mcp_types as types
from mcp.server import Server
from mcp.shared.exceptions import MCPError

from leaseway.data_plane.kit.clock import current_time
from leaseway.data_plane.kit.files import list_files, read_file
from leaseway.data_plane.kit.tools import KitTool, Refusal
from leaseway.wire.version import PACKAGE_VERSION

__all__ = ["make_server", "toolbox"]

_ANNOTATIONS = types.ToolAnnotations(
    read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False
)


def toolbox(root: Path) -> list[KitTool]:
    """Return the kit's tools for the files below a folder, which must be resolved."""
    return [current_time(), read_file(root), list_files(root)]


def make_server(tools: Sequence[KitTool]) -> Server[Any]:
    """Return the server that offers some tools."""
    by_name = {tool.name: tool for tool in tools}
    validators = {tool.name: jsonschema_rs.validator_for(dict(tool.input_schema)) for tool in tools}
    listing = types.ListToolsResult(
        tools=[_definition(tool) for tool in tools], ttl_ms=0, cache_scope="public"
    )

    async def on_list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return listing

    async def on_call_tool(
        _context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name!r}.")
        arguments = params.arguments or {}
        try:
            _check(validators[tool.name], arguments)
            reply = tool.run(arguments)
        except Refusal as refusal:
            return _result(str(refusal), is_error=True)
        return _result(reply.text, reply.structured)

    return Server(
        "leaseway-kit",
        version=PACKAGE_VERSION,
        title="Leaseway kit",
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
    )


def _definition(tool: KitTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        annotations=_ANNOTATIONS,
    )


def _check(validator: jsonschema_rs.Validator, arguments: Mapping[str, Any]) -> None:
    for error in validator.iter_errors(arguments):
        where = ".".join(str(part) for part in error.instance_path)
        what = f"The argument {where} is wrong" if where else "The arguments are wrong"
        raise Refusal(f"{what}: {error.message}.")


def _result(
    text: str, structured: Mapping[str, Any] | None = None, *, is_error: bool = False
) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=None if structured is None else dict(structured),
        is_error=is_error,
    )
