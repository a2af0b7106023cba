"""A worker or the control plane is stopped by SIGSTOP and continued later."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.system import Part, eventually, python_server, running

from leaseway.sdk import ControlPlaneUnavailable, DeadlineExceeded, FateUnknown, LeaseError

SERVERS = {"counter": python_server("counter.py", transform=[{"prefix": "counter_"}])}
_STATELESS = {"truely-stateless": True, "transform": [{"prefix": "c_"}]}
SHARED = {"shared": python_server("counter.py", **_STATELESS)}


def servers_of(part: Part) -> int:
    return sum("counter.py" in line for line in descendants(part.process.pid).values())


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("leak_guard")
async def test_a_lease_is_never_held_twice_after_a_stopped_worker_was_lost(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SERVERS, workers=2) as (system, client):
        session = client.session("dialog")
        first = await session.acquire("counter", ttl=60)
        assert (await session.call_tool("counter_next")).text == "1"
        stopped = system.workers[first.worker]
        stopped.process.send_signal(signal.SIGSTOP)
        with pytest.raises((DeadlineExceeded, FateUnknown)):
            await session.call_tool("counter_next", timeout=2)

        async def is_lost() -> bool:
            states = {worker.id: worker.state for worker in await client.workers()}
            reasons = {problem.reason for problem in await client.problems()}
            return states[first.worker] == "lost" and "WORKER_LOST" in reasons

        await eventually(is_lost, within=90)
        with pytest.raises((LeaseError, FateUnknown, DeadlineExceeded)):
            await session.call_tool("counter_next", timeout=5)
        second = await session.acquire("counter", ttl=60)
        assert second.worker != first.worker
        assert (await session.call_tool("counter_next")).text == "1"
        stopped.process.send_signal(signal.SIGCONT)

        async def settled() -> bool:
            held = [lease.id for lease in await client.leases()]
            states = {worker.id: worker.state for worker in await client.workers()}
            back = states[first.worker] == "connected"
            processes = sum(servers_of(part) for part in system.workers.values())
            return back and len(held) == 1 and processes == 1

        await eventually(settled, within=90)
        # The later lease stays: the holder of the earlier one was notified of its loss.
        assert [lease.id for lease in await client.leases()] == [second.id]
        assert (await session.call_tool("counter_next")).text == "2"
        assert (await session.acquire("counter", ttl=60)).id == second.id


@pytest.mark.usefixtures("leak_guard")
async def test_leases_and_calls_continue_while_the_control_plane_is_stopped(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        session = client.session("dialog")
        ttl = 10.0  # long enough that a busy machine ends no lease
        await session.acquire("counter", ttl=ttl)
        assert (await session.call_tool("counter_next")).text == "1"
        assert system.control_plane is not None
        system.control_plane.process.send_signal(signal.SIGSTOP)
        try:
            stopped, number = time.monotonic(), 1
            while time.monotonic() < stopped + ttl + 1:
                number += 1
                result = await session.call_tool("counter_next", timeout=60)
                assert result.text == str(number)
                await asyncio.sleep(0.1)  # in total longer than the ttl, in real time
        finally:
            system.control_plane.process.send_signal(signal.SIGCONT)

        async def is_listed() -> bool:
            return len(await client.leases()) == 1

        await eventually(is_listed)
        assert (await session.call_tool("counter_next")).text == str(number + 1)


@pytest.mark.usefixtures("leak_guard")
async def test_calls_avoid_a_stopped_worker(tmp_path: Path) -> None:
    async with running(tmp_path, SHARED, workers=2) as (system, client):

        async def both_serve() -> bool:
            [server] = await client.servers()
            return {
                instance.worker for instance in server.instances if instance.state == "ready"
            } == {
                "worker-1",
                "worker-2",
            }

        await eventually(both_serve)
        await client.call_tool("c_next")
        stopped = system.workers["worker-1"]
        stopped.process.send_signal(signal.SIGSTOP)
        answered = late = 0  # sequential calls, which would alternate between equal workers
        try:
            async with asyncio.timeout(BOUND):
                while answered < 6:
                    try:
                        await client.call_tool("c_next", timeout=2)
                        answered += 1
                    except (DeadlineExceeded, FateUnknown):
                        answered, late = 0, late + 1
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        assert late <= 3, "its calls end after 10 s in any case, when its connection is cut"


@pytest.mark.soak
@pytest.mark.usefixtures("leak_guard")
async def test_a_stopped_worker_is_reported_as_lost_and_rejoins(tmp_path: Path) -> None:
    async with running(tmp_path, SHARED, workers=2) as (system, client):
        stopped = system.workers["worker-1"]
        stopped.process.send_signal(signal.SIGSTOP)
        since = time.monotonic()

        async def noticed() -> bool:
            states = {worker.id: worker.state for worker in await client.workers()}
            return states.get("worker-1") != "connected"

        async def named() -> bool:
            problems = await client.problems()
            return "worker-1" in {
                problem.worker for problem in problems if problem.reason == "WORKER_LOST"
            }

        async def is_fixed() -> bool:
            return not await client.problems()

        try:
            await eventually(noticed, within=20)
            assert time.monotonic() - since > 9, "a stall of a second is no silence"
            await eventually(named, within=20)
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        await eventually(is_fixed)


@pytest.mark.usefixtures("leak_guard")
async def test_acquire_fails_soon_after_its_wait_while_the_control_plane_is_stopped(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        assert system.control_plane is not None
        system.control_plane.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(BOUND):
                with pytest.raises(ControlPlaneUnavailable, match=system.address):
                    await client.session("dialog").acquire("counter", wait=1)
        finally:
            system.control_plane.process.send_signal(signal.SIGCONT)
