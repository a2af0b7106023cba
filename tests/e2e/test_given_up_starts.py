"""A first call that is cancelled while its server starts releases its lease, not the start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.forking import run_leaseway
from tests.e2e.system import SERVERS, System, eventually, running

from leaseway.sdk import AsyncClient

pytestmark = pytest.mark.usefixtures("leak_guard")

# Each start records its process id and continues once the gate file is removed.
GATED = 'echo $$ >> "$0.starts"; while [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
ROUNDS = 3


@dataclass
class Slow:
    """A running system whose leased server `slow` starts once its gate file is removed."""

    system: System
    client: AsyncClient
    gate: Path

    def starts(self) -> list[int]:
        """Return the process ids of all starts, the newest last."""
        return [int(line) for line in Path(f"{self.gate}.starts").read_text().split()]

    async def leases(self, client: AsyncClient | None = None) -> list[str]:
        """Return the sessions of the leases that the SDK lists."""
        return [lease.session for lease in await (client or self.client).leases()]

    async def listed(self) -> list[str]:
        """Return the sessions of the leases that `leaseway leases` lists."""
        done = await run_leaseway("leases", "--json", "--address", self.system.address)
        return [lease["session"] for lease in json.loads(done.stdout)]

    def has_started(self) -> bool:
        """Return whether there was a start beside that of the probe."""
        return len(self.starts()) > 1

    def is_waiting(self, session: str) -> Callable[[], object]:
        """Return the condition that the start for a session waits at the gate."""

        async def waits() -> bool:
            return self.has_started() and session in await self.leases()

        return waits

    async def check_released(self, session: str) -> None:
        """Wait until a session has no lease; the first start waits for the next one."""

        async def is_released() -> bool:
            return session not in await self.leases()

        await eventually(is_released)
        assert session not in await self.listed()
        _probe, start = self.starts()
        assert Path(f"/proc/{start}").exists()


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Slow]:
    """Run the system with its gate closed; a session holds the instance of the probe."""
    gate = tmp_path / "gate"
    args = ["-c", GATED, str(gate), sys.executable, str(SERVERS / "counter.py")]
    entry = {"transport": "stdio", "command": "sh", "args": args, "startup_timeout": 120}
    async with running(tmp_path, {"slow": entry}) as (system, client):
        await client.session("early").acquire("slow")
        gate.touch()
        yield Slow(system, client, gate)


async def test_closing_the_session_of_a_cancelled_first_call_releases_its_lease(
    slow: Slow,
) -> None:
    for number in range(ROUNDS):
        key = f"dialog-{number}"
        async with slow.client.session(key) as session:
            call = asyncio.create_task(session.call_tool("add", {"by": 1}))
            await eventually(slow.is_waiting(key))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            # Another call of the session would wait for the same start.
            assert key in await slow.leases()
        await slow.check_released(key)
    slow.gate.unlink()
    async with slow.client.session("dialog-0") as session:
        result = await session.call_tool("add", {"by": 1})
        assert result.new_lease is not None
    assert len(slow.starts()) == 2


async def test_closing_the_client_of_a_cancelled_first_call_releases_its_lease(
    slow: Slow,
) -> None:
    async def own() -> set[str]:
        return set(await slow.leases()) - {"early"}

    for _ in range(ROUNDS):
        async with AsyncClient(slow.system.address) as client:
            call = asyncio.create_task(client.call_tool("add", {"by": 1}))
            await eventually(own)
            await eventually(slow.has_started)
            (session,) = await own()
            call.cancel()
            await asyncio.wait([call])
        await slow.check_released(session)


PROGRAM = """
import sys
from leaseway.sdk import Client

with Client(sys.argv[1]) as client, client.session(sys.argv[2]) as session:
    session.call_tool("add", {"by": 1})
"""


async def test_ctrl_c_in_a_first_call_of_the_synchronous_client_releases_its_lease(
    slow: Slow,
) -> None:
    for number in range(ROUNDS):
        key = f"script-{number}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, slow.system.address, key),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await eventually(slow.is_waiting(key))
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(BOUND):
                _, errors = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        assert process.returncode == -signal.SIGINT, errors.decode()
        assert errors.rstrip().endswith(b"KeyboardInterrupt"), errors.decode()
        await slow.check_released(key)
        assert await slow.leases() == ["early"]
