"""Limits of a tenant hold over all workers of a running system."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
import yaml
from tests.conftest import BOUND
from tests.e2e.system import System, python_server

from leaseway.sdk import AsyncClient, FateUnknown, RateLimited

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


async def passed_in_all(client: AsyncClient, expected: int) -> int:
    """Call again until as many calls as expected have passed; return how many have.

    A worker holds permits that it does not need for a moment, in which another lacks them.
    """
    async with asyncio.timeout(BOUND):
        count = 0
        while count < expected:
            count += await passed(client, 20)
    return count + await passed(client, 20)


@pytest.mark.usefixtures("leak_guard")
async def test_a_rate_holds_over_three_workers_and_the_loss_of_parts(tmp_path: Path) -> None:
    system = System(tmp_path, SERVERS, workers=3)
    system.write_text(limiting_all("6/h"))
    async with system, AsyncClient(system.address) as client:
        assert await passed_in_all(client, 6) == 6
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
        assert await passed_in_all(bot, 2) == 2
        assert await passed_in_all(person, 7) == 7
        left = {(limit.scope, limit.agent): limit for limit in await operator.limits()}
        assert left["agent", "bot"].remaining == left["tool", ""].remaining == 0
        assert 0 < left["tool", ""].renews_in <= 3_600
