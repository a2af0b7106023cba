"""A store in a PostgreSQL database, for several control planes.

Writers take turns at the row with the epoch, so that a write and the claim of a newer leader never
cross. The server ends a transaction that a stopped control plane has left open: it would keep its
successor out. To a host that is not this machine the connection is encrypted and the server's
certificate is checked, unless the connection string says otherwise (`sslmode`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from psycopg import conninfo, errors

from leaseway.control_plane.store.port import (
    MAX_PAGE,
    TIMEOUT,
    Change,
    Put,
    Room,
    StoredRecord,
    StoreRefused,
    StoreUnavailable,
    check_changes,
    check_epoch,
    check_version,
    claimed_epoch,
)
from leaseway.wire.secrets.redaction import Hidden, hide

_CONNECT_TIMEOUT: Final = 3
"""Seconds for a connection, so that there is time left for what it is opened for."""
_SETTINGS: Final = {
    "application_name": "leaseway-control-plane",
    "connect_timeout": str(_CONNECT_TIMEOUT),
    "client_encoding": "UTF8",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",  # of several hosts the one that is no standby
}
"""What a connection string need not say; what it says counts."""
_BEGIN: Final = "; ".join(
    (
        "BEGIN ISOLATION LEVEL READ COMMITTED",  # who has waited for its turn reads what is new
        f"SET LOCAL lock_timeout = '{int(TIMEOUT)}s'",
        f"SET LOCAL statement_timeout = '{int(TIMEOUT)}s'",
        "SET LOCAL idle_in_transaction_session_timeout = '5s'",
        "SET LOCAL search_path = pg_catalog",
        # A commit that is answered is on a disk, also if the server's default is another one.
        """SELECT set_config('synchronous_commit', 'on', true)
        WHERE current_setting('synchronous_commit') = 'off'""",
    )
)
"""Begins a transaction and sets it up, in one message: a database may be far away. Settings of a
session would cost another one, and a pooler may give each transaction another session."""
_LOOK: Final = "; ".join((_BEGIN, "SELECT version FROM leaseway.meta", "COMMIT"))
_BEGIN_MIGRATION: Final = f"""ROLLBACK; {_BEGIN}; SELECT pg_advisory_xact_lock(1280530265);
SELECT to_regclass('leaseway.meta') IS NOT NULL, current_setting('server_encoding')"""
"""Begins a transaction, after one that may have failed, in which no other process migrates."""
_OF_HOSTS: Final = ("host", "hostaddr", "port")
_LOCAL: Final = frozenset({"", "localhost", "127.0.0.1", "::1"})
_SYSTEM: Final = "system"
BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS
)
"""The files in which systems keep their authorities."""

SCHEMA: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE leaseway.meta (one int PRIMARY KEY CHECK (one = 1), version int NOT NULL,
        epoch bigint NOT NULL)""",
        "INSERT INTO leaseway.meta VALUES (1, 0, 0)",
        """CREATE TABLE leaseway.records (room text COLLATE "C", key text COLLATE "C",
        version bigint NOT NULL, value bytea NOT NULL, PRIMARY KEY (room, key))""",
    ),
)
"""The steps from each version of the schema to the next; a step that was released never changes."""

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Cursor = psycopg.AsyncCursor[tuple[Any, ...]]
_Result = TypeVar("_Result")


