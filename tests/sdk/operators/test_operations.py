"""Requests of operators through the SDK."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, in_thread, until

from leaseway.sdk import AsyncClient, Client, PermissionDenied
from leaseway.sdk.operators.observe import fetch_events, follow_events
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.errors import Fault, Reason


async def test_status_has_readiness_version_and_workers(client: AsyncClient) -> None:
    status = await client.status()
    assert (status.ready, status.registry_version, status.workers) == (True, 1, 1)
    assert status.config_loaded_at is None


async def test_servers_are_listed_with_their_instances(client: AsyncClient) -> None:
    servers = await client.servers()
    assert [server.id for server in servers] == ["desk", "time"]
    assert servers[0].state == "ready"
    assert servers[0].instances[0].worker == "w1"
    assert servers[0].instances[0].pid is None


async def test_workers_are_listed_from_all_pages_with_address_and_state(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    workers = await client.workers()
    assert [(w.id, w.address, w.state) for w in workers] == [
        ("w1", worker.ref.address, "connected")
    ]
    page = admin_pb2.ListWorkersResponse
    pages = [[admin_pb2.WorkerStatus(worker=catalog_pb2.WorkerRef(id=id_))] for id_ in ("a", "b")]
    plane.pages[page] = [page(workers=part) for part in pages]
    assert [w.id for w in await client.workers()] == ["a", "b"]


async def test_leases_are_listed_and_found_by_session_and_server(client: AsyncClient) -> None:
    lease = await client.session("dialog").acquire("desk", ttl=30)
    (listed,) = await client.leases()
    assert (listed.id, listed.session, listed.ttl) == (lease.id, "dialog", 30)
    assert await client.find_lease("dialog", "desk") == lease.id
    assert await client.find_lease("another", "desk") is None


async def test_a_reported_problem_is_listed_with_the_times_it_was_seen(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.report_problem("SCHEMA_REFUSED", "The provider refuses it.", server="time")
    problem = (await client.problems())[0]
    assert (problem.scope, problem.server_id) == ("client", "time")
    assert (problem.reason, problem.message) == ("SCHEMA_REFUSED", "The provider refuses it.")
    assert (problem.severity, problem.first_seen) == ("warning", None)
    seen = admin_pb2.Problem(scope="server", count=3, subject="echo")
    seen.first_seen.FromSeconds(1_700_000_000)
    plane.problems = [seen]
    problem = (await client.problems())[0]
    assert problem.first_seen == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (problem.last_seen, problem.count, problem.subject) == (None, 3, "echo")


async def test_servers_are_merged_from_all_pages(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    page, status = catalog_pb2.ListServersResponse, catalog_pb2.ServerStatus
    one, two, three = (catalog_pb2.InstanceStatus(id=name) for name in ("i1", "i2", "i3"))
    plane.pages[page] = [
        page(servers=[status(server_id="a"), status(server_id="b", instances=[one])]),
        page(servers=[status(server_id="b", instances=[two])]),
        page(servers=[status(server_id="b", instances=[three]), status(server_id="c")]),
    ]
    servers = await client.servers()
    assert [(server.id, [i.id for i in server.instances]) for server in servers] == [
        ("a", []),
        ("b", ["i1", "i2", "i3"]),
        ("c", []),
    ]


async def test_leases_and_lease_ends_are_read_from_all_pages(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    page = admin_pb2.ListHeldLeasesResponse
    end, lease = admin_pb2.LeaseEnd, leases_pb2.Lease
    plane.pages[page] = [
        page(ended=[end(lease_id="e1", how="released")]),
        page(ended=[end(lease_id="e2", how="expired")], leases=[lease(id="l1")]),
        page(leases=[lease(id="l2", user="ada"), lease(id="l3", holder="billing")]),
    ]
    assert [(lease.id, lease.user, lease.holder) for lease in await client.leases()] == [
        ("l1", "", ""),
        ("l2", "ada", ""),
        ("l3", "", "billing"),
    ]
    assert await client.lease_ends() == {"e1": "released", "e2": "expired"}


async def test_problems_of_all_pages_are_sorted_by_time(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    page = admin_pb2.ListProblemsResponse
    seen = {}
    for moment, name in enumerate(("oldest", "older", "newer", "newest"), 1_700_000_000):
        seen[name] = admin_pb2.Problem(reason=name)
        seen[name].last_seen.FromSeconds(moment)
    plane.pages[page] = [
        page(problems=[seen["newer"], seen["oldest"]]),
        page(problems=[seen["newest"], seen["older"]]),
    ]
    told = [problem.reason for problem in await client.problems()]
    assert told == ["newest", "newer", "older", "oldest"]


async def test_logs_are_read_from_every_worker_and_name_an_unreachable_one(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    logs = await client.logs("time", 1)
    assert [(log.worker, log.instance_id, log.lines, log.state) for log in logs] == [
        ("w1", "i1", ("b",), "running"),
        ("w2", "i1", ("b",), "running"),
    ]
    await second.stop()
    logs = await client.logs("time")
    assert [(log.worker, log.state) for log in logs] == [("w1", "running"), ("w2", "unreachable")]
    assert "'w2'" in logs[1].lines[0]


async def test_report_refusal_reports_a_problem_to_operators(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    tools = await client.list_tools()
    text = "Invalid schema for function 'time_now'"
    await client.report_refusal("openai", text, offered=tools, session="chat-7")

    def work() -> None:
        with Client(plane.address) as other:
            other.report_refusal("openai", text, "time_now", offered=tools, session="chat-7")

    await in_thread(work)
    first, second = await client.problems()
    assert first == second
    assert (first.reason, first.server_id) == ("PROVIDER_REFUSED", "time")
    assert (first.severity, first.subject) == ("error", "openai:time_now")
    for part in ("openai", "chat-7", "time_now", text):
        assert part in first.message


async def test_events_are_followed_at_another_control_plane_when_the_first_is_gone(
    plane: FakeControlPlane,
) -> None:
    other, lost = FakeControlPlane(), 0
    await other.start()

    def on_lost() -> None:
        nonlocal lost
        lost += 1

    try:
        async with AsyncClient(f"{plane.address},{other.address}") as client:
            events = follow_events(client, on_lost=on_lost)
            following = asyncio.ensure_future(anext(events))
            await until(lambda: lost)  # the first stream has ended
            await plane.stop()
            other.events = [admin_pb2.Event(number=1, message="It leads.")]
            async with asyncio.timeout(BOUND):
                assert (await following).message == "It leads."
            await events.aclose()
    finally:
        await other.stop()


async def test_events_that_a_restarted_control_plane_tells_again_are_followed_once(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    plane.events = [admin_pb2.Event(number=1, message="It started.")]

    def on_lost() -> None:
        plane.events = [
            admin_pb2.Event(number=8, message="It started."),
            admin_pb2.Event(number=9, message="It ended."),
        ]

    events = follow_events(client, on_lost=on_lost)
    async with asyncio.timeout(BOUND):
        assert [(await anext(events)).message for _ in range(2)] == ["It started.", "It ended."]
    await events.aclose()


async def test_a_caller_who_may_not_read_events_gets_an_error_of_the_sdk(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    plane.events_fault = Fault(Reason.PERMISSION_DENIED, "It lacks the role viewer.")
    with pytest.raises(PermissionDenied, match="It lacks the role viewer"):
        await fetch_events(client)
