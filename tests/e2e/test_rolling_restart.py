"""Every process of a system is restarted under load."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.counting import have_exited
from tests.e2e.system import System, eventually, python_server, running

from leaseway.sdk import AsyncClient, AsyncSession, FateUnknown, LeaseError, LeasewayError

SERVERS = {
    "shared": python_server(
        "echo_raw.py", **{"truely-stateless": True, "transform": [{"prefix": "shared_"}]}
    ),
    "counter": python_server("counter.py", transform=[{"prefix": "counter_"}]),
}
WORKERS = 3
CALLERS = 16
SESSIONS = 12


@dataclass
class Load:
    """Calls of a shared server, and sessions that count on a leased one.

    Attributes:
        answered: The number of shared calls with a result.
        slowest: The longest duration of one of them, in seconds.
        failures: Unexpected failures.
        losses: The worker and the error of each lost lease.
    """

    client: AsyncClient
    answered: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)
    losses: list[tuple[str, str]] = field(default_factory=list)
    holders: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Start the callers."""
        self.tasks = [asyncio.create_task(self._call(n)) for n in range(CALLERS)]
        for number in range(SESSIONS):
            session = self.client.session(f"s{number}")
            self.tasks.append(asyncio.create_task(self._count(session)))

    async def stop(self) -> None:
        """Start no more calls and wait for those in flight."""
        self.stopped = True
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*self.tasks)

    async def _call(self, number: int) -> None:
        text = str(number)
        while not self.stopped:
            began = time.monotonic()
            try:
                tool = "shared_slow" if number % 4 == 0 else "shared_echo"
                result = await self.client.call_tool(tool, {"text": text}, timeout=100)
            except LeasewayError as error:
                self.failures.append(f"{text}: {error!r}")
            else:
                self.answered += 1
                assert result.text in (text, "slow")
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(0.01)

    async def _count(self, session: AsyncSession) -> None:
        while not self.stopped:
            counted, self.holders[session.key] = 0, ""
            try:
                lease = await session.acquire("counter")
                self.holders[session.key] = lease.worker
                while not self.stopped:
                    result = await session.call_tool("counter_next", timeout=100)
                    counted += 1
                    if result.text != str(counted):
                        self.failures.append(f"{session.key}: {result.text} after {counted}")
                    await asyncio.sleep(0.02)
            except (LeaseError, FateUnknown) as error:
                # A client that gets no processor for 1 s, as long as an ending worker keeps its
                # streams open, cannot know whether its last call ran.
                holder = self.holders[session.key]
                self.losses.append((holder, type(error).__name__))
                with contextlib.suppress(LeasewayError):
                    await session.release("counter")
            except LeasewayError as error:
                self.failures.append(f"{session.key}: {error!r}")


async def replace_worker(system: System, load: Load, name: str) -> None:
    """Drain a worker by SIGTERM and start its successor with the same name."""
    before, processes = len(load.losses), descendants(system.workers[name].process.pid)
    held = sum(holder == name for holder in load.holders.values())
    assert held
    assert await system.workers.pop(name).end(signal.SIGTERM) == 0
    await have_exited(processes)
    await system.start_worker(name)
    await eventually(lambda: load.failures or len(load.losses) >= before + held)
    assert not load.failures
    lost = Counter(load.losses[before:])
    assert {worker for worker, _ in lost} == {name}, lost
    assert sum(lost.values()) == held, lost
    await eventually(lambda: serves(load.client, name))


async def serves(client: AsyncClient, name: str) -> bool:
    """Return whether a worker has joined and its shared instance is ready."""
    return any(
        instance.worker == name and instance.state == "ready"
        for server in await client.servers()
        if server.shared
        for instance in server.instances
    )


async def all_hold(load: Load) -> None:
    """Wait until each session has one lease, and the control plane lists it."""
    known: list[tuple[str, str]] = []

    async def same() -> bool:
        known[:] = sorted((lease.session, lease.worker) for lease in await load.client.leases())
        return known == sorted(load.holders.items()) and len(known) == SESSIONS

    try:
        await eventually(same)
    except TimeoutError:
        raise AssertionError(f"{known} are listed, {load.holders} held; {load.failures}") from None


@pytest.mark.usefixtures("leak_guard")
async def test_a_rolling_restart_fails_no_shared_call_and_revokes_each_lease_once(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SERVERS, workers=WORKERS) as (system, client):
        load = Load(client)
        load.start()
        began = time.perf_counter()
        for name in list(system.workers):
            await all_hold(load)
            await replace_worker(system, load, name)
        await all_hold(load)
        losses, answered = len(load.losses), load.answered
        assert system.control_plane is not None
        await system.control_plane.end(signal.SIGKILL)
        await eventually(lambda: load.answered > answered + 100)
        await system.start_control_plane()
        await system.ready()
        await all_hold(load)
        await load.stop()
        print(
            f"{WORKERS} workers and the control plane replaced in "
            f"{time.perf_counter() - began:.1f} s: {load.answered} shared calls, the slowest "
            f"{load.slowest:.2f} s; leases lost {dict(Counter(load.losses))}"
        )
        assert not load.failures
        assert len(load.losses) == losses  # none by the control plane
