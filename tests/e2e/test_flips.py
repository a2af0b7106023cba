"""Changing `truely-stateless` while a server is in use (docs/design.md#reload)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.counting import counts
from tests.e2e.system import Part, System, eventually, python_server, running

from leaseway.sdk import AsyncClient, LeaseRevoked, NotLeasable


def counter(*, shared: bool, **settings: object) -> dict[str, object]:
    return {
        "counter": python_server("counter.py", **{"truely-stateless": shared, **settings}),
    }


async def flip(system: System, client: AsyncClient, *, shared: bool, **settings: object) -> None:
    """Change whether the server is shared, and wait until that is in effect."""
    await write(system, client, counter(shared=shared, **settings), shared=shared)


async def write(
    system: System, client: AsyncClient, servers: dict[str, object], *, shared: bool
) -> None:
    """Write a configuration of one server and wait until it is in effect."""
    system.write(servers)

    async def is_applied() -> bool:
        (server,) = await client.servers()
        return server.shared is shared and server.state == "ready" and bool(server.workers)

    await eventually(is_applied)


async def processes(client: AsyncClient) -> set[int | None]:
    (server,) = await client.servers()
    return {instance.pid for instance in server.instances}


@pytest.mark.usefixtures("leak_guard")
async def test_a_server_made_shared_keeps_its_leases_and_shares_other_calls(tmp_path: Path) -> None:
    async with running(tmp_path, counter(shared=False)) as (system, client):
        old, new = client.session("old"), client.session("new")
        assert (await old.call_tool("next")).text == "1"
        leased = (await old.call_tool("pid")).text
        await flip(system, client, shared=True)
        assert (await old.call_tool("next")).text == "2"  # its state is kept
        shared = (await client.call_tool("pid")).text
        answer = await new.call_tool("pid")
        assert (answer.text, answer.new_lease) == (shared, None)
        assert shared != leased
        with pytest.raises(NotLeasable):
            await new.acquire("counter")
        assert await old.release("counter")
        assert (await old.call_tool("pid")).text == shared

        async def old_process_has_exited() -> bool:
            return await processes(client) == {int(shared)}

        await eventually(old_process_has_exited)


@pytest.mark.usefixtures("leak_guard")
async def test_a_lease_of_a_server_made_shared_is_revoked_after_its_drain_timeout(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, counter(shared=False)) as (system, client):
        session = client.session("old")
        await session.call_tool("next")
        await flip(system, client, shared=True, lease_drain_timeout=0.5)

        async def no_lease() -> bool:
            return not await client.leases()

        await eventually(no_lease)
        for _ in range(2):  # until its holder releases it, calls fail
            with pytest.raises(LeaseRevoked):
                await session.call_tool("next")
        await session.release("counter")
        assert (await session.call_tool("next")).text == "1"


@pytest.mark.usefixtures("leak_guard")
async def test_a_server_made_stateful_finishes_shared_calls_and_leases_new_ones(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "mark"
    server = python_server("faults.py", "plain", str(mark))
    async with running(tmp_path, {"s": server | {"truely-stateless": True}}) as (system, client):
        session = client.session("s")
        shared = (await session.call_tool("pid")).text
        slow = [asyncio.create_task(session.call_tool("wait")) for _ in range(4)]
        worker = system.workers["worker-1"]
        await eventually(partial(calls_are, worker, 4))
        await write(system, client, {"s": server}, shared=False)
        first = await session.call_tool("pid")
        assert first.new_lease is not None
        assert first.text != shared
        assert not any(task.done() for task in slow)  # they are still in flight
        mark.touch()
        assert [result.text for result in await asyncio.gather(*slow)] == ["waited"] * 4

        async def shared_process_has_exited() -> bool:
            return await processes(client) == {int(first.text)}

        await eventually(shared_process_has_exited)


async def calls_are(worker: Part, number: int) -> bool:
    """Return whether so many calls have reached a worker."""
    return (await counts(worker)).facts["calls"] == number


@asynccontextmanager
async def callers(client: AsyncClient) -> AsyncIterator[list[int]]:
    """Call in new sessions and without a session until the block ends; no call may fail."""
    over, counts = asyncio.Event(), [0] * 6

    async def in_sessions(number: int) -> None:
        while not over.is_set():
            async with client.session(f"{number}-{counts[number]}") as session:
                for _ in range(2):
                    await session.call_tool("next", timeout=100)
            counts[number] += 1

    async def outside(number: int) -> None:
        while not over.is_set():
            await client.call_tool("next", timeout=100)
            counts[number] += 1
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(in_sessions(number)) for number in range(4)]
    tasks += [asyncio.create_task(outside(number)) for number in (4, 5)]
    try:
        yield counts
    finally:
        over.set()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*tasks)


@pytest.mark.usefixtures("leak_guard")
async def test_no_call_fails_while_a_server_alternates_between_shared_and_leased(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, counter(shared=False), workers=2) as (system, client):
        async with callers(client) as counts:
            for number in range(4):
                await flip(system, client, shared=number % 2 == 0)
                before = list(counts)
                await eventually(lambda before=before: _all_above(counts, before))
        assert min(counts) > 0


def _all_above(counts: list[int], before: list[int]) -> bool:
    return all(now > then for now, then in zip(counts, before, strict=True))
