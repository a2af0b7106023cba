"""Many concurrent calls of all sizes, some cancelled: no result is lost, mixed up or duplicated."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.e2e.counting import counts, settled
from tests.e2e.system import python_server, running

from leaseway.sdk import AsyncClient, DeadlineExceeded, Overloaded

IN_FLIGHT = 256
SIZES = (1, 10, 64, 1000, 5000, 20_000)
LARGE = (262_100, 262_200, 1_000_000, 4 * 2**20)
"""Sizes around one batch, and results of several chunks."""


def produced(seed: int, size: int) -> str:
    word = f"<{seed:016x}>"
    return (word * (size // len(word) + 1))[:size]


@dataclass
class Tally:
    """The outcomes of the calls."""

    seeds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def next_seed(self) -> int:
        self.seeds += 1
        return self.seeds


async def one_call(client: AsyncClient, tally: Tally, choose: random.Random) -> None:
    """Make a call of a random kind; check its result against its request."""
    seed = tally.next_seed()
    size = choose.choice(LARGE) if choose.random() < 0.01 else choose.choice(SIZES)
    steps = choose.randrange(1, 4) if choose.random() < 0.1 else 0
    delay = choose.random() * 0.2 if choose.random() < 0.2 else 0
    arguments = {"seed": seed, "size": size, "steps": steps, "delay": delay}
    reports: list[tuple[float, str | None]] = []
    call = client.call_tool(
        "produce",
        arguments,
        timeout=choose.uniform(0.001, 0.1) if choose.random() < 0.05 else 60,
        on_progress=(lambda done, _total, message: reports.append((done, message)))
        if steps
        else None,
    )
    try:
        if choose.random() < 0.05:
            async with asyncio.timeout(choose.random() * 0.05):
                result = await call
        else:
            result = await call
    except DeadlineExceeded:
        tally.outcomes["timed out"] += 1
    except TimeoutError:
        tally.outcomes["cancelled"] += 1
    except Overloaded:
        tally.outcomes["refused"] += 1
    else:
        assert result.text == produced(seed, size)
        assert not result.is_error
        tally.outcomes["answered"] += 1
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert {message for _, message in reports} <= {str(seed)}


async def hammer(client: AsyncClient, tally: Tally, seconds: float, seed: int) -> None:
    end = time.monotonic() + seconds

    async def caller(number: int) -> None:
        choose = random.Random(seed * 1000 + number)
        while time.monotonic() < end:
            await one_call(client, tally, choose)

    async with asyncio.timeout(seconds + 60), asyncio.TaskGroup() as group:
        for number in range(IN_FLIGHT):
            group.create_task(caller(number))


async def run(folder: Path, seconds: float) -> Tally:
    servers = {"many": python_server("many.py", **{"truely-stateless": True})}
    tally = Tally()
    async with running(folder, servers) as (system, client):
        worker = system.workers["worker-1"]
        await client.call_tool("produce", {"seed": 1, "size": 1})
        before = await counts(worker)
        await hammer(client, tally, seconds, seed=7)
        await settled(worker, before)
    assert sum(tally.outcomes.values()) == tally.seeds
    for kind in ("answered", "timed out", "cancelled"):
        assert tally.outcomes[kind] > 0, tally.outcomes
    print(f"{seconds:.0f} s: {dict(tally.outcomes)}")
    return tally


async def test_no_result_is_lost_mixed_up_or_duplicated(tmp_path: Path) -> None:
    await run(tmp_path, seconds=6)


@pytest.mark.soak
async def test_no_result_is_lost_mixed_up_or_duplicated_in_a_minute(tmp_path: Path) -> None:
    tally = await run(tmp_path, seconds=60)
    assert tally.outcomes["answered"] > 10_000
