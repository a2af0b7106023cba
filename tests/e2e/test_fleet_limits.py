"""Limits of a tenant hold over all workers of a running system."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest
import yaml
from tests.e2e.system import System, python_server

from leaseway.sdk import AsyncClient, FateUnknown, RateLimited

SECONDS = float(os.environ.get("LEASEWAY_SOAK_SECONDS", "600"))
SERVERS = {"echo": python_server("echo_raw.py", **{"truely-stateless": True})}


FEW, MORE = {"calls": "2/h"}, {"calls": "9/h"}


def configuration(tenants: dict[str, object], **keys: object) -> str:
    servers = {name: {**entry, **keys} for name, entry in SERVERS.items()}
    return yaml.safe_dump({"version": 1, "servers": servers, "tenants": tenants})


def limiting_all(calls: str) -> str:
    return configuration({"*": {"limits": {"calls": calls}}})


async def passed(client: AsyncClient, calls: int) -> int:
    """Call at once; return how many calls were not refused for a limit."""
    refusals: list[tuple[str, str]] = []

    async def passes() -> bool:
        try:
            await client.call_tool("echo", {"text": "x"}, timeout=30)
        except RateLimited as error:
            refusals.append((error.metadata["limit"], error.metadata["renews_in"]))
            return False
        except FateUnknown:  # it was sent to a worker that was being killed
            return False
        return True

    count = sum(await asyncio.gather(*(passes() for _ in range(calls))))
    assert {limit for limit, _ in refusals} <= {"limits.calls"}
    assert all(float(renews_in) > 0 for _, renews_in in refusals)
    return count


@pytest.mark.usefixtures("leak_guard")
async def test_a_rate_holds_over_three_workers_and_the_loss_of_parts(tmp_path: Path) -> None:
    system = System(tmp_path, SERVERS, workers=3)
    system.write_text(limiting_all("6/h"))
    async with system, AsyncClient(system.address) as client:
        assert await passed(client, 30) == 6
        assert system.control_plane is not None
        await system.control_plane.end(signal.SIGKILL)
        assert await passed(client, 10) == 0
        await system.start_control_plane()
        await system.ready()
        assert await passed(client, 10) == 0
        await system.workers["worker-1"].end(signal.SIGKILL)
        assert await passed(client, 10) == 0
        await system.start_worker("worker-1")
        assert await passed(client, 10) == 0


@pytest.mark.usefixtures("leak_guard")
async def test_limits_of_an_agent_and_a_tool_hold_over_workers_and_are_listed(
    tmp_path: Path,
) -> None:
    system = System(tmp_path, SERVERS, workers=3)
    tenants = {"acme": {"limits": {"calls": "100/h"}, "agents": {"bot": {"limits": FEW}}}}
    system.write_text(configuration({**tenants, "*": {}}, quota={"tools": {"echo": MORE}}))
    async with (
        system,
        AsyncClient(system.address, tenant="acme", agent="bot") as bot,
        AsyncClient(system.address, tenant="acme") as person,
        AsyncClient(system.address) as operator,
    ):
        assert await passed(bot, 20) == 2
        assert await passed(person, 20) == 7
        left = {(limit.scope, limit.agent): limit for limit in await operator.limits()}
        assert left["agent", "bot"].remaining == left["tool", ""].remaining == 0
        assert 0 < left["tool", ""].renews_in <= 3_600


class Minutes:
    """The times of calls of nine callers under a limit of six a minute."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._chance = random.Random(5)

    async def call_often(self, client: AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            try:
                timeout = self._chance.uniform(1, 70)
                await client.call_tool("echo", {"text": "x"}, timeout=timeout)
            except RateLimited:
                await asyncio.sleep(0.2)
            else:
                self.times.append(time.monotonic())

    async def run(self, client: AsyncClient) -> None:
        until = time.monotonic() + SECONDS
        await asyncio.gather(*(self.call_often(client, until) for _ in range(9)))

    @property
    def counts(self) -> list[int]:
        start = self.times[0] - 1.0  # a call of the next minute may come a moment early
        return [
            sum(0 <= time - start - 60 * number < 60 for time in self.times)
            for number in range(int(SECONDS // 60))
        ]


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
async def test_six_a_minute_are_six_a_minute_for_long(tmp_path: Path) -> None:
    system, minutes = System(tmp_path, SERVERS, workers=3), Minutes()
    system.write_text(limiting_all("6/m"))
    async with system, AsyncClient(system.address) as client:
        await minutes.run(client)
    print("calls in each minute:", minutes.counts)
    assert all(5 <= count <= 7 for count in minutes.counts)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
async def test_the_fleet_admits_at_most_a_slice_more_while_its_control_plane_is_away(
    tmp_path: Path,
) -> None:
    system, minutes = System(tmp_path, SERVERS, workers=3), Minutes()
    system.write_text(limiting_all("6/m"))
    async with system, AsyncClient(system.address) as client:
        calling = asyncio.create_task(minutes.run(client))
        await asyncio.sleep(SECONDS / 3)
        assert system.control_plane is not None
        await system.control_plane.end(signal.SIGKILL)
        await asyncio.sleep(SECONDS / 3)
        await system.start_control_plane()
        await calling
    print("calls in each minute:", minutes.counts)
    a_slice = 3  # one call of each worker
    assert all(count <= 6 + a_slice for count in minutes.counts)
    assert sum(minutes.counts) <= 6 * len(minutes.counts) + a_slice
