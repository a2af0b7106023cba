"""Headers of modern HTTP calls with their arguments, as the tools' schemas require. Pure."""

from __future__ import annotations

import logging

import msgspec

from leaseway.data_plane.core.calls.call import ToolRequest
from leaseway.data_plane.mcp.protocol.logged import LoggedOnce
from leaseway.wire.clients.mcp_headers import (
    METHOD_HEADER,
    NAME_HEADER,
    NAME_MEMBERS,
    ArgumentHeader,
    Path,
    argument_headers,
    encode_value,
    headers_of,
)

_logger = logging.getLogger(__name__)


class ParamHeaders:
    """The headers that the listed tools require."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._demanded: dict[str, dict[Path, ArgumentHeader]] = {}

    def accept(self, tools: dict[str, bytes], logged: LoggedOnce) -> dict[str, bytes]:
        """Register arguments that are sent in headers; skip tools with invalid ones.

        Args:
            tools: The definitions that were listed, by name.
            logged: What was logged of the server.
        """
        demanded = {}
        for name, definition in tools.items():
            try:
                demanded[name] = argument_headers(_input_schema(definition))
            except ValueError as error:
                if logged.is_first(f"tool {name}: {error}"):
                    text = "The tool %s of the server %s is skipped: %s"
                    _logger.warning(text, name, self._server, error)
        self._demanded = {name: found for name, found in demanded.items() if found}
        return {name: tools[name] for name in demanded}

    def of(self, request: ToolRequest) -> dict[str, str]:
        """Return the headers of one call.

        Raises:
            ValueError: Its arguments are not JSON.
        """
        if request.method:
            return _plain_headers(request)
        headers = {
            METHOD_HEADER: "tools/call",
            NAME_HEADER: encode_value(request.name),
        }
        demanded = self._demanded.get(request.name)
        if demanded:
            arguments = msgspec.json.decode(request.arguments or b"{}")
            headers.update(headers_of(demanded, arguments))
        return headers


def _plain_headers(request: ToolRequest) -> dict[str, str]:
    headers = {METHOD_HEADER: request.method}
    if request.method in NAME_MEMBERS:
        headers[NAME_HEADER] = encode_value(request.name)
    return headers


def _input_schema(definition: bytes) -> object:
    return msgspec.json.decode(definition).get("inputSchema")
