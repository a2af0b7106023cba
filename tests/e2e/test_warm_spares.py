"""Warm spares, idle timeouts and circuit breakers with real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.e2e.system import SERVERS, eventually, python_server, running

from leaseway.sdk import AsyncClient, InstanceInfo, LeasewayError, ServerNotReady

pytestmark = pytest.mark.usefixtures("leak_guard")


def shell(script: str, **settings: object) -> dict[str, object]:
    """Return the entry of a counter that a shell starts after a script."""
    command = f"{script}; exec {sys.executable} {SERVERS / 'counter.py'}"
    return {"transport": "stdio", "command": "sh", "args": ["-c", command], **settings}


async def instances(client: AsyncClient, state: str, role: str) -> list[InstanceInfo]:
    (server,) = await client.servers()
    return [
        instance
        for instance in server.instances
        if (instance.state, instance.role) == (state, role)
    ]


async def test_a_lease_of_a_slow_server_uses_a_warm_spare(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed"
    servers = {"counter": shell(f"while test -e {closed}; do sleep 0.05; done", warm=2)}
    async with running(tmp_path, servers) as (_, client):
        used: set[int | None] = set()

        async def two_spares() -> bool:
            pids = {instance.pid for instance in await instances(client, "ready", "spare")}
            return len(pids - used) == 2 == len(pids)

        await eventually(two_spares)
        ready = {instance.pid for instance in await instances(client, "ready", "spare")}
        closed.touch()  # no other process starts from now on
        for number in range(2):
            session = client.session(f"s{number}")
            await session.acquire("counter")
            used.add(int((await session.call_tool("pid")).text))
            assert (await session.call_tool("next")).text == "1"
        assert used == ready
        closed.unlink()
        await eventually(two_spares)  # new ones


async def test_an_idle_process_is_stopped_and_the_next_call_starts_another(tmp_path: Path) -> None:
    settings = {"truely-stateless": True, "idle_timeout": "300ms"}
    async with running(tmp_path, {"counter": python_server("counter.py", **settings)}) as (
        _,
        client,
    ):
        first = int((await client.call_tool("pid")).text)

        async def is_idle() -> bool:
            return bool(await instances(client, "idle", "shared"))

        await eventually(is_idle)
        await eventually(lambda: not _is_alive(first))
        assert not await client.problems()
        assert int((await client.call_tool("pid")).text) != first


async def test_acquires_of_a_server_that_no_longer_starts_start_at_most_six_processes(
    tmp_path: Path,
) -> None:
    log, broken = tmp_path / "starts", tmp_path / "broken"
    script = f"echo x >> {log}; test -e {broken} && echo no licence >&2 && exit 3"
    settings = {"start": "lazy", "restart": {"initial": "1h", "max": "1h"}}
    async with running(tmp_path, {"counter": shell(script, **settings)}) as (_, client):
        assert (await client.call_tool("next")).text == "1"
        before = len(log.read_text().split())
        broken.touch()
        refusals: list[LeasewayError] = []
        for number in range(12):
            with pytest.raises(LeasewayError) as caught:
                await client.session(f"s{number}").acquire("counter")
            refusals.append(caught.value)
        assert len(log.read_text().split()) - before <= 6
        assert isinstance(refusals[-1], ServerNotReady)
        assert "no licence" in str(refusals[-1])

        async def is_open() -> bool:
            waits = await instances(client, "backoff", "spare")
            return [(wait.circuit, wait.failures >= 5) for wait in waits] == [("open", True)]

        await eventually(is_open)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
