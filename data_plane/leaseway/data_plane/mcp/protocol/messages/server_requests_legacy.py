"""Questions of legacy servers: JSON-RPC requests that they send during a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.mcp.protocol.messages.codec import (
    Envelope,
    encode_answer,
    encode_error,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.pending import ToolCall
from leaseway.data_plane.mcp.protocol.messages.server_requests import nobody_answers, params_of

SendAnswer = Callable[[bytes, ToolCall | None], None]
"""Sends a line to the server, which is the answer to a question of a call, if it is known which."""

_logger = logging.getLogger(__name__)
_WHOSE: Final = (
    "Several callers share this connection, and a request does not say which call it belongs to: "
    "run the server with truely-stateless: false, or over streamable HTTP."
)
_NO_CALL: Final = "No call is under way, and callers are asked only during their calls."


def asked_of(calls: Collection[ToolCall], method: str, *, shared: bool = False) -> ToolCall | str:
    """Return the call that a question belongs to, or why there is none.

    Args:
        calls: Those that it may belong to, the oldest first.
        method: What it asks.
        shared: Whether they are of different callers, so that it can't be told whose it is.
    """
    if not calls:
        return _NO_CALL
    if shared:
        return _WHOSE
    answering = (call for call in calls if method in call.request.answers)
    return next(answering, None) or nobody_answers(method)


class LegacyAsks:
    """The open questions of one connection.

    Args:
        send: Sends the answers.
    """

    def __init__(self, send: SendAnswer) -> None:
        self._send = send
        self._open: dict[object, Ask] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, message: Envelope, asked: ToolCall | str, near: ToolCall | None = None) -> None:
        """Pass a question on to the call that it belongs to.

        Args:
            message: The request.
            asked: The call, or why there is none that it can be passed on to.
            near: The call that it came with, if that is certain.
        """
        key = request_key(message.id)
        if isinstance(asked, str):
            self._send(encode_error(message.id, METHOD_NOT_FOUND, asked), near)
        elif key in self._open:
            # Sent again over a stream that was continued, say; it gets one answer.
            _logger.debug("A question came again while it was open.")
        elif asked.request.on_ask is not None:
            params = params_of(message.params)
            if params is None:
                text = "The params are no JSON object in UTF-8."
                self._send(encode_error(message.id, INVALID_PARAMS, text), asked)
                return
            ask = self._open[key] = self._made(message, key, params, asked)
            asked.request.on_ask(ask)

    def _made(self, message: Envelope, key: object, params: bytes, call: ToolCall) -> Ask:
        def answer(result: bytes) -> None:
            del self._open[key]
            self._send(encode_answer(message.id, result), call)

        def refuse(code: int, text: str) -> None:
            del self._open[key]
            self._send(encode_error(message.id, code, text), call)

        return Ask(message.method or "", params, answer, refuse)

    def withdraw(self, request_id: object) -> None:
        """Forget a question that the server does not want answered any more."""
        if isinstance(request_id, int | str | float):
            ask = self._open.pop(request_key(request_id), None)
            if ask is not None:
                ask.withdraw()
