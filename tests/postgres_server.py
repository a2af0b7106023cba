"""A PostgreSQL server for tests, with a database for each of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.conftest import BOUND, absent

PASSWORD = "correct-horse-battery"
_numbers = count(1)
_NOBODY = 65534


@dataclass
class PostgresServer:
    """A server for the user `leaseway` with a password.

    Attributes:
        folder: The folder of its socket.
        programs: The folder of its programs.
        port: Its port at 127.0.0.2, where it speaks no TLS.
        owner: The id of its user and group, if they are not those of the test.
        process: Its main process.
    """

    folder: Path
    programs: Path
    port: int
    owner: int | None
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        serve = [*_run_as(self.owner), self.programs / "postgres", "-D", self.folder / "data"]
        serve += ["-F", "-k", self.folder]
        serve += ["-h", "127.0.0.2", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(serve, stderr=log, cwd=self.folder)
        until = time.monotonic() + 2 * BOUND
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder)]
        ready += ["-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.05)

    def crash(self) -> None:
        """Stop it as a failure does: it recovers from its log when it is started again."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(BOUND)

    def dsn(self, database: str = "postgres", **settings: str) -> str:
        """Return a connection string."""
        given = {"host": str(self.folder), "port": str(self.port), "dbname": database}
        given |= {"user": "leaseway", "password": PASSWORD, **settings}
        return " ".join(f"{name}='{value}'" for name, value in given.items())

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to one of its processes."""
        os.kill(pid, number)

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement; return what it prints."""
        command = [str(self.programs / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", statement]
        made = subprocess.run(
            [*command, self.dsn(database)], check=True, capture_output=True, text=True
        )
        return made.stdout.strip()

    @contextmanager
    def tls(self, certificate: Path, key: Path) -> Iterator[None]:
        """Speak TLS with a certificate until the end of the block."""
        data = self.folder / "data"
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            (data / name).write_bytes(source.read_bytes())
            (data / name).chmod(0o600)
            if self.owner is not None:
                os.chown(data / name, self.owner, self.owner)
        self._set_tls("on")
        try:
            yield
        finally:
            self._set_tls("off")

    def _set_tls(self, value: str) -> None:
        self.sql(f"ALTER SYSTEM SET ssl = {value}")
        self.sql("SELECT pg_reload_conf()")
        until = time.monotonic() + BOUND
        while self.sql("SHOW ssl") != value:  # each is another connection
            assert time.monotonic() < until
            time.sleep(0.02)

    def database(self, *options: str) -> str:
        """Create a database; return its name."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.sql(f"CREATE DATABASE {name} {' '.join(options)}")
        return name


def _run_as(owner: int | None) -> list[str | Path]:
    """Return what to write before a command so that it runs as a user.

    `subprocess` itself forks to change the user, which runs gRPC's fork handlers: a test in which
    gRPC has threads may crash by them.
    """
    if owner is None:
        return []
    return ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server as a user that is not root, which PostgreSQL refuses."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    postgres = shutil.which("postgres") or (str(found[-1]) if found else None)
    if postgres is None:
        absent("postgres", "no PostgreSQL server is installed (apt-get install postgresql)")
    programs = Path(postgres or "").resolve().parent
    # Its socket's path has at most 107 characters, and its user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="leaseway-postgres-", dir="/tmp"))
    owner = _NOBODY if os.getuid() == 0 else None
    if owner is not None:
        os.chown(folder, owner, owner)
    try:
        (folder / "password").write_text(PASSWORD)
        initdb = [*_run_as(owner), programs / "initdb", "-D", folder / "data"]
        initdb += ["-U", "leaseway", "-E", "UTF8", "-N"]
        initdb += ["--locale=C", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder)
        server = PostgresServer(folder, programs, _free_port(), owner)
        server.start()
        try:
            yield server
        finally:
            server.crash()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
