"""Errors without the id of a request, which JSON-RPC has for one that could not be read. Pure.

Many servers also send them after a notification or a response, which nothing may answer. Such an
error must end no request.
"""

from __future__ import annotations

from mcp_types import PARSE_ERROR

from leaseway.data_plane.mcp.protocol.messages.codec import JsonRpcMessage
from leaseway.data_plane.mcp.protocol.messages.pending import read_error


class SilentMessages:
    """The messages since our newest request that the server must not answer."""

    def __init__(self) -> None:
        self._count = 0
        self._newest_request = 0

    def add(self, newest_request: int) -> None:
        """Record a sent notification or response; request ids only grow."""
        self._count = self._count + 1 if newest_request == self._newest_request else 1
        self._newest_request = newest_request

    def explain(self, error: JsonRpcMessage, request: object) -> bool:
        """Return whether an error without an id may answer one of them; each explains one error.

        `request` is the id of the only request in flight. If an earlier one was sent after them and
        is answered, the server has long passed them. That a message is no JSON is said of requests.
        """
        has_passed = isinstance(request, int) and request > self._newest_request + 1
        if not self._count or has_passed or read_error(error.error).code == PARSE_ERROR:
            return False
        self._count -= 1
        return True
