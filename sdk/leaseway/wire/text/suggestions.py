"""Suggests known names that are similar to an unknown one.

There may be tens of thousands of names, and comparing two takes time proportional to the product of
their lengths. The work is bounded, so that one caller's typing error does not delay others.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterator, Sequence
from heapq import nsmallest
from itertools import chain
from typing import Final

from leaseway.wire.names import nearest

_MAX_LENGTH: Final = 300
"""Limit of characters of a compared name."""

_MOST: Final = 3
_SEPARATORS: Final = "_-.:/"

_MAX_PAIRS: Final = 250_000
"""Limit of compared pairs of characters: all names of 50 small servers, or 60 long names."""


def alike(name: str, known: Collection[str]) -> list[str]:
    """Return the known names most similar to an unknown one, nearest first, at most three.

    Before all others come those that differ by a prefix only, as a model has read them elsewhere.
    If there are too many, only those with the most similar beginnings or endings are compared.
    """
    if not 0 < len(name) <= _MAX_LENGTH:
        return []
    prefixes = {
        other: abs(len(other) - len(name))
        for other in known
        if _is_prefixed(other, name) or _is_prefixed(name, other)
    }
    by_prefix = nsmallest(_MOST, prefixes, key=prefixes.__getitem__)
    return list(dict.fromkeys((*by_prefix, *_similar(name, known))))[:_MOST]


def _is_prefixed(name: str, end: str) -> bool:
    """Return whether a name is another one after a prefix, such as `web_search` after `search`."""
    return len(name) > len(end) > 0 and name.endswith(end) and name[-len(end) - 1] in _SEPARATORS


def _similar(name: str, known: Collection[str]) -> list[str]:
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
