"""Typed signals: a part announces an event, and any number of later parts handle it.

Parts are built bottom-up. The lower one is complete without its observers, and an upper one
connects itself when it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVarTuple

_Event = TypeVarTuple("_Event")


class Signal(Generic[*_Event]):
    """Calls its handlers with each event, in the order in which they were connected."""

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        self._handlers: tuple[Callable[[*_Event], object], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything handles the events."""
        return bool(self._handlers)

    def connect(self, handler: Callable[[*_Event], object]) -> None:
        """Call a handler with each event from now on."""
        self._handlers = (*self._handlers, handler)

    def emit(self, *event: *_Event) -> None:
        for handle in self._handlers:
            handle(*event)
