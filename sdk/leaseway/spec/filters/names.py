"""Filters of names by patterns (design.md#configuration).

The control plane filters listed names; workers filter the URIs of requests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from leaseway.spec.keys import Key, OwnReader, keys_of, setting

_OTHER: Final = re.compile("[^a-zA-Z0-9_-]")
_TWO_UNITS: Final = re.compile("[\U00010000-\U0010ffff]")
"""Characters that are two in UTF-16, such as emoji, and so for JavaScript."""


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern; `*` matches any run of characters."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if len(name) < len(first) + len(last):
        return False
    if not (name.startswith(first) and name.endswith(last)):
        return False
    # Matching each middle part at its first occurrence is sufficient, and linear for any pattern.
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def breadth(pattern: str) -> tuple[int, int, str]:
    """Return what sorts patterns so that one comes before those that match all that it does.

    The one with the most characters besides `*` comes first, of equals the one with the fewest
    `*`, then by the alphabet.
    """
    stars = len(re.findall(r"\*+", pattern))
    return pattern.count("*") - len(pattern), stars, pattern


def passes(name: str, whitelist: Sequence[str], blacklist: Sequence[str]) -> bool:
    """Return whether a name passes a filter.

    Args:
        name: An original name, or a URI.
        whitelist: Matching names pass; without a blacklist, no others do.
        blacklist: Matching names do not pass, unless the whitelist matches them too.
    """
    if any(matches(pattern, name) for pattern in whitelist):
        return True
    if blacklist:
        return not any(matches(pattern, name) for pattern in blacklist)
    return not whitelist


def spellings(name: str) -> tuple[str, ...]:
    """Return a name, and how Leaseway and clients spell it for models, which accept few characters.

    Who reads only these must be able to deny a tool by them.
    """
    if _OTHER.search(name) is None:
        return (name,)
    by_utf_16 = _OTHER.sub("_", _TWO_UNITS.sub("__", name))
    return tuple(dict.fromkeys((name, _OTHER.sub("_", name), by_utf_16, _OTHER.sub("-", name))))


@dataclass(frozen=True)
class NameFilter:
    """A filter of original names or URIs; see `passes`."""

    whitelist: tuple[str, ...] = setting(
        (), Key(OwnReader(), "Patterns of names that pass; without a blacklist, no others do.")
    )
    blacklist: tuple[str, ...] = setting(
        (), Key(OwnReader(), "Patterns of names that do not pass, unless the whitelist has them.")
    )
    also: NameFilter | None = None
    """A filter of a higher layer, which names must pass too."""

    def __bool__(self) -> bool:
        return bool(self.whitelist or self.blacklist or self.also)

    def passes(self, name: str) -> bool:
        """Return whether a tool or prompt passes, by its original name.

        A blacklist also holds for the other spellings of a name.
        """
        is_passed = passes(name, self.whitelist, self.blacklist)
        if is_passed and self.blacklist and not any(matches(p, name) for p in self.whitelist):
            is_passed = all(passes(other, (), self.blacklist) for other in spellings(name)[1:])
        return is_passed and (self.also is None or self.also.passes(name))

    def narrowed(self, by: NameFilter) -> NameFilter:
        """Return a filter that passes only names that pass both filters."""
        if not by or by == self:
            return self
        return replace(self, also=by if self.also is None else self.also.narrowed(by))


FILTER_KEYS: Final = tuple(keys_of(NameFilter))
"""The keys inside a filter."""

NO_FILTER: Final = NameFilter()
"""Passes every name."""
