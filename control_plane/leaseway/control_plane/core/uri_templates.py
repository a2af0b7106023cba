"""Which URIs a template stands for (RFC 6570, as far as matching goes).

A simple expression such as `{id}` or `{x,y}` stands for any run without a slash; one with an
operator (`{+path}`, `{#anchor}`, `{?query}` …) for any run. What the variables are is the
server's business; here it only matters whose a URI is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["matches_template"]

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[A-Za-z0-9_.%*:,]+\}")
_MAX_EXPRESSIONS: Final = 32
"""A template with more of them stands for nothing but itself; it could take too long to match."""

_Part = tuple[bool, str]
"""A run of text, or, where the first is true, an expression by its operator."""


def matches_template(template: str, uri: str) -> bool:
    """Say whether a URI is one that a template stands for; the template's own text is, too."""
    if template == uri:
        return True
    parts = _parts(template)
    reached = {0}
    for is_expression, text in parts:
        if not is_expression:
            reached = {at + len(text) for at in reached if uri.startswith(text, at)}
        elif text:
            reached = set(range(min(reached), len(uri) + 1))
        else:
            reached = _without_slash(reached, uri)
        if not reached:
            return False
    return len(uri) in reached


def _without_slash(reached: set[int], uri: str) -> set[int]:
    """Return where runs without a slash can end that begin at one of these places."""
    ends: set[int] = set()
    for at in sorted(reached):
        if at in ends:
            continue  # one that began before it reaches as far
        slash = uri.find("/", at)
        ends.update(range(at, (len(uri) if slash < 0 else slash) + 1))
    return ends


@lru_cache(maxsize=20_000)
def _parts(template: str) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    at = 0
    for found in _EXPRESSION.finditer(template):
        parts.append((False, template[at : found.start()]))
        parts.append((True, found[1]))
        at = found.end()
    parts.append((False, template[at:]))
    if len(parts) > 2 * _MAX_EXPRESSIONS + 1:
        return ((False, template),)
    return tuple(part for part in parts if part != (False, ""))
