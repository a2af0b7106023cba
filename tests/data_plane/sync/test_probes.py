"""Probes: their results, and what becomes of their instances (design.md#reload, step 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.conftest import BOUND
from tests.data_plane.conftest import worker_bench
from tests.data_plane.doubles.servers import ECHO

from leaseway.data_plane.instances import pool
from leaseway.spec.codec import encode_spec, key_to_proto
from leaseway.spec.model import InstancePolicy, ServerSpec
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason

Bench = Any
OTHER = msgspec.json.encode({"name": "other", "inputSchema": {"type": "object"}})


def probe(bench: Bench, spec: ServerSpec, probe_id: int = 1, *, relist: bool = False) -> None:
    """Send a probe."""
    bench.plane.send(
        probe=sync_pb2.Probe(
            id=probe_id,
            key=key_to_proto(spec.key),
            spec=encode_spec(spec),
            launch_hash=spec.launch_hash,
            relist=relist,
        )
    )


async def test_a_probes_instance_becomes_the_shared_one_or_the_first_spare(bench: Bench) -> None:
    for shared in (True, False):
        spec = bench.spec(f"s{shared}", shared=shared)
        probe(bench, spec, 7)
        result = await bench.plane.expect("probe_result")
        assert [tool.definition for tool in result.tools] == list(ECHO.values())
        assert (result.id, result.launch_hash) == (7, spec.launch_hash)
        opened = len(bench.servers.opened)
        await bench.push(bench.upsert(spec))
        result = await bench.caller().call(spec.key.server_id, session="s1")
        assert result.payload
        assert len(bench.servers.opened) == opened


async def test_a_probe_tells_that_it_waits_for_its_turn_and_that_it_has_begun() -> None:
    async with worker_bench(concurrent_starts=1) as bench:
        told: dict[int, bool] = {}

        def tells(first: bool, second: bool) -> Callable[[sync_pb2.Report], bool]:
            def matches(report: sync_pb2.Report) -> bool:
                told.update((progress.id, progress.begun) for progress in report.probes)
                return told == {1: first, 2: second}

            return matches

        bench.servers.gate = asyncio.Event()
        for number in (1, 2):
            probe(bench, bench.spec(f"s{number}"), number)
        await bench.plane.expect_report(tells(True, False))
        bench.servers.gate.set()
        await bench.plane.expect_report(tells(True, True))


@pytest.mark.parametrize("shared", [True, False])
async def test_a_probes_instance_of_a_lazy_server_is_closed_and_a_call_starts_another(
    bench: Bench, shared: bool
) -> None:
    spec = bench.spec("time", shared=shared, instances=InstancePolicy(start="lazy"))
    probe(bench, spec, 7)
    assert (await bench.plane.expect("probe_result")).tools
    await bench.push(bench.upsert(spec))
    await bench.until(lambda: len(bench.servers.opened) == 1 and not bench.servers.live)
    for _ in range(2):
        assert (await bench.caller().call("time", session="s1")).payload
    assert len(bench.servers.opened) == 2


async def test_a_probes_instance_with_another_launch_hash_is_closed(bench: Bench) -> None:
    tried = bench.spec("time", args=("tried",))
    probe(bench, tried)
    await bench.plane.expect("probe_result")
    await bench.serve("time", args=("wanted",))
    await bench.until(
        lambda: [server.spec.part.args for server in bench.servers.live] == [("wanted",)]
    )


@pytest.mark.parametrize("end", ["crash", "fall_silent"])
@pytest.mark.parametrize("shared", [True, False])
async def test_a_probes_instance_that_ends_before_its_delta_is_replaced(
    bench: Bench, shared: bool, end: str
) -> None:
    limits = InstancePolicy(start="eager", max_instances=1)
    spec = bench.spec("time", shared=shared, instances=limits)
    probe(bench, spec)
    await bench.plane.expect("probe_result")
    getattr(bench.servers.opened[0], end)()
    await bench.push(bench.upsert(spec))
    assert (await bench.caller().call("time", session="s1")).payload
    await bench.until(lambda: len(bench.servers.live) == 1)
    assert len(bench.servers.opened) == 2


async def test_an_ended_instance_is_not_adopted(bench: Bench) -> None:
    spec = await bench.serve("time")
    await bench.until_ready()
    ended = bench.worker.pool.context.open(spec, awaited=True)
    await ended.start()
    bench.servers.opened[-1].crash()
    generation = bench.worker.pool.find(spec.key)
    generation.adopt(ended)
    assert generation.shared is not ended
    assert (await bench.caller().call("time")).payload


async def test_a_change_of_tools_before_the_delta_is_listed_again(
    bench: Bench,
) -> None:
    spec = bench.spec("time")
    probe(bench, spec)
    assert len((await bench.plane.expect("probe_result")).tools) == 1
    tools = dict(bench.servers.tools)
    bench.servers.opened[0].change_tools({**ECHO, "other": OTHER})
    await bench.push(bench.upsert(spec, tools=tools))
    assert len((await bench.plane.expect("probe_result")).tools) == 2


async def test_a_probes_instance_is_kept_for_a_limited_time(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(pool, "_PROBE_INSTANCE_LIFETIME", 0.03)
    spec = bench.spec("time")
    probe(bench, spec)
    await bench.plane.expect("probe_result")
    await bench.until(lambda: bench.servers.opened and not bench.servers.live)


async def test_a_failed_probe_has_a_problem_and_leaves_no_instance(bench: Bench) -> None:
    bench.servers.faults = [
        Fault(Reason.SERVER_NOT_READY, "no such command", metadata={"problem": "COMMAND_NOT_FOUND"})
    ]
    spec = bench.spec("time")
    probe(bench, spec, 3)
    result = await bench.plane.expect("probe_result")
    assert (result.problem.reason, result.problem.message) == (
        "COMMAND_NOT_FOUND",
        "no such command",
    )
    assert not bench.servers.live


async def test_a_cancelled_probe_leaves_no_instance_and_sends_no_result(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    spec = bench.spec("time")
    probe(bench, spec, 3)
    await bench.until(lambda: bench.servers.opened)
    bench.plane.send(cancel_probe=sync_pb2.CancelProbe(id=3))
    await bench.until(lambda: not bench.servers.live)
    bench.servers.gate.set()
    probe(bench, spec, 4)
    assert (await bench.plane.expect("probe_result")).id == 4


async def test_sixteen_probes_run_at_once_and_the_next_waits(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    for number in range(17):
        spec = bench.spec(f"s{number}")
        probe(bench, spec, number + 1)
    bench.plane.send(want=sync_pb2.Want())
    await bench.plane.expect("held")
    await bench.until(lambda: len(bench.servers.opened) == 16)
    bench.servers.gate.set()
    ids = {(await bench.plane.expect("probe_result")).id for _ in range(17)}
    assert ids == set(range(1, 18))


async def test_changed_tools_of_a_shared_instance_are_listed_on_that_instance(
    bench: Bench,
) -> None:
    spec = await bench.serve("time")
    await bench.until_ready()
    bench.servers.opened[0].change_tools({**ECHO, "other": OTHER})
    result = await bench.plane.expect("probe_result")
    assert (result.id, result.launch_hash) == (0, spec.launch_hash)
    assert [tool.definition for tool in result.tools] == [ECHO["echo"], OTHER]
    await bench.push(bench.upsert(spec))
    assert (await bench.caller().call("time", "other", arguments=b"{}")).payload
    assert len(bench.servers.opened) == 1


async def test_a_relist_probe_starts_nothing(bench: Bench) -> None:
    spec = bench.spec("time", instances=InstancePolicy(start="lazy"))
    probe(bench, spec, relist=True)
    assert "no live instance" in (await bench.plane.expect("probe_result")).problem.message
    await bench.push(bench.upsert(spec))
    await bench.caller().call("time")
    bench.servers.tools = {**ECHO, "other": OTHER}
    probe(bench, spec, relist=True)
    assert len((await bench.plane.expect("probe_result")).tools) == 2
    assert len(bench.servers.opened) == 1


async def test_callers_of_a_server_that_is_being_probed_get_not_ready(
    bench: Bench,
) -> None:
    bench.servers.gate = asyncio.Event()
    spec = bench.spec("time")
    probe(bench, spec)
    await bench.until(lambda: bench.servers.opened)
    caller = bench.caller()

    early = await caller.refused("time")
    assert (early.reason, early.started) == (Reason.SERVER_NOT_READY, "no")
    assert "worker w1 is probing it" in early.message
    assert early.retry_delay
    assert (await caller.refused("tim")).reason is Reason.TOOL_NOT_FOUND

    bench.plane.send(cancel_probe=sync_pb2.CancelProbe(id=1))
    async with asyncio.timeout(BOUND):
        while (late := await caller.refused("time")).reason is Reason.SERVER_NOT_READY:
            pass
    assert late.reason is Reason.TOOL_NOT_FOUND
    assert "ask the control plane" in late.message


async def test_a_probe_for_one_tenant_is_hidden_from_another(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    spec = bench.spec("time", tenant="acme")
    probe(bench, spec)
    await bench.until(lambda: bench.servers.opened)
    caller = bench.caller()
    assert (await caller.refused("time", tenant="acme")).reason is Reason.SERVER_NOT_READY
    assert (await caller.refused("time", tenant="other")).reason is Reason.TOOL_NOT_FOUND
