"""`mcp_release` from end to end: listed, called by a model, in every kind of session."""

from __future__ import annotations

import asyncio
import json
import signal
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.system import LEASEWAY, eventually, python_server, running

from leaseway.sdk import AsyncClient, AsyncSession, Capacity, Client, LeaseReleased, ToolNotFound

COUNTER = python_server("counter.py")
ECHO = python_server("echo_raw.py", **{"truely-stateless": True})
RELEASE = {"serverId": "counter"}


async def is_known(client: AsyncClient, session: AsyncSession) -> bool:
    """Say whether the control plane knows the leases of a session and no older ones."""
    held = {lease.id for lease in session.leases()}
    return {one.id for one in await client.leases() if one.session == session.key} == held


@pytest.mark.usefixtures("leak_guard")
async def test_a_model_finds_the_tool_by_the_reminder_and_releases_its_lease(
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
                theirs = other.session(session.key)
                assert (await theirs.call_tool("next")).text == "3"
                released = await session.call_tool("mcp_release", RELEASE)
                assert not released.is_error, released.text
                assert (await session.call_tool("next")).text == "1"
                with pytest.raises(LeaseReleased):
                    await theirs.call_tool("next")
                await eventually(partial(is_known, client, session))
                joined = await theirs.call_tool("mcp_admin:mcp_release", RELEASE)
                assert not joined.is_error, joined.text
        nothing = await client.call_tool("mcp_release", {"serverId": "contour"})
        assert nothing.is_error
        assert "did you mean counter?" in nothing.text

        async def nobody_holds() -> bool:
            return not await client.leases()

        await eventually(nobody_holds)


@pytest.mark.usefixtures("leak_guard")
async def test_the_tool_comes_and_goes_with_the_leased_servers(tmp_path: Path) -> None:
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

        async def gone() -> bool:
            return not await listed()

        await eventually(gone)
        with pytest.raises(ToolNotFound):
            await client.call_tool("mcp_release", RELEASE)


@pytest.mark.usefixtures("leak_guard")
async def test_releases_go_on_without_a_control_plane_and_from_threads(tmp_path: Path) -> None:
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
async def test_an_operator_watches_leases_come_and_go(tmp_path: Path) -> None:
    async with running(tmp_path, {"counter": COUNTER}) as (system, client):
        watch = await asyncio.create_subprocess_exec(
            *LEASEWAY,
            *("leases", "--watch", "--json", "--address", system.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert watch.stdout is not None
        async with asyncio.timeout(90):
            session = client.session("job")
            lease = await session.acquire("counter")
            gained = json.loads(await watch.stdout.readline())
            assert (gained["event"], gained["id"], gained["session"]) == ("gained", lease.id, "job")
            assert system.control_plane is not None
            await system.control_plane.end(signal.SIGKILL)
            assert watch.stderr is not None
            assert b"unreachable" in await watch.stderr.readline()
            await system.start_control_plane()
            await session.call_tool("mcp_release", RELEASE)
            ended = json.loads(await watch.stdout.readline())
            assert (ended["event"], ended["id"]) == ("released", lease.id)
            watch.send_signal(signal.SIGINT)
            rest, errors = await watch.communicate()
        assert (watch.returncode, rest, errors) == (0, b"", b"")


@pytest.mark.usefixtures("leak_guard")
async def test_who_waits_for_room_gets_it_on_whichever_worker_has_it_first(
    tmp_path: Path,
) -> None:
    servers = {"counter": {**COUNTER, "max_instances": 1}}
    async with running(tmp_path, servers, workers=2) as (_, client):
        held = [await client.session(f"s{n}").acquire("counter") for n in range(2)]
        assert {lease.worker for lease in held} == {"worker-1", "worker-2"}
        with pytest.raises(Capacity):
            await client.session("impatient").acquire("counter")
        with pytest.raises(Capacity):
            await client.session("less").acquire("counter", wait=0.3)
        for freed in held:
            patient = client.session(f"patient-{freed.worker}")
            waiting = asyncio.create_task(patient.acquire("counter", wait=30))
            await asyncio.sleep(0)
            assert await client.session(freed.session).release(freed)
            lease = await waiting
            assert lease.worker == freed.worker
            assert (await patient.call_tool("next")).text == "1"


@pytest.mark.usefixtures("leak_guard")
async def test_who_waits_while_all_workers_are_full_is_placed_when_one_is_not(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"counter": COUNTER}) as (system, client):
        await system.workers.pop("worker-1").end()
        await system.start_worker("small", "--capacity", "1")

        async def served() -> bool:
            return [one.id for one in await client.workers() if one.state == "connected"] == [
                "small"
            ]

        await eventually(served)
        first = client.session("first")
        lease = await first.acquire("counter", wait=30)
        waiting = asyncio.create_task(client.session("second").acquire("counter", wait=30))
        await asyncio.sleep(0)
        with pytest.raises(Capacity):
            await client.session("third").acquire("counter")
        await first.release(lease)
        assert (await waiting).worker == "small"
