"""The questions that a server asks its caller during a call, and their answers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.core.tools.policy import ToolPolicy, why_answer_is_denied
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASK, MAX_ASKS, MAX_NESTING
from leaseway.wire.messages.mcp import INTERNAL_ERROR, INVALID_PARAMS
from leaseway.wire.messages.portable_json import is_deep

_logger = logging.getLogger(__name__)
_ask_ids: Final = itertools.count(1)
"""Ids of questions are unique in the worker, so also on every stream."""

_MAX_REFUSAL: Final = 1024
_NO_ANSWER: Final = "The caller has no answer."


class OpenAsks:
    """The unanswered questions of one call, by id.

    Args:
        on_withdrawn: Called with the id of a question that the server withdraws.
    """

    __slots__ = ("_on_withdrawn", "_open")

    def __init__(self, on_withdrawn: Callable[[int], None]) -> None:
        self._on_withdrawn = on_withdrawn
        self._open: dict[int, Ask] = {}

    def items(self) -> list[tuple[int, Ask]]:
        """Return ids and questions, oldest first."""
        return list(self._open.items())

    def add(self, ask: Ask) -> int:
        """Add a question and return its id, or refuse it and return 0."""
        if len(self._open) >= MAX_ASKS:
            text = f"{MAX_ASKS} questions of this call are open already; wait for their answers."
            ask.refuse(INTERNAL_ERROR, text)
            return 0
        if len(ask.params) > MAX_ASK:
            text = f"The params have {len(ask.params)} bytes; the limit is {MAX_ASK}."
            ask.refuse(INVALID_PARAMS, text)
            return 0
        ask_id = next(_ask_ids)
        self._open[ask_id] = ask
        ask.withdrawn.connect(partial(self._withdraw, ask_id))
        return ask_id

    def _withdraw(self, ask_id: int) -> None:
        if self._open.pop(ask_id, None) is not None:
            self._on_withdrawn(ask_id)

    def answer(self, answer: execution_pb2.Answer, policy: ToolPolicy | None) -> str:
        """Send the server the caller's answer; drop it if its question is not open.

        Returns:
            Why the permissions of the policy deny the answer, which is then refused; or empty.
        """
        ask = self._open.pop(answer.ask_id, None)
        judges = policy if policy is not None and policy.restrictions else None
        if ask is None:
            _logger.debug("An answer to question %d was dropped: it is not open.", answer.ask_id)
        elif answer.HasField("error") or answer.rpc_error:
            self._refuse_by(ask, answer, judges)
        else:
            try:
                parsed = _parse_answer(answer.result)
            except ValueError as error:
                ask.refuse(INTERNAL_ERROR, f"The caller's answer is invalid: {error}")
                return ""
            if judges is None:
                ask.answer(_on_one_line(answer.result))
                return ""
            why = why_answer_is_denied(judges, parsed)
            if why:
                ask.refuse(INTERNAL_ERROR, "The caller's answer is not permitted.")
                return why
            ask.answer(
                msgspec.json.encode(parsed)
            )  # of a name that is there twice, what was judged
        return ""

    def _refuse_by(self, ask: Ask, answer: execution_pb2.Answer, judges: ToolPolicy | None) -> None:
        """Send the server the error of a caller, unless its permissions deny what that says."""
        try:
            error = _parse_refusal(answer)
        except ValueError as problem:
            ask.refuse(INTERNAL_ERROR, f"The caller's error is invalid: {problem}")
            return
        data = bytes(error.data)
        if judges is not None:
            parsed = msgspec.json.decode(data) if data else None
            if why_answer_is_denied(judges, {"message": error.message, "data": parsed}):
                ask.refuse(INTERNAL_ERROR, _NO_ANSWER)
                return
            data = data and msgspec.json.encode(parsed)  # what was judged, as above
        ask.refuse(error.code, error.message, _on_one_line(data))

    def refuse(self, ask_id: int, reason: str) -> None:
        """Refuse one question, with the reason for the server."""
        ask = self._open.pop(ask_id, None)
        if ask is not None:
            ask.refuse(INTERNAL_ERROR, reason)

    def refuse_all(self) -> None:
        """End all open questions because the call has ended."""
        asks, self._open = self._open, {}
        for ask in asks.values():
            ask.end_with_call()


class _RpcError(msgspec.Struct):
    code: int
    message: str
    data: msgspec.Raw = msgspec.Raw(b"")


_decode_error: Final = msgspec.json.Decoder(_RpcError).decode


def _parse_refusal(answer: execution_pb2.Answer) -> _RpcError:
    """Return the error with which a server's question is answered: that of an MCP client, or ours.

    Raises:
        ValueError: The client's error is none, or too large, and there is no text for it.
    """
    text = answer.error.message[:_MAX_REFUSAL]
    if answer.rpc_error:
        try:
            _parse_answer(answer.rpc_error)
            return _decode_error(answer.rpc_error)
        except ValueError:  # no error of JSON-RPC, such as one without a message
            if not text:
                raise
    return _RpcError(INTERNAL_ERROR, text or _NO_ANSWER)


def _on_one_line(value: bytes) -> bytes:
    """Return JSON without line breaks: they are only whitespace there, but end a pipe's message."""
    return value.replace(b"\n", b" ").replace(b"\r", b" ").strip()


def _parse_answer(result: bytes) -> dict[str, Any]:
    """Parse a caller's answer.

    Raises:
        ValueError: It is no JSON object in UTF-8, or too large.
    """
    if len(result) > MAX_ASK:
        raise ValueError(f"it has {len(result)} bytes; the limit is {MAX_ASK}")
    try:
        parsed: Any = msgspec.json.decode(result)
        result.decode()
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object in UTF-8")
    if is_deep(result, parsed):
        raise ValueError(f"it is nested more than {MAX_NESTING} levels deep")
    return parsed
