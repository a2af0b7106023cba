"""The control plane alone: reloads, pushes and placements, with simulated workers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import yaml

from benchmarks.figures import percentile
from benchmarks.processes import run_process
from benchmarks.specials.simulated import Fleet, SimulatedWorker
from benchmarks.specials.special import Special
from leaseway.v1 import leases_pb2, leases_pb2_grpc

__all__ = ["SPECIALS"]

_SERVERS = 500
_PROBE = 0.5
_DEBOUNCE = 0.1
_PLACEMENTS = 10_000
_TENANTS = 20
_IN_FLIGHT = 64
_CHANGES = 5


class _ControlPlane:
    def __init__(self, address: str, config: Path) -> None:
        self.address = address
        self._config = config
        self.servers = {f"s{number:03}": _entry(0) for number in range(_SERVERS)}

    def text(self) -> str:
        """Return the configuration file's new content."""
        return yaml.safe_dump({"version": 1, "servers": self.servers})

    def write(self, text: str) -> None:
        """Replace the configuration atomically, as an editor does."""
        temporary = self._config.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(self._config)


def _entry(edition: int) -> dict[str, object]:
    return {"transport": "stdio", "command": "echo", "args": [f"edition-{edition}"]}


@contextlib.asynccontextmanager
async def _control_plane() -> AsyncIterator[_ControlPlane]:
    with tempfile.TemporaryDirectory(prefix="leaseway-bench-") as folder:
        plane = _ControlPlane("", Path(folder) / "mcp.yaml")
        plane.write(plane.text())
        command = [sys.executable, "-m", "leaseway.cli.main", "control-plane"]
        command += ["--config", str(Path(folder) / "mcp.yaml"), "--listen", "127.0.0.1:0"]
        async with run_process(command, ready_text="ready ", cwd=Path(folder)) as (_, line):
            plane.address = line.split()[-1]
            yield plane


def _has_all_servers(worker: SimulatedWorker) -> bool:
    return len(worker.held) == _SERVERS


async def _reload(workers: int) -> tuple[float, float]:
    """Return the seconds until all workers have 500 servers, and the median after one change."""
    async with _control_plane() as plane, Fleet(plane.address, workers) as fleet:
        start = time.perf_counter()
        await fleet.until_all(_has_all_servers)
        first = time.perf_counter() - start
        durations = []
        for edition in range(1, _CHANGES + 1):
            before = [worker.held["s007"] for worker in fleet.workers]
            old = dict(zip((worker.id for worker in fleet.workers), before, strict=True))
            for worker in fleet.workers:
                worker.probe_seconds = _PROBE
            plane.servers["s007"] = _entry(edition)
            text = plane.text()
            start = time.perf_counter()
            plane.write(text)
            await fleet.until_all(lambda worker, old=old: worker.held["s007"] != old[worker.id])
            durations.append(time.perf_counter() - start)
    return first, percentile(sorted(durations), 0.5)


async def _one_of_500() -> Mapping[str, float]:
    first, changed = await _reload(50)
    return {
        "first_500_on_50_workers_s": first,
        "one_changed_s": changed,
        "probe_and_debounce_s": _PROBE + _DEBOUNCE,
        "ratio": changed / (_PROBE + _DEBOUNCE),
    }


async def _push_to_200() -> Mapping[str, float]:
    first, changed = await _reload(200)
    return {
        "first_500_on_200_workers_s": first,
        "one_changed_s": changed,
        "beyond_probe_and_debounce_ms": (changed - _PROBE - _DEBOUNCE) * 1000,
    }


async def _placements() -> Mapping[str, float]:
    """Place ten thousand sessions of 20 tenants on 200 workers, 64 requests at once."""
    async with _control_plane() as plane, Fleet(plane.address, 200) as fleet:
        await fleet.until_all(_has_all_servers)
        async with grpc.aio.insecure_channel(plane.address) as channel:
            stub: Any = leases_pb2_grpc.PlacementServiceStub(channel)
            await _wait_for_placements(stub)
            numbers = iter(range(_PLACEMENTS))
            durations: list[float] = []

            async def caller() -> None:
                for number in numbers:
                    request = leases_pb2.PlaceRequest(
                        tenant=f"t{number % _TENANTS}", session=f"p{number}", server_id="s007"
                    )
                    start = time.perf_counter()
                    await stub.Place(request, timeout=30)
                    durations.append(time.perf_counter() - start)

            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(_IN_FLIGHT):
                    group.create_task(caller())
            seconds = time.perf_counter() - start
    durations.sort()
    return {
        "placements_per_s": _PLACEMENTS / seconds,
        "p50_ms": percentile(durations, 0.5) * 1000,
        "p99_ms": percentile(durations, 0.99) * 1000,
    }


async def _wait_for_placements(stub: Any) -> None:
    """Wait until a new control plane accepts placements."""
    request = leases_pb2.PlaceRequest(session="first", server_id="s007")
    async with asyncio.timeout(20):
        while True:
            try:
                await stub.Place(request, timeout=10)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)


SPECIALS = (
    Special("reload", "control plane: 1 of 500 servers changed, 50 workers", _one_of_500),
    Special("push", "control plane: the same, 200 workers", _push_to_200, rounds=1),
    Special("placements", "control plane: 10,000 placements", _placements, rounds=1),
)
