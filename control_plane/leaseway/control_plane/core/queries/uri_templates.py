"""Which URIs a template stands for (RFC 6570, as far as matching goes).

A simple expression such as `{id}` or `{x,y}` stands for any run without a slash; one with an
operator (`{+path}`, `{#anchor}`, `{?query}` …) for any run. What the variables are is the
server's business; here it only matters whose a URI is.

Templates come from servers and URIs from callers: neither may take long, whatever it is. All places
that a template can have reached in a URI are followed at once, as the bits of one number, so that
what a match costs is the length of the template times that of the URI in machine words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[A-Za-z0-9_.%*:,]+\}")
_MAX_EXPRESSIONS: Final = 32
"""A template with more of them stands for nothing but itself."""

MAX_EFFORT: Final = 4_000_000
"""What one URI may cost, in words of 64 bits that are looked at: some 20 ms of a processor."""

_LOOK: Final = 64
"""What it costs to see that a template does not begin or end like a URI."""

_Part = tuple[bool, str]
"""A run of text, or, where the first is true, an expression by its operator."""


class TooMuchEffort(Exception):
    """A URI has cost as much as one may."""


@dataclass(frozen=True)
class _Template:
    """A template: the text that it begins and ends with, and from its first expression to its last.

    One without expressions has nothing between.
    """

    head: str
    between: tuple[_Part, ...]
    tail: str


class ComparedUri:
    """A URI that is compared with templates, and what that has cost so far.

    Args:
        uri: The URI.
        most: What it may cost.
    """

    def __init__(self, uri: str, most: int = MAX_EFFORT) -> None:
        self._uri = uri
        self._left = most
        self._words = len(uri) // 64 + 1
        self._end = 1 << len(uri)

    def matches(self, template: str) -> bool:
        """Return whether the URI is one that a template stands for, or the template's own text.

        Raises:
            TooMuchEffort: This and all before it cost too much.
        """
        self._spend(_LOOK)
        if template == self._uri:
            return True
        parsed = _parsed(template)
        if not parsed.between:
            return False
        if not (self._uri.startswith(parsed.head) and self._uri.endswith(parsed.tail)):
            return False
        reached = 1 << len(parsed.head)
        for is_expression, text in parsed.between:
            self._spend(self._words)
            if not is_expression:
                reached = self._after_text(reached, text)
            elif text:
                reached = self._after_any(reached)
            else:
                reached = self._after_step(reached)
            if not reached:
                return False
        return bool(reached & self._end >> len(parsed.tail))

    # The places in the URI, from before its first character to after its last, are bits.

    @cached_property
    def _before(self) -> dict[str, int]:
        """The places before each character, by the character."""
        self._spend(len(self._uri) * self._words)
        places: dict[str, int] = {}
        for at, character in enumerate(self._uri):
            places[character] = places.get(character, 0) | 1 << at
        return places

    def _after_any(self, reached: int) -> int:
        """Return where a run can end that begins at one of these places."""
        first = reached & -reached
        return (self._end << 1) - first

    def _after_step(self, reached: int) -> int:
        """Return where a run without a slash can end that begins at one of these places."""
        inside = (self._end - 1) & ~self._before.get("/", 0)
        # Where such a run begins, the sum's carry runs through to the slash or the end.
        return reached | ((inside + (reached & inside)) ^ inside)

    def _after_text(self, reached: int, text: str) -> int:
        """Return where a text can end that begins at one of these places."""
        for character in text:
            self._spend(self._words)
            reached = (reached & self._before.get(character, 0)) << 1
            if not reached:
                break
        return reached

    def _spend(self, words: int) -> None:
        self._left -= words
        if self._left < 0:
            raise TooMuchEffort


@lru_cache(maxsize=20_000)
def _parsed(template: str) -> _Template:
    texts: list[str] = []
    operators: list[str] = []
    at = 0
    for found in _EXPRESSION.finditer(template):
        texts.append(template[at : found.start()])
        operators.append(found[1])
        at = found.end()
    if not 0 < len(operators) <= _MAX_EXPRESSIONS:
        return _Template(template, (), "")
    between: list[_Part] = [(True, operators[0])]
    for text, operator in zip(texts[1:], operators[1:], strict=True):
        between += [(False, text), (True, operator)] if text else [(True, operator)]
    return _Template(texts[0], tuple(between), template[at:])
