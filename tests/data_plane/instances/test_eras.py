"""Instances follow the era of the MCP clients that use them (design.md, eras)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tests.data_plane.doubles.servers import MemoryInstance

from leaseway.spec.model import InstancePolicy
from leaseway.v1 import sync_pb2
from leaseway.wire.clients.greeting import Greeting
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import fault_from_status

Bench = Any
FORMS: dict[str, dict[str, Any]] = {"elicitation": {"form": {}}}
OLD = McpClient("2025-06-18", FORMS, {"name": "old", "version": "1"})
OTHER = McpClient("2025-11-25", {}, {"name": "other", "version": "1"})
NEW = McpClient("2026-07-28", {}, {"name": "new", "version": "1"})


async def called(bench: Bench, client: McpClient | None, **fields: Any) -> MemoryInstance:
    """Call a tool for a client; return the instance that got the call."""
    declared = client.encoded if client is not None else b""
    instance: MemoryInstance = (
        await bench.answer_call("db", mcp_client=declared, **fields)
    ).instance
    return instance


def offers_a_spare(client: McpClient, report: sync_pb2.Report) -> bool:
    """Return whether a worker reports a spare that serves this client alone."""
    serves = [one.serves for one in report.instances if one.role == "spare"]
    return [Greeting.of(client).name] in serves


def greeted(bench: Bench) -> list[McpClient | None]:
    return [instance.greeting.client for instance in bench.servers.live]


async def test_a_shared_server_gets_one_more_instance_when_an_older_client_calls(
    bench: Bench,
) -> None:
    bench.servers.speaks_both_eras = True
    await bench.hold("db")
    first = await called(bench, NEW)
    assert len(bench.servers.live) == 1
    second = await called(bench, OLD)
    assert second.protocol_version == "2025-11-25"
    assert second is not first
    assert await called(bench, OTHER) is second  # shared, so that it was greeted for no client
    assert await called(bench, NEW) is first
    assert await called(bench, None) is first
    assert greeted(bench) == [None, None]


async def test_a_server_of_one_era_keeps_one_instance(bench: Bench) -> None:
    await bench.hold("db")
    assert await called(bench, OLD) is await called(bench, NEW)
    assert len(bench.servers.live) == 1


async def test_without_room_older_clients_use_the_only_instance(bench: Bench) -> None:
    bench.servers.speaks_both_eras = True
    await bench.hold("db", instances=InstancePolicy(max_instances=1))
    assert await called(bench, OLD) is await called(bench, NEW)


async def test_a_server_that_refuses_the_older_era_serves_its_clients_nevertheless(
    bench: Bench,
) -> None:
    bench.servers.speaks_both_eras = True
    await bench.hold("db")
    first = await called(bench, NEW)
    bench.servers.faults.append(Fault(Reason.SERVER_NOT_READY, "It refused initialize."))
    assert await called(bench, OLD) is first
    assert await called(bench, OLD) is first  # it is not started for each call
    assert [instance.state for instance in bench.servers.opened] == ["ready", "closed"]
    assert not bench.worker.pool.context.reports.problems.open


async def test_the_end_of_the_second_instance_ends_neither_the_first_nor_its_clients(
    bench: Bench,
) -> None:
    bench.servers.speaks_both_eras = True
    await bench.hold("db")
    first, second = await called(bench, NEW), await called(bench, OLD)
    second.crash()
    await bench.until(lambda: bench.servers.live == [first])
    assert (await called(bench, OLD)) is first  # until it may start again
    assert await called(bench, NEW) is first


async def test_a_leased_instance_is_greeted_for_its_client(bench: Bench) -> None:
    bench.servers.speaks_both_eras = True
    await bench.hold("db", shared=False)
    old = await called(bench, OLD, session="a")
    new = await called(bench, NEW, session="b")
    assert (old.greeting.client, old.protocol_version) == (OLD, "2025-11-25")
    assert (new.greeting.client, new.protocol_version) == (NEW, "2026-07-28")
    assert await called(bench, NEW, session="a") is old


async def test_spares_are_leased_only_to_clients_for_which_they_were_greeted(
    bench: Bench,
) -> None:
    bench.servers.speaks_both_eras = True
    await bench.hold("db", shared=False, instances=InstancePolicy(warm=1))
    await bench.until_ready()
    for session, client in (("a", OLD), ("b", OLD), ("c", OTHER)):
        instance = await called(bench, client, session=session)
        assert instance.greeting.client == client
        await bench.until(lambda: all(opened.state == "ready" for opened in bench.servers.live))
        await bench.plane.expect_report(partial(offers_a_spare, client))
    assert (await called(bench, NEW, session="d")).protocol_version == "2026-07-28"


async def test_a_description_that_is_no_client_is_refused(bench: Bench) -> None:
    await bench.serve("db")
    fault = await bench.caller().refused("db", mcp_client=b"7")
    assert fault.reason is Reason.INVALID_REQUEST


async def test_a_server_that_needs_a_back_channel_keeps_the_era_of_the_clients_that_lease_it(
    bench: Bench,
) -> None:
    bench.servers.speaks_both_eras = True
    spec = await bench.hold("db", shared=False)
    of_client = await called(bench, NEW, session="a")
    of_nobody = await called(bench, None, session="b")
    instances = bench.worker.pool.find(spec.key).instances
    live = {member.instance: member for member in instances}
    live[of_client].on_warning(of_client, "NO_BACK_CHANNEL", "set protocol: legacy.")
    assert instances.is_outdated(live[of_nobody])
    assert not instances.is_outdated(live[of_client])


async def test_a_call_that_waits_for_the_second_instance_survives_the_replacement_of_the_first(
    bench: Bench,
) -> None:
    bench.servers.speaks_both_eras = True
    await bench.serve("db")
    first = await bench.until_ready()
    bench.servers.gate = asyncio.Event()
    caller = bench.caller()
    call_id = await caller.begin("db", mcp_client=OLD.encoded)
    await bench.until(lambda: len(bench.servers.opened) == 2)  # the second one is starting
    spec = bench.spec("db", args=("--new",))
    bench.servers.gate = None  # for later starts
    await bench.push(bench.upsert(spec))
    await bench.until(lambda: first.state == "closed")
    result = await caller.result(call_id)
    assert not result.HasField("status"), fault_from_status(result.status)
