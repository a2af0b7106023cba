"""Leases of killed clients expire and leave no process, task or descriptor behind."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.counting import counts, memory, settled
from tests.e2e.system import Part, System, eventually, python_server, running

from leaseway.sdk import AsyncClient

ABANDONER = Path(__file__).with_name("abandoner.py")
SERVERS = {"counter": python_server("counter.py", transform=[{"prefix": "counter_"}])}
SESSIONS = 20
AT_ONCE = 2
MAX_GROWTH = 1.25
"""Growth of memory since the first plateau; the goal is 1.05, which `make soak` prints."""


@dataclass
class Churn:
    """Client processes that are killed at random moments.

    Attributes:
        steps: How many sessions were at each step when their client was killed.
    """

    address: str
    draw: random.Random
    clients: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    @property
    def abandoned(self) -> int:
        """How many sessions held, or were about to get, a lease when their client died."""
        return self.steps.total() - self.steps["starting"] - self.steps["asking"]

    async def wave(self) -> None:
        """Start some clients at once and kill each at a random moment."""
        await asyncio.gather(*(self._client() for _ in range(AT_ONCE)))

    async def _client(self) -> None:
        self.clients += 1
        name = f"client-{self.clients}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ABANDONER), self.address, str(SESSIONS), "1", name, "0.5"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        at: dict[str, str] = {}
        try:
            # One client in four is killed early, while its sessions acquire their leases.
            moment = self.draw.choice([SESSIONS, *[4 * SESSIONS] * 3])
            for _ in range(self.draw.randint(moment * 2 // 3, moment)):
                async with asyncio.timeout(BOUND):
                    step, session = (await process.stdout.readline()).decode().split()
                at[session] = step
        finally:
            process.kill()
            await process.wait()
        self.steps.update(at.values())
        self.steps["starting"] += SESSIONS - len(at)


async def granted(client: AsyncClient) -> int:
    """Return how many leases the one worker has granted so far."""
    async with client.session("count") as session:
        return int((await session.acquire("counter")).id.rpartition("-")[2])


def parts(system: System) -> list[Part]:
    assert system.control_plane is not None
    return [system.control_plane, *system.workers.values()]


async def churn(folder: Path, sessions: int, seed: int) -> None:
    async with running(folder, SERVERS) as (system, client):
        clients = Churn(system.address, random.Random(seed))
        await clients.wave()  # creates everything that is created once and kept
        await eventually(lambda: no_leases(client))
        first = await granted(client)
        before = [await counts(part) for part in parts(system)]
        began, plateau = time.perf_counter(), None
        clients.steps.clear()
        while clients.abandoned < sessions:
            await clients.wave()
            if plateau is None and clients.abandoned > sessions // 4:
                await eventually(lambda: no_leases(client))
                plateau = [memory(part) for part in parts(system)]
        killed = time.perf_counter()
        await eventually(lambda: no_leases(client))
        for part, was in zip(parts(system), before, strict=True):
            await settled(part, was)
        ended = time.perf_counter()
        after = [memory(part) for part in parts(system)]
        print(
            f"{clients.abandoned} leases abandoned, sessions {dict(clients.steps)}; "
            f"{await granted(client) - first} leases granted in {killed - began:.1f} s, all "
            f"released {ended - killed:.1f} s later; MiB (control plane, worker): first plateau "
            f"{[round(m, 1) for m in plateau or after]}, at the end {[round(m, 1) for m in after]}"
        )
        for first_plateau, end in zip(plateau or after, after, strict=True):
            assert end < first_plateau * MAX_GROWTH


async def no_leases(client: AsyncClient) -> bool:
    return not await client.leases()


@pytest.mark.usefixtures("leak_guard")
async def test_forty_abandoned_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    await churn(tmp_path, 40, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("leak_guard")
async def test_two_thousand_abandoned_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    await churn(tmp_path, 2000, seed=int(os.environ.get("SEED", "2")))


@pytest.mark.usefixtures("leak_guard")
async def test_an_abandoned_lease_expires_after_its_ttl_and_not_before(tmp_path: Path) -> None:
    ttl = 12.0
    async with running(tmp_path, SERVERS) as (system, client):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ABANDONER), system.address, "1", str(ttl), "abandoned", "600"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(BOUND):
            while not (await process.stdout.readline()).startswith(b"calling"):
                pass
        process.kill()
        killed = time.monotonic()
        await process.wait()
        worker = system.workers["worker-1"].process.pid
        await eventually(client.leases)

        def server_has_exited() -> bool:
            return not any("counter.py" in line for line in descendants(worker).values())

        await eventually(server_has_exited)
        # The last renewal was at most a third of the ttl before the kill, or some seconds more on a
        # busy machine. A lease released at the disconnect would have no delay at all.
        assert time.monotonic() - killed > 1.0
        await eventually(lambda: no_leases(client))
