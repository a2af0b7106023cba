"""Sessions on one stateful server never see each other's state, whatever happens to workers."""

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
    """Sessions that add a number of their own, so that a sum tells whose it is.

    Attributes:
        added: Additions that had a result.
        failed: Failed calls, by error.
        lost: Sessions that have learnt that their lease is over, and how often.
        wrong: What must not be.
    """

    added: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    over: bool = False

    async def live(self, number: int, session: AsyncSession) -> None:
        """Add until the end; begin anew, explicitly, whenever the lease is over."""
        draw = random.Random(number)
        while not self.over:
            await session.acquire("counter")
            ended = await self._add_until_lost(number, session)
            if ended:
                self.lost[number] += 1
                await self._insist(number, session)
                if draw.random() < 0.5:
                    await session.release("counter")

    async def _add_until_lost(self, number: int, session: AsyncSession) -> bool:
        """Add as long as the lease lasts; say whether it was lost."""
        step, least, most = 1000 + number, 0, 0
        while not self.over:
            try:
                total = await add(session, step)
            except (FateUnknown, ServerLost) as error:
                self._count(error)
                most += error.started != "no"  # it may have been added
            except LeaseError as error:
                self._count(error)
                return True
            except WorkerLost as error:
                self._count(error)
            else:
                least, most = least + 1, most + 1
                if not (total % step == 0 and least <= total // step <= most):
                    self.wrong.append(f"session {number} has {total}, {least}-{most} of {step}")
                least = most = total // step
                self.added += 1
                await asyncio.sleep(0.02)  # 50 callers without a pause would be all that runs
        return False

    async def _insist(self, number: int, session: AsyncSession) -> None:
        """Call again: without acquire or release nothing may begin anew."""
        try:
            total = await add(session, 1000 + number)
        except LeaseError:
            return
        self.wrong.append(f"session {number} was given a fresh counter in silence: {total}")

    def _count(self, error: LeasewayError) -> None:
        self.failed[type(error).__name__] += 1


async def add(session: AsyncSession, step: int) -> int:
    return int((await session.call_tool("counter_add", {"by": step}, timeout=100)).text)


async def all_hold(system: System, client: AsyncClient) -> None:
    """Wait until every session has a lease on a worker that lives."""

    async def held() -> bool:
        return sum(lease.worker in system.workers for lease in await client.leases()) >= SESSIONS

    await eventually(held, within=2 * BOUND)


@pytest.mark.usefixtures("leak_guard")
async def test_fifty_sessions_keep_apart_while_workers_are_killed(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS, workers=WORKERS) as (system, client):
        all_of_them = Sessions()
        tasks = [
            asyncio.create_task(all_of_them.live(n, client.session(f"s{n}")))
            for n in range(SESSIONS)
        ]
        await all_hold(system, client)
        for number in range(1, WORKERS + 1):
            await system.start_worker(f"successor-{number}")
            await system.workers.pop(f"worker-{number}").end(signal.SIGKILL)
            await all_hold(system, client)
        all_of_them.over = True
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*tasks)
        print(
            f"{all_of_them.added} additions, {all_of_them.lost.total()} leases lost "
            f"by {len(all_of_them.lost)} sessions, failed calls {dict(all_of_them.failed)}"
        )
        assert not all_of_them.wrong
        assert all_of_them.lost
        assert set(all_of_them.failed) <= {"FateUnknown", "ServerLost", "LeaseLost", "WorkerLost"}


@pytest.mark.usefixtures("leak_guard")
async def test_a_session_whose_server_died_is_told_and_begins_at_nothing(tmp_path: Path) -> None:
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
