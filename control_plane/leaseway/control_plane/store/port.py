"""What a store is: records in rooms, written by one leader at a time (design.md#what-lasts).

A record is a few bytes under a key, in the room of one purpose. Whoever leads *claims* the store
with its epoch, then writes all changes of one event together. The store refuses a write of any
other epoch than the newest: a control plane that leads by mistake changes nothing, and learns it.

A record's version counts its writes. A change may name the version that it expects. This finds
writes whose outcome was unknown: one that timed out may have happened all the same.

`memory`, `sqlite` and `postgresql` are stores; they pass the same tests
(`tests/control_plane/store/test_port.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from leaseway.wire.bounds import MAX_STORED, MIB

MAX_KEY: Final = 512
"""Characters of a record's key."""
MAX_CHANGES: Final = 1_000
"""Changes of one write."""
MAX_PAGE: Final = 1_000
"""Records of one read."""
MAX_WRITE: Final = 16 * MIB
"""Bytes of all values of one write."""
TIMEOUT: Final = 4.0
"""Seconds that one operation may take; a worker waits 5 s for the answer about its call."""


class Room(StrEnum):
    """What records are for. Each room has one writer, which bounds the number of its records."""

    APPROVALS = "approvals"
    ANCHORS = "anchors"


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record.

    Attributes:
        version: How often it was written since it was created: 1 or more.
    """

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a record.

    Attributes:
        expected: The version that it must have, 0 for none yet; None for any.
    """

    room: Room
    key: str
    value: bytes
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a record; without an expected version also one that does not exist."""

    room: Room
    key: str
    expected: int | None = None


Change = Put | Delete


class StoreError(Exception):
    """A store did not do what was asked; the message is a sentence without secrets."""


class StoreUnavailable(StoreError):
    """It does not answer or cannot write now. A write may have happened or not."""


class StoreRefused(StoreError):
    """It cannot be used as it is: damaged, of a newer release, not ours, or in use by another."""


class StoreFenced(StoreError):
    """A control plane with a newer epoch has claimed it; nothing was written."""

    def __init__(self, epoch: int, newest: int) -> None:
        super().__init__(
            f"A control plane with the newer epoch {newest} has claimed the store; this one, with"
            f" the epoch {epoch}, may no longer write there."
        )


class StoreConflict(StoreError):
    """A record does not have the expected version; nothing was written."""

    def __init__(self, change: Change, found: int) -> None:
        super().__init__(
            f"The record '{change.key}' in '{change.room}' has the version {found}, not"
            f" {change.expected}."
        )


class Store(Protocol):
    """Keeps records. Methods raise StoreUnavailable, and StoreRefused while it cannot be used.

    Attributes:
        kind: `memory`, `sqlite` or `postgresql`.
        place: Where it is, without a secret; empty for memory.
    """

    @property
    def kind(self) -> str: ...

    @property
    def place(self) -> str: ...

    async def claim(self, epoch: int, *, elected: bool) -> int:
        """Become the one that may write; return the epoch to write with.

        Args:
            epoch: This control plane's epoch.
            elected: Whether an election orders the epochs: then an older epoch than the newest is
                refused. Else the returned epoch is newer than all before.

        Raises:
            StoreFenced: A newer leader has claimed the store.
        """

    async def read(
        self, room: Room, *, prefix: str = "", after: str = "", limit: int = MAX_PAGE
    ) -> list[StoredRecord]:
        """Return records of a room in the order of their keys, compared as UTF-8.

        Args:
            prefix: What their keys start with.
            after: A key; only later ones are returned.
            limit: How many at most, up to `MAX_PAGE`.
        """

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        """Do all changes or none, in order; when this returns they outlive a crash.

        Raises:
            StoreFenced: A newer epoch has claimed the store.
            StoreConflict: A record does not have the expected version.
            ValueError: A change exceeds a bound.
        """

    async def close(self) -> None:
        """Close what is open; a later operation opens it again."""


async def read_all(store: Store, room: Room, *, prefix: str = "") -> list[StoredRecord]:
    """Return all records of a room whose keys start with a prefix."""
    found: list[StoredRecord] = []
    while True:
        after = found[-1].key if found else ""
        page = await store.read(room, prefix=prefix, after=after)
        found += page
        if len(page) < MAX_PAGE:
            return found


def check_changes(changes: Sequence[Change]) -> None:
    """Refuse a write beyond the bounds.

    Raises:
        ValueError: It is too large, or a key is empty, too long or holds a NUL.
    """
    if len(changes) > MAX_CHANGES:
        raise ValueError(f"A write has {len(changes)} changes; {MAX_CHANGES} are the most.")
    total = 0
    for change in changes:
        if not 0 < len(change.key) <= MAX_KEY or "\0" in change.key:
            raise ValueError(f"A key has 1 to {MAX_KEY} characters and no NUL.")
        change.key.encode()  # a lone surrogate is a UnicodeError, which is a ValueError
        size = len(change.value) if isinstance(change, Put) else 0
        total += size
        if size > MAX_STORED or total > MAX_WRITE:
            raise ValueError(f"A record has at most {MAX_STORED} bytes, and a write {MAX_WRITE}.")


def check_version(change: Change, found: int) -> None:
    """Refuse a change whose record has another version than expected (0: it does not exist).

    Raises:
        StoreConflict: It has.
    """
    if change.expected is not None and change.expected != found:
        raise StoreConflict(change, found)


def check_epoch(epoch: int, newest: int) -> None:
    """Refuse a write of any other epoch than the one that has claimed the store.

    Raises:
        StoreFenced: A newer one has.
        StoreUnavailable: None has: the store was replaced, and must be claimed again.
    """
    if epoch < newest:
        raise StoreFenced(epoch, newest)
    if epoch > newest:
        raise StoreUnavailable("The store was replaced by an older or an empty one.")


def claimed_epoch(epoch: int, newest: int, *, elected: bool) -> int:
    """Return the epoch that a claim gets.

    Raises:
        StoreFenced: An elected leader is older than the newest.
    """
    if not elected:
        return max(epoch, newest + 1)
    if epoch < newest:
        raise StoreFenced(epoch, newest)
    return epoch
