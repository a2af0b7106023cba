"""Names that a caller may have meant by an unknown one, found without comparing it with all.

There may be tens of thousands, callers name what they like, and comparing two names takes as long
as both are: what is looked at is bounded, so that nobody waits for another's typing error.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final

from leaseway.wire.names import nearest

_LONGEST: Final = 300
"""Characters of a name that is compared at all."""

_PAIRS: Final = 250_000
"""Pairs of characters that are compared: all names of 50 small servers, or 60 long ones."""


def alike(name: str, known: Collection[str]) -> list[str]:
    """Return the known names most like an unknown one, the nearest first.

    All are compared where there are few; of many those that begin or end most like it.
    """
    if not 0 < len(name) <= _LONGEST:
        return []
    left = _PAIRS // len(name)
    if sum(map(len, known)) <= left:
        return nearest(name, known)
    chosen: dict[str, None] = {}
    for one in _candidates(name, known):
        if one in chosen or len(one) > _LONGEST:
            continue
        left -= len(one)
        if left < 0:
            break
        chosen[one] = None
    return nearest(name, chosen)


def _candidates(name: str, known: Collection[str]) -> Iterator[str]:
    """Yield names in turns: the next that begins most like it, the next that ends so."""
    endings = _outward(name[::-1], sorted(one[::-1] for one in known))
    beginnings = _outward(name, sorted(known))
    return chain.from_iterable(
        (one, other[::-1]) for one, other in zip(beginnings, endings, strict=True)
    )


def _outward(name: str, ordered: Sequence[str]) -> Iterator[str]:
    """Yield what is around a name's place in an order, from there to both ends."""
    below = bisect(ordered, name) - 1
    above = below + 1
    while below >= 0 or above < len(ordered):
        if below >= 0:
            yield ordered[below]
            below -= 1
        if above < len(ordered):
            yield ordered[above]
            above += 1
