"""What was logged of servers: it is logged once for each, not for each of its instances. Pure."""

from __future__ import annotations

from typing import Final

from leaseway.wire.sharing.newest import Newest

_MAX_SERVERS: Final = 4096
_MAX_KINDS: Final = 1000
"""Kinds that are remembered for a server; others, such as of ever new tools, are logged again."""


class LoggedOnce:
    """What the instances of one server have logged of it."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def is_first(self, kind: str) -> bool:
        """Return whether none of them has logged this kind of message yet; now one has."""
        if kind in self._kinds:
            return False
        if len(self._kinds) < _MAX_KINDS:
            self._kinds.add(kind)
        return True


class LoggedOfServers:
    """What was logged of each server, by launch hash; the newest 4,096."""

    def __init__(self) -> None:
        self._servers: Newest[str, LoggedOnce] = Newest(_MAX_SERVERS)

    def of(self, launch_hash: str) -> LoggedOnce:
        """Return what all instances of a server share."""
        logged = self._servers[launch_hash] = self._servers.get(launch_hash) or LoggedOnce()
        return logged
