"""The metrics of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.data_plane.conftest import Bench, worker_bench

from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.policy import Rate, ServerPolicy, TenantLimits
from leaseway.telemetry.metrics import MAX_SERIES, Buckets, Meter
from leaseway.v1 import execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

Values = dict[tuple[str, ...], float | Buckets]


def read(meter: Meter, name: str) -> Values:
    [family] = [metric for metric in meter.collect() if metric.name == name]
    return {tuple(point.labels.values()): point.value for point in family.points}


def totals(values: Values) -> dict[tuple[str, ...], int]:
    return {
        labels: value.total if isinstance(value, Buckets) else int(value)
        for labels, value in values.items()
    }


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def measured(meter: Meter) -> AsyncIterator[Bench]:
    """A worker with metrics."""
    async with worker_bench(capacity=2, meter=meter) as bench:
        yield bench


CALL = ("tools/call", "execute_tool", "echo")


async def test_calls_are_timed_by_tool_and_outcome(measured: Bench, meter: Meter) -> None:
    await measured.serve("files")
    caller = measured.caller()
    await caller.call("files")
    await caller.call("files")
    measured.servers.holds = True
    call_id = await caller.begin("files")
    [instance] = measured.servers.live
    await measured.until(lambda: instance.calls)
    assert totals(read(meter, "leaseway.calls.in_flight")) == {("files",): 1}
    instance.calls[0].answer(b'{"content": [], "isError": true}', is_error=True)
    await caller.result(call_id)
    call_id = await caller.begin("files")
    await measured.until(lambda: instance.calls)
    code = {"code": "-32602", "server": "files"}
    instance.calls[0].fail(Fault(Reason.SERVER_ERROR, "Bad.", "yes", code))
    await caller.result(call_id)
    assert totals(read(meter, "mcp.client.operation.duration")) == {
        (*CALL, "files", "pipe"): 2,
        (*CALL, "files", "pipe", "tool_error"): 1,
        (*CALL, "files", "pipe", "-32602", "-32602"): 1,
    }
    assert totals(read(meter, "leaseway.calls.in_flight")) == {("files",): 0}


@pytest.mark.parametrize("waits_for", ["a turn", "an instance"])
async def test_calls_that_time_out_before_they_are_sent_count_against_their_server(
    measured: Bench, meter: Meter, waits_for: str
) -> None:
    caller = measured.caller()
    if waits_for == "a turn":
        await measured.serve("files", max_calls=1)
        await measured.hold_call(caller, "files")
    else:
        measured.servers.gate = asyncio.Event()
        await measured.serve("files")
    for server_id, tool in [("files", "echo"), ("files", "echo"), ("no such", "echo")]:
        fault = await caller.refused(server_id, tool, timeout_ms=30)
        assert fault.started == "no"
    assert totals(read(meter, "mcp.client.operation.duration")) == {
        (*CALL, "files", "pipe", "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"): 2
    }
    if measured.servers.gate is not None:
        measured.servers.gate.set()


async def test_a_duration_names_the_trace_that_its_caller_records(
    measured: Bench, meter: Meter
) -> None:
    await measured.serve("files")
    caller = measured.caller()

    async def exemplars(traceparent: str) -> set[str]:
        await caller.result(await caller.begin("files", traceparent=traceparent))
        [value] = read(meter, "mcp.client.operation.duration").values()
        assert isinstance(value, Buckets)
        return {exemplar.trace_id for exemplar in value.exemplars if exemplar is not None}

    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    assert await exemplars("") == set()
    assert await exemplars(f"00-{trace_id}-{span_id}-00") == set()
    assert await exemplars(f"00-{trace_id}-{span_id}-01") == {trace_id}


async def test_other_requests_are_timed_by_method_and_subscriptions_until_they_hold(
    measured: Bench, meter: Meter
) -> None:
    await measured.serve("files")
    caller = measured.caller()
    for uri in ("note://a", "note://b"):
        params = f'{{"uri": "{uri}"}}'.encode()
        await caller.call("files", uri, method="resources/read", arguments=params)
        call_id = await caller.begin("files", uri, method="resources/subscribe", arguments=params)
        await caller.until(lambda: any(message.updates for message in caller.frames))
        await caller.send(cancels=[execution_pb2.Cancel(call_id=call_id)])
        await caller.result(call_id)
        caller.frames.clear()
    assert totals(read(meter, "mcp.client.operation.duration")) == {
        ("resources/read", "files", "pipe"): 2,
        ("resources/subscribe", "files", "pipe"): 2,
    }
    assert read(meter, "leaseway.calls.refused") == {}


async def test_refused_calls_are_counted_by_reason(measured: Bench, meter: Meter) -> None:
    await measured.serve("files")
    caller = measured.caller()
    await caller.refused("files", arguments=b'{"text": 7}')
    await caller.refused("nowhere")
    own = b'{"serverId": "nowhere"}'
    await caller.call("mcp_admin", "mcp_release", session="s", arguments=own)
    await caller.refused("files", arguments=b"x" * (bounds.MAX_ARGUMENTS + 1))
    assert totals(read(meter, "leaseway.calls.refused")) == {
        ("INVALID_ARGUMENTS",): 2,
        ("TOOL_NOT_FOUND",): 1,
    }
    assert read(meter, "mcp.client.operation.duration") == {}


async def test_usage_and_rejections_of_tenants_are_measured(measured: Bench, meter: Meter) -> None:
    limits = {
        "acme": TenantLimits(concurrent=1, leases=1, calls=Rate(50, 10.0)),
        "*": TenantLimits(concurrent=2, artifact_bytes=1_000),
    }
    await measured.serve("files", policy=ServerPolicy(limits=limits))
    await measured.serve("kept", shared=False, policy=ServerPolicy(limits=limits))
    assert read(meter, "leaseway.tenant.limit") == {
        ("acme", "calls"): 5.0,
        ("acme", "concurrent"): 1.0,
        ("acme", "leases"): 1.0,
        ("*", "concurrent"): 2.0,
        ("*", "artifact_bytes"): 1_000.0,
    }
    caller = measured.caller()
    measured.servers.holds = True
    held = [await caller.begin("files", tenant=name) for name in ("acme", "one", "two", "two")]
    [instance] = measured.servers.live
    await measured.until(lambda: len(instance.calls) == len(held))
    for tenant in ("acme", "two"):
        assert (await caller.refused("files", tenant=tenant)).reason is Reason.RATE_LIMITED
    for session in ("first", "second"):
        request = leases_pb2.AcquireLeaseRequest(server_id="kept", session=session, tenant="acme")
        if session == "second":
            with pytest.raises(Exception, match="its limit"):
                await measured.leases.AcquireLease(request)
        else:
            await measured.leases.AcquireLease(request)
    assert read(meter, "leaseway.tenant.used") == {
        ("acme", "concurrent"): 1.0,
        ("acme", "leases"): 1.0,
        ("*", "concurrent"): 2.0,
        ("*", "artifact_bytes"): 0.0,
    }
    assert totals(read(meter, "leaseway.tenant.refused")) == {
        ("acme", "concurrent"): 1,
        ("acme", "leases"): 1,
        ("*", "concurrent"): 1,
    }
    for call in list(instance.calls):
        call.answer(b"{}")
    for call_id in held:
        await caller.result(call_id)
    assert read(meter, "leaseway.tenant.used")["acme", "concurrent"] == 0.0


async def test_a_lease_is_measured_from_its_wait_to_its_end(measured: Bench, meter: Meter) -> None:
    await measured.serve("kept", shared=False)

    async def acquire(session: str, server_id: str = "kept") -> leases_pb2.Lease:
        request = leases_pb2.AcquireLeaseRequest(server_id=server_id, session=session)
        lease: leases_pb2.Lease = (await measured.leases.AcquireLease(request)).lease
        return lease

    first = await acquire("secret-session-1")
    await acquire("secret-session-1")
    await acquire("secret-session-2")
    for session, server_id in (("secret-session-3", "kept"), ("secret-session-1", "guessed")):
        with pytest.raises(Exception, match=r"room|serves no server"):
            await acquire(session, server_id)
    waits = read(meter, "leaseway.lease.wait.duration")
    assert totals(waits) == {
        ("kept", "cold", "ok"): 2,
        ("kept", "existing", "ok"): 1,
        ("kept", "CAPACITY"): 1,
        ("TOOL_NOT_FOUND",): 1,
    }
    assert totals(read(meter, "leaseway.leases.held")) == {("kept",): 2}
    await measured.leases.ReleaseLease(
        leases_pb2.ReleaseLeaseRequest(lease_id=first.id, session=first.session)
    )
    measured.servers.live[-1].crash()
    await measured.until(lambda: not tuple(measured.worker.leases.leases))
    assert totals(read(meter, "leaseway.leases.ended")) == {
        ("kept", "released"): 1,
        ("kept", "lost"): 1,
    }
    sessions = totals(read(meter, "mcp.client.session.duration"))
    assert sessions == {("kept", "pipe"): 1, ("kept", "pipe", "SERVER_LOST"): 1}
    labels = [
        value
        for family in meter.collect()
        for point in family.points
        for value in point.labels.values()
    ]
    assert not [value for value in labels if "secret" in value or "guessed" in value]


async def test_a_lease_on_a_spare_is_a_warm_one(measured: Bench, meter: Meter) -> None:
    spec = measured.spec("kept", shared=False)
    await measured.probe(spec)
    request = leases_pb2.AcquireLeaseRequest(server_id="kept", session="s")
    await measured.leases.AcquireLease(request)
    assert totals(read(meter, "leaseway.lease.wait.duration")) == {("kept", "warm", "ok"): 1}


async def test_starts_restarts_and_late_replies_of_instances_are_counted(
    measured: Bench, meter: Meter
) -> None:
    lost = Fault(Reason.SERVER_NOT_READY, "No.", metadata={"problem": "EXITED"})
    measured.servers.faults.append(lost)
    await measured.serve("files")
    caller = measured.caller()
    await measured.until(lambda: measured.servers.live and measured.servers.live[0].tools)
    [instance] = measured.servers.live
    await caller.call("files")
    instance.late_replies = 3
    assert totals(read(meter, "leaseway.replies.late")) == {("files",): 3}
    instance.late_replies = 4
    instance.crash()
    assert totals(read(meter, "leaseway.replies.late")) == {("files",): 4}
    await measured.until(lambda: measured.servers.live and measured.servers.live[0].tools)
    await caller.call("files")
    starts = totals(read(meter, "leaseway.instance.start.duration"))
    assert starts == {("files", "EXITED"): 1, ("files", "ok"): 2}
    assert totals(read(meter, "leaseway.instance.restarts")) == {("files",): 2}
    assert totals(read(meter, "leaseway.instances")) == {("files", "ready"): 1}


def test_a_server_that_invents_error_codes_gets_a_bounded_number_of_series(meter: Meter) -> None:
    meters = WorkerMeters(meter, lambda: 0.0)
    spec = server_spec(VariantKey("wild"), "streamable_http", url="http://127.0.0.1:1")
    for number in range(1_000):
        fault = Fault(Reason.SERVER_ERROR, "No.", "yes", {"code": str(number)})
        meters.record_call(meters.timer(spec, "t"), 0.0, fault, False)
    found = totals(read(meter, "mcp.client.operation.duration"))
    assert len(found) == 17
    assert found["tools/call", "execute_tool", "t", "wild", "tcp", "_OTHER"] == 984


def test_a_server_that_invents_tools_leaves_series_to_others(meter: Meter) -> None:
    meters = WorkerMeters(meter, lambda: 0.0)
    wild, tame = (
        server_spec(VariantKey(name), "streamable_http", url="http://127.0.0.1:1")
        for name in ("wild", "tame")
    )
    for number in range(MAX_SERIES + 10):
        for is_error in (False, True):
            meters.record_call(meters.timer(wild, f"t/{number}"), 0.0, None, is_error)
    meters.record_call(meters.timer(wild, "", "prompts/get"), 0.0, None, False)
    meters.record_call(meters.timer(tame, "t"), 0.0, None, False)
    found = totals(read(meter, "mcp.client.operation.duration"))
    others = "tools/call", "execute_tool", "_OTHER", "wild", "tcp"
    assert found[others] == found[*others, "_OTHER"] == MAX_SERIES * 3 // 4 + 10
    assert found["prompts/get", "wild", "tcp"] == 1
    assert found["tools/call", "execute_tool", "t", "tame", "tcp"] == 1


def test_series_of_removed_servers_are_dropped(meter: Meter) -> None:
    meters = WorkerMeters(meter, lambda: 0.0)
    for server_id in ("kept", "gone"):
        spec = server_spec(VariantKey(server_id), "stdio", command="x")
        meters.record_call(meters.timer(spec, "t"), 0.0, None, False)
        meters.record_start(spec, 1.0, None)
    assert meters.take_touched() == {"kept", "gone"}
    meters.keep(lambda server_id: server_id == "kept")
    for name in ("mcp.client.operation.duration", "leaseway.instance.start.duration"):
        assert {labels[-2] for labels in read(meter, name)} <= {"kept"}
    spec = server_spec(VariantKey("gone"), "stdio", command="x")
    meters.record_call(meters.timer(spec, "t"), 0.0, None, False)
    assert len(read(meter, "mcp.client.operation.duration")) == 2


async def test_a_jam_is_measured_by_server(measured: Bench, meter: Meter) -> None:
    await measured.serve("files", max_calls=1)
    await measured.serve("idle")
    caller = measured.caller()
    await measured.hold_call(caller, "files")
    for _ in range(3):
        await caller.begin("files")
    await measured.until(lambda: measured.worker.executor.waiting == 3)
    assert totals(read(meter, "leaseway.calls.in_flight")) == {("files",): 4, ("idle",): 0}
    assert totals(read(meter, "leaseway.calls.waiting")) == {("files",): 3, ("idle",): 0}
    oldest = read(meter, "leaseway.calls.wait.oldest")
    assert oldest[("idle",)] == 0.0 != oldest[("files",)]


async def test_a_worker_without_leases_and_calls_says_so(measured: Bench, meter: Meter) -> None:
    # An autoscaler takes a worker without a number for a full one.
    await measured.serve("files")

    for name in ("leaseway.leases.held", "leaseway.calls.in_flight"):
        assert sum(totals(read(meter, name)).values()) == 0
        assert len(read(meter, name)) == 1
