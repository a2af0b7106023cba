"""Headers of modern HTTP calls with their arguments, as the tools' schemas require. Pure."""

from __future__ import annotations

import logging

import msgspec
from mcp.shared.inbound import (
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from leaseway.data_plane.core.calls.call import ToolRequest

_logger = logging.getLogger(__name__)


class ParamHeaders:
    """The headers that the listed tools require."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._paths: dict[str, dict[tuple[str, ...], str]] = {}

    def accept(self, tools: dict[str, bytes]) -> dict[str, bytes]:
        """Register arguments that are sent in headers; skip tools with invalid ones."""
        schemas = {name: _input_schema(definition) for name, definition in tools.items()}
        invalid = {name: find_invalid_x_mcp_header(schema) for name, schema in schemas.items()}
        for name, cause in invalid.items():
            if cause is not None:
                _logger.warning(
                    "The tool %s of the server %s is skipped: %s", name, self._server, cause
                )
        kept = {name: tools[name] for name, cause in invalid.items() if cause is None}
        paths = {name: x_mcp_header_map(schemas[name]) for name in kept}
        self._paths = {name: found for name, found in paths.items() if found}
        return kept

    def of(self, request: ToolRequest) -> dict[str, str]:
        """Return the headers of one call.

        Raises:
            ValueError: Its arguments are not JSON.
        """
        if request.method:
            return _plain_headers(request)
        headers = {
            "mcp-method": "tools/call",
            "mcp-name": encode_header_value(request.name),
        }
        paths = self._paths.get(request.name)
        if paths:
            arguments = msgspec.json.decode(request.arguments or b"{}")
            headers.update(mcp_param_headers(paths, arguments))
        return headers


def _plain_headers(request: ToolRequest) -> dict[str, str]:
    headers = {"mcp-method": request.method}
    if request.method in NAME_BEARING_METHODS:
        headers["mcp-name"] = encode_header_value(request.name)
    return headers


def _input_schema(definition: bytes) -> object:
    return msgspec.json.decode(definition).get("inputSchema")
