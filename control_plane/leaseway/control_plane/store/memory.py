"""A store in this process's memory: used if none is configured, and by tests."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from leaseway.control_plane.store.port import (
    MAX_PAGE,
    Change,
    Put,
    Room,
    StoredRecord,
    check_changes,
    check_epoch,
    check_version,
    claimed_epoch,
)


class MemoryStore:
    """Keeps records until the process ends."""

    kind = "memory"
    place = ""

    def __init__(self) -> None:
        self._epoch = 0
        self._records: dict[tuple[Room, str], StoredRecord] = {}

    async def claim(self, epoch: int, *, elected: bool) -> int:
        self._epoch = claimed_epoch(epoch, self._epoch, elected=elected)
        return self._epoch

    async def read(
        self, room: Room, *, prefix: str = "", after: str = "", limit: int = MAX_PAGE
    ) -> list[StoredRecord]:
        found = [
            record
            for (kept_in, key), record in self._records.items()
            if kept_in == room and key.startswith(prefix) and key > after
        ]
        return sorted(found, key=attrgetter("key"))[: min(limit, MAX_PAGE)]

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        check_changes(changes)
        check_epoch(epoch, self._epoch)
        records = dict(self._records)
        for change in changes:
            place = (change.room, change.key)
            version = records[place].version if place in records else 0
            check_version(change, version)
            if isinstance(change, Put):
                records[place] = StoredRecord(change.key, change.value, version + 1)
            else:
                records.pop(place, None)
        self._records = records

    async def close(self) -> None:
        """Keep the records: a later term of this process reads them again."""
