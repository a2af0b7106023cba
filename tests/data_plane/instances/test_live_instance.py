"""Idle instances rest and old ones are replaced, and no call fails because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import pytest

from leaseway.data_plane.instances.events import InstanceEnd
from leaseway.spec.model import InstancePolicy
from leaseway.v1 import leases_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.states import InstanceRole
from leaseway.wire.timing.backoff import Backoff

Bench = Any


@pytest.fixture
async def put_forward(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that puts the loop's clock forward; request it before the bench."""
    loop, lead = asyncio.get_running_loop(), [0.0]
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + sum(lead))
    return lead.append


async def test_an_idle_shared_instance_ends_and_the_next_call_starts_another(
    put_forward: Callable[[float], None], bench: Bench
) -> None:
    await bench.serve("time", instances=InstancePolicy(idle_timeout=1000.0))
    first = await bench.until_ready(1)
    put_forward(1000.0)
    report = await bench.plane.expect_report(
        lambda report: [instance.state for instance in report.instances] == ["idle"]
    )
    assert (first.state, report.instances[0].role) == ("closed", "shared")
    assert len(bench.servers.opened) == 1
    assert not bench.worker.pool.context.reports.problems.pop_changes()[0]
    assert (await bench.caller().call("time")).payload
    assert len(bench.servers.opened) == 2


async def test_an_instance_with_frequent_calls_does_not_rest(
    put_forward: Callable[[float], None], bench: Bench
) -> None:
    await bench.serve("time", instances=InstancePolicy(idle_timeout=1000.0))
    caller = bench.caller()
    for _ in range(4):
        assert (await caller.call("time")).payload
        put_forward(600.0)
    assert (await caller.call("time")).payload
    assert [server.state for server in bench.servers.opened] == ["ready"]
    put_forward(1000.0)
    await bench.until(lambda: bench.servers.opened[0].state == "closed")


async def test_an_instance_with_a_call_in_flight_does_not_rest(bench: Bench) -> None:
    await bench.serve("time", instances=InstancePolicy(idle_timeout=0.03))
    await bench.serve("clock", instances=InstancePolicy(idle_timeout=0.15))
    bench.servers.holds = True
    caller = bench.caller()
    call_id = await caller.begin("time")
    await bench.until(lambda: any(server.calls for server in bench.servers.opened))
    busy = next(server for server in bench.servers.opened if server.calls)
    await bench.until(
        lambda: any(server.spec.key.server_id == "clock" for server in bench.servers.opened)
    )
    await bench.until(
        lambda: all(
            server.state == "closed"
            for server in bench.servers.opened
            if server.spec.key.server_id == "clock"
        )
    )
    assert busy.state == "ready"
    busy.calls[0].answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"
    await bench.until(lambda: busy.state == "closed")


async def test_no_call_fails_while_instances_rest_and_start_again(bench: Bench) -> None:
    await bench.serve("time", instances=InstancePolicy(idle_timeout=0.001))
    caller = bench.caller()
    for _ in range(40):
        result = await caller.call("time")
        assert not result.HasField("status"), result.status.message
        await bench.until(lambda: not bench.servers.live)
    assert len(bench.servers.opened) >= 40


async def test_a_changed_idle_timeout_applies_to_the_running_instance(bench: Bench) -> None:
    await bench.serve("time")
    await bench.until_ready(1)
    await bench.serve("time", instances=InstancePolicy(idle_timeout=0.03))
    await bench.until(lambda: bench.servers.opened[0].state == "closed")
    await bench.serve("time", instances=InstancePolicy(start="lazy"))
    assert len(bench.servers.opened) == 1


async def test_a_lazy_server_made_eager_starts(bench: Bench) -> None:
    await bench.serve("time", instances=InstancePolicy(start="lazy"))
    assert not bench.servers.opened
    await bench.serve("time", instances=InstancePolicy(start="eager"))
    await bench.until_ready(1)


async def test_an_old_shared_instance_is_replaced_first_and_finishes_its_calls(
    bench: Bench,
) -> None:
    bench.servers.holds = True
    await bench.serve("time")
    first = await bench.until_ready(1)
    caller = bench.caller()
    old_call = await caller.begin("time")
    await bench.until(lambda: first.calls)
    bench.servers.gate = asyncio.Event()
    await bench.serve("time", instances=InstancePolicy(max_age=0.1))
    await bench.until(lambda: len(bench.servers.opened) == 2)
    assert bench.worker.pool.resolve("time", "").shared.instance is first  # until the next is up
    bench.servers.gate.set()
    second = await bench.until_ready(2)
    await bench.until(lambda: bench.worker.pool.resolve("time", "").shared.instance is not first)
    assert first.state == "ready"
    first.calls[0].answer(b'{"from":"old"}')
    assert (await caller.result(old_call)).payload == b'{"from":"old"}'
    await bench.until(lambda: first.state == "closed")
    assert second in bench.servers.opened


