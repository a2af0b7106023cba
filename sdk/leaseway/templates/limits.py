"""Limits of one rendering, and the error when it exceeds one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from leaseway.wire.bounds import MIB

MAX_TEMPLATE: Final = 64 * 1024
"""Maximum length of a template in characters."""
MAX_OUTPUT: Final = 4 * MIB
"""Limits, in characters, of the output of a rendering and of the results of its functions."""
MAX_STEPS: Final = 100_000
"""Limit of loop iterations and calls of functions and templates in one rendering."""
MAX_CALL_DEPTH: Final = 32
"""Maximum depth of template calls."""


class TemplateFailure(Exception):
    """A failed rendering; the message is the reason, without a full stop.

    Attributes:
        line: The line of the template, or 0 if unknown.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class Budget:
    """The remaining steps and characters of one rendering."""

    __slots__ = ("_depth", "_made", "_steps", "_written")

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._written = MAX_OUTPUT
        self._made = MAX_OUTPUT
        self._depth = 0

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise TemplateFailure(f"it takes more than {MAX_STEPS:,} steps")

    def write(self, text: str) -> str:
        """Count an output, and return it."""
        self._count(len(text))
        return text

    def _count(self, size: int) -> None:
        self._written -= size
        if self._written < 0:
            raise TemplateFailure(f"it writes more than {MAX_OUTPUT:,} characters")

    def make(self, size: int) -> None:
        self._made -= size
        if self._made < 0:
            raise TemplateFailure(f"its functions return more than {MAX_OUTPUT:,} characters")

    def iterate(self, items: Iterable[Any], size: int = 0) -> Iterator[Any]:
        """Yield a loop's items; count each iteration and its literal text."""
        for item in items:
            self.step()
            self._count(size)
            yield item

    def enter(self, size: int = 0) -> str:
        """Count the call of a template and its literal text."""
        self.step()
        self._depth += 1
        if self._depth > MAX_CALL_DEPTH:
            raise TemplateFailure(f"its templates call each other more than {MAX_CALL_DEPTH} deep")
        self._count(size)
        return ""

    def leave(self) -> str:
        """Count the return from a called template."""
        self._depth -= 1
        return ""
