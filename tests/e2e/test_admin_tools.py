"""`mcp_release` in a whole system: listed, called by models, in every kind of session."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.forking import fork_leaseway
from tests.e2e.system import eventually, python_server, running

from leaseway.sdk import AsyncClient, AsyncSession, Capacity, Client, LeaseReleased, ToolNotFound

COUNTER = python_server("counter.py")
ECHO = python_server("echo_raw.py", **{"truely-stateless": True})
RELEASE = {"serverId": "counter"}


async def are_listed(client: AsyncClient, session: AsyncSession) -> bool:
    """Return whether the control plane lists exactly the leases of a session."""
    held = {lease.id for lease in session.leases()}
    return {
        each_lease.id for each_lease in await client.leases() if each_lease.session == session.key
    } == held


@pytest.mark.usefixtures("leak_guard")
async def test_a_reminder_names_the_tool_that_releases_the_lease(
    tmp_path: Path,
) -> None:
    servers = {"counter": COUNTER, "echo": ECHO}
    async with running(tmp_path, servers, workers=2) as (system, client):
        (tool,) = await client.list_tools(servers=["mcp_admin"])
        assert tool.name == "mcp_release"
        assert tool.input_schema["required"] == ["serverId"]
        assert "mcp_admin" not in [server.id for server in await client.servers()]
        for number in range(4):  # on both workers
            session = client.session(f"s{number}")
            first = await session.call_tool("next")
            assert first.reminder is not None
            assert f'{tool.name}({{"serverId": "counter"}}) of mcp_admin' in first.reminder
            assert (await session.call_tool("next")).text == "2"
            async with AsyncClient(system.address) as other:
                same_session = other.session(session.key)
                assert (await same_session.call_tool("next")).text == "3"
                released = await session.call_tool("mcp_release", RELEASE)
                assert not released.is_error, released.text
                assert (await session.call_tool("next")).text == "1"
                with pytest.raises(LeaseReleased):
                    await same_session.call_tool("next")
                await eventually(partial(are_listed, client, session))
                joined = await same_session.call_tool("mcp_admin:mcp_release", RELEASE)
                assert not joined.is_error, joined.text
        rejected = await client.call_tool("mcp_release", {"serverId": "contour"})
        assert rejected.is_error
        assert "did you mean counter?" in rejected.text

        async def no_leases() -> bool:
            return not await client.leases()

        await eventually(no_leases)


@pytest.mark.usefixtures("leak_guard")
async def test_the_tool_is_listed_while_there_are_leased_servers(tmp_path: Path) -> None:
    async with running(tmp_path, {"echo": ECHO}) as (system, client):
        with pytest.raises(ToolNotFound):
            await client.call_tool("mcp_release", RELEASE)
        system.write({"echo": ECHO, "counter": COUNTER})

        async def listed() -> bool:
            return "mcp_release" in [tool.name for tool in await client.list_tools()]

        await eventually(listed)
        assert (await client.call_tool("next")).text == "1"
        assert not (await client.call_tool("mcp_release", RELEASE)).is_error
        assert (await client.call_tool("next")).text == "1"
        system.write({"echo": ECHO})

        async def is_removed() -> bool:
            return not await listed()

        await eventually(is_removed)

        async def is_unknown() -> bool:  # the worker may hear of it later than a listing
            try:
                await client.call_tool("mcp_release", RELEASE)
            except ToolNotFound:
                return True
            return False

        await eventually(is_unknown)


@pytest.mark.usefixtures("leak_guard")
async def test_releases_work_from_threads_and_without_a_control_plane(tmp_path: Path) -> None:
    async with running(tmp_path, {"counter": COUNTER}) as (system, client):
        session = client.session("job")
        await session.call_tool("next")
        assert not (await session.call_tool("mcp_release", RELEASE)).is_error
        assert (await session.call_tool("next")).text == "1"

        def use() -> list[str]:
            with Client(system.address) as one:
                return [
                    one.call_tool("next").text,
                    one.call_tool("mcp_release", RELEASE).text.split(".")[0],
                    one.call_tool("next").text,
                ]

        released = "Released the lease of server counter"
        assert await asyncio.to_thread(use) == ["1", released, "1"]
        assert system.control_plane is not None
        await system.control_plane.end(signal.SIGKILL)
        assert not (await session.call_tool("mcp_release", RELEASE)).is_error
        assert session.leases() == []


@pytest.mark.usefixtures("leak_guard")
async def test_leases_watch_prints_gained_and_released_leases(tmp_path: Path) -> None:
    async with running(tmp_path, {"counter": COUNTER}) as (system, client):
        arguments = ("leases", "--watch", "--json", "--address", system.address)
        watch = await fork_leaseway(arguments, os.environ, None)
        async with asyncio.timeout(BOUND):
            session = client.session("job")
            lease = await session.acquire("counter")
            gained = json.loads(await watch.stdout.readline())
            assert (gained["event"], gained["id"], gained["session"]) == ("gained", lease.id, "job")
            assert system.control_plane is not None
            await system.control_plane.end(signal.SIGKILL)
            while b"unreachable" not in (said := await watch.stderr.readline()):
                assert b"No leases are held" in said  # the watch was faster than the lease
            await system.start_control_plane()
            await system.ready()
            await session.call_tool("mcp_release", RELEASE)
            ended = json.loads(await watch.stdout.readline())
            assert (ended["event"], ended["id"]) == ("released", lease.id)
            watch.send_signal(signal.SIGINT)
            assert await watch.wait() == 0
            assert (await watch.stdout.read(), await watch.stderr.read()) == (b"", b"")


@pytest.mark.usefixtures("leak_guard")
async def test_a_waiting_acquire_gets_the_first_lease_that_is_released_on_any_worker(
    tmp_path: Path,
) -> None:
    servers = {"counter": {**COUNTER, "max_instances": 1}}
    async with running(tmp_path, servers, workers=2) as (_, client):
        held = [await client.session(f"s{n}").acquire("counter", wait=BOUND) for n in range(2)]
        assert {lease.worker for lease in held} == {"worker-1", "worker-2"}
        with pytest.raises(Capacity):
            await client.session("impatient").acquire("counter")
        with pytest.raises(Capacity):
            await client.session("less").acquire("counter", wait=0.3)
        for freed in held:
            patient = client.session(f"patient-{freed.worker}")
            waiting = asyncio.create_task(patient.acquire("counter", wait=BOUND))
            await asyncio.sleep(0)
            assert await client.session(freed.session).release(freed)
            lease = await waiting
            assert lease.worker == freed.worker
            assert (await patient.call_tool("next")).text == "1"


@pytest.mark.usefixtures("leak_guard")
async def test_a_waiting_acquire_is_placed_when_a_full_worker_gets_capacity(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"counter": COUNTER}) as (system, client):
        await system.workers.pop("worker-1").end()
        await system.start_worker("small", "--capacity", "1")

        async def served() -> bool:
            return [
                worker.id for worker in await client.workers() if worker.state == "connected"
            ] == ["small"]

        await eventually(served)
        first = client.session("first")
        lease = await first.acquire("counter", wait=BOUND)
        waiting = asyncio.create_task(client.session("second").acquire("counter", wait=BOUND))
        await asyncio.sleep(0)
        with pytest.raises(Capacity):
            await client.session("third").acquire("counter")
        await first.release(lease)
        assert (await waiting).worker == "small"
