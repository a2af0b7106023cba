"""How much one rendering may do, and how it is told that it did too much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from leaseway.wire.bounds import MIB

MAX_TEMPLATE: Final = 64 * 1024
"""Characters of a template."""
MAX_OUTPUT: Final = 4 * MIB
"""Characters that a rendering may write, and that its functions may make, each."""
MAX_STEPS: Final = 100_000
"""Rounds of loops, calls of functions and of templates in one rendering."""
MAX_CALLS_DEEP: Final = 32
"""How deep templates may call one another."""


class TemplateFailure(Exception):
    """A rendering that failed; the message is why, without a full stop.

    Attributes:
        line: The template's line where that is known, or 0.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class Budget:
    """One rendering's use of its bounds."""

    __slots__ = ("_deep", "_made", "_steps", "_written")

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._written = MAX_OUTPUT
        self._made = MAX_OUTPUT
        self._deep = 0

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise TemplateFailure(f"it takes more than {MAX_STEPS:,} steps")

    def write(self, text: str) -> str:
        """Count what is written, and return it."""
        self._written -= len(text)
        if self._written < 0:
            raise TemplateFailure(f"it writes more than {MAX_OUTPUT:,} characters")
        return text

    def make(self, size: int) -> None:
        self._made -= size
        if self._made < 0:
            raise TemplateFailure(f"its functions make more than {MAX_OUTPUT:,} characters")

    def rounds(self, items: Iterable[Any], size: int = 0) -> Iterator[Any]:
        """Return a loop's items, counting each round and the text that it writes."""
        for item in items:
            self.step()
            self._written -= size
            if self._written < 0:
                raise TemplateFailure(f"it writes more than {MAX_OUTPUT:,} characters")
            yield item

    def enter(self, size: int = 0) -> str:
        """Count the call of a template, and the text that it writes itself."""
        self.step()
        self._deep += 1
        if self._deep > MAX_CALLS_DEEP:
            raise TemplateFailure(f"its templates call one another {MAX_CALLS_DEEP} deep")
        self._written -= size
        if self._written < 0:
            raise TemplateFailure(f"it writes more than {MAX_OUTPUT:,} characters")
        return ""

    def leave(self) -> str:
        """Count the end of a template that was called."""
        self._deep -= 1
        return ""
