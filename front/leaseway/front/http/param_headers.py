"""Headers that repeat arguments of a tool (`x-mcp-header`), checked against the body of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.inbound import InboundLadderRejection, validate_mcp_param_headers

from leaseway.front.envelope import RequestMessage
from leaseway.front.lists.definitions import has_header_params
from leaseway.front.messages import decode
from leaseway.front.methods import Methods
from leaseway.sdk import LeasewayError

_MAX_CACHED: Final = 10_000


class ParamHeaders:
    """Checks the calls of one caller.

    Args:
        methods: Knows its tools.
    """

    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self._header_tools: dict[int, bool] = {}

    async def check(
        self, headers: Mapping[str, str], scope: str, name: str | None, message: RequestMessage
    ) -> InboundLadderRejection | None:
        """Return an error if headers do not match the arguments that the tool `name` maps to them.

        Args:
            headers: The headers of the call.
            scope: The server that the client sees; empty means all.
            name: The name in its params, or None.
            message: The call.
        """
        if name is None:
            return None
        try:
            tool = await self._methods.tool(name, scope)
        except LeasewayError:
            return None  # the call reports the error
        if tool is None or not self._has_header_params(tool):
            return None
        arguments = decode(message.params).get("arguments")
        if not isinstance(arguments or {}, dict):
            return None
        return validate_mcp_param_headers(tool.input_schema, arguments or {}, headers)

    def _has_header_params(self, tool: Any) -> bool:
        cached = self._header_tools.get(id(tool))
        if cached is None:
            if len(self._header_tools) > _MAX_CACHED:
                self._header_tools.clear()
            cached = self._header_tools[id(tool)] = has_header_params(tool)
        return cached