async def test_no_call_fails_while_old_instances_are_replaced(bench: Bench) -> None:
    await bench.serve("time", instances=InstancePolicy(max_age=0.01))
    caller = bench.caller()
    while len(bench.servers.opened) < 20:
        result = await caller.call("time")
        assert not result.HasField("status"), result.status.message
    await bench.until(lambda: len(bench.servers.live) <= 2)


async def test_an_old_instance_keeps_serving_if_its_replacement_fails(
    put_forward: Callable[[float], None], bench: Bench
) -> None:
    policy = InstancePolicy(max_age=1000.0, restart=Backoff(0.01, 0.01))
    await bench.serve("time", instances=policy)
    first = await bench.until_ready(1)
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no licence")] * 100_000
    put_forward(1000.0)
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert report.problems[0].message == "no licence"
    await bench.until(
        lambda: bench.worker.pool.resolve("time", "").instances.circuit_breaker.circuit != "closed"
    )
    assert (await bench.caller().call("time")).payload
    assert first.state == "ready"
    bench.servers.faults.clear()
    await bench.plane.expect_report(lambda report: report.cleared)
    await bench.until(lambda: first.state == "closed")
    assert (await bench.caller().call("time")).payload


async def test_replacing_an_old_instance_does_not_restart_its_idle_time(bench: Bench) -> None:
    await bench.serve("time", instances=InstancePolicy(max_age=0.02, idle_timeout=0.1))
    await bench.until(lambda: bench.servers.opened and not bench.servers.live)
    assert bench.worker.pool.resolve("time", "").is_resting


async def test_a_renewed_lease_without_calls_ends_after_the_idle_timeout(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(idle_timeout=2.0))
    lease = await bench.acquire()
    renewed = 0
    while bench.worker.leases.get(lease.id) is not None:
        request = leases_pb2.KeepAliveRequest(lease_ids=[lease.id])
        answer = await bench.leases.KeepAlive(request)
        renewed += not answer.renewals[0].HasField("error")
    assert renewed
    fault = await bench.caller().refused("db", lease_id=lease.id, session=lease.session)
    assert fault.reason is Reason.LEASE_REVOKED
    assert "no call for the 2 s of idle_timeout" in fault.message
    assert not bench.servers.live


async def test_the_lease_of_an_old_instance_ends_after_its_call(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    caller = bench.caller()
    call_id, call = await bench.hold_call(caller, "db", lease_id=lease.id, session=lease.session)
    await bench.serve("db", shared=False, instances=InstancePolicy(max_age=0.1))
    (live,) = bench.worker.pool.resolve("db", "").instances
    await bench.until(lambda: live.overdue)
    assert bench.worker.leases.get(lease.id) is not None
    call.answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"
    await bench.until(lambda: bench.worker.leases.get(lease.id) is None)
    fault = await caller.refused("db", lease_id=lease.id, session=lease.session)
    assert (fault.reason, fault.started) == (Reason.LEASE_REVOKED, "no")
    assert "older than the 0.1 s of max_age" in fault.message
    assert (await bench.acquire()).id != lease.id


async def test_max_age_also_applies_to_leases_of_a_replaced_generation(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(max_age=0.2))
    lease = await bench.acquire()
    await bench.serve("db", shared=False, args=("--new",))
    await bench.until(lambda: bench.worker.leases.get(lease.id) is None)
    assert (
        "max_age"
        in (await bench.caller().refused("db", lease_id=lease.id, session=lease.session)).message
    )


@pytest.mark.parametrize("shared", [True, False])
async def test_each_start_and_end_of_an_instance_is_one_event(bench: Bench, shared: bool) -> None:
    heard: list[tuple[str, str]] = []
    events = bench.worker.pool.context.events
    events.started.connect(lambda live, again: heard.append((live.instance.id, f"up {again}")))
    events.ended.connect(lambda end: heard.append((end.live.instance.id, end.how)))
    policy = InstancePolicy(start="eager", restart=Backoff(0.001, 0.001))
    await bench.serve("db", shared=shared, instances=policy)
    (await bench.until_ready(1)).crash("exit status 1")
    await bench.until_ready(2)
    await bench.serve("db", shared=shared, args=("--new",))
    await bench.until(lambda: ("db-2", "closed") in heard)
    assert heard[:3] == [("db-1", "up False"), ("db-1", "exit status 1"), ("db-2", "up True")]
    # A shared instance serves on until the next one is up.
    assert heard.index(("db-2", "closed")) == (4 if shared else 3)


@pytest.mark.parametrize("role", get_args(InstanceRole))
async def test_a_crash_is_one_event_that_names_the_role_of_the_instance(
    bench: Bench, role: InstanceRole
) -> None:
    heard: list[InstanceEnd] = []
    bench.worker.pool.context.events.ended.connect(heard.append)
    policy = InstancePolicy(start="eager", restart=Backoff(60.0, 60.0), warm=1)
    await bench.serve("db", shared=role == "shared", instances=policy)
    server = await bench.until_ready(1)
    if role == "leased":
        await bench.acquire()
    server.crash("exit status 1")
    await bench.until(lambda: bool(heard))
    assert [(end.live.instance.id, end.role, end.how, end.crashed) for end in heard] == [
        ("db-1", role, "exit status 1", True)
    ]
