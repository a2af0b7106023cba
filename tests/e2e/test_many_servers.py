"""A file with many lazy servers: each has a process only while it is used."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.conftest import descendants
from tests.e2e.system import SERVERS, Part, System, eventually

from leaseway.sdk import AsyncClient


def tiny(server_id: str, text: str = "hello") -> dict[str, object]:
    return {
        "transport": "stdio",
        "truely-stateless": True,
        "start": "lazy",
        "protocol": "legacy",
        "command": "sh",
        "args": [str(SERVERS / "tiny.sh"), text],
        "transform": [{"prefix": f"{server_id}_"}],
    }


def memory(part: Part) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{part.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def server_processes(system: System) -> int:
    return sum(
        "tiny.sh" in line
        for part in system.workers.values()
        for line in descendants(part.process.pid).values()
    )


async def change_one(folder: Path, count: int, *, within: float) -> None:
    """Start many lazy servers on two workers, call three, change one; print the times."""
    servers = {f"s{number:03}": tiny(f"s{number:03}") for number in range(count)}
    system = System(folder, {}, workers=2)
    async with system, AsyncClient(system.address) as client:
        began = time.perf_counter()
        system.write(servers)

        async def all_listed() -> bool:
            tools = await client.list_tools()
            return len(tools) == count and not tools.pending

        await eventually(all_listed, within=within)
        listed = time.perf_counter()
        await eventually(
            lambda: server_processes(system) == 0
        )  # the processes of probes have exited
        before = {server.id: server.launch_hash for server in await client.servers()}
        for number in (0, 7, count - 1):
            assert (await client.call_tool(f"s{number:03}_hello")).text == "hello"
        await eventually(lambda: server_processes(system) == 3)
        changed = time.perf_counter()
        system.write(servers | {"s007": tiny("s007", "changed")})

        async def is_changed() -> bool:
            return (await client.call_tool("s007_hello")).text == "changed"

        await eventually(is_changed)
        done = time.perf_counter()
        # The worker that ran s007 starts the new one; the call may use the other worker.
        await eventually(lambda: server_processes(system) in (3, 4))
        after = {server.id: server.launch_hash for server in await client.servers()}
        assert [name for name in before if before[name] != after[name]] == ["s007"]
        assert system.control_plane is not None
        print(
            f"{count} servers listed in {listed - began:.1f} s, a change of one applied in "
            f"{done - changed:.2f} s; control plane {memory(system.control_plane):.0f} MiB, "
            "workers " + ", ".join(f"{memory(part):.0f} MiB" for part in system.workers.values())
        )


@pytest.mark.usefixtures("leak_guard")
async def test_lazy_servers_are_listed_without_a_process_and_start_when_called(
    tmp_path: Path,
) -> None:
    await change_one(tmp_path, 60, within=150)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("leak_guard")
async def test_five_hundred_lazy_servers_are_listed_without_a_process(tmp_path: Path) -> None:
    await change_one(tmp_path, 500, within=300)
