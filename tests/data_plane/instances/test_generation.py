"""Replacing generations: new calls use the new one, calls in flight finish (design.md#reload)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import msgspec
import pytest
from tests.conftest import BOUND
from tests.data_plane.doubles.servers import ECHO

from leaseway.spec.codec import key_to_proto
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import fault_from_status
from leaseway.wire.timing.backoff import Backoff

Bench = Any
OTHER = msgspec.json.encode({"name": "other", "inputSchema": {"type": "object"}})


async def test_a_shared_server_starts_before_it_is_needed_unless_it_is_lazy(bench: Bench) -> None:
    await bench.serve("lazy", instances=InstancePolicy(start="lazy"))
    assert not bench.servers.opened
    await bench.serve("eager")
    await bench.until(lambda: bench.servers.opened)
    await bench.caller().call("lazy")
    assert {server.spec.key.server_id for server in bench.servers.opened} == {"eager", "lazy"}


async def test_concurrent_calls_share_one_start(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("time", instances=InstancePolicy(start="lazy"))
    caller = bench.caller()
    calls = [await caller.begin("time") for _ in range(8)]
    await bench.until(lambda: bench.worker.executor.in_flight == 8)
    bench.servers.gate.set()
    for call_id in calls:
        assert (await caller.result(call_id)).payload
    assert len(bench.servers.opened) == 1


async def test_connections_that_are_closed_again_are_opened_one_at_a_time(bench: Bench) -> None:
    await bench.serve("desk", shared=False)
    generation = bench.worker.pool.find(VariantKey("desk"))
    most = 0

    async def use() -> None:
        nonlocal most
        async with generation.connection():
            most = max(most, len(bench.servers.live))

    await asyncio.gather(*(use() for _ in range(3)))
    assert (len(bench.servers.opened), most) == (3, 1)


async def test_calls_in_flight_finish_on_the_old_instance_which_then_ends(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    old_id, old_call = await bench.hold_call(caller, "time")
    await bench.serve("time", args=("--new",))
    await bench.until(lambda: len(bench.servers.live) == 2)
    new_id, new_call = await bench.hold_call(caller, "time")
    assert [old_call.instance, new_call.instance] == bench.servers.opened
    old_call.answer(b'{"from":"old"}')
    new_call.answer(b'{"from":"new"}')
    assert (await caller.result(old_id)).payload == b'{"from":"old"}'
    assert (await caller.result(new_id)).payload == b'{"from":"new"}'
    await bench.until(lambda: bench.servers.opened[0].state == "closed")
    assert bench.servers.opened[1].state == "ready"


async def test_no_call_fails_while_the_configuration_changes_again_and_again(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()

    async def keep_calling() -> int:
        for _ in range(60):
            result = await caller.call("time")
            assert not result.HasField("status"), result.status.message
        return 60

    calling = [asyncio.ensure_future(keep_calling()) for _ in range(4)]
    for number in range(10):
        await bench.serve("time", args=(str(number),))
    assert sum(await asyncio.gather(*calling)) == 240
    await bench.until(lambda: len(bench.servers.live) == 1)


async def test_a_call_that_waits_for_a_start_moves_to_the_new_generation(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("time")
    caller = bench.caller()
    call_id = await caller.begin("time")
    await bench.until(lambda: bench.worker.executor.in_flight == 1)
    await bench.serve("time", args=("--new",))
    bench.servers.gate.set()
    assert (await caller.result(call_id)).payload


async def test_a_change_of_exposure_restarts_no_process(bench: Bench) -> None:
    spec = await bench.serve("time")
    await bench.until(lambda: bench.servers.live)
    bench.servers.tools = {**ECHO, "other": OTHER}
    await bench.push(bench.upsert(spec, exposed=["echo"], tools=dict(ECHO)))
    await bench.push(bench.upsert(spec, exposed=[], tools=dict(ECHO)))
    assert (await bench.caller().refused("time")).reason is Reason.TOOL_NOT_FOUND
    assert len(bench.servers.opened) == 1


async def test_leases_of_an_old_generation_stay_for_their_drain_timeout(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    old = await bench.acquire()
    await bench.serve("db", shared=False, args=("--new",), lease_drain_timeout=2.0)
    caller = bench.caller()
    assert (await caller.call("db", lease_id=old.id, session=old.session)).payload
    new = await bench.acquire("s2")
    assert new.launch_hash != old.launch_hash
    await bench.plane.expect_report(lambda report: old.id in report.leases_lost)
    fault = await caller.refused("db", lease_id=old.id, session=old.session)
    assert fault.reason is Reason.LEASE_REVOKED
    assert "configuration" in fault.message
    assert (await caller.call("db", lease_id=new.id, session=new.session)).payload


async def test_a_hidden_tool_is_not_found_on_old_leases_either(bench: Bench) -> None:
    spec = await bench.serve("db", shared=False)
    lease = await bench.acquire()
    await bench.push(bench.upsert(spec, exposed=[]))
    assert (
        await bench.caller().refused("db", lease_id=lease.id, session=lease.session)
    ).reason is Reason.TOOL_NOT_FOUND


async def test_a_removed_server_rejects_new_calls_and_revokes_its_lease_after_its_calls(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    caller = bench.caller()
    call_id, call = await bench.hold_call(caller, "db", lease_id=lease.id, session=lease.session)
    await bench.push(removals=[key_to_proto(VariantKey("db"))])
    assert (await caller.refused("db", session="new")).reason is Reason.TOOL_NOT_FOUND
    assert bench.worker.leases.get(lease.id) is not None
    call.answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"
    await bench.until(lambda: bench.worker.leases.get(lease.id) is None)
    await bench.until(lambda: not bench.servers.live)


async def test_a_server_made_stateless_lets_old_leases_drain_and_shares_the_rest(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    await bench.serve("db", shared=True)
    caller = bench.caller()
    assert (await caller.call("db", lease_id=lease.id, session=lease.session)).payload
    assert (await caller.call("db")).payload
    assert {server.state for server in bench.servers.opened} == {"ready"}


async def test_a_tenants_own_variant_is_used_for_that_tenant_only(bench: Bench) -> None:
    own, common = bench.spec("db", tenant="acme", args=("own",)), bench.spec("db")
    await bench.push(bench.upsert(own), bench.upsert(common))
    bench.servers.holds = True
    caller = bench.caller()
    await caller.begin("db", tenant="acme")
    await caller.begin("db", tenant="other")
    await bench.until(lambda: all(server.calls for server in bench.servers.opened))
    assert sorted(server.spec.part.args for server in bench.servers.opened) == [(), ("own",)]


async def test_an_instance_with_different_tools_rejects_their_calls_and_is_a_problem(
    bench: Bench,
) -> None:
    recorded = {**ECHO, "other": OTHER}
    await bench.push(bench.upsert(bench.spec("time"), tools=recorded))
    caller = bench.caller()
    assert (await caller.call("time")).payload
    fault = await caller.refused("time", "other")
    assert (fault.reason, fault.started) == (Reason.TOOL_DIFFERS, "no")
    report = await bench.plane.expect_report(lambda report: report.problems)
    (problem,) = report.problems
    assert (problem.reason, problem.server_id, problem.worker_id) == ("TOOL_DIFFERS", "time", "w1")
    assert "other (missing)" in problem.message


async def test_a_schema_that_does_not_compile_is_a_warning_and_its_calls_pass(
    bench: Bench,
) -> None:
    bench.servers.tools = {"echo": b'{"name":"echo","inputSchema":{"$ref":"http://x.test/s"}}'}
    await bench.serve("time")
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert [(problem.reason, problem.severity) for problem in report.problems] == [
        ("SCHEMA_NOT_COMPILED", "warning")
    ]
    assert (await bench.caller().call("time", arguments=b'{"anything": 1}')).payload


async def test_warnings_about_a_server_end_when_it_is_removed(bench: Bench) -> None:
    bench.servers.tools = {"echo": b'{"name":"echo","inputSchema":{"$ref":"http://x.test/s"}}'}
    await bench.serve("time")
    await bench.plane.expect_report(lambda report: report.problems)
    await bench.push(removals=[key_to_proto(VariantKey("time"))])
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert [problem.reason for problem in report.cleared] == ["SCHEMA_NOT_COMPILED"]
    assert not bench.worker.pool.context.reports.problems.open


async def test_a_listing_that_fails_after_its_server_was_removed_is_no_problem(
    bench: Bench,
) -> None:
    spec = await bench.serve("time")
    await bench.until_ready(1)
    (server,) = bench.servers.live
    asked, removed = asyncio.Event(), asyncio.Event()

    async def fail_late() -> None:
        asked.set()
        await removed.wait()
        raise Fault(Reason.SERVER_LOST, "It has ended.")

    server.relist = fail_late
    (live,) = bench.worker.pool.find(spec.key).instances
    await bench.push(bench.upsert(spec, tools={**ECHO, "other": OTHER}))
    async with asyncio.timeout(BOUND):
        await asked.wait()
    await bench.push(removals=[key_to_proto(spec.key)])
    removed.set()
    await bench.until(lambda: not live.suspect)
    assert not bench.worker.pool.context.reports.problems.open


async def test_a_failing_server_is_a_problem_until_it_starts(bench: Bench) -> None:
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "not yet")] * 5000
    await bench.serve("time", instances=InstancePolicy(restart=Backoff(0.02, 0.02)))
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert report.problems[0].message == "not yet"
    bench.servers.faults.clear()
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "SERVER_NOT_READY"
    assert (await bench.caller().call("time")).payload


async def test_a_call_on_a_closed_instance_did_not_start(
    bench: Bench,
) -> None:
    await bench.serve("time")
    await bench.until_ready()
    bench.servers.opened[0].state = "closing"  # dying, and has not said so yet
    caller = bench.caller()
    fault = fault_from_status((await caller.call("time")).status)
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")


async def test_a_changed_shared_server_keeps_serving_until_its_new_instance_starts(
    bench: Bench,
) -> None:
    await bench.serve("time")
    caller = bench.caller()
    await caller.call("time")
    bench.servers.gate = asyncio.Event()
    await bench.serve("time", args=("--new",))
    await bench.until(lambda: len(bench.servers.opened) == 2)
    assert (await caller.call("time")).payload
    assert len(bench.servers.live) == 2
    bench.servers.gate.set()
    await bench.until(
        lambda: [server.spec.part.args for server in bench.servers.live] == [("--new",)]
    )
    assert (await caller.call("time")).payload


async def test_a_call_of_a_new_tool_waits_for_the_new_instance(bench: Bench) -> None:
    await bench.serve("time")
    await bench.caller().call("time")
    bench.servers.gate = asyncio.Event()
    bench.servers.tools = {**ECHO, "other": OTHER}
    await bench.serve("time", args=("--new",))
    caller = bench.caller()
    call_id = await caller.begin("time", "other", arguments=b"{}")
    await bench.until(lambda: len(bench.servers.opened) == 2)
    assert (await caller.call("time")).payload
    bench.servers.gate.set()
    assert (await caller.result(call_id)).payload


async def test_a_shared_server_whose_change_fails_to_start_keeps_serving_and_is_a_problem(
    bench: Bench,
) -> None:
    await bench.serve("time")
    caller = bench.caller()
    await caller.call("time")
    failure = Fault(Reason.SERVER_NOT_READY, "no such command")
    bench.servers.faults = [failure] * 10_000
    quick = InstancePolicy(restart=Backoff(0.01, 0.01))
    await bench.serve("time", args=("--new",), instances=quick)
    report = await bench.plane.expect_report(
        lambda report: any(problem.reason == "CHANGED_LAUNCH_FAILED" for problem in report.problems)
    )
    [said] = [problem for problem in report.problems if problem.reason == "CHANGED_LAUNCH_FAILED"]
    assert said.message.startswith("no such command. So the changed configuration is not in use")
    for _ in range(20):
        assert (await caller.call("time")).payload
    bench.servers.faults.clear()
    await bench.until(
        lambda: [server.spec.part.args for server in bench.servers.live] == [("--new",)]
    )
    await bench.plane.expect_report(
        lambda report: any(problem.reason == "CHANGED_LAUNCH_FAILED" for problem in report.cleared)
    )


async def test_a_change_that_is_reverted_before_its_start_keeps_the_old_instance(
    bench: Bench,
) -> None:
    await bench.serve("time")
    caller = bench.caller()
    await caller.call("time")
    first = bench.servers.opened[0]
    bench.servers.gate = asyncio.Event()
    for args in (("--new",), ("--newer",), ()):
        await bench.serve("time", args=args)
        assert (await caller.call("time")).payload
    bench.servers.gate.set()
    await bench.until(lambda: bench.servers.live == [first])
    assert (await caller.call("time")).payload


async def test_a_removed_server_closes_its_predecessor_too(bench: Bench) -> None:
    spec = await bench.serve("time")
    await bench.caller().call("time")
    bench.servers.gate = asyncio.Event()
    await bench.serve("time", args=("--new",))
    await bench.push(removals=[key_to_proto(spec.key)])
    await bench.until(lambda: not bench.servers.live)
    assert (await bench.caller().refused("time")).reason is Reason.TOOL_NOT_FOUND


async def test_a_leased_server_whose_change_fails_to_start_is_leased_with_the_old_configuration(
    bench: Bench,
) -> None:
    quick = InstancePolicy(restart=Backoff(0.01, 0.01))
    old = await bench.serve("db", shared=False, instances=quick)
    first = await bench.acquire()
    bench.servers.failing["--new",] = Fault(Reason.SERVER_NOT_READY, "no such command")
    new = await bench.serve("db", shared=False, args=("--new",), instances=quick)
    for number in range(2):  # the first of them tries the new launch, the other need not
        lease = await bench.acquire(f"later-{number}")
        assert lease.launch_hash == old.launch_hash
    report = await bench.plane.expect_report(
        lambda report: any(problem.reason == "CHANGED_LAUNCH_FAILED" for problem in report.problems)
    )
    [said] = [problem for problem in report.problems if problem.reason == "CHANGED_LAUNCH_FAILED"]
    assert "no such command" in said.message
    table = bench.worker.leases.leases
    assert all(lease.ends_by is None for lease in table)  # what they stand on is still good
    bench.servers.failing.clear()
    await bench.plane.expect_report(
        lambda report: any(problem.reason == "CHANGED_LAUNCH_FAILED" for problem in report.cleared)
    )
    assert (await bench.acquire("newest")).launch_hash == new.launch_hash
    await bench.until(
        lambda: all(
            (lease.ends_by is None) == (lease.launch_hash == new.launch_hash)
            for lease in bench.worker.leases.leases
        )
    )
    caller = bench.caller()
    assert (await caller.call("db", lease_id=first.id, session="s1")).payload


async def test_a_leased_server_that_never_started_here_has_no_predecessor(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False)
    bench.servers.failing["--new",] = Fault(Reason.SERVER_NOT_READY, "no such command")
    await bench.serve("db", shared=False, args=("--new",))
    with pytest.raises(grpc.aio.AioRpcError, match="no such command"):
        await bench.acquire()


async def test_leases_of_a_predecessor_end_with_the_removed_server(bench: Bench) -> None:
    spec = await bench.serve("db", shared=False)
    await bench.acquire()
    bench.servers.failing["--new",] = Fault(Reason.SERVER_NOT_READY, "no such command")
    await bench.serve("db", shared=False, args=("--new",))
    await bench.acquire("later")
    await bench.push(removals=[key_to_proto(spec.key)])
    await bench.until(lambda: not bench.servers.live and not bench.worker.leases.leases)


@pytest.mark.parametrize("shared", [True, False])
async def test_the_problem_of_a_crash_loop_stays_open_and_counts(
    bench: Bench, shared: bool
) -> None:
    restart = Backoff(0.01, 0.01)
    await bench.serve("time", shared=shared, instances=InstancePolicy(warm=1, restart=restart))
    if shared:
        await bench.caller().call("time")
    for number in range(1, 4):
        instance = await bench.until_ready(number)
        assert {problem.reason for problem in bench.worker.pool.context.reports.problems.open} == (
            {"SERVER_LOST"} if number > 1 else set()
        )
        instance.crash()
        report = await bench.plane.expect_report(lambda report: report.problems)
        assert [problem.reason for problem in report.problems] == ["SERVER_LOST"]
        assert not report.cleared
