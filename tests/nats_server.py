"""A real NATS server with JetStream for tests, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.certificates import Authority
from tests.conftest import BOUND, absent
from tests.ports import free_port

STREAM, SUBJECT = "AUDIT", "leaseway.audit"

PASSWORD = "only-for-tests"


@dataclass
class NatsServer:
    """A server with one stream, which asks for a password.

    Attributes:
        url: Its address.
        environment: The variables with which a process reaches it.
        process: Its process.
    """

    url: str
    environment: dict[str, str]
    process: asyncio.subprocess.Process

    @property
    def sink(self) -> str:
        """The address of a folder in the stream."""
        return f"{self.url}/{STREAM}/{SUBJECT}"

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def nats_server(
    folder: Path,
    port: int = 0,
    *,
    authority: Authority | None = None,
    max_payload: str = "1MB",
    **stream: Any,
) -> AsyncIterator[NatsServer]:
    """Run a server until the end of the block; skip the test if it is not installed.

    Args:
        folder: What it stores; a server that is started there again has it still.
        port: Its port; 0 for a free one, at which it can be started again.
        authority: Signs its certificate; None for no TLS.
        max_payload: The bytes of the largest message that it takes.
        stream: Settings of its stream, which it has only if they are not those that it keeps.
    """
    program = shutil.which("nats-server")
    if program is None:
        absent("nats", "nats-server is not installed: apt-get install nats-server")
    assert program is not None
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port or free_port()}"\njetstream {{ store_dir: "{folder}" }}\n'
        f"authorization {{ user: leaseway, password: {PASSWORD} }}\nmax_payload: {max_payload}\n"
        + _tls_of(folder, authority)
    )
    process = await asyncio.create_subprocess_exec(
        *(program, "-c", str(config)),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    drain = None
    try:
        async with asyncio.timeout(BOUND):
            while (
                found := re.search(rb"client connections on ([\d.:]+)", await _line(process))
            ) is None:
                pass
            while b"Server is ready" not in await _line(process):
                pass
        drain = asyncio.create_task(_drain(process.stderr))
        password = folder / "password"
        password.write_text(f"{PASSWORD}\n")
        environment = {
            "LEASEWAY_AUDIT_NATS_USER": "leaseway",
            "LEASEWAY_AUDIT_NATS_PASSWORD_FILE": str(password),
        }
        if authority is not None:
            environment["LEASEWAY_AUDIT_NATS_CA"] = str(authority.write(folder / "ca.pem"))
        scheme = "nats" if authority is None else "tls"
        server = NatsServer(f"{scheme}://{found[1].decode()}", environment, process)
        await _make_stream(server, stream)
        yield server
    finally:
        if drain is not None:
            drain.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _tls_of(folder: Path, authority: Authority | None) -> str:
    """Return the server's settings for TLS."""
    if authority is None:
        return ""
    certificate, key = authority.issue(folder, "nats")
    return f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stderr is not None
    line = await process.stderr.readline()
    assert line, "the NATS server ended"
    return line


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass


async def _make_stream(server: NatsServer, settings: dict[str, Any]) -> None:
    import nats

    ca = server.environment.get("LEASEWAY_AUDIT_NATS_CA")
    tls = {"tls": ssl.create_default_context(cafile=ca)} if ca else {}
    client = await nats.connect(server.url, user="leaseway", password=PASSWORD, **tls)
    subjects = [f"{SUBJECT}.>"]
    await client.jetstream().add_stream(name=STREAM, subjects=subjects, **settings)
    await client.close()
