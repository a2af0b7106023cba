"""Warnings about what of a server's listing is left out, in words that stay short.

Servers may list anything: names are clipped and escaped, and beyond 20 of one reason they share
a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from leaseway.control_plane.core.problems import Problem
from leaseway.wire.names import is_valid_name

__all__ = ["LeftOut", "count_of", "named", "shown"]

_LISTED: Final = 20
"""Names that a message lists, and problems of one reason that a server has one by one."""
_SHOWN: Final = 80
"""Characters of a name that a message shows."""


class LeftOut:
    """Collects one server's warnings; beyond `_LISTED` of a reason they become one."""

    def __init__(self, server_id: str, tenant: str = "") -> None:
        self._new = partial(
            Problem, scope="server", server_id=server_id, tenant=tenant, severity="warning"
        )
        self._server = f"Server '{server_id}'" + (f" of tenant '{tenant}'" if tenant else "")
        self._found: dict[str, list[tuple[str, str]]] = {}

    def add(self, reason: str, subject: str, message: str) -> None:
        """Note one thing; the message goes on after the server's name and a colon."""
        self._found.setdefault(reason, []).append((subject, f"{self._server}: {message}"))

    def all(self) -> tuple[Problem, ...]:
        """Return the warnings."""
        return tuple(self._each())

    def _each(self) -> Iterator[Problem]:
        for reason, found in self._found.items():
            for subject, message in found[:_LISTED]:
                yield self._new(reason=reason, message=message, subject=_clip(subject))
            rest = [subject for subject, _ in found[_LISTED:]]
            if rest:
                message = f"{self._server}: {reason} holds for {len(rest)} more: {named(rest)}."
                yield self._new(reason=reason, message=message)


def count_of(count: int, noun: str) -> str:
    """Return a number of things: `1 tool`, `2 tools`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def named(names: Sequence[str]) -> str:
    """Return names as a message lists them, some of many."""
    listed = ", ".join(shown(name) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def shown(name: str, longest: int = _SHOWN) -> str:
    """Return a name in quotes as a message shows it."""
    clipped = _clip(name, longest)
    # A name with control characters or quotes must not shape an operator's terminal or log.
    return f"'{clipped}'" if is_valid_name(clipped) else ascii(clipped)


def _clip(name: str, longest: int = _SHOWN) -> str:
    return name if len(name) <= longest else name[:longest] + "..."
