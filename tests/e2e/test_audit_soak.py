"""The audit's sink for long: down under load, and with killed workers that lose their disks.

Runs only with `-m soak`; prints its figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.audit.memory_sink import MemorySink
from tests.e2e.counting import memory
from tests.e2e.system import System, eventually, python_server
from tests.nats_server import NatsServer, nats_server

from leaseway.data_plane.audit.sinks.addresses import open_sink
from leaseway.data_plane.audit.sinks.port import Sink
from leaseway.data_plane.audit.verifying import verify_sink
from leaseway.sdk import AsyncClient, LeasewayError

SECONDS = float(os.environ.get("LEASEWAY_SOAK_SECONDS", "600"))
CALLS = 20_000
CALLERS = 16
MAX_GROWTH = 1.25
PAUSE = 0.02
"""Seconds between two calls of a caller while the sink is down: the disk holds them all."""


async def call_all(client: AsyncClient, numbers: Iterator[int], answered: set[int]) -> None:
    for number in numbers:
        with contextlib.suppress(LeasewayError):  # its worker may have been killed
            await client.call_tool("note", {"number": number}, timeout=30)
            answered.add(number)


async def records_of(sink: Sink) -> list[dict[str, Any]]:
    """Return all records in a sink whose chains are right."""
    reports = await verify_sink(sink)
    assert not [fault for report in reports.values() for fault in report.faults]
    found: list[dict[str, Any]] = []
    async for stored in sink.objects():
        content = await sink.get(stored.name)
        found += [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]
    return found


def check_answered(records: list[dict[str, Any]], answered: set[int]) -> None:
    """Check that each answered call is there once, with its outcome."""
    numbers = {
        (record["run"], record["call"]): record["arguments"]["number"]
        for record in records
        if record["event"] == "begin"
    }
    ends = [(record["run"], record["call"]) for record in records if record["event"] == "call"]
    assert len(ends) == len(set(ends))
    assert answered <= {numbers[end] for end in ends}


async def check_damages(sink: Sink, draw: random.Random) -> int:
    """Delete, change and exchange objects of a copy: `verify` names each; return how many."""
    copy = MemorySink()
    async for stored in sink.objects():
        copy.stored[stored.name] = await sink.get(stored.name)
    whole = dict(copy.stored)
    by_run: dict[str, list[str]] = {}
    for name in sorted(whole):
        by_run.setdefault(name.partition("/")[0], []).append(name)
    damages = 0
    for run, names in by_run.items():
        # The last object is not named without an anchor: nobody knows that it was there.
        for _ in range(min(2, len(names) - 2)):
            first, other = draw.sample(names[:-1], 2)
            place = draw.randrange(len(whole[first]))
            changed = bytearray(whole[first])
            changed[place] ^= 1 << draw.randrange(8)
            for damage in (
                {name: content for name, content in whole.items() if name != first},
                {**whole, first: bytes(changed)},
                {**whole, first: whole[other], other: whole[first]},
            ):
                copy.stored = {name: damage[name] for name in names if name in damage}
                faults = (await verify_sink(copy))[run].faults
                assert any(first in fault for fault in faults), (first, faults)
                damages += 1
    return damages


def environment_of(server: NatsServer, folder: Path, policy: str) -> dict[str, str]:
    return {
        **server.environment,
        "LEASEWAY_AUDIT": str(folder),
        "LEASEWAY_AUDIT_SINK": server.sink,
        "LEASEWAY_AUDIT_POLICY": policy,
    }


def opened(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Sink:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return open_sink(server.sink)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS * 2 + 600)
async def test_a_sink_that_is_down_under_load_costs_no_record_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, store = tmp_path / "seen", tmp_path / "nats"
    seen.touch()
    store.mkdir()
    witness = python_server("witness.py", str(seen), **{"truely-stateless": True})
    answered = set[int]()
    stop = asyncio.Event()

    def paced() -> Iterator[int]:
        number = 0
        while not stop.is_set():
            number += 1
            yield number

    async def call(client: AsyncClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            await client.call_tool("note", {"number": number}, timeout=30)
            answered.add(number)
            await asyncio.sleep(PAUSE)

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(store))
        environment = environment_of(server, tmp_path / "audit", "spill")
        async with (
            System(tmp_path, {"witness": witness}, environment=environment) as system,
            AsyncClient(system.address) as client,
        ):
            numbers = paced()
            calls = asyncio.gather(*(call(client, numbers) for _ in range(CALLERS)))
            await eventually(lambda: len(answered) > 1_000, within=BOUND)
            await server.kill()
            await asyncio.sleep(min(60.0, SECONDS / 4))
            worker = system.workers["worker-1"]
            before = memory(worker)
            await asyncio.sleep(SECONDS - min(60.0, SECONDS / 4))
            after, calls_down = memory(worker), len(answered)
            port = int(server.url.rpartition(":")[2])
            await stack.enter_async_context(nats_server(store, port))
            back = time.monotonic()
            stop.set()
            await calls
            await worker.end()
            caught_up = time.monotonic() - back
        sink = opened(server, monkeypatch)
        records = await records_of(sink)
        check_answered(records, answered)
        await sink.aclose()
    print(
        f"{SECONDS:g} s without a sink: {calls_down} calls; worker {before:.0f} MiB, then "
        f"{after:.0f} MiB; all shipped {caught_up:.1f} s after its return"
    )
    assert after < before * MAX_GROWTH


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_each_answered_call_is_in_the_sink_once_however_often_workers_are_wiped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, folder, store = tmp_path / "seen", tmp_path / "audit", tmp_path / "nats"
    seen.touch()
    store.mkdir()
    witness = python_server("witness.py", str(seen), **{"truely-stateless": True})
    answered, numbers = set[int](), iter(range(CALLS))
    draw = random.Random(int(os.environ.get("SEED", "33")))
    kills = 0
    async with nats_server(store) as server:
        environment = environment_of(server, folder, "block")
        async with (
            System(tmp_path, {"witness": witness}, workers=2, environment=environment) as system,
            AsyncClient(system.address) as client,
        ):
            started = time.monotonic()
            calls = asyncio.gather(*(call_all(client, numbers, answered) for _ in range(CALLERS)))
            while not calls.done():
                part = len(answered) + draw.randrange(CALLS // 20, CALLS // 8)
                await eventually(
                    lambda part=part: calls.done() or len(answered) >= part, within=600
                )
                if calls.done():
                    break
                name = draw.choice(("worker-1", "worker-2"))
                await system.workers[name].end(signal.SIGKILL)
                for path in list(folder.glob(f"{name}.*")):
                    await asyncio.to_thread(path.unlink, missing_ok=True)
                await system.start_worker(name)
                kills += 1
            await calls
            took = time.monotonic() - started
        await asyncio.to_thread(shutil.rmtree, folder)
        sink = opened(server, monkeypatch)
        records = await records_of(sink)
        check_answered(records, answered)
        damages = await check_damages(sink, draw)
        await sink.aclose()
    print(
        f"{CALLS} calls, {kills} kills: {len(answered)} answered in {took:.0f} s, all in the sink; "
        f"{damages} deleted, changed or exchanged objects named"
    )
    assert len(answered) > CALLS * 0.9
    assert damages
