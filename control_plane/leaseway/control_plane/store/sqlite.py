"""A store in a file of this machine: SQLite in WAL mode, on a thread of its own.

Every write is on the disk before it is answered (`synchronous=FULL`). Two processes may open the
file at the same time, such as an old leader and its successor: SQLite lets one write at a time, and
the epoch decides which one may. A network file system is refused: SQLite relies on memory that
processes share, and on locks, and between machines neither works. So is a folder in which others
may write, as they could put approvals there.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from leaseway.control_plane.store.mounts import MOUNTS, network_file_system
from leaseway.control_plane.store.port import (
    MAX_PAGE,
    TIMEOUT,
    Change,
    Put,
    Room,
    StoredRecord,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    check_changes,
    check_epoch,
    check_version,
    claimed_epoch,
)
from leaseway.wire.daemon_threads import DaemonThreads

FILE: Final = "leaseway.db"
_LOCK: Final = "leaseway.lock"
_APPLICATION: Final = 0x4C535759
"""`LSWY`: marks the file as ours, for SQLite and for `file`."""
_BUSY: Final = TIMEOUT / 2
"""Seconds to wait for another process's write."""

SCHEMA: Final[tuple[str, ...]] = (
    """
    CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL) STRICT;
    INSERT INTO meta VALUES (1, 0);
    CREATE TABLE records (
        room TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (room, key)
    ) STRICT, WITHOUT ROWID;
    """,
)
"""The steps from each version of the schema to the next; a step that was released never changes."""

_Result = TypeVar("_Result")


