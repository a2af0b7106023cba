"""Lists of a large fleet come in pages of at most a mebibyte (design.md#bounds-and-defaults)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import START, coordinator, hello, load, spec
from tests.control_plane.fake_worker import recorded, worker

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.placement.lease_ends import ReportedLeaseEnd
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.workers.instances import ReportedInstance
from leaseway.control_plane.services import pages
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.errors import Reason
from leaseway.wire.listing.pages import PageStart, page_start
from leaseway.wire.names import LeaseKey
from leaseway.wire.status import fault_from_rpc_error

MIB = 1024 * 1024


def start(listing: str, token: str = "", page_size: int = 0) -> PageStart:
    """Return where a page begins."""
    request = admin_pb2.ListWorkersRequest(page_token=token, page_size=page_size)
    return page_start(listing, request)


def instances(worker_id: str, server_id: str, count: int) -> tuple[ReportedInstance, ...]:
    """Return this many instances of a server on a worker."""
    key = VariantKey(server_id)
    return tuple(
        ReportedInstance(f"{worker_id}-{number:05}", worker_id, key, "ready", launch_hash="1" * 32)
        for number in range(count)
    )


def fleet(servers: int, workers: int, each: int, *busy: int) -> Coordinator:
    """Return a coordinator with workers that have this many instances of each server."""
    state = coordinator()
    ids = [f"server-{number:03}" for number in range(servers)]
    load(state, *(spec(server_id) for server_id in ids))
    for number in range(workers):
        name = f"worker-{number:03}"
        held = tuple(instance for place in busy for instance in instances(name, ids[place], each))
        state.handle_worker_joined(hello(name, instances=held), START)
    return state


def server_pages(
    state: Coordinator, page_size: int = 0
) -> Iterator[list[catalog_pb2.ServerStatus]]:
    """Yield the pages of servers."""
    token = ""
    while True:
        keys = sorted(state.servers.desired or {})
        page, token = pages.servers(state, keys, START, start("ListServers", token, page_size))
        assert sum(entry.ByteSize() for entry in page) <= MIB
        yield page
        if not token:
            return


def test_five_hundred_servers_on_sixty_workers_come_in_pages() -> None:
    state = fleet(500, 60, 1, *range(500))
    told = [status for page in server_pages(state) for status in page]
    found: dict[str, list[str]] = {}
    for status in told:
        found.setdefault(status.server_id, []).extend(
            instance.worker_id for instance in status.instances
        )
    assert list(found) == [f"server-{number:03}" for number in range(500)]
    workers = [f"worker-{number:03}" for number in range(60)]
    assert all(held == workers for held in found.values())


def test_a_server_with_many_instances_continues_on_the_next_page() -> None:
    state = fleet(3, 40, 500, 1)
    told = list(server_pages(state))
    assert len(told) > 1
    parts = [status for page in told for status in page if status.server_id == "server-001"]
    assert parts[0].transport == "stdio"
    assert all(not part.transport for part in parts[1:])
    seen = [(instance.worker_id, instance.id) for part in parts for instance in part.instances]
    assert seen == sorted(set(seen))
    assert len(seen) == 20_000
    assert [status.server_id for status in told[-1]][-1] == "server-002"


def test_servers_added_and_removed_between_pages_hide_no_other() -> None:
    state = fleet(6, 1, 1, *range(6))
    told = server_pages(state, page_size=2)
    seen = [status.server_id for status in next(told)]
    load(state, *(spec(f"server-{number:03}") for number in (1, 3, 4, 5, 6)))
    seen += [status.server_id for page in told for status in page]
    assert seen == [f"server-00{number}" for number in (0, 1, 3, 4, 5, 6)]


def test_workers_come_in_pages() -> None:
    state = coordinator()
    for number in range(300):
        labels = {"note": "x" * 10_000}
        state.handle_worker_joined(hello(f"worker-{number:03}", labels=labels), START)
    seen, token, count = [], "", 0
    while True:
        page, token = pages.workers(state, start("ListWorkers", token))
        assert sum(entry.ByteSize() for entry in page) <= MIB
        seen += [entry.worker.id for entry in page]
        count += 1
        if not token:
            break
    assert seen == sorted(state.workers)
    assert count > 1


def test_thirty_thousand_leases_come_in_pages_behind_the_ends() -> None:
    held = [
        HeldLease(f"run.{number:06}", LeaseKey("default", f"s{number}", "desk"), "w1", START.mono)
        for number in range(30_000)
    ]
    ends = [
        ReportedLeaseEnd(f"run.{number:06}", "default" * 30, "released") for number in range(4_000)
    ]
    listed: list[admin_pb2.LeaseEnd | leases_pb2.Lease] = []
    token = ""
    while True:
        place = start("ListHeldLeases", token)
        page, token = pages.ends_and_leases(ends, held, START.mono, place)
        assert sum(entry.ByteSize() for entry in page) <= MIB
        listed += page
        if not token:
            break
    ended, leases = listed[:4_000], listed[4_000:]
    assert [lease.lease_id for lease in ended if isinstance(lease, admin_pb2.LeaseEnd)] == [
        end.lease_id for end in ends
    ]
    assert [lease.id for lease in leases if isinstance(lease, leases_pb2.Lease)] == [
        entry.id for entry in held
    ]


def test_a_problem_that_is_seen_again_between_pages_is_not_missed() -> None:
    table = ProblemTable()
    for number in range(6):
        table.report(Problem("server", "FAILED", "It failed.", f"s{number}"), 100.0 + number)
    first, token = pages.problems(table.open(), start("ListProblems", page_size=3))
    assert [entry.server_id for entry in first] == ["s2", "s1", "s0"]  # the newest first
    table.report(Problem("server", "FAILED", "It failed again.", "s4"), 200.0)
    second, token = pages.problems(table.open(), start("ListProblems", token))
    assert [entry.server_id for entry in second] == ["s4", "s5", "s3"]
    assert not token


async def test_a_list_rejects_tokens_of_other_lists(running: Running) -> None:
    async with worker(running.address):
        services = {
            running.catalog: catalog_pb2.DESCRIPTOR.services_by_name["CatalogService"],
            running.admin: admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
        }
        rpcs: list[tuple[Any, Any]] = [
            (getattr(stub, method.name), GetMessageClass(method.input_type))
            for stub, service in services.items()
            for method in service.methods
            if "page_token" in method.input_type.fields_by_name
        ]
        assert len(rpcs) >= 11
        for rpc, request in rpcs:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc(request(page_token="time_now"))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            fault = fault_from_rpc_error(caught.value)
            assert fault is not None
            assert fault.reason is Reason.INVALID_REQUEST
            assert request.DESCRIPTOR.name.removesuffix("Request") in fault.message


async def test_a_caller_may_request_small_pages(running: Running) -> None:
    running.load(*(spec(name) for name in "abc"))
    async with worker(running.address, "w1") as w1, worker(running.address, "w2"):
        for _ in "abc":
            await w1.serve("one", "two")
        await w1.apply_until("a", "b", "c")
        await running.until(lambda state: state.ready)
        tools = await running.catalog.ListTools(catalog_pb2.ListToolsRequest(page_size=2))
        servers = await running.catalog.ListServers(catalog_pb2.ListServersRequest(page_size=1))
        more = catalog_pb2.ListServersRequest(page_size=5, page_token=servers.next_page_token)
        others = await running.catalog.ListServers(more)
        workers = await running.admin.ListWorkers(admin_pb2.ListWorkersRequest(page_size=1))
    assert [tool.name for tool in tools.tools] == ["a_one", "a_two"]
    assert tools.next_page_token
    assert [server.server_id for server in servers.servers] == ["a"]
    assert [server.server_id for server in others.servers] == ["b", "c"]
    assert not others.next_page_token
    assert [each_worker.worker.id for each_worker in workers.workers] == ["w1"]


async def test_a_large_resolve_response_is_partial(running: Running) -> None:
    running.load(spec("many"))
    names = [f"tool{number:04}" for number in range(1_000)]
    async with worker(running.address) as w1:
        probe = (await w1.receive("probe")).probe
        await w1.send(probe_result={"id": probe.id, "key": probe.key, "tools": recorded(*names)})
        await w1.apply_until("many")
        await running.until(lambda state: state.ready)
        state = running.plane.state
        (record,) = state.workers.values()
        address = replace(record.hello.address, address="w" * 5_000)
        record.hello = replace(record.hello, address=address)
        request = catalog_pb2.ResolveToolsRequest(names=[f"many:{name}" for name in names])
        answer = await running.catalog.ResolveTools(request)
    assert answer.ByteSize() <= MIB
    assert 0 < len(answer.tools) < 1_000
    assert [tool.original_name for tool in answer.tools] == names[: len(answer.tools)]
