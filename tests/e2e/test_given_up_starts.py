"""A first call that is given up while its server starts: what it would have acquired goes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import LEASEWAY, SERVERS, System, eventually, running

from leaseway.sdk import AsyncClient

pytestmark = pytest.mark.usefixtures("leak_guard")

# Each start writes down its process, and goes on once the gate is open.
GATED = 'echo $$ >> "$0.starts"; while [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
ROUNDS = 3


@dataclass
class Slow:
    """A running system whose leased server `slow` starts when its gate is open."""

    system: System
    client: AsyncClient
    gate: Path

    def starts(self) -> list[int]:
        """Return the processes of all starts, the newest last."""
        return [int(line) for line in Path(f"{self.gate}.starts").read_text().split()]

    async def leases(self, client: AsyncClient | None = None) -> list[str]:
        """Return the sessions of the leases that the SDK lists."""
        return [lease.session for lease in await (client or self.client).leases()]

    async def listed(self) -> list[str]:
        """Return the sessions of the leases that `leaseway leases` lists."""
        command = (*LEASEWAY, "leases", "--json", "--address", self.system.address)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(BOUND):
            out, _ = await process.communicate()
        return [lease["session"] for lease in json.loads(out)]

    def has_begun(self, before: int) -> bool:
        """Say whether there were more starts than before."""
        return len(self.starts()) > before

    def hanging(self, before: int, session: str) -> Callable[[], object]:
        """Return the condition that a session's start has begun and hangs at the gate."""

        async def hangs() -> bool:
            return self.has_begun(before) and session in await self.leases()

        return hangs

    async def given_back(self, session: str, start: int) -> None:
        """See to it that a session's lease is gone, with the process that was starting."""

        async def is_gone() -> bool:
            return session not in await self.leases()

        await eventually(is_gone)
        await eventually(lambda: not Path(f"/proc/{start}").exists())
        assert session not in await self.listed()


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Slow]:
    """The system with its gate closed; what the first probe had started is in use."""
    gate = tmp_path / "gate"
    args = ["-c", GATED, str(gate), sys.executable, str(SERVERS / "counter.py")]
    entry = {"transport": "stdio", "command": "sh", "args": args, "startup_timeout": 120}
    async with running(tmp_path, {"slow": entry}) as (system, client):
        await client.session("early").acquire("slow")
        gate.touch()
        yield Slow(system, client, gate)


async def test_a_first_call_that_is_cancelled_gives_its_lease_back_with_its_session(
    slow: Slow,
) -> None:
    for number in range(ROUNDS):
        key = f"dialog-{number}"
        before = len(slow.starts())
        async with slow.client.session(key) as session:
            call = asyncio.create_task(session.call_tool("add", {"by": 1}))
            await eventually(slow.hanging(before, key))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            # Another call of the session would go on waiting for the same start.
            assert key in await slow.leases()
        await slow.given_back(key, slow.starts()[-1])
    slow.gate.unlink()
    async with slow.client.session("dialog-0") as session:
        result = await session.call_tool("add", {"by": 1})
        assert result.new_lease is not None


async def test_a_first_call_outside_any_session_gives_its_lease_back_with_its_client(
    slow: Slow,
) -> None:
    async def own() -> set[str]:
        return set(await slow.leases()) - {"early"}

    for _ in range(ROUNDS):
        before = len(slow.starts())
        async with AsyncClient(slow.system.address) as client:
            call = asyncio.create_task(client.call_tool("add", {"by": 1}))
            await eventually(own)
            await eventually(partial(slow.has_begun, before))
            (session,) = await own()
            call.cancel()
            await asyncio.wait([call])
        await slow.given_back(session, slow.starts()[-1])


PROGRAM = """
import sys
from leaseway.sdk import Client

with Client(sys.argv[1]) as client, client.session(sys.argv[2]) as session:
    session.call_tool("add", {"by": 1})
"""


async def test_ctrl_c_in_a_first_call_of_the_synchronous_client_gives_its_lease_back(
    slow: Slow,
) -> None:
    for number in range(ROUNDS):
        key = f"script-{number}"
        before = len(slow.starts())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, slow.system.address, key),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await eventually(slow.hanging(before, key))
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(BOUND):
                _, said = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        assert process.returncode == -signal.SIGINT, said.decode()
        assert said.rstrip().endswith(b"KeyboardInterrupt"), said.decode()
        await slow.given_back(key, slow.starts()[-1])
        assert await slow.leases() == ["early"]