class PostgresStore:
    """Keeps records in the schema `leaseway` of a database.

    Args:
        read_dsn: Returns the connection string, with its password; called for each connection.
        schema: The steps of the schema.
        timeout: Seconds that one operation may take.
        bundles: Files in which a system keeps its authorities; the first that exists counts, unless
            the variable SSL_CERT_FILE names another one.
    """

    kind = "postgresql"

    def __init__(
        self,
        read_dsn: Callable[[], str],
        *,
        schema: tuple[tuple[str, ...], ...] = SCHEMA,
        timeout: float = TIMEOUT,
        bundles: tuple[str, ...] = BUNDLES,
    ) -> None:
        self._timeout = timeout
        self._read_dsn = read_dsn
        self._schema = schema
        self._bundles = bundles
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._hidden: Hidden | None = None
        self._first_host = 0
        """The one of several hosts that is tried first; after a failure the next one, as there is
        no time for all in one operation if some do not answer."""
        self.place = "a PostgreSQL database"

    async def claim(self, epoch: int, *, elected: bool) -> int:
        return await self._operate(partial(_claim, epoch=epoch, elected=elected), anew=True)

    async def read(
        self, room: Room, *, prefix: str = "", after: str = "", limit: int = MAX_PAGE
    ) -> list[StoredRecord]:
        limit = min(limit, MAX_PAGE)
        return await self._operate(
            partial(_read, room=room, prefix=prefix, after=after, limit=limit)
        )

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        check_changes(changes)
        await self._operate(partial(_write, epoch=epoch, changes=changes))

    async def close(self) -> None:
        async with self._turn:
            await self._disconnect()

    async def _operate(
        self, operation: Callable[[Connection], Awaitable[_Result]], *, anew: bool = False
    ) -> _Result:
        """Do an operation, or give it up: its connection is cut, and the next one connects anew.

        The wait for those before it counts: whoever asks waits no longer than for one.

        Args:
            operation: What to do in a transaction.
            anew: Whether to connect and check the database first, even if it is connected.
        """
        try:
            async with asyncio.timeout(self._timeout), self._turn:
                if anew:  # a newer release may have changed the schema since
                    await self._disconnect()
                work = asyncio.create_task(self._do(operation))
                try:
                    return await asyncio.shield(work)
                except asyncio.CancelledError:
                    self._abandon(work)
                    raise
        except TimeoutError:
            raise StoreUnavailable(
                f"The store {self.place} did not answer within {self._timeout:g} s."
            ) from None

    async def _do(self, operation: Callable[[Connection], Awaitable[_Result]]) -> _Result:
        connection = self._connection
        try:
            async with AsyncExitStack() as transaction:
                if connection is None or not await self._begins(connection, transaction):
                    connection = None
                    connection = await self._connected()
                    await transaction.enter_async_context(_transaction(connection))
                return await operation(connection)
        except psycopg.Error as error:
            if connection is not None:
                await self._drop(connection)
            raise StoreUnavailable(f"The store {self.place} failed: {_sentence(error)}") from None

    async def _begins(self, connection: Connection, transaction: AsyncExitStack) -> bool:
        """Begin a transaction; return False if the connection was lost while it was idle."""
        try:
            await transaction.enter_async_context(_transaction(connection))
        except psycopg.OperationalError:
            await self._drop(connection)
            if asyncio.current_task() in self._abandoned:
                raise  # nobody waits any more, and others may be at work
            return False
        return True

    def _abandon(self, work: asyncio.Task[Any]) -> None:
        """Let an operation end without being waited for.

        Cancelling it would ask the server to cancel it, and wait for a server that does not answer.
        """
        connection, self._connection = self._connection, None
        if connection is None:  # it is still connecting
            work.cancel()
        elif not connection.closed:
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as cut:
                cut.shutdown(socket.SHUT_RDWR)
        self._abandoned.add(work)
        work.add_done_callback(self._forget)

    def _forget(self, work: asyncio.Task[Any]) -> None:
        self._abandoned.discard(work)
        if not work.cancelled():
            work.exception()  # it has been reported as a timeout

    async def _connected(self) -> Connection:
        settings = self._settings()
        self.place = _place(settings)
        first, self._first_host = self._first_host, self._first_host + 1
        connection = self._connection = await psycopg.AsyncConnection.connect(
            **_from_host(settings, first), autocommit=True, prepare_threshold=None
        )
        self._first_host = first
        try:
            await self._check_schema(connection)
        except BaseException:
            await self._drop(connection)
            raise
        return connection

    def _settings(self) -> dict[str, Any]:
        try:
            dsn = self._read_dsn()
            given = conninfo.conninfo_to_dict(dsn)
        except psycopg.Error:  # its message repeats parts of the string
            raise StoreRefused(
                "The connection string of the store cannot be read. Write"
                " postgresql://USER:PASSWORD@HOST/DATABASE."
            ) from None
        password = str(given.get("password") or "")
        self._hidden = hide([dsn, password])
        settings: dict[str, Any] = {**_SETTINGS, **_with_hosts(given)}
        if not _is_local(given):
            settings.setdefault("sslmode", "verify-full")
            if settings["sslmode"].startswith("verify"):
                settings.setdefault("sslrootcert", os.environ.get("PGSSLROOTCERT") or _SYSTEM)
        if settings.get("sslrootcert") == _SYSTEM:
            # As libpq does, which no longer sees that the authorities are everybody's.
            if settings.setdefault("sslmode", "verify-full") != "verify-full":
                raise StoreRefused(
                    f"With sslmode={settings['sslmode']} and the system's authorities, the store's"
                    " certificate could be anybody's. Use sslmode=verify-full, or name your own"
                    " authority: sslrootcert=FILE."
                )
            settings["sslrootcert"] = self._authorities()
        return settings

    def _authorities(self) -> str:
        """Return the file of the system's authorities.

        The wheel of the client has an OpenSSL of its own, which looks for `system` in a folder that
        no system has.
        """
        known = (os.environ.get("SSL_CERT_FILE", ""), *self._bundles)
        return next((path for path in known if path and Path(path).is_file()), _SYSTEM)

    async def _check_schema(self, connection: Connection) -> None:
        """Check the database; bring its schema to this release's version if it has an older one."""
        try:
            cursor = await connection.execute(_LOOK)
        except errors.UndefinedTable:
            version = 0
        else:
            (version,) = await _last_row(cursor)
        if self._is_old(version):
            await self._migrate(connection)

    def _is_old(self, version: int) -> bool:
        if version > len(self._schema):
            raise StoreRefused(
                f"The store {self.place} has the schema {version} of a newer release; this one"
                f" knows up to {len(self._schema)}. Run the newer release, or use another"
                " database."
            )
        return version < len(self._schema)

    async def _migrate(self, connection: Connection) -> None:
        """Do the steps that are left once nobody else does them."""
        async with _transaction(connection, _BEGIN_MIGRATION) as begun:
            exists, encoding = await _last_row(begun)
            version = 0
            if exists:
                cursor = await connection.execute("SELECT version FROM leaseway.meta")
                (version,) = await _last_row(cursor)
            if not self._is_old(version):
                return
            if encoding != "UTF8":
                raise StoreRefused(
                    f"The store {self.place} has the encoding {encoding}. Use a database with UTF8."
                )
            steps = [statement for step in self._schema[version:] for statement in step]
            await connection.execute("; ".join(("CREATE SCHEMA IF NOT EXISTS leaseway", *steps)))
            await connection.execute("UPDATE leaseway.meta SET version = %s", (len(self._schema),))

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._drop(self._connection)

    async def _drop(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        with suppress(psycopg.Error):
            await connection.close()


def _is_local(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a connection stays on this machine, as far as that can be known.

    What the connection string lacks, libpq takes from its variables, and what a service says it
    reads from a file.
    """
    if given.get("service") or environment.get("PGSERVICE"):
        return False
    named = (
        given.get("host") or environment.get("PGHOST", ""),
        given.get("hostaddr") or environment.get("PGHOSTADDR", ""),
    )
    hosts = [host for names in named for host in str(names).split(",")]
    return all(host in _LOCAL or host.startswith(("/", "@")) for host in hosts)


def _with_hosts(
    given: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return a connection string's settings with the hosts that libpq takes from its variables."""
    if given.get("service") or environment.get("PGSERVICE"):
        return dict(given)  # the file of the service counts before the variables
    variables = {name: environment.get(f"PG{name.upper()}") for name in _OF_HOSTS}
    return {**{name: value for name, value in variables.items() if value}, **given}


def _from_host(settings: Mapping[str, Any], first: int) -> dict[str, Any]:
    """Return settings whose lists of hosts, addresses and ports begin elsewhere."""
    moved = dict(settings)
    for name in _OF_HOSTS:
        parts = str(settings.get(name, "")).split(",")
        if len(parts) > 1:
            begin = first % len(parts)
            moved[name] = ",".join(parts[begin:] + parts[:begin])
    return moved


def _place(settings: Mapping[str, Any]) -> str:
    host = settings.get("host") or settings.get("hostaddr") or "this machine"
    port = f":{settings['port']}" if settings.get("port") else ""
    return f"PostgreSQL at {host}{port}, database {settings.get('dbname') or 'of the user'}"


def _sentence(error: psycopg.Error) -> str:
    """Return the first line of an error; the others quote statements, with their values."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if isinstance(error, errors.InsufficientPrivilege):
        text += " (the role needs a schema leaseway of its own, or CREATE on the database)"
    return text.rstrip(".") + "."


@asynccontextmanager
async def _transaction(connection: Connection, begin: str = _BEGIN) -> AsyncIterator[Cursor]:
    """Do the whole block or nothing. After an error of the database, drop the connection."""
    begun = await connection.execute(begin)
    try:
        yield begun
    except psycopg.Error:
        raise
    except BaseException:
        with suppress(psycopg.Error):
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")


async def _last_row(cursor: Cursor) -> tuple[Any, ...]:
    """Return the row of the last statement of a message that has rows.

    Raises:
        StoreRefused: It found no row.
    """
    row = None
    while True:
        if cursor.description is not None:
            row = await cursor.fetchone()
        if not cursor.nextset():
            break
    if row is None:
        raise StoreRefused(
            "The store's table leaseway.meta has lost its row. Restore the database from a backup,"
            " or drop the schema leaseway to start with an empty store."
        )
    return row


async def _newest(connection: Connection) -> int:
    """Return the newest epoch; until the transaction ends, nothing else writes."""
    cursor = await connection.execute("SELECT epoch FROM leaseway.meta FOR UPDATE")
    (epoch,) = await _last_row(cursor)
    return int(epoch)


async def _claim(connection: Connection, epoch: int, *, elected: bool) -> int:
    claimed = claimed_epoch(epoch, await _newest(connection), elected=elected)
    await connection.execute("UPDATE leaseway.meta SET epoch = %s", (claimed,))
    return claimed


async def _read(
    connection: Connection, room: Room, prefix: str, after: str, limit: int
) -> list[StoredRecord]:
    cursor = await connection.execute(
        "SELECT key, value, version FROM leaseway.records"
        " WHERE room = %s AND key > %s AND starts_with(key, %s) ORDER BY key LIMIT %s",
        (str(room), after, prefix, limit),
    )
    return [StoredRecord(key, value, version) async for key, value, version in cursor]


async def _write(connection: Connection, epoch: int, changes: Sequence[Change]) -> None:
    """Do all changes in few round trips: what each one finds is worked out here."""
    check_epoch(epoch, await _newest(connection))
    places = sorted({(str(change.room), change.key) for change in changes})
    cursor = await connection.execute(
        "SELECT room, key, version FROM leaseway.records"
        " JOIN unnest(%s::text[], %s::text[]) AS wanted (room, key) USING (room, key)",
        ([room for room, _ in places], [key for _, key in places]),
    )
    versions = {(room, key): version async for room, key, version in cursor}
    values: dict[tuple[str, str], bytes | None] = {}
    for change in changes:
        place = (str(change.room), change.key)
        version = versions.get(place, 0)
        check_version(change, version)
        put = change if isinstance(change, Put) else None
        versions[place] = version + 1 if put is not None else 0
        values[place] = put.value if put is not None else None
    puts = [
        (*place, versions[place], value) for place, value in values.items() if value is not None
    ]
    deleted = [place for place, value in values.items() if value is None]
    async with connection.cursor() as writing:
        await writing.executemany(
            "INSERT INTO leaseway.records VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (room, key) DO UPDATE SET version = excluded.version,"
            " value = excluded.value",
            puts,
        )
        await writing.executemany(
            "DELETE FROM leaseway.records WHERE room = %s AND key = %s", deleted
        )
