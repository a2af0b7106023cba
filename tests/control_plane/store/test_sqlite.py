"""The store in a file: what outlives a crash, and which files it refuses."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.conftest import BOUND

from leaseway.control_plane.store.port import (
    Put,
    Room,
    StoredRecord,
    StoreFenced,
    StoreRefused,
    StoreUnavailable,
)
from leaseway.control_plane.store.sqlite import FILE, SCHEMA, SqliteStore

ROOM = Room.APPROVALS


async def written(folder: Path, value: bytes = b"1") -> int:
    store = SqliteStore(folder, exclusive=False)
    epoch = await store.claim(1, elected=False)
    await store.write(epoch, [Put(ROOM, "a", value)])
    await store.close()
    return epoch


WRITER = """
import asyncio, sys
from pathlib import Path
from leaseway.control_plane.store.port import Put, Room
from leaseway.control_plane.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]), exclusive=True)
    epoch = await store.claim(1, elected=False)
    for number in range(100_000):
        await store.write(epoch, [Put(Room.APPROVALS, f"{number:06}", b"v" * 2000)])
        print(number, flush=True)

asyncio.run(main())
"""


async def test_all_that_was_answered_outlives_sigkill(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        answered = [int(writer.stdout.readline()) for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        answered += map(int, writer.stdout.read().split("\n")[:-1])
    store = SqliteStore(tmp_path, exclusive=True)
    kept = await store.read(ROOM)
    assert {f"{number:06}" for number in answered} <= {record.key for record in kept}
    assert len(kept) <= len(answered) + 1
    await store.close()


async def test_of_two_processes_without_an_election_the_second_is_refused(tmp_path: Path) -> None:
    first, second = SqliteStore(tmp_path, exclusive=True), SqliteStore(tmp_path, exclusive=True)
    await first.claim(1, elected=False)
    with pytest.raises(StoreRefused, match="Another control plane uses the store"):
        await second.claim(2, elected=False)
    await first.close()
    await second.claim(2, elected=False)
    await second.close()


async def test_two_elected_leaders_of_one_file_are_told_apart_by_epoch(tmp_path: Path) -> None:
    old, new = SqliteStore(tmp_path, exclusive=False), SqliteStore(tmp_path, exclusive=False)
    await old.claim(1, elected=True)
    await new.claim(2, elected=True)
    with pytest.raises(StoreFenced):
        await old.write(1, [Put(ROOM, "a", b"1")])
    await old.close()
    await new.close()


async def test_only_the_user_of_the_process_reads_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    old_mask = os.umask(0)
    try:
        store = SqliteStore(folder, exclusive=True)
        await store.write(await store.claim(1, elected=False), [Put(ROOM, "a", b"1")])
    finally:
        os.umask(old_mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert f"{FILE}-wal" in modes
    assert set(modes.values()) == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    await store.close()


async def test_a_restored_file_is_made_private(tmp_path: Path) -> None:
    await written(tmp_path)
    (tmp_path / FILE).chmod(0o664)
    await written(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


async def test_a_folder_in_which_everybody_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreRefused, match="everybody may write: chmod o-w"):
        await written(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [FILE, "leaseway.lock"])
async def test_a_symbolic_link_is_not_followed(tmp_path: Path, name: str) -> None:
    target, folder = tmp_path / "target", tmp_path / "folder"
    folder.mkdir(mode=0o700)
    (folder / name).symlink_to(target)
    with pytest.raises(StoreRefused, match=f"{name}' is a symbolic link"):
        await SqliteStore(folder, exclusive=True).claim(1, elected=False)
    assert not target.exists()


async def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"30 1 0:45 / {tmp_path} rw shared:5 - nfs4 nas:/export rw\n")
    folder = tmp_path / "data"
    with pytest.raises(StoreRefused, match=r"network file system \(nfs4\)"):
        await SqliteStore(folder, exclusive=True, mounts=mounts).claim(1, elected=False)
    assert not list(folder.iterdir())


async def test_an_old_schema_is_brought_up_to_date_and_a_newer_one_refused(tmp_path: Path) -> None:
    epoch = await written(tmp_path)
    newer = (*SCHEMA, "CREATE TABLE more (one INTEGER) STRICT; INSERT INTO more VALUES (1)")
    after = SqliteStore(tmp_path, exclusive=False, schema=newer)
    assert await after.read(ROOM) == [StoredRecord("a", b"1", 1)]
    before = SqliteStore(tmp_path, exclusive=False)
    with pytest.raises(StoreRefused, match="schema 2 of a newer release"):
        await before.claim(epoch + 1, elected=True)
    await after.write(epoch, [Put(ROOM, "a", b"2")])
    for store in (before, after):
        await store.close()


async def test_a_step_of_the_schema_that_fails_changes_nothing(tmp_path: Path) -> None:
    await written(tmp_path)
    broken = SqliteStore(
        tmp_path, exclusive=False, schema=(*SCHEMA, "CREATE TABLE more (one TEXT); DROP TABLE no")
    )
    with pytest.raises(StoreUnavailable, match="no such table"):
        await broken.read(ROOM)
    await written(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
        assert names.isdisjoint({"more"})
    database.close()


def damage_header(path: Path) -> None:
    path.write_bytes(b"not a database, but some other text that is long enough" * 100)


def damage_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:8192] = os.urandom(4096)
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


@pytest.mark.parametrize("damage", [damage_header, damage_page, cut])
async def test_a_damaged_file_is_refused_with_a_sentence(tmp_path: Path, damage: object) -> None:
    await written(tmp_path, b"v" * 100_000)
    assert callable(damage)
    damage(tmp_path / FILE)
    store = SqliteStore(tmp_path, exclusive=True)
    with pytest.raises(StoreRefused, match=r"is damaged\. Restore the folder from a backup"):
        await store.claim(1, elected=False)
    await store.close()


async def test_a_file_without_the_row_of_its_epoch_is_refused(tmp_path: Path) -> None:
    await written(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("DELETE FROM meta")
    database.close()
    store = SqliteStore(tmp_path, exclusive=True)
    with pytest.raises(StoreRefused, match="has lost its row"):
        await store.claim(1, elected=False)
    await store.close()


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("CREATE TABLE recipes (name TEXT)")
    database.close()
    before = (tmp_path / FILE).read_bytes()
    store = SqliteStore(tmp_path, exclusive=True)
    with pytest.raises(StoreRefused, match="database of another program"):
        await store.claim(1, elected=False)
    await store.close()
    assert (tmp_path / FILE).read_bytes() == before


async def test_a_file_that_was_deleted_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, exclusive=False)
    epoch = await store.claim(1, elected=True)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(StoreUnavailable, match="was replaced"):  # nobody has claimed the new file
        await store.write(epoch, [Put(ROOM, "a", b"1")])
    await store.claim(epoch, elected=True)
    await store.write(epoch, [Put(ROOM, "a", b"1")])
    await store.close()


async def test_a_file_held_by_another_process_is_unavailable_until_it_is_free(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path, exclusive=False)
    epoch = await store.claim(1, elected=True)
    holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="Another process holds the store"):
        await store.write(epoch, [Put(ROOM, "a", b"1")])
    holder.execute("ROLLBACK")
    holder.close()
    await store.write(epoch, [Put(ROOM, "a", b"1")])
    await store.close()


async def test_a_store_without_a_thread_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = SqliteStore(tmp_path, exclusive=True)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StoreUnavailable, match="No thread can be started for the store"):
        await store.read(ROOM)
    await store.close()
    monkeypatch.undo()
    assert not await store.read(ROOM)
    await store.close()


HANGING = """
import asyncio, os, sys
from pathlib import Path
from leaseway.control_plane.store import sqlite
from leaseway.control_plane.store.port import Room, StoreUnavailable

