"""Limits of each owner over one, three and ten workers, at a random split of the load, for minutes.

Sessions are leased on all workers, and some of them call much more often than others. Runs only
with `-m soak`; prints its figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from tests.e2e.system import System, python_server

from leaseway.sdk import AsyncClient, AsyncSession, FateUnknown, LeaseError, LeasewayError

SECONDS = float(os.environ.get("LEASEWAY_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SEED", "33"))
SIX = {"calls": "6/m"}
CALLERS = 9
MARGIN = 1.0
"""Seconds by which the reply to the first call of a minute may be late."""


@dataclass
class Load:
    """Calls against one limit of six a minute.

    Attributes:
        owner: Whose limit it is.
        server: The server that is called.
        sessions: They call, on all workers.
        chance: Decides who calls when.
        passed: When calls that were not refused were answered.
        by_session: How many of them each session has made.
        refused: How many calls have failed, by the error.
    """

    owner: str
    server: str
    sessions: list[AsyncSession]
    chance: random.Random
    passed: list[float] = field(default_factory=list)
    by_session: dict[int, int] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)

    async def acquire(self) -> None:
        await asyncio.gather(*(session.acquire(self.server) for session in self.sessions))

    async def run(self, until: float) -> None:
        """Call until a time, most often from a few of the sessions."""
        weights = [self.chance.random() ** 4 for _ in self.sessions]
        places = asyncio.Semaphore(CALLERS)
        async with asyncio.TaskGroup() as calls:
            while time.monotonic() < until:
                await places.acquire()
                [number] = self.chance.choices(range(len(weights)), weights)
                calls.create_task(self._call(number, until, places))
                await asyncio.sleep(self.chance.uniform(0, 0.2))

    async def _call(self, number: int, until: float, places: asyncio.Semaphore) -> None:
        timeout = min(self.chance.uniform(1, 70), max(1.0, until - time.monotonic()))
        session = self.sessions[number]
        try:
            await session.call_tool(f"{self.server}:echo", {"text": "x"}, timeout=timeout)
        except FateUnknown:  # it was sent to a worker that was killed, and so has passed
            pass
        except LeasewayError as error:
            self.refused[type(error).__name__] += 1
            if isinstance(error, LeaseError):  # its worker was killed
                with contextlib.suppress(LeasewayError):
                    await session.acquire(self.server)
            return
        finally:
            places.release()
        self.passed.append(time.monotonic())
        self.by_session[number] = self.by_session.get(number, 0) + 1

    @property
    def minutes(self) -> list[int]:
        """The calls of each whole minute since the first call."""
        start = self.passed[0] - MARGIN
        return [
            sum(0 <= passed - start - 60 * minute < 60 for passed in self.passed)
            for minute in range(int(SECONDS // 60))
        ]

    def periods(self) -> Iterator[int]:
        """Yield the calls of each minute that begins with the first call after the one before."""
        begin, calls = self.passed[0], 0
        for passed in self.passed:
            if passed - begin >= 60 - MARGIN:
                yield calls
                begin, calls = passed, 0
            calls += 1
        yield calls

    def __str__(self) -> str:
        return (
            f"{self.owner}: {len(self.passed)} calls, by minute {self.minutes}, "
            f"by session {sorted(self.by_session.values(), reverse=True)}, "
            f"refused {dict(self.refused)}"
        )


@contextlib.asynccontextmanager
async def loaded(folder: Path, workers: int) -> AsyncIterator[tuple[System, list[Load]]]:
    """Run a system with four limits, and sessions with leases that count against each."""
    names = ("plain", "quoted", "tooled")
    servers = {name: python_server("echo_raw.py") for name in names}
    servers["quoted"]["quota"] = SIX
    servers["tooled"]["quota"] = {"tools": {"echo": SIX}}
    tenants = {"acme": {"limits": SIX}, "beta": {"agents": {"bot": {"limits": SIX}}}, "*": {}}
    system = System(folder, servers, workers=workers)
    system.write_text(yaml.safe_dump({"version": 1, "servers": servers, "tenants": tenants}))
    async with (
        system,
        AsyncClient(system.address, tenant="acme") as acme,
        AsyncClient(system.address, tenant="beta", agent="bot") as bot,
        AsyncClient(system.address) as anybody,
    ):
        chance = random.Random(SEED)
        loads = [
            Load(
                owner,
                server,
                [client.session(f"{owner}-{number}") for number in range(workers + 2)],
                random.Random(chance.random()),
            )
            for owner, server, client in (
                ("tenant", "plain", acme),
                ("agent", "plain", bot),
                ("server", "quoted", anybody),
                ("tool", "tooled", anybody),
            )
        ]
        await asyncio.gather(*(load.acquire() for load in loads))
        yield system, loads


async def run_all(loads: list[Load]) -> None:
    until = time.monotonic() + SECONDS
    await asyncio.gather(*(load.run(until) for load in loads))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("workers", [1, 3, 10])
async def test_six_a_minute_are_six_a_minute_and_a_worker_is_killed(
    tmp_path: Path, workers: int
) -> None:
    async with loaded(tmp_path, workers) as (system, loads):
        calling = asyncio.create_task(run_all(loads))
        # Within a minute: as one begins, many calls are sent, of which nobody knows which pass.
        await asyncio.sleep(SECONDS / 2 + 20)
        await system.workers["worker-1"].end(signal.SIGKILL)
        await system.start_worker("worker-1")
        await calling
    print(f"{workers} workers, one killed:", *loads, sep="\n")
    for load in loads:
        assert all(5 <= count <= 7 for count in load.minutes), load


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("workers", [1, 3, 10])
async def test_the_fleet_admits_at_most_a_slice_more_while_its_control_plane_is_away(
    tmp_path: Path, workers: int
) -> None:
    async with loaded(tmp_path, workers) as (system, loads):
        calling = asyncio.create_task(run_all(loads))
        await asyncio.sleep(SECONDS / 3)
        assert system.control_plane is not None
        await system.control_plane.end(signal.SIGKILL)
        await asyncio.sleep(SECONDS / 3)
        await system.start_control_plane()
        await calling
    print(f"{workers} workers, no control plane for a third of the time:", *loads, sep="\n")
    a_slice = min(workers, 6)  # one call of each worker
    for load in loads:
        assert max(load.periods()) <= 6 + a_slice, load
        assert len(load.passed) <= 6 * (SECONDS // 60 + 1) + a_slice, load
        assert sum(load.minutes) >= 3 * len(load.minutes), load
