"""Sessions on one stateful server never see each other's state, also when workers are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import System, eventually, python_server, running

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    FateUnknown,
    LeaseError,
    LeaseLost,
    LeasewayError,
    ServerLost,
    WorkerLost,
)

SERVERS = {"counter": python_server("counter.py", transform=[{"prefix": "counter_"}])}
SESSIONS = 50
WORKERS = 3


@dataclass
class Sessions:
    """Sessions that each add their own number, so that a sum shows whose it is.

    Attributes:
        added: Additions with a result.
        failed: Failed calls, by error.
        lost: How often each session was notified that its lease has ended.
        wrong: Errors that must not happen.
    """

    added: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopped: bool = False

    async def run(self, number: int, session: AsyncSession) -> None:
        """Add until stopped; acquire a new lease whenever the lease has ended."""
        draw = random.Random(number)
        while not self.stopped:
            await session.acquire("counter")
            ended = await self._add_until_lost(number, session)
            if ended:
                self.lost[number] += 1
                await self._check_lease_is_lost(number, session)
                if draw.random() < 0.5:
                    await session.release("counter")

    async def _add_until_lost(self, number: int, session: AsyncSession) -> bool:
        """Add as long as the lease lasts; return whether it was lost."""
        step, minimum, maximum = 1000 + number, 0, 0
        while not self.stopped:
            try:
                total = await add(session, step)
            except (FateUnknown, ServerLost) as error:
                self._count(error)
                maximum += error.started != "no"  # it may have been added
            except LeaseError as error:
                self._count(error)
                return True
            except WorkerLost as error:
                self._count(error)
            else:
                minimum, maximum = minimum + 1, maximum + 1
                if not (total % step == 0 and minimum <= total // step <= maximum):
                    self.wrong.append(
                        f"session {number} has {total}, {minimum}-{maximum} of {step}"
                    )
                minimum = maximum = total // step
                self.added += 1
                await asyncio.sleep(0.02)  # 50 callers without a pause would use all processors
        return False

    async def _check_lease_is_lost(self, number: int, session: AsyncSession) -> None:
        """Call again: without acquire or release there must be no new lease."""
        try:
            total = await add(session, 1000 + number)
        except LeaseError:
            return
        self.wrong.append(f"session {number} got a new counter without an error: {total}")

    def _count(self, error: LeasewayError) -> None:
        self.failed[type(error).__name__] += 1


async def add(session: AsyncSession, step: int) -> int:
    return int((await session.call_tool("counter_add", {"by": step}, timeout=100)).text)


async def all_hold(system: System, client: AsyncClient) -> None:
    """Wait until every session has a lease on a live worker."""

    async def held() -> bool:
        return sum(lease.worker in system.workers for lease in await client.leases()) >= SESSIONS

    await eventually(held, within=2 * BOUND)


@pytest.mark.usefixtures("leak_guard")
async def test_fifty_sessions_stay_isolated_while_workers_are_killed(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS, workers=WORKERS) as (system, client):
        sessions = Sessions()
        tasks = [
            asyncio.create_task(sessions.run(n, client.session(f"s{n}"))) for n in range(SESSIONS)
        ]
        await all_hold(system, client)
        for number in range(1, WORKERS + 1):
            await system.start_worker(f"successor-{number}")
            await system.workers.pop(f"worker-{number}").end(signal.SIGKILL)
            await all_hold(system, client)
        sessions.stopped = True
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*tasks)
        print(
            f"{sessions.added} additions, {sessions.lost.total()} leases lost "
            f"by {len(sessions.lost)} sessions, failed calls {dict(sessions.failed)}"
        )
        assert not sessions.wrong
        assert sessions.lost
        assert set(sessions.failed) <= {"FateUnknown", "ServerLost", "LeaseLost", "WorkerLost"}


@pytest.mark.usefixtures("leak_guard")
async def test_a_session_whose_server_died_gets_an_error_and_then_a_new_counter(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SERVERS) as (_system, client):
        session, other = client.session("one"), client.session("other")
        assert [await add(session, 3), await add(other, 5)] == [3, 5]
        pid = int((await session.call_tool("counter_pid")).text)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises((ServerLost, LeaseLost)):
            await add(session, 3)
        with pytest.raises(LeaseLost):
            await add(session, 3)
        assert await add(other, 5) == 10
        await session.release("counter")
        assert await add(session, 3) == 3
        assert await add(other, 5) == 15
