"""What the server of one call asks its caller, until it is answered or the call ends."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from leaseway.data_plane.core.calls import Ask
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASK, MAX_ASKS

__all__ = ["OpenAsks", "parse_answer"]

_logger = logging.getLogger(__name__)
_numbers: Final = itertools.count(1)
"""A question's id is unique in the worker, and so on every stream."""

_MAX_TEXT: Final = 1024


class OpenAsks:
    """The open questions of one call, by their ids.

    Args:
        on_withdrawn: Called with the id of a question that the server takes back.

    """

    __slots__ = ("_on_withdrawn", "_open")

    def __init__(self, on_withdrawn: Callable[[int], None]) -> None:
        self._on_withdrawn = on_withdrawn
        self._open: dict[int, Ask] = {}

    def __len__(self) -> int:
        return len(self._open)

    def items(self) -> list[tuple[int, Ask]]:
        """Return them, the oldest first."""
        return list(self._open.items())

    def add(self, ask: Ask) -> int:
        """Take a question; return its id, or 0 where it is refused at once."""
        if len(self._open) >= MAX_ASKS:
            text = f"{MAX_ASKS} questions of this call are open already; wait for their answers."
            ask.refuse(INTERNAL_ERROR, text)
            return 0
        if len(ask.params) > MAX_ASK:
            text = f"The params have {len(ask.params)} bytes; a question may have {MAX_ASK}."
            ask.refuse(INVALID_PARAMS, text)
            return 0
        ask_id = next(_numbers)
        self._open[ask_id] = ask
        ask.on_withdrawn = lambda: self._withdraw(ask_id)
        return ask_id

    def _withdraw(self, ask_id: int) -> None:
        if self._open.pop(ask_id, None) is not None:
            self._on_withdrawn(ask_id)

    def settle(self, answer: execution_pb2.Answer) -> None:
        """Give the server its answer; one that nobody waits for any more is dropped."""
        ask = self._open.pop(answer.ask_id, None)
        if ask is None:
            _logger.debug("An answer came to question %d, which is not open.", answer.ask_id)
        elif answer.HasField("error"):
            why = answer.error.message[:_MAX_TEXT] or "The caller has no answer and says not why."
            ask.refuse(INTERNAL_ERROR, why)
        else:
            try:
                ask.answer(parse_answer(answer.result))
            except ValueError as error:
                ask.refuse(INTERNAL_ERROR, f"The caller's answer can't be passed on: {error}")

    def refuse(self, ask_id: int, why: str) -> None:
        """Tell the server that one of them is not answered."""
        ask = self._open.pop(ask_id, None)
        if ask is not None:
            ask.refuse(INTERNAL_ERROR, why)

    def end(self) -> None:
        """Tell the server that none is answered any more: the call has ended."""
        asks, self._open = self._open, {}
        for ask in asks.values():
            ask.refuse(INTERNAL_ERROR, "The call that asked this has ended.")


def parse_answer(result: bytes) -> bytes:
    """Return an answer as it goes to a server: on one line.

    Raises:
        ValueError: It is no JSON object in UTF-8, or too large; the text says which.
    """
    if len(result) > MAX_ASK:
        raise ValueError(f"it has {len(result)} bytes, and {MAX_ASK} is the most")
    try:
        parsed: Any = msgspec.json.decode(result)
        result.decode()
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object in UTF-8")
    # In valid JSON a line break is only whitespace, and on a pipe it would end the message.
    return result.replace(b"\n", b" ").replace(b"\r", b" ").strip()
