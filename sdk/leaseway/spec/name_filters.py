"""The patterns of filters, and what passes a filter made of them (DESIGN §2).

The control plane asks it of names that servers list, workers of URIs that callers name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern: `*` is any run, everything else is itself."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if len(name) < len(first) + len(last):
        return False
    if not (name.startswith(first) and name.endswith(last)):
        return False
    # Taking each middle part where it comes first is enough, and linear for any pattern.
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def passes(name: str, whitelist: Sequence[str], blacklist: Sequence[str]) -> bool:
    """Return whether a filter lets a name pass.

    Args:
        name: An original name, or a URI.
        whitelist: What matches it passes; without a blacklist, nothing else does.
        blacklist: What matches it passes only where the whitelist matches it, too.
    """
    if any(matches(pattern, name) for pattern in whitelist):
        return True
    if blacklist:
        return not any(matches(pattern, name) for pattern in blacklist)
    return not whitelist


@dataclass(frozen=True)
class NameFilter:
    """Patterns over original names, or over URIs; `*` matches any run (DESIGN §2).

    A whitelist alone lets nothing else pass. With a blacklist, what that matches does not pass
    unless the whitelist matches it, too.
    """

    whitelist: tuple[str, ...] = ()
    blacklist: tuple[str, ...] = ()
    also: NameFilter | None = None
    """What has to let it pass as well: a layer above that narrows this one."""

    def __bool__(self) -> bool:
        return bool(self.whitelist or self.blacklist or self.also)

    def passes(self, name: str) -> bool:
        mine = passes(name, self.whitelist, self.blacklist)
        return mine and (self.also is None or self.also.passes(name))

    def narrowed(self, by: NameFilter) -> NameFilter:
        """Return what lets pass only what both let pass."""
        if not by or by == self:
            return self
        return replace(self, also=by if self.also is None else self.also.narrowed(by))

    def as_data(self) -> dict[str, object]:
        """Return it as plain data, in which a filter that nothing narrows is its two lists."""
        data: dict[str, object] = {"whitelist": self.whitelist, "blacklist": self.blacklist}
        return data if self.also is None else data | {"also": self.also.as_data()}


NO_FILTER: Final = NameFilter()
"""Lets everything pass."""
