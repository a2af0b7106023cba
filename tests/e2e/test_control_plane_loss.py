"""Calls do not use the control plane, and a new one rebuilds its state from the workers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
import yaml
from tests.e2e.system import System, eventually, python_server, running

from leaseway.sdk import AsyncClient

SERVERS = {
    "shared": python_server(
        "echo_raw.py", **{"truely-stateless": True, "transform": [{"prefix": "shared_"}]}
    ),
    "leased": python_server("counter.py", transform=[{"prefix": "leased_"}]),
}


async def kill_control_plane(system: System) -> None:
    assert system.control_plane is not None
    await system.control_plane.end(signal.SIGKILL)


async def instances(client: AsyncClient) -> set[tuple[str, int | None]]:
    """Return the instances in use, without spares of probes, which end by themselves."""
    return {
        (server.id, instance.pid)
        for server in await client.servers()
        for instance in server.instances
        if instance.role != "spare"
    }


@pytest.mark.parametrize("invalid", [False, True], ids=["valid file", "invalid file"])
@pytest.mark.usefixtures("leak_guard")
async def test_calls_continue_without_a_control_plane_and_a_new_one_restores_its_state(
    tmp_path: Path, invalid: bool
) -> None:
    async with running(tmp_path, SERVERS, workers=2) as (system, client):
        session = client.session("dialog")
        assert (await session.call_tool("leased_next")).text == "1"
        await client.call_tool("shared_echo", {"text": "x"})
        before = await client.list_tools()
        held = await leases(client, 1)
        processes: set[tuple[str, int | None]] = set()

        async def all_are_ready() -> bool:  # a shared instance per worker, and the leased one
            processes.clear()
            processes.update(await instances(client))
            ids = sorted(server_id for server_id, _ in processes)
            return ids == ["leased", "shared", "shared"] and all(pid for _, pid in processes)

        await eventually(all_are_ready)

        async def both_have_joined() -> bool:
            return {worker.id for worker in await client.workers()} == {"worker-1", "worker-2"}

        stop, counts = asyncio.Event(), []

        async def caller() -> None:
            while not stop.is_set():
                assert (await client.call_tool("shared_echo", {"text": "x"})).text
                counts.append(int((await session.call_tool("leased_next")).text))

        task = asyncio.create_task(caller())
        await kill_control_plane(system)
        # This tool was never called before: the worker resolves it.
        assert ("leased", int((await session.call_tool("leased_pid")).text)) in processes
        before_loss = len(counts)
        await eventually(lambda: len(counts) > before_loss + 50)
        if invalid:
            system.write_text("version: 1\nservers: {x: [}\n")
        await system.start_control_plane()
        await system.ready()
        after = await client.list_tools()
        assert [tool.name for tool in after] == [tool.name for tool in before]
        assert after.registry_version > before.registry_version
        assert await leases(client, 1) == held
        await eventually(both_have_joined)
        stop.set()
        await task
        assert counts == list(range(2, len(counts) + 2))

        async def are_unchanged() -> bool:
            return await instances(client) == processes

        await eventually(are_unchanged)


NO_SUCH_FILE = python_server("no-such-file.py")
INVALID_FILES = {
    "an entry": yaml.safe_dump(
        {"version": 1, "servers": SERVERS | {"shared": SERVERS["shared"] | {"comand": "x"}}}
    ),
    "a start": yaml.safe_dump(
        # The exposure is unchanged: the newest rules apply even if a start fails.
        {"version": 1, "servers": SERVERS | {"leased": SERVERS["leased"] | NO_SUCH_FILE}}
    ),
    "the whole file": "version: 1\nservers: {shared: [}\n",
}


@pytest.mark.parametrize(
    "invalid",
    [["an entry", "the whole file"], ["a start", "the whole file"]],
    ids=" then ".join,
)
@pytest.mark.usefixtures("leak_guard")
async def test_servers_that_became_invalid_without_a_control_plane_are_still_callable(
    tmp_path: Path, invalid: list[str]
) -> None:
    async with running(tmp_path, SERVERS, workers=2) as (system, client):
        before = [tool.name for tool in await client.list_tools()]
        session = client.session("dialog")
        assert (await session.call_tool("leased_next")).text == "1"
        for count, name in enumerate(invalid):
            await kill_control_plane(system)
            system.write_text(INVALID_FILES[name])
            await system.start_control_plane()
            await system.ready()
            async with AsyncClient(system.address) as fresh:  # it has resolved no name before
                assert await settled_names(fresh) == before
                await eventually(fresh.problems)
                assert (await fresh.call_tool("shared_echo", {"text": "x"})).text == "x"
                assert (await fresh.call_tool("leased_next")).text == "1"
            assert (await session.call_tool("leased_next")).text == str(count + 2)


async def settled_names(client: AsyncClient) -> list[str]:
    """Return the names of all tools once the control plane has stopped waiting for workers."""

    async def settled() -> bool:
        return not (await client.status()).settling

    await eventually(settled)
    return [tool.name for tool in await client.list_tools()]


async def leases(client: AsyncClient, count: int) -> list[tuple[str, str]]:
    """Wait until the control plane lists so many leases; return them."""
    found: list[tuple[str, str]] = []

    async def are_listed() -> bool:
        found[:] = [(lease.id, lease.worker) for lease in await client.leases()]
        return len(found) == count

    await eventually(are_listed)
    return found


@pytest.mark.usefixtures("leak_guard")
async def test_a_lease_is_renewed_without_a_control_plane(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        session = client.session("dialog")
        # Long enough that a busy machine, which stops processes for some seconds, ends no lease.
        lease = await session.acquire("leased", ttl=10)
        await session.call_tool("leased_next")
        await kill_control_plane(system)
        granted = lease.expires_at
        await eventually(lambda: lease.expires_at > granted)
        assert (await session.call_tool("leased_next")).text == "2"
        await session.release(lease)
        await system.start_control_plane()
        await system.ready()
