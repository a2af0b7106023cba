"""Limits of one rendering, and the error when it exceeds one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from leaseway.wire.bounds import MIB

MAX_TEMPLATE: Final = 64 * 1024
"""Maximum length of a template in characters."""
MAX_OUTPUT: Final = 4 * MIB
"""Limits, in characters, of the output of a rendering and of the results of its functions."""
MAX_STEPS: Final = 100_000
"""Limit of loop iterations and calls of functions and templates in one rendering."""
MAX_SECONDS: Final = 2.0
"""Limit of the processor time of one rendering."""
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


class OutOfFuel(TemplateFailure):
    """A rendering that took too many steps, or too long."""


class Budget:
    """The remaining steps, seconds and characters of one rendering.

    A step may search megabytes, so that the time counts too, at each step.

    Args:
        steps: The limit of steps.
        seconds: The limit of the thread's processor time.
    """

    __slots__ = ("_deadline", "_depth", "_made", "_steps", "_written")

    def __init__(self, steps: int = MAX_STEPS, seconds: float = MAX_SECONDS) -> None:
        self._steps = steps
        self._deadline = time.thread_time() + seconds
        self._written = MAX_OUTPUT
        self._made = MAX_OUTPUT
        self._depth = 0

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise OutOfFuel(f"it takes more than {MAX_STEPS:,} steps")
        if time.thread_time() > self._deadline:
            raise OutOfFuel(f"it takes more than {MAX_SECONDS:g} s")

    def write(self, text: str) -> str:
        """Count an output, and return it."""
        if time.thread_time() > self._deadline:
            raise OutOfFuel(f"it takes more than {MAX_SECONDS:g} s")
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
