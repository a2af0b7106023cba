"""MCP definitions of HTTP tools: name, description, input schema, annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from leaseway.spec.kinds.http_tools import (
    DESTRUCTIVE,
    IDEMPOTENT,
    SAFE_METHODS,
    HttpParameter,
    HttpTool,
)

_BYTES: Final = "Base64, or the reference of an artifact (artifacts/mcp/...)."
_FILE: Final = (
    "Base64, a data: URL with the name of the file (data:text/csv;name=a.csv;base64,...), or the"
    " reference of an artifact (artifacts/mcp/...)."
)
_SAID: Final = ("Base64.", "(base64)")
"""What the descriptions of a document's bytes end with already."""
_OF_FILES: Final = ("multipart", "binary")
"""Bodies in which bytes are files; elsewhere an API decodes them itself."""


def definitions(tools: Iterable[HttpTool]) -> dict[str, bytes]:
    return {tool.name: msgspec.json.encode(definition(tool)) for tool in tools}


def definition(tool: HttpTool) -> dict[str, Any]:
    listed: dict[str, Any] = {"name": tool.name}
    if tool.title:
        listed["title"] = tool.title
    if tool.description:
        listed["description"] = tool.description
    listed["inputSchema"] = input_schema(tool)
    listed["annotations"] = _annotations(tool)
    return listed


def input_schema(tool: HttpTool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments: an object of all its parameters."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {parameter.name: _schema(parameter, tool) for parameter in tool.parameters},
        "additionalProperties": False,
    }
    required = [parameter.name for parameter in tool.parameters if parameter.required]
    if required:
        schema["required"] = required
    return schema


def _schema(parameter: HttpParameter, tool: HttpTool) -> Mapping[str, Any]:
    """Return a parameter's schema; for bytes, with a note on their encoding."""
    schema = parameter.parse()
    if not parameter.is_binary:
        return schema
    is_file = parameter.position == "body" and tool.body in _OF_FILES
    description = str(schema.get("description", ""))
    for said in _SAID:
        description = description.removesuffix(said)
    about = _FILE if is_file else _BYTES
    return {**schema, "description": f"{description.strip()} {about}".strip()}


def _annotations(tool: HttpTool) -> dict[str, bool]:
    """Return the hints for the method, with the tool's own overrides."""
    reads = tool.method in SAFE_METHODS
    hints = {"readOnlyHint": reads, "openWorldHint": True}
    if not reads:
        hints["destructiveHint"] = tool.method in DESTRUCTIVE
        hints["idempotentHint"] = tool.method in IDEMPOTENT
    return {**hints, **dict(tool.annotations)}