class SqliteStore:
    """Keeps records in a file.

    Args:
        folder: Its folder, created for this user alone if it does not exist.
        exclusive: Whether no other process may open the store meanwhile. Control planes that elect
            a leader must not ask for this: a stopped leader would keep its successor out.
        schema: The steps of the schema.
        mounts: The file that says what is mounted where.
    """

    kind = "sqlite"

    def __init__(
        self,
        folder: Path,
        *,
        exclusive: bool,
        schema: tuple[str, ...] = SCHEMA,
        mounts: Path = MOUNTS,
    ) -> None:
        self._path = folder / FILE
        self._exclusive = exclusive
        self._schema = schema
        self._mounts = mounts
        self._thread = DaemonThreads(1)  # a disk that hangs keeps no process from its end
        # Used only there, by one thread at a time.
        self._connection: sqlite3.Connection | None = None
        self._lock_file = -1
        self._identity: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        return str(self._path)

    async def claim(self, epoch: int, *, elected: bool) -> int:
        return await self._run(partial(_claim, epoch=epoch, elected=elected), anew=True)

    async def read(
        self, room: Room, *, prefix: str = "", after: str = "", limit: int = MAX_PAGE
    ) -> list[StoredRecord]:
        limit = min(limit, MAX_PAGE)
        return await self._run(partial(_read, room=room, prefix=prefix, after=after, limit=limit))

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        check_changes(changes)
        await self._run(partial(_write, epoch=epoch, changes=changes))

    async def close(self) -> None:
        with suppress(TimeoutError, RuntimeError):  # without a thread, the process's end closes it
            async with asyncio.timeout(TIMEOUT):
                await self._thread.run(self._close)

    async def _run(
        self, operation: Callable[[sqlite3.Connection], _Result], *, anew: bool = False
    ) -> _Result:
        """Run an operation on the thread. One that times out may still happen, before any later.

        Args:
            operation: What to do with the open file.
            anew: Whether to open and check the file first, even if it is open.
        """
        try:
            running = self._thread.submit(partial(self._operate, operation, anew))
        except RuntimeError:
            raise StoreUnavailable(
                f"No thread can be started for the store {self._path}: raise the limit of"
                " processes."
            ) from None
        try:
            async with asyncio.timeout(TIMEOUT):
                return await running
        except TimeoutError:
            raise StoreUnavailable(
                f"The store {self._path} did not answer within {TIMEOUT:g} s: its disk is slow, or"
                " another process holds it."
            ) from None

    def _operate(self, operation: Callable[[sqlite3.Connection], _Result], anew: bool) -> _Result:
        if anew:  # a newer release may have changed the schema since
            self._close()
        try:
            return operation(self._opened())
        except StoreRefused:
            self._close()
            raise
        except sqlite3.Error as error:
            self._close()  # the next operation checks the file anew
            raise self._explained(error) from None
        except OSError as error:
            self._close()
            if error.errno == errno.ELOOP:
                raise self._refusal(
                    f"cannot be used: '{error.filename}' is a symbolic link. Name its folder itself"
                ) from None
            raise StoreUnavailable(
                f"The store {self._path} cannot be opened: {error.strerror or error}."
            ) from None

    def _opened(self) -> sqlite3.Connection:
        """Return the open file. If it was moved or deleted, open what is there now.

        SQLite would go on writing to a deleted file, and nobody would ever read it.
        """
        if self._connection is not None and self._identity == _identity(self._path):
            return self._connection
        self._close()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_folder()
        self._take_lock()
        os.close(_open_private(self._path))  # SQLite's other files get the same mode
        connection = sqlite3.connect(
            self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False
        )
        self._connection = connection
        self._migrate(connection)
        self._identity = _identity(self._path)
        return connection

    def _check_folder(self) -> None:
        folder = self._path.parent.resolve()
        if folder.stat().st_mode & stat.S_IWOTH:
            raise self._refusal(
                f"is in a folder in which everybody may write: chmod o-w {self._path.parent}, or"
                " choose another folder"
            )
        mounts = self._mounts.read_text(errors="replace") if self._mounts.exists() else ""
        kind = network_file_system(folder, mounts)
        if kind:
            raise self._refusal(
                f"is on a network file system ({kind}), where two machines can damage it. Choose a"
                " folder on a disk of this machine, or use PostgreSQL (--store)"
            )

    def _take_lock(self) -> None:
        if not self._exclusive:
            return
        self._lock_file = _open_private(self._path.parent / _LOCK)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreRefused(
                f"Another control plane uses the store {self._path}. Stop it, or give this one"
                " another folder."
            ) from None

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Check the file, and bring its schema to this release's version."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != _APPLICATION and (application or objects):
            raise self._refusal("is a database of another program. Choose another folder")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise self._refusal(_DAMAGED)
        with _transaction(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(self._schema):
                raise self._refusal(
                    f"has the schema {version} of a newer release; this one knows up to"
                    f" {len(self._schema)}. Run the newer release, or choose another folder"
                )
            for step in self._schema[version:]:
                for statement in filter(str.strip, step.split(";")):
                    connection.execute(statement)
            if version < len(self._schema):
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {len(self._schema)}")

    def _refusal(self, why: str) -> StoreRefused:
        return StoreRefused(f"The store {self._path} {why}.")

    def _explained(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        match code:
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return self._refusal(_DAMAGED)
            case sqlite3.SQLITE_FULL:
                return StoreUnavailable(
                    f"The disk of the store {self._path} is full. Free some space."
                )
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreUnavailable(f"Another process holds the store {self._path}.")
        return StoreUnavailable(f"The store {self._path} failed: {error}.")

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection, self._identity = None, None
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


_DAMAGED: Final = (
    "is damaged. Restore the folder from a backup, or move it away to start with an empty store"
)


def _open_private(path: Path) -> int:
    """Open a file that this user alone may use, or create it; return its descriptor.

    A restored or copied file may be readable by others, and a volume may have been shared with a
    group.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = os.open(path, flags, 0o600)
    try:
        found = os.fstat(opened)
        if stat.S_IMODE(found.st_mode) != 0o600 and found.st_uid == os.geteuid():
            os.fchmod(opened, 0o600)
    except BaseException:
        os.close(opened)
        raise
    return opened


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has ended the transaction already
            connection.execute("ROLLBACK")
        raise


def _claim(connection: sqlite3.Connection, epoch: int, *, elected: bool) -> int:
    with _transaction(connection):
        claimed = claimed_epoch(epoch, _newest(connection), elected=elected)
        connection.execute("UPDATE meta SET epoch = ?", (claimed,))
    return claimed


def _newest(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT epoch FROM meta").fetchone()
    if row is None:
        raise StoreRefused(
            "The store's table meta has lost its row. Restore its folder from a backup, or move it"
            " away to start with an empty store."
        )
    return int(row[0])


def _read(
    connection: sqlite3.Connection, room: Room, prefix: str, after: str, limit: int
) -> list[StoredRecord]:
    rows = connection.execute(
        "SELECT key, value, version FROM records"
        " WHERE room = ? AND key > ? AND substr(key, 1, ?) = ? ORDER BY key LIMIT ?",
        (room, after, len(prefix), prefix, limit),
    )
    return [StoredRecord(key, value, version) for key, value, version in rows]


def _write(connection: sqlite3.Connection, epoch: int, changes: Sequence[Change]) -> None:
    with _transaction(connection):
        check_epoch(epoch, _newest(connection))
        for change in changes:
            _apply(connection, change)


def _apply(connection: sqlite3.Connection, change: Change) -> None:
    place = (change.room, change.key)
    found = connection.execute(
        "SELECT version FROM records WHERE room = ? AND key = ?", place
    ).fetchone()
    version = found[0] if found else 0
    check_version(change, version)
    if isinstance(change, Put):
        connection.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?)"
            " ON CONFLICT (room, key) DO UPDATE SET version = excluded.version,"
            " value = excluded.value",
            (*place, version + 1, change.value),
        )
    else:
        connection.execute("DELETE FROM records WHERE room = ? AND key = ?", place)
