"""Matches URIs with URI templates (RFC 6570).

A simple expression such as `{id}` or `{x,y}` matches any text without a slash; one with an operator
(`{+path}`, `{#anchor}`, `{?query}` …) matches any text, and so does `{path*}`, which FastMCP and
MCP-Nest have for several segments. Variables are not extracted.

Servers choose templates and callers choose URIs, so the cost of a match is bounded. All positions
that a template can reach in a URI are tracked at once, as the bits of one integer. The cost is the
template's length times the URI's length in machine words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[A-Za-z0-9_.%*:,]*?([A-Za-z0-9_.%:,]|\*)\}")
_MAX_EXPRESSIONS: Final = 32
"""A template with more expressions matches only its own text."""

MAX_EFFORT: Final = 4_000_000
"""Limit of the cost of one URI in processed words of 64 bits: some 20 ms of a processor."""

_TEMPLATE_COST: Final = 64
"""Cost of comparing a template's beginning and end."""

_Part = tuple[bool, str]
"""(False, a text) or (True, what makes an expression match slashes, if anything does)."""


class TooMuchEffort(Exception):
    """A URI has reached its cost limit."""


@dataclass(frozen=True)
class _Template:
    """A parsed template: the texts around its expressions, and the parts between them.

    `between` is empty for a template without expressions.
    """

    head: str
    between: tuple[_Part, ...]
    tail: str


class ComparedUri:
    """A URI that is compared with templates, and its remaining budget."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._budget = MAX_EFFORT
        self._words = len(uri) // 64 + 1
        self._end = 1 << len(uri)

    def matches(self, template: str) -> bool:
        """Return whether the URI matches a template or equals its text.

        Raises:
            TooMuchEffort: All comparisons together exceed the limit.
        """
        self._spend(_TEMPLATE_COST)
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

    # Bits are positions in the URI, from before its first character to after its last.

    @cached_property
    def _before(self) -> dict[str, int]:
        """The positions before each occurrence of a character, by character."""
        self._spend(len(self._uri) * self._words)
        places: dict[str, int] = {}
        for at, character in enumerate(self._uri):
            places[character] = places.get(character, 0) | 1 << at
        return places

    def _after_any(self, reached: int) -> int:
        """Return where any text that starts at these positions can end."""
        first = reached & -reached
        return (self._end << 1) - first

    def _after_step(self, reached: int) -> int:
        """Return where a text without a slash that starts at these positions can end."""
        inside = (self._end - 1) & ~self._before.get("/", 0)
        # The sum's carry runs from each start to the next slash or the end.
        return reached | ((inside + (reached & inside)) ^ inside)

    def _after_text(self, reached: int, text: str) -> int:
        """Return where a given text that starts at these positions ends."""
        for character in text:
            self._spend(self._words)
            reached = (reached & self._before.get(character, 0)) << 1
            if not reached:
                break
        return reached

    def _spend(self, words: int) -> None:
        self._budget -= words
        if self._budget < 0:
            raise TooMuchEffort


@lru_cache(maxsize=20_000)
def _parsed(template: str) -> _Template:
    texts: list[str] = []
    operators: list[str] = []
    at = 0
    for found in _EXPRESSION.finditer(template):
        texts.append(template[at : found.start()])
        operators.append(found[1] or ("*" if found[2] == "*" else ""))
        at = found.end()
    if not 0 < len(operators) <= _MAX_EXPRESSIONS:
        return _Template(template, (), "")
    between: list[_Part] = [(True, operators[0])]
    for text, operator in zip(texts[1:], operators[1:], strict=True):
        between += [(False, text), (True, operator)] if text else [(True, operator)]
    return _Template(texts[0], tuple(between), template[at:])
