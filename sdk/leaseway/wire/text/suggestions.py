"""Suggests known names that are similar to an unknown one.

There may be tens of thousands of names, and comparing two takes time proportional to the product of
their lengths. The work is bounded, so that one caller's typing error does not delay others.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final

from leaseway.wire.names import nearest

_MAX_LENGTH: Final = 300
"""Limit of characters of a compared name."""

_MAX_PAIRS: Final = 250_000
"""Limit of compared pairs of characters: all names of 50 small servers, or 60 long names."""


def alike(name: str, known: Collection[str]) -> list[str]:
    """Return the known names most similar to an unknown one, nearest first.

    If there are too many, only those with the most similar beginnings or endings are compared.
    """
    if not 0 < len(name) <= _MAX_LENGTH:
        return []
    budget = _MAX_PAIRS // len(name)
    if sum(map(len, known)) <= budget:
        return nearest(name, known)
    chosen: dict[str, None] = {}
    for candidate in _candidates(name, known):
        if candidate in chosen or len(candidate) > _MAX_LENGTH:
            continue
        budget -= len(candidate)
        if budget < 0:
            break
        chosen[candidate] = None
    return nearest(name, chosen)


def _candidates(name: str, known: Collection[str]) -> Iterator[str]:
    """Yield names with the most similar beginnings and endings, alternately."""
    endings = _outward(name[::-1], sorted(candidate[::-1] for candidate in known))
    beginnings = _outward(name, sorted(known))
    return chain.from_iterable(
        (beginning, other[::-1]) for beginning, other in zip(beginnings, endings, strict=True)
    )


def _outward(name: str, ordered: Sequence[str]) -> Iterator[str]:
    """Yield sorted names, starting at a name's position and moving to both ends."""
    below = bisect(ordered, name) - 1
    above = below + 1
    while below >= 0 or above < len(ordered):
        if below >= 0:
            yield ordered[below]
            below -= 1
        if above < len(ordered):
            yield ordered[above]
            above += 1
