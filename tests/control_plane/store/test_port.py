"""What every store does: one leader writes, all or nothing, by version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from leaseway.control_plane.store.memory import MemoryStore
from leaseway.control_plane.store.port import (
    MAX_CHANGES,
    MAX_KEY,
    MAX_PAGE,
    Change,
    Delete,
    Put,
    Room,
    Store,
    StoreConflict,
    StoredRecord,
    StoreFenced,
    read_all,
)
from leaseway.control_plane.store.postgresql import PostgresStore
from leaseway.control_plane.store.sqlite import SqliteStore
from leaseway.wire.bounds import MAX_STORED

ROOM = Room.APPROVALS


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    match request.param:
        case "memory":
            opened = MemoryStore()
        case "sqlite":
            opened = SqliteStore(tmp_path, exclusive=False)
        case _:
            server = request.getfixturevalue("postgres")
            opened = PostgresStore(partial(server.dsn, server.database()))
    yield opened
    await opened.close()


async def test_what_was_written_is_read_after_it_was_closed(store: Store) -> None:
    epoch = await store.claim(5, elected=True)
    await store.write(epoch, [Put(ROOM, "a", b"\x001"), Put(Room.ANCHORS, "a", b"other")])
    await store.close()
    assert await store.read(ROOM) == [StoredRecord("a", b"\x001", 1)]
    await store.write(epoch, [Put(ROOM, "a", b"2", expected=1), Delete(ROOM, "missing")])
    assert await store.read(ROOM) == [StoredRecord("a", b"2", 2)]
    await store.write(epoch, [Delete(ROOM, "a", expected=2)])
    assert await store.read(ROOM) == []
    assert await store.read(Room.ANCHORS) == [StoredRecord("a", b"other", 1)]


async def test_a_write_happens_whole_or_not_at_all(store: Store) -> None:
    epoch = await store.claim(1, elected=True)
    await store.write(epoch, [Put(ROOM, "a", b"1", expected=0)])
    wrong: Change
    for wrong in (
        Put(ROOM, "a", b"2", expected=0),
        Put(ROOM, "a", b"2", expected=2),
        Put(ROOM, "missing", b"2", expected=1),
        Delete(ROOM, "a", expected=7),
    ):
        with pytest.raises(StoreConflict, match=wrong.key):
            await store.write(epoch, [Put(ROOM, "b", b"1"), Put(ROOM, "c", b"1"), wrong])
        assert await store.read(ROOM) == [StoredRecord("a", b"1", 1)]


async def test_a_change_sees_those_before_it_in_its_write(store: Store) -> None:
    epoch = await store.claim(1, elected=True)
    changes: list[Change] = [
        Put(ROOM, "a", b"1"),
        Put(ROOM, "a", b"2", expected=1),
        Delete(ROOM, "a"),
    ]
    await store.write(epoch, [*changes, Put(ROOM, "a", b"3", expected=0)])
    assert await store.read(ROOM) == [StoredRecord("a", b"3", 1)]


async def test_a_stale_leader_writes_nothing(store: Store) -> None:
    old = await store.claim(10, elected=True)
    new = await store.claim(11, elected=True)
    with pytest.raises(StoreFenced, match="epoch 11"):
        await store.write(old, [Put(ROOM, "a", b"old")])
    with pytest.raises(StoreFenced):
        await store.claim(old, elected=True)
    await store.write(new, [Put(ROOM, "a", b"new")])
    assert await store.claim(11, elected=True) == new, "the leader may claim again"
    assert [record.value for record in await store.read(ROOM)] == [b"new"]


async def test_without_an_election_the_last_to_claim_writes(store: Store) -> None:
    first = await store.claim(10, elected=False)
    second = await store.claim(3, elected=False)  # its clock is behind
    assert (first, second) == (10, 11)
    with pytest.raises(StoreFenced):
        await store.write(first, [Put(ROOM, "a", b"1")])
    await store.write(second, [Put(ROOM, "a", b"1")])


async def test_of_concurrent_writes_that_expect_one_version_one_wins(store: Store) -> None:
    epoch = await store.claim(1, elected=True)
    await store.write(epoch, [Put(ROOM, "a", b"approved")])
    writes = (store.write(epoch, [Put(ROOM, "a", b"used", expected=1)]) for _ in range(8))
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results].count(StoreConflict) == 7
    assert await store.read(ROOM) == [StoredRecord("a", b"used", 2)]


async def test_records_are_read_in_pages_in_the_order_of_their_keys(store: Store) -> None:
    epoch = await store.claim(1, elected=True)
    keys = ["B", "a", "a%b", "a_", "a_b", "ab", "ü", "\uffff", "\U0001f600"]
    await store.write(epoch, [Put(ROOM, key, b"") for key in reversed(keys)])
    assert [record.key for record in await store.read(ROOM)] == keys
    assert [record.key for record in await store.read(ROOM, after="a_", limit=2)] == ["a_b", "ab"]
    assert [record.key for record in await store.read(ROOM, prefix="a_")] == ["a_", "a_b"]
    many = [f"n{number:05}" for number in range(MAX_PAGE + 1)]
    await store.write(epoch, [Put(ROOM, key, b"") for key in many[:MAX_PAGE]])
    await store.write(epoch, [Put(ROOM, key, b"") for key in many[MAX_PAGE:]])
    assert len(await store.read(ROOM, prefix="n")) == MAX_PAGE
    assert [record.key for record in await read_all(store, ROOM, prefix="n")] == many


async def test_what_exceeds_a_bound_is_not_written(store: Store) -> None:
    epoch = await store.claim(1, elected=True)
    largest = Put(ROOM, "k" * MAX_KEY, b"v" * MAX_STORED)
    await store.write(epoch, [largest])
    for changes in (
        [Put(ROOM, "k", b"v" * (MAX_STORED + 1))],
        [Put(ROOM, "k" * (MAX_KEY + 1), b"")],
        [Put(ROOM, "", b"")],
        [Put(ROOM, "a\0b", b"")],
        [Put(ROOM, "\ud800", b"")],
        [Put(ROOM, str(number), b"v" * MAX_STORED) for number in range(17)],
        [Delete(ROOM, "k")] * (MAX_CHANGES + 1),
    ):
        with pytest.raises(ValueError):
            await store.write(epoch, changes)
    assert [record.key for record in await store.read(ROOM)] == [largest.key]