async def main():
    hanging = Path(sys.argv[1], "mounts")
    os.mkfifo(hanging)  # nobody writes to it
    sqlite.TIMEOUT = 0.2
    store = sqlite.SqliteStore(Path(sys.argv[1], "data"), exclusive=True, mounts=hanging)
    try:
        await store.read(Room.APPROVALS)
    except StoreUnavailable as error:
        print(error)
    await store.close()

asyncio.run(main())
"""


def test_a_process_ends_although_the_disk_of_its_store_hangs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
    )
    assert "did not answer within 0.2 s" in done.stdout


FILLER = """
import asyncio, os
from pathlib import Path
from leaseway.control_plane.store.port import Delete, Put, Room, StoreUnavailable
from leaseway.control_plane.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path("/data"), exclusive=True)
    epoch = await store.claim(1, elected=False)
    kept = 0
    try:
        for number in range(1000):
            await store.write(epoch, [Put(Room.APPROVALS, f"{number:04}", os.urandom(50_000))])
            kept += 1
    except StoreUnavailable as error:
        print(error)
    assert len(await store.read(Room.APPROVALS)) == kept > 0
    Path("/data/ballast").unlink()
    await store.write(epoch, [Put(Room.APPROVALS, "after", b"1")])
    assert len(await store.read(Room.APPROVALS)) == kept + 1
    print("written again")

Path("/data/ballast").write_bytes(b"b" * 500_000)
asyncio.run(main())
"""


@pytest.mark.usefixtures("bwrap")
def test_a_full_disk_refuses_writes_keeps_the_rest_and_recovers() -> None:
    command = ["bwrap", "--bind", "/", "/", "--dev", "/dev"]
    command += ["--size", "2000000", "--tmpfs", "/data", "--", sys.executable, "-c", FILLER]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        f"The disk of the store /data/{FILE} is full. Free some space.",
        "written again",
    ]
