"""All instances that serve something on a worker, counted by server (DESIGN §10, bounds).

The one place that every instance passes when a generation takes it and when it goes, so that
`max_instances` holds over all variants and generations of a server.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from leaseway.data_plane.instances.live_instance import LiveInstance


class Evictable(Protocol):
    """Holds instances of a server that nobody needs yet."""

    def evict(self) -> bool:
        """Give one up; False where there is none."""

    def reconcile(self) -> None:
        """Look again at what is to be held."""


class Quota:
    """The instances of each server, and who holds spare ones."""

    def __init__(self) -> None:
        self._lives: dict[str, dict[LiveInstance, None]] = {}
        self._holders: dict[str, dict[Evictable, None]] = {}

    def add(self, live: LiveInstance) -> None:
        """Count an instance, which starts or was taken over from a probe."""
        server_id = live.spec.key.server_id
        self._lives.setdefault(server_id, {})[live] = None
        self._changed(server_id)

    def remove(self, live: LiveInstance) -> None:
        """Count an instance no more; one that is not counted is none."""
        server_id = live.spec.key.server_id
        lives = self._lives.get(server_id, {})
        if live not in lives:
            return
        del lives[live]
        if not lives:
            del self._lives[server_id]
        self._changed(server_id)

    def count(self, server_id: str) -> int:
        """Return how many instances a server has, those on their way up included."""
        return len(self._lives.get(server_id, ()))

    def join(self, server_id: str, holder: Evictable) -> None:
        """Register somebody who can give way, and is notified when there may be room."""
        self._holders.setdefault(server_id, {})[holder] = None

    def leave(self, server_id: str, holder: Evictable) -> None:
        """Ask and tell somebody no more."""
        holders = self._holders.get(server_id, {})
        holders.pop(holder, None)
        if not holders:
            self._holders.pop(server_id, None)

    def make_room(self, server_id: str, limit: int) -> None:
        """Evict spares until one more instance is within a limit, if there are any."""
        for holder in tuple(self._holders.get(server_id, ())):
            while self.count(server_id) >= limit and holder.evict():
                pass

    def _changed(self, server_id: str) -> None:
        # Later, because whoever adds or removes is in the middle of a change.
        for holder in self._holders.get(server_id, ()):
            asyncio.get_running_loop().call_soon(holder.reconcile)
