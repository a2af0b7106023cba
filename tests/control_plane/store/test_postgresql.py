"""The store in PostgreSQL: lost connections, servers that do not answer, and refusals."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo
from tests.conftest import BOUND
from tests.postgres_server import PASSWORD, PostgresServer

from leaseway.control_plane.store.port import (
    Put,
    Room,
    StoredRecord,
    StoreRefused,
    StoreUnavailable,
)
from leaseway.control_plane.store.postgresql import SCHEMA, PostgresStore
from leaseway.wire.secrets.redaction import redact

ROOM = Room.APPROVALS


async def test_after_a_lost_connection_the_next_operation_opens_another(
    postgres: PostgresServer,
) -> None:
    store = PostgresStore(partial(postgres.dsn, postgres.database()))
    epoch = await store.claim(1, elected=True)
    postgres.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'leaseway-control-plane'"
    )
    await store.write(epoch, [Put(ROOM, "a", b"1", expected=0)])
    await store.close()


async def test_a_far_database_is_asked_few_times_in_turn(postgres: PostgresServer) -> None:
    async with CountedTrips(postgres) as counted:
        settings = {"host": "127.0.0.1", "port": str(counted.port), "sslmode": "disable"}
        store = PostgresStore(partial(postgres.dsn, postgres.database(), **settings))
        async with asyncio.timeout(BOUND):
            epoch = await store.claim(1, elected=True)
        # Four of them log in; with 250 ms each, the whole takes less than the store's timeout.
        assert counted.trips <= 14
        counted.trips = 0
        async with asyncio.timeout(BOUND):
            await store.claim(epoch, elected=True)
        assert counted.trips <= 9
        await store.close()


class CountedTrips:
    """Passes on what a client and a server send each other.

    Attributes:
        trips: How often the client has sent something after an answer.
    """

    def __init__(self, postgres: PostgresServer) -> None:
        self.trips = 0
        self.port = 0
        self._postgres = postgres
        self._last: object = None

    async def __aenter__(self) -> CountedTrips:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.2", self._postgres.port)
        await asyncio.gather(self._pass(client, to_server, True), self._pass(server, to_client))

    async def _pass(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, asks: bool = False
    ) -> None:
        while content := await source.read(65536):
            self.trips += asks and self._last is not source
            self._last = source
            to.write(content)
        to.close()


async def test_operations_that_wait_for_a_server_that_does_not_answer_end_with_the_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # it accepts connections and says nothing
        port = str(mute.getsockname()[1])
        store = PostgresStore(lambda: f"host=127.0.0.1 port={port} user=u", timeout=1)
        async with asyncio.timeout(BOUND):
            ends = await asyncio.gather(
                *(store.read(ROOM) for _ in range(100)), return_exceptions=True
            )
        assert all("did not answer within 1 s" in str(end) for end in ends)
    await store.close()


async def test_a_server_that_does_not_answer_is_given_up(postgres: PostgresServer) -> None:
    store = PostgresStore(partial(postgres.dsn, postgres.database()), timeout=3)
    await store.claim(1, elected=True)
    backends = postgres.sql(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'leaseway-control-plane'"
    )
    for pid in backends.split():
        postgres.signal(int(pid), signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="did not answer within 3 s"):
            await store.write(1, [Put(ROOM, "a", b"1")])
        # The next operation opens another connection, and does not wait for the first one.
        await store.claim(2, elected=True)
    finally:
        for pid in backends.split():
            postgres.signal(int(pid), signal.SIGCONT)
    assert len(await store.read(ROOM)) <= 1  # it may have happened after all
    await store.close()


@pytest.mark.parametrize("by", ["string", "variables"])
async def test_a_host_behind_several_that_do_not_answer_is_reached(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = f"127.0.0.1,127.0.0.1,{postgres.folder}"
        ports = f"{mute.getsockname()[1]},{mute.getsockname()[1]},{postgres.port}"
        dsn = postgres.dsn(postgres.database(), host=hosts, port=ports, sslmode="disable")
        if by == "variables":
            monkeypatch.setenv("PGHOST", hosts)
            monkeypatch.setenv("PGPORT", ports)
            given = conninfo.conninfo_to_dict(dsn)
            del given["host"], given["port"]
            dsn = " ".join(f"{name}={value}" for name, value in given.items())
        store = PostgresStore(lambda: dsn, timeout=2.5)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"did not answer within 2.5 s"):
                await store.claim(1, elected=True)
        async with asyncio.timeout(BOUND):
            await store.claim(1, elected=True)
            await store.claim(1, elected=True)
    await store.close()


async def test_a_password_is_in_no_message(postgres: PostgresServer) -> None:
    wrong = "wrong-" + PASSWORD
    for dsn in (postgres.dsn(password=wrong), f"postgresql://u:{wrong}@[/x", wrong):
        store = PostgresStore(lambda dsn=dsn: dsn)  # type: ignore[misc]
        with pytest.raises((StoreRefused, StoreUnavailable)) as refused:
            await store.claim(1, elected=True)
        assert wrong not in f"{refused.value} {store.place}"
    store = PostgresStore(partial(postgres.dsn, postgres.database()))
    await store.claim(1, elected=True)
    assert PASSWORD not in redact(f"the password {PASSWORD}")
    await store.close()


async def test_to_another_machine_the_connection_is_encrypted(postgres: PostgresServer) -> None:
    remote = partial(postgres.dsn, postgres.database(), host="127.0.0.2")
    with pytest.raises(StoreUnavailable, match="does not support SSL"):
        await PostgresStore(remote).claim(1, elected=True)
    store = PostgresStore(partial(remote, sslmode="disable"))
    await store.claim(1, elected=True)
    await store.close()


@pytest.mark.parametrize(
    ("settings", "variables"),
    [
        ({"host": "localhost", "hostaddr": "127.0.0.2"}, {}),
        ({}, {"PGHOST": "127.0.0.2"}),
        ({"host": "localhost"}, {"PGHOSTADDR": "127.0.0.2"}),
    ],
    ids=["hostaddr", "PGHOST", "PGHOSTADDR"],
)
async def test_so_it_is_wherever_the_address_of_the_machine_comes_from(
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    variables: dict[str, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    dsn = conninfo.make_conninfo(user="u", port=postgres.port, **settings)
    with pytest.raises(StoreUnavailable, match="does not support SSL"):
        await PostgresStore(lambda: dsn).claim(1, elected=True)


async def test_an_old_schema_is_brought_up_to_date_and_a_newer_one_refused(
    postgres: PostgresServer,
) -> None:
    dsn = partial(postgres.dsn, postgres.database())
    before = PostgresStore(dsn)
    epoch = await before.claim(1, elected=True)
    await before.write(epoch, [Put(ROOM, "a", b"1")])
    after = PostgresStore(dsn, schema=(*SCHEMA, ("CREATE TABLE leaseway.more (one int)",)))
    assert await after.read(ROOM) == [StoredRecord("a", b"1", 1)]
    with pytest.raises(StoreRefused, match="schema 2 of a newer release"):
        await before.claim(epoch, elected=True)
    for store in (before, after):
        await store.close()


async def test_a_database_that_was_restored_without_its_rows_is_refused(
    postgres: PostgresServer,
) -> None:
    database = postgres.database()
    store = PostgresStore(partial(postgres.dsn, database))
    epoch = await store.claim(1, elected=True)
    postgres.sql("TRUNCATE leaseway.meta", database)
    with pytest.raises(StoreRefused, match="has lost its row"):
        await store.write(epoch, [Put(ROOM, "a", b"1")])
    with pytest.raises(StoreRefused, match="has lost its row"):
        await store.claim(epoch, elected=True)
    await store.close()


async def test_operations_on_a_locked_table_leave_no_connection_behind(
    postgres: PostgresServer,
) -> None:
    database = postgres.database()
    store = PostgresStore(partial(postgres.dsn, database), timeout=1)
    await store.claim(1, elected=True)
    with psycopg.connect(postgres.dsn(database, application_name="other")) as other:
        other.execute("LOCK TABLE leaseway.meta IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
            await store.claim(1, elected=True)
        open_ones = (
            f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
            " AND application_name = 'leaseway-control-plane'"
        )
        async with asyncio.timeout(BOUND):  # the server does not notice that the client is gone
            while await asyncio.to_thread(postgres.sql, open_ones) != "0":
                await asyncio.sleep(0.1)


async def test_a_step_of_the_schema_that_fails_changes_nothing(postgres: PostgresServer) -> None:
    database = postgres.database()
    steps = (*SCHEMA, ("CREATE TABLE leaseway.more (one int)", "DROP TABLE leaseway.no"))
    broken = PostgresStore(partial(postgres.dsn, database), schema=steps)
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await broken.claim(1, elected=True)
    assert not postgres.sql("SELECT 1 FROM pg_namespace WHERE nspname = 'leaseway'", database)


async def test_a_database_that_cannot_hold_all_keys_is_refused(postgres: PostgresServer) -> None:
    database = postgres.database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    store = PostgresStore(partial(postgres.dsn, database))
    with pytest.raises(StoreRefused, match="has the encoding LATIN1"):
        await store.claim(1, elected=True)
    await store.close()


async def test_the_certificate_of_another_machine_is_checked_by_the_authorities_of_the_system(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = self_signed(tmp_path / "own", "127.0.0.2")
    other = self_signed(tmp_path / "other", "127.0.0.2")
    dsn = postgres.dsn(postgres.database(), host="127.0.0.2")
    bundles = (str(tmp_path / "missing"), str(own[0]), str(other[0]))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with postgres.tls(*own):
        for given in (dsn, f"{dsn} sslrootcert=system"):
            store = PostgresStore(partial(str, given), bundles=bundles)
            await store.claim(1, elected=True)
            await store.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(other[0]))
        monkeypatch.setenv("PGSSLROOTCERT", str(own[0]))
        store = PostgresStore(partial(str, dsn), bundles=bundles)
        await store.claim(1, elected=True)
        await store.close()
        monkeypatch.delenv("PGSSLROOTCERT")
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await PostgresStore(partial(str, dsn), bundles=bundles).claim(1, elected=True)


@pytest.mark.parametrize("settings", ["sslmode=verify-ca", "sslmode=require sslrootcert=system"])
async def test_authorities_of_the_system_sign_for_everybody_so_that_the_name_is_checked(
    settings: str,
) -> None:
    store = PostgresStore(lambda: f"host=db.example user=u {settings}")
    with pytest.raises(StoreRefused, match="could be anybody's"):
        await store.claim(1, elected=True)


async def test_the_name_is_checked_on_this_machine_too_if_the_systems_authorities_are_named(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = self_signed(tmp_path / "own", "127.0.0.2")
    monkeypatch.setenv("SSL_CERT_FILE", str(own[0]))
    monkeypatch.setattr("leaseway.control_plane.store.postgresql._LOCAL", {"", "127.0.0.2"})
    dsn = postgres.dsn(postgres.database(), host="127.0.0.2", sslrootcert="system")
    with pytest.raises(StoreUnavailable, match="does not support SSL"):  # it is asked for
        await PostgresStore(lambda: dsn).claim(1, elected=True)


def self_signed(folder: Path, address: str) -> tuple[Path, Path]:
    """Write a certificate for an address, and its key."""
    folder.mkdir()
    certificate, key = folder / "server.crt", folder / "server.key"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-subj", "/CN=test", "-days", "2"]
    command += ["-addext", f"subjectAltName=IP:{address}"]
    command += ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
