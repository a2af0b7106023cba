"""Leases over gRPC: acquiring, renewing, releasing, and the faults of ended leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.data_plane.conftest import rpc_fault, worker_bench

from leaseway.spec.policy import ArgumentRule, ServerPolicy, TenantLimits
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2, sync_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import MAX_KEY_LENGTH
from leaseway.wire.status import fault_from_status
from leaseway.wire.timing.durations import duration, seconds

Bench = Any


def acquire(bench: Bench, session: str = "s1", server_id: str = "db", **fields: Any) -> Any:
    return bench.leases.AcquireLease(
        leases_pb2.AcquireLeaseRequest(session=session, server_id=server_id, **fields)
    )


async def test_the_first_call_of_a_session_acquires_and_says_so(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    caller = bench.caller()
    result = await caller.call("db", session="s1", agent="billing", lease_ttl=duration(90))
    lease = result.lease
    assert lease.id.startswith(bench.first_hello.worker.incarnation)
    assert (lease.server_id, lease.session, lease.agent) == ("db", "s1", "billing")
    assert seconds(lease.ttl) == 90
    assert 'mcp_release({"serverId": "db"}) of mcp_admin' in lease.reminder
    assert 'session.release("db")' in lease.reminder
    again = await caller.call("db", session="s1")
    assert not again.is_new_lease
    named = await caller.call("db", lease_id=lease.id, session="s1")
    assert not named.is_new_lease
    assert len(bench.servers.opened) == 1


async def test_concurrent_callers_of_one_session_share_one_lease(
    bench: Bench,
) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False)
    caller = bench.caller()
    calls = [await caller.begin("db", session="s1") for _ in range(5)]
    acquiring = [asyncio.ensure_future(acquire(bench)) for _ in range(3)]
    await bench.until(lambda: bench.worker.executor.in_flight == 5)
    bench.servers.gate.set()
    results = [await caller.result(call_id) for call_id in calls]
    granted = await asyncio.gather(*acquiring)
    assert (
        sum(result.is_new_lease for result in results)
        + sum(response.created for response in granted)
        == 1
    )
    assert len({response.lease.id for response in granted}) == 1
    assert len(bench.servers.opened) == 1


async def test_a_lease_carries_the_name_of_the_client_that_acquired_it(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False)
    caller = bench.caller()
    given_up = await caller.begin("db", session="s1", acquirer="client-1")
    await bench.until(lambda: bench.worker.executor.in_flight == 1)
    joining = asyncio.ensure_future(acquire(bench, acquirer="client-2"))
    await caller.send(cancels=[execution_pb2.Cancel(call_id=given_up)])
    await bench.until(lambda: bench.worker.executor.in_flight == 0)
    bench.servers.gate.set()
    response = await joining
    assert (response.created, response.lease.acquirer) == (False, "client-1")
    joined = await caller.call("db", session="s1", acquirer="client-2")
    assert joined.lease.acquirer == "client-1"
    listed = await bench.leases.ListLeases(leases_pb2.ListLeasesRequest())
    assert [lease.acquirer for lease in listed.leases] == ["client-1"]
    own = await acquire(bench, session="s2", acquirer="client-2")
    assert (own.created, own.lease.acquirer) == (True, "client-2")


async def test_a_long_name_of_a_client_is_cut_however_it_acquires_its_lease(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    name = "n" * (MAX_KEY_LENGTH + 1)
    called = await bench.caller().call("db", session="s1", acquirer=name)
    acquired = await acquire(bench, session="s2", acquirer=name)
    assert called.lease.acquirer == acquired.lease.acquirer == name[:MAX_KEY_LENGTH]


async def test_sessions_have_instances_of_their_own(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    one, other = await acquire(bench, "s1"), await acquire(bench, "s2")
    assert one.lease.instance_id != other.lease.instance_id
    assert await acquire(bench, "s1", tenant="acme") != one
    listed = await bench.leases.ListLeases(leases_pb2.ListLeasesRequest(tenant="default"))
    assert [lease.session for lease in listed.leases] == ["s1", "s2"]


async def test_leases_are_listed_in_pages(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    held = [(await acquire(bench, session)).lease.id for session in ("s1", "s2", "s3")]
    first = await bench.leases.ListLeases(leases_pb2.ListLeasesRequest(page_size=2))
    token = first.next_page_token
    rest = await bench.leases.ListLeases(leases_pb2.ListLeasesRequest(page_token=token))
    assert [lease.id for lease in (*first.leases, *rest.leases)] == held
    assert not rest.next_page_token
    garbage = bench.leases.ListLeases(leases_pb2.ListLeasesRequest(page_token="7"))
    assert (await rpc_fault(garbage)).reason is Reason.INVALID_REQUEST


async def test_a_call_on_a_released_lease_fails(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    request = leases_pb2.ReleaseLeaseRequest(lease_id=lease.id, session="s1")
    assert (await bench.leases.ReleaseLease(request)).released
    assert not (await bench.leases.ReleaseLease(request)).released
    fault = await bench.caller().refused("db", lease_id=lease.id, session="s1")
    assert (fault.reason, fault.started) == (Reason.LEASE_RELEASED, "no")
    await bench.until(lambda: not bench.servers.live)


async def test_an_idle_limit_releases_a_lease_only_without_recent_calls(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    await bench.caller().call("db", lease_id=lease.id, session="s1")
    limit = leases_pb2.ReleaseLeaseRequest(lease_id=lease.id, session="s1", idle=duration(3600))
    answer = await bench.leases.ReleaseLease(limit)
    assert not answer.released
    assert 0 <= seconds(answer.idle) < 3600
    assert bench.worker.leases.get(lease.id) is not None
    limit.idle.CopyFrom(duration(1e-9))  # which has passed
    assert (await bench.leases.ReleaseLease(limit)).released
    fault = await bench.caller().refused("db", lease_id=lease.id, session="s1")
    assert fault.reason is Reason.LEASE_RELEASED
    assert "no call had run on it for 1e-09 s, its idle limit" in fault.message


async def test_a_name_is_resolved_on_the_server_of_a_lease(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()

    def asked(name: str, session: str = "s1") -> Any:
        request = leases_pb2.ResolveLeasedRequest(lease_id=lease.id, session=session, name=name)
        return bench.leases.ResolveLeased(request)

    plan = next(iter(bench.worker.pool.resolve("db", "default").variant.toolset.tools.values()))
    for name in (plan.name, f"db:{plan.original_name}"):
        answer = await asked(name)
        assert (answer.tool.server_id, answer.tool.original_name) == ("db", plan.original_name)
        assert answer.registry_version == bench.worker.pool.registry_version
        assert not answer.tool.shared
    assert (await rpc_fault(asked("nothing"))).reason is Reason.TOOL_NOT_FOUND
    assert (await rpc_fault(asked(f"web:{plan.original_name}"))).reason is Reason.TOOL_NOT_FOUND
    for session in ("s2", ""):
        assert (await rpc_fault(asked(plan.name, session))).reason is Reason.LEASE_LOST
    await bench.leases.ReleaseLease(leases_pb2.ReleaseLeaseRequest(lease_id=lease.id, session="s1"))
    assert (await rpc_fault(asked(plan.name))).reason is Reason.LEASE_RELEASED


async def test_another_session_or_tenant_cannot_release_a_lease(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    for tenant, session in (("acme", "s1"), ("", "s2"), ("", ""), ("acme", "")):
        guess = leases_pb2.ReleaseLeaseRequest(lease_id=lease.id, tenant=tenant, session=session)
        fault = await rpc_fault(bench.leases.ReleaseLease(guess))
        assert fault.reason is Reason.LEASE_LOST
        reason = "has no record of it" if tenant else "is no lease of this tenant and session"
        assert reason in fault.message
    assert bench.worker.leases.get(lease.id) is not None
    own = leases_pb2.ReleaseLeaseRequest(lease_id=lease.id, tenant="default", session="s1")
    assert (await bench.leases.ReleaseLease(own)).released


async def test_an_unknown_lease_id_is_lost_and_starts_nothing(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    fault = await bench.caller().refused("db", lease_id="other-1", session="s1")
    assert fault.reason is Reason.LEASE_LOST
    assert not bench.servers.opened
    release = bench.leases.ReleaseLease(leases_pb2.ReleaseLeaseRequest(lease_id="other-1"))
    assert (await rpc_fault(release)).reason is Reason.LEASE_LOST


async def test_a_lease_works_for_its_tenant_session_and_server_only(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    await bench.serve("web", shared=False)
    lease = await bench.acquire()
    caller = bench.caller()
    strangers: list[dict[str, Any]] = [
        {"tenant": "acme", "session": "s1", "server_id": "db"},
        {"session": "s2", "server_id": "db"},
        {"server_id": "db"},  # a lease comes with the session that holds it
        {"session": "s1", "server_id": "web"},
    ]
    for fields in strangers:
        fault = await caller.refused(**fields, lease_id=lease.id)
        assert (fault.reason, fault.started) == (Reason.LEASE_LOST, "no")
    assert not bench.servers.opened[0].calls
    assert bench.worker.leases.get(lease.id) is not None


async def test_calls_in_flight_on_a_revoked_lease_fail_with_the_reason(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    caller = bench.caller()
    call_id, _ = await bench.hold_call(caller, "db", lease_id=lease.id, session="s1")
    bench.plane.send(revoke={"lease_id": lease.id, "reason": "an operator said so"})
    fault = fault_from_status((await caller.result(call_id)).status)
    assert (fault.reason, fault.started) == (Reason.LEASE_REVOKED, "yes")
    assert "an operator said so" in fault.message


async def test_a_lease_needs_a_leased_server_and_a_session(bench: Bench) -> None:
    await bench.serve("time")
    assert (await rpc_fault(acquire(bench, server_id="time"))).reason is Reason.NOT_LEASABLE
    assert (await rpc_fault(acquire(bench, server_id="tim"))).reason is Reason.TOOL_NOT_FOUND
    await bench.serve("db", shared=False)
    assert (await rpc_fault(acquire(bench, session=""))).reason is Reason.SESSION_REQUIRED
    assert (await bench.caller().refused("db")).reason is Reason.SESSION_REQUIRED


@pytest.mark.parametrize("name", ["x" * 257, "a\nb"])
async def test_invalid_session_and_tenant_names_are_rejected(bench: Bench, name: str) -> None:
    await bench.serve("db", shared=False)
    for wrong in ({"session": name}, {"tenant": name}):
        assert (await rpc_fault(acquire(bench, **wrong))).reason is Reason.INVALID_REQUEST
        given = {"session": "s", **wrong}
        assert (await bench.caller().refused("db", **given)).reason is Reason.INVALID_REQUEST
    assert bench.servers.opened == []


async def test_a_shared_call_has_no_session_or_tenant_of_any_length(bench: Bench) -> None:
    await bench.serve("time")
    for wrong in ({"session": "x" * 257}, {"tenant": "x" * 257}):
        assert (await bench.caller().refused("time", **wrong)).reason is Reason.INVALID_REQUEST


async def test_a_full_worker_rejects_a_lease_until_one_is_released(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    held = [(await bench.acquire(f"s{number}")) for number in range(4)]
    fault = await rpc_fault(acquire(bench, "one too many"))
    assert fault.reason is Reason.CAPACITY
    assert fault.retry_delay is not None
    await bench.leases.ReleaseLease(
        leases_pb2.ReleaseLeaseRequest(lease_id=held[0].id, session="s0")
    )
    assert (await acquire(bench, "patient")).lease.session == "patient"


async def test_the_control_plane_learns_that_a_request_for_a_lease_has_failed(bench: Bench) -> None:
    policy = ServerPolicy(rules=(ArgumentRule('tenant == "acme"'),))
    await bench.serve("db", shared=False, policy=policy)
    await bench.caller().refused("db", tenant="acme", session="denied")
    report = await bench.plane.expect_report(lambda report: report.unused_placements)
    denied = sync_pb2.UnusedPlacement(tenant="acme", session="denied", server_id="db")
    assert list(report.unused_placements) == [denied]
    for number in range(4):
        await bench.acquire(f"s{number}")
    assert (await bench.acquire_fault("one too many")).reason is Reason.CAPACITY
    report = await bench.plane.expect_report(lambda report: report.unused_placements)
    assert [unused.session for unused in report.unused_placements] == ["one too many"]


async def test_room_stays_kept_for_a_lease_that_another_call_still_seeks(bench: Bench) -> None:
    policy = ServerPolicy(rules=(ArgumentRule('tenant == "acme"'),))
    await bench.serve("db", shared=False, policy=policy)
    caller = bench.caller()
    await caller.begin("db", tenant="acme", session="sought", registry_version=9)
    await caller.refused("db", tenant="acme", session="sought")
    await caller.refused("db", tenant="acme", session="denied")
    report = await bench.plane.expect_report(lambda report: report.unused_placements)
    assert [unused.session for unused in report.unused_placements] == ["denied"]


async def test_a_worker_without_capacity_grants_no_lease() -> None:
    async with worker_bench(capacity=0) as bench:
        assert bench.first_hello.capacity == 0
        await bench.serve("db", shared=False)
        assert (await rpc_fault(acquire(bench))).reason is Reason.CAPACITY


async def test_a_worker_that_shuts_down_grants_no_new_lease(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    bench.worker.leases.reject_new(bench.worker.executor.draining_fault())
    assert (await rpc_fault(acquire(bench))).reason is Reason.DRAINING


async def test_a_lease_whose_instance_does_not_start_is_not_granted(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no such command")]
    assert "no such command" in (await rpc_fault(acquire(bench))).message
    assert not (await bench.leases.ListLeases(leases_pb2.ListLeasesRequest())).leases
    assert (await acquire(bench)).created


async def test_keep_alive_renews_held_leases_and_reports_the_others(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire(ttl=duration(30))
    request = leases_pb2.KeepAliveRequest(lease_ids=[lease.id, "other-1"])
    caller = bench.caller()
    await caller.send(keep_alive=request)
    await caller.until(lambda: any(frame.HasField("keep_alive") for frame in caller.frames))
    over_exchange = next(f.keep_alive for f in caller.frames if f.HasField("keep_alive"))
    assert over_exchange == await bench.leases.KeepAlive(request)
    held, unknown = over_exchange.renewals
    assert (held.lease_id, seconds(held.ttl)) == (lease.id, 30)
    assert fault_from_status(unknown.error).reason is Reason.LEASE_LOST


async def test_another_session_cannot_renew_a_lease_that_its_session_renews(
    bench: Bench,
) -> None:
    async def renew(*sessions: str) -> Any:
        request = leases_pb2.KeepAliveRequest(lease_ids=[lease.id], sessions=sessions)
        (renewal,) = (await bench.leases.KeepAlive(request)).renewals
        return renewal

    await bench.serve("db", shared=False)
    lease = await bench.acquire(ttl=duration(30))
    assert seconds((await renew()).ttl) == 30, "a client of before names no session"
    assert seconds((await renew("s1")).ttl) == 30
    held = bench.worker.leases.get(lease.id)
    end = held.expires_at
    for guess in ("s2", ""):
        assert fault_from_status((await renew(guess)).error).reason is Reason.LEASE_LOST
    unnamed = await renew()
    assert not unnamed.HasField("error"), "a client of before that shares the session goes on"
    assert 0 < seconds(unnamed.ttl) <= 30
    assert held.expires_at == end, "a stranger has prolonged it"
    many = fault_from_status((await renew("s1", "s1")).error)
    assert (many.reason, "1 leases and 2 sessions" in many.message) == (
        Reason.INVALID_REQUEST,
        True,
    )
    assert seconds((await renew("s1")).ttl) == 30
    assert held.expires_at >= end


async def test_a_lease_is_reported_while_its_instance_starts(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    bench.servers.gate = asyncio.Event()
    acquiring = asyncio.ensure_future(acquire(bench))
    report = await bench.plane.expect_report(lambda report: report.leases_gained)
    assert [lease.instance_id for lease in report.leases_gained] == [""]
    bench.servers.gate.set()
    lease = (await acquiring).lease
    assert report.leases_gained[0].id == lease.id
    report = await bench.plane.expect_report(lambda report: report.leases_gained)
    assert report.leases_gained[0].instance_id == lease.instance_id


@pytest.mark.parametrize("ttl", [0.2, -5, 25 * 3600])
async def test_a_time_to_live_out_of_bounds_is_rejected(bench: Bench, ttl: float) -> None:
    await bench.serve("db", shared=False)
    fault = await rpc_fault(acquire(bench, ttl=duration(ttl)))
    assert fault.reason is Reason.INVALID_REQUEST
    assert f"ttl={ttl:g}" in fault.message
    caller = bench.caller()
    of_call = await caller.refused("db", session="s1", lease_ttl=duration(ttl))
    assert (of_call.reason, of_call.started) == (Reason.INVALID_REQUEST, "no")


@pytest.mark.parametrize("keep", [-1.0, 24 * 3600 + 1.0])
async def test_a_time_to_keep_a_left_lease_out_of_bounds_is_rejected(
    bench: Bench, keep: float
) -> None:
    await bench.serve("db", shared=False)
    lease = (await acquire(bench)).lease
    leaving = leases_pb2.ReleaseLeaseRequest(
        lease_id=lease.id, session="s1", leaving_client="client-1", keep=duration(keep)
    )
    fault = await rpc_fault(bench.leases.ReleaseLease(leaving))
    assert fault.reason is Reason.INVALID_REQUEST
    assert bench.worker.leases.get(lease.id) is not None


async def test_a_lease_is_not_granted_to_a_caller_of_another_protocol(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    other = catalog_pb2.ClientInfo(protocol_version=99)
    fault = await rpc_fault(acquire(bench, client=other))
    assert fault.reason is Reason.INCOMPATIBLE_VERSION


async def test_the_lease_limit_of_a_tenant_is_enforced(bench: Bench) -> None:
    policy = ServerPolicy(limits={"acme": TenantLimits(leases=1)})
    await bench.serve("db", shared=False, policy=policy)
    caller = bench.caller()
    await caller.call("db", tenant="acme", session="s1")
    fault = await caller.refused("db", tenant="acme", session="s2")
    assert fault.reason is Reason.CAPACITY
    assert "tenant acme holds 1 leases" in fault.message
    assert (await caller.call("db", tenant="rival", session="s1")).payload


@pytest.mark.parametrize(
    ("outcome", "reason", "cause"),
    [
        ("released", Reason.LEASE_RELEASED, ""),
        ("revoked", Reason.LEASE_REVOKED, "an operator said so"),
        ("lost", Reason.LEASE_LOST, "exit status 9"),
        ("expired", Reason.LEASE_EXPIRED, ""),
    ],
)
async def test_each_end_of_a_lease_is_reported_and_told_to_its_caller(
    bench: Bench, outcome: str, reason: Reason, cause: str
) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire(tenant="acme", ttl=duration(1 if outcome == "expired" else 60))
    if outcome == "released":
        await bench.release(lease)
    elif outcome == "revoked":
        bench.plane.send(revoke={"lease_id": lease.id, "reason": cause})
    elif outcome == "lost":
        bench.servers.opened[0].crash(cause)
    report = await bench.plane.expect_report(lambda report: lease.id in report.leases_lost)
    assert list(report.leases_lost) == [lease.id]
    [end] = report.lease_ends
    assert (end.lease_id, end.tenant, end.how) == (lease.id, "acme", outcome)
    fault = await bench.caller().refused("db", tenant="acme", lease_id=lease.id, session="s1")
    assert (fault.reason, cause in fault.message) == (reason, True)
    await bench.until(lambda: not bench.servers.live)
