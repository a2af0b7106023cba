"""A lease has the tools that its own instance lists."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.data_plane.conftest import BOTH_WAYS, WAIT, rpc_fault
from tests.data_plane.doubles.servers import ECHO

from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import InstancePolicy
from leaseway.spec.policy import Grant, ServerPolicy
from leaseway.v1 import catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire import bounds
from leaseway.wire.clients.mcp_client import ListedToClient, McpClient
from leaseway.wire.errors import Fault, Reason

Bench = Any


def tool(name: str, key: str = "text") -> bytes:
    schema = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    return msgspec.json.encode({"name": name, "inputSchema": schema})


GROWN = {**ECHO, "new": tool("new")}


def upsert(bench: Bench, *hidden: str, **fields: Any) -> sync_pb2.Upsert:
    """Return a leased server whose tools are named with its id in front."""
    made: sync_pb2.Upsert = bench.upsert(bench.spec("db", shared=False, **fields), ECHO)
    made.toolset.lease_rules.transforms.add(kind="prefix", add="db_")
    if hidden:
        made.toolset.lease_rules.tools.blacklist.extend(hidden)
    made.hashes.toolset_hash += ",".join(hidden)
    return made


async def listed(bench: Bench, lease: Any, known: str = "") -> leases_pb2.ListLeaseToolsResponse:
    request = leases_pb2.ListLeaseToolsRequest(
        lease_id=lease.id, session=lease.session, known_digest=known
    )
    response: leases_pb2.ListLeaseToolsResponse = await bench.leases.ListLeaseTools(request)
    return response


async def names(bench: Bench, lease: Any) -> list[str]:
    return [tool.name for tool in (await listed(bench, lease)).tools]


@BOTH_WAYS
async def test_a_tool_that_an_instance_adds_is_called_in_its_session_alone(bench: Bench) -> None:
    await bench.push(upsert(bench))
    lease, other = await bench.acquire(), await bench.acquire("s2")
    bench.servers.opened[0].change_tools(GROWN)
    caller = bench.caller()
    # At once: the call waits until the change has been read.
    result = await caller.call("db", "new", session="s1", lease_id=lease.id)
    assert not result.HasField("status")
    fault = await caller.refused("db", "new", session="s1", arguments=b'{"text": 1}')
    assert fault.reason is Reason.INVALID_ARGUMENTS
    fault = await caller.refused("db", "new", session="s2", lease_id=other.id)
    assert fault.reason is Reason.TOOL_NOT_FOUND
    await bench.release(lease)
    fault = await caller.refused("db", "new", session="s1")
    assert fault.reason is Reason.TOOL_NOT_FOUND


async def test_what_a_lease_adds_and_lacks_is_listed_with_a_digest(bench: Bench) -> None:
    await bench.push(upsert(bench))
    lease = await bench.acquire()
    assert await listed(bench, lease) == leases_pb2.ListLeaseToolsResponse()
    bench.servers.opened[0].change_tools({"new": tool("new")})
    answer = await listed(bench, lease)
    assert [(tool.name, tool.original_name, tool.server_id) for tool in answer.tools] == [
        ("db_new", "new", "db")
    ]
    assert list(answer.absent) == ["echo"]
    known = await listed(bench, lease, answer.digest)
    assert known == leases_pb2.ListLeaseToolsResponse(digest=answer.digest)
    fault = await bench.caller().refused("db", session="s1", lease_id=lease.id)
    assert fault.reason is Reason.TOOL_NOT_FOUND


async def waiting(
    bench: Bench, lease: Any, known: str = "", seconds: int = 60
) -> leases_pb2.ListLeaseToolsResponse:
    """List the tools once they are others than the known ones."""
    request = leases_pb2.ListLeaseToolsRequest(
        lease_id=lease.id, session=lease.session, known_digest=known
    )
    request.wait.seconds = seconds
    response: leases_pb2.ListLeaseToolsResponse = await bench.leases.ListLeaseTools(request)
    return response


async def test_a_list_waits_until_it_is_another_one_or_its_lease_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = bench.worker.lease_service
    await bench.push(upsert(bench))
    lease = await bench.acquire()
    assert not (await waiting(bench, lease, seconds=0)).digest
    lists = asyncio.create_task(waiting(bench, lease))
    await bench.until(lambda: service._waiting_lists == 1)
    bench.servers.opened[0].change_tools(GROWN)
    digest = (await lists).digest
    assert digest
    monkeypatch.setattr(bounds, "MAX_WAITING_LISTS", 1)
    lists = asyncio.create_task(waiting(bench, lease, digest))
    await bench.until(lambda: service._waiting_lists == 1)
    assert (await waiting(bench, lease, digest)).digest == digest  # at once: too many wait
    await bench.release(lease)
    assert (await rpc_fault(lists)).reason is Reason.LEASE_RELEASED
    assert service._waiting_lists == 0


async def test_prompts_and_resources_that_an_instance_adds_are_those_of_its_session(
    bench: Bench,
) -> None:
    made = upsert(bench)
    made.toolset.lease_rules.prompts.blacklist.append("hidden")
    await bench.push(made)
    lease, other = await bench.acquire(), await bench.acquire("s2")
    live = bench.worker.leases.live_instance(bench.worker.leases.get(lease.id))
    assert not (await others(bench, lease)).digest
    prompts = tuple(msgspec.json.encode({"name": name}) for name in ("new", "hidden"))
    bench.servers.prompts_resources = ListedPromptsResources(
        prompts, (b'{"uri":"x:new","name":"new"}',), (b'{"uriTemplate":"x:{a}/b","name":"t"}',)
    )
    live.instance.change_tools(ECHO)
    answer = await others(bench, lease)
    assert [(one.name, one.original_name) for one in answer.prompts] == [("db_new", "new")]
    assert [(one.uri, one.is_template) for one in answer.resources] == [
        ("x:new", False),
        ("x:{a}/b", True),
    ]
    assert not answer.tools
    known = await others(bench, lease, answer.digest)
    assert known == leases_pb2.ListLeaseToolsResponse(digest=answer.digest)
    assert not (await listed(bench, lease)).digest
    for kind, name, original in (
        (catalog_pb2.NAME_KIND_PROMPT, "db_new", "new"),
        (catalog_pb2.NAME_KIND_PROMPT, "db:new", "new"),
        (catalog_pb2.NAME_KIND_RESOURCE, "x:new", "x:new"),
        (catalog_pb2.NAME_KIND_RESOURCE, "x:1/b", "x:1/b"),
    ):
        resolved = await bench.leases.ResolveLeased(named(lease, kind, name))
        assert (resolved.tool.original_name, resolved.tool.of_lease) == (original, True)
        fault = await rpc_fault(bench.leases.ResolveLeased(named(other, kind, name)))
        assert fault.reason is Reason.TOOL_NOT_FOUND
    fault = await rpc_fault(
        bench.leases.ResolveLeased(named(lease, catalog_pb2.NAME_KIND_PROMPT, "db_hidden"))
    )
    assert fault.reason is Reason.TOOL_NOT_FOUND


async def others(bench: Bench, lease: Any, known: str = "") -> leases_pb2.ListLeaseToolsResponse:
    """List prompts and resources."""
    request = leases_pb2.ListLeaseToolsRequest(
        lease_id=lease.id, session=lease.session, known_digest=known, prompts_resources=True
    )
    response: leases_pb2.ListLeaseToolsResponse = await bench.leases.ListLeaseTools(request)
    return response


def named(lease: Any, kind: Any, name: str) -> leases_pb2.ResolveLeasedRequest:
    return leases_pb2.ResolveLeasedRequest(
        lease_id=lease.id, session=lease.session, name=name, kind=kind
    )


async def test_a_changed_definition_checks_the_arguments_of_its_lease(bench: Bench) -> None:
    await bench.push(upsert(bench))
    lease, _other = await bench.acquire(), await bench.acquire("s2")
    bench.servers.opened[0].change_tools({"echo": tool("echo", "word")})
    assert await names(bench, lease) == ["db_echo"]
    caller = bench.caller()
    result = await caller.call("db", session="s1", arguments=b'{"word": "hi"}')
    assert not result.HasField("status")
    fault = await caller.refused("db", session="s1")
    assert fault.reason is Reason.INVALID_ARGUMENTS
    assert not (await caller.call("db", session="s2")).HasField("status")


async def test_an_instance_may_list_other_tools_from_its_start(bench: Bench) -> None:
    await bench.push(upsert(bench))
    bench.servers.tools = GROWN
    lease = await bench.acquire()
    assert await names(bench, lease) == ["db_new"]


async def test_leases_that_differ_in_the_same_way_share_what_is_compiled(bench: Bench) -> None:
    await bench.push(upsert(bench))
    bench.servers.tools = GROWN
    leases = [await bench.acquire(f"s{number}") for number in range(3)]
    own = bench.worker.leases.own_tools
    held = [own.find(bench.worker.leases.get(lease.id)) for lease in leases]
    assert held[0] is not None
    assert held[0] is held[1] is held[2]
    for lease in leases:
        await bench.release(lease)
    assert not own.variants


async def test_filters_and_grants_hold_for_the_tools_of_a_lease(bench: Bench) -> None:
    grants = {"*": Grant(NameFilter(whitelist=("echo", "n*")))}
    await bench.push(upsert(bench, "no*", policy=ServerPolicy(grants=grants)))
    bench.servers.tools = {**GROWN, "nothing": tool("nothing"), "other": tool("other")}
    lease = await bench.acquire()
    assert await names(bench, lease) == ["db_new"]
    caller = bench.caller()
    for name in ("nothing", "other"):
        fault = await caller.refused("db", name, session="s1")
        assert fault.reason is Reason.TOOL_NOT_FOUND


async def test_a_withdrawn_grant_changes_what_a_caller_is_listed(bench: Bench) -> None:
    def granting(*names: str) -> sync_pb2.Upsert:
        grants = {"*": Grant(NameFilter(whitelist=names))}
        return upsert(bench, policy=ServerPolicy(grants=grants))

    await bench.push(granting("echo", "new", "more"))
    bench.servers.tools = {"new": tool("new"), "more": tool("more")}
    lease = await bench.acquire()
    first = await listed(bench, lease)
    assert [tool.original_name for tool in first.tools] == ["more", "new"]
    assert list(first.absent) == ["echo"]
    await bench.push(granting("new"))
    second = await listed(bench, lease, first.digest)
    assert [tool.original_name for tool in second.tools] == ["new"]
    assert not second.absent, "its caller may not know of it"
    known = await listed(bench, lease, second.digest)
    assert known == leases_pb2.ListLeaseToolsResponse(digest=second.digest)
    await bench.push(granting("nothing"))
    assert await listed(bench, lease, second.digest) == leases_pb2.ListLeaseToolsResponse()


async def test_a_changed_configuration_holds_for_the_tools_of_a_lease_at_once(
    bench: Bench,
) -> None:
    await bench.push(upsert(bench))
    bench.servers.tools = GROWN
    lease = await bench.acquire()
    await bench.push(upsert(bench, "new"))
    fault = await bench.caller().refused("db", "new", session="s1")
    assert fault.reason is Reason.TOOL_NOT_FOUND
    await bench.push(upsert(bench))
    assert await names(bench, lease) == ["db_new"]


async def test_an_older_control_plane_leaves_a_lease_the_recorded_tools(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    bench.servers.tools = GROWN
    lease = await bench.acquire()
    assert await names(bench, lease) == []


@pytest.mark.parametrize("name", ["db_new", "db:new"])
async def test_a_name_of_a_lease_is_resolved_for_it_alone(bench: Bench, name: str) -> None:
    await bench.push(upsert(bench))
    lease = await bench.acquire()
    bench.servers.opened[0].change_tools(GROWN)

    async def resolved(asked: str) -> bool:
        request = leases_pb2.ResolveLeasedRequest(lease_id=lease.id, session="s1", name=asked)
        return bool((await bench.leases.ResolveLeased(request)).tool.of_lease)

    assert await resolved(name)
    assert not await resolved("db_echo")


async def test_tools_whose_name_another_server_has_are_a_problem(bench: Bench) -> None:
    other = bench.upsert(bench.spec("ax"), {"new": tool("new")})
    other.toolset.exposed[0].name = "db_new"
    await bench.push(upsert(bench), other)
    bench.servers.tools = GROWN
    lease = await bench.acquire()

    def has(problems: Any) -> bool:
        return any(problem.reason == "LEASE_TOOLS_SKIPPED" for problem in problems)

    report = await bench.plane.expect_report(lambda report: has(report.problems))
    assert any("call db:new" in problem.message for problem in report.problems)
    await bench.release(lease)
    await bench.plane.expect_report(lambda report: has(report.cleared))


async def test_leases_are_listed_again_beside_each_other(bench: Bench) -> None:
    """One whose server does not answer delays no other."""
    await bench.push(upsert(bench))
    leases = [await bench.acquire(f"s{number}") for number in range(2)]
    first, second = bench.servers.opened
    gate = asyncio.Event()
    plain = first.relist

    async def slow() -> Any:
        await gate.wait()
        return await plain()

    first.relist = slow
    for instance in (first, second):
        instance.change_tools(GROWN)
    async with asyncio.timeout(WAIT):
        while await names(bench, leases[1]) != ["db_new"]:
            pass
        assert await names(bench, leases[0]) == [], "it waits for a while only"
        gate.set()
        assert await names(bench, leases[0]) == ["db_new"]


@pytest.fixture
def few_relists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_RELISTS", 2)
    monkeypatch.setattr(bounds, "MAX_SERVER_RELISTS", 1)


@pytest.mark.usefixtures("few_relists")
async def test_a_server_that_does_not_list_again_holds_up_no_other(bench: Bench) -> None:
    first, second = upsert(bench), bench.upsert(bench.spec("other", shared=False), ECHO)
    second.toolset.lease_rules.SetInParent()
    await bench.push(first, second)
    for number in range(2):
        await bench.acquire(f"s{number}")
    lease, never = await bench.acquire("s", "other"), asyncio.Event()
    *hanging, answering = bench.servers.opened
    for instance in hanging:
        instance.relist = never.wait
        instance.change_tools(GROWN)
    answering.change_tools(GROWN)
    assert await names(bench, lease) == ["new"]
    never.set()


@BOTH_WAYS
async def test_the_gateway_of_a_client_is_told_what_holds_for_its_session_apart(
    bench: Bench,
) -> None:
    """Other sessions of the client still have a tool that one has taken away."""
    await bench.push(upsert(bench))
    client, caller = McpClient("2025-11-25", {}, {"name": "one", "version": "1"}), bench.caller()
    await caller.call("db", session="s1", mcp_client=client.encoded)

    def told() -> list[ListedToClient]:
        frames = [notice for message in caller.frames for notice in message.notifications]
        return [msgspec.json.decode(notice.params, type=ListedToClient) for notice in frames]

    bench.servers.opened[0].change_tools({"new": tool("new")})
    await caller.until(lambda: told() and told()[-1].own)
    assert [listed.absent for listed in told()] == [[], []]
    lease = next(iter(bench.worker.leases.leases))
    found = bench.worker.leases.own_tools.find(lease)
    assert told()[-1].own == found.own.tools_digest


async def test_a_client_that_leases_a_spare_is_told_of_the_tools_of_its_session(
    bench: Bench,
) -> None:
    """The spare greeted its server for nobody: of its lists, only own tools are told."""
    bench.servers.speaks_both_eras = True
    await bench.push(upsert(bench, instances=InstancePolicy(warm=1)))
    spare = await bench.until_ready()
    client, caller = McpClient("2026-07-28", {}, {"name": "one", "version": "1"}), bench.caller()
    await caller.call("db", session="s1", mcp_client=client.encoded)

    def told() -> list[ListedToClient]:
        frames = [notice for message in caller.frames for notice in message.notifications]
        return [msgspec.json.decode(notice.params, type=ListedToClient) for notice in frames]

    spare.change_tools({**ECHO, "new": tool("new")})
    await caller.until(told)
    (lease,) = bench.worker.leases.leases
    digest = bench.worker.leases.own_tools.find(lease).own.tools_digest
    assert told() == [ListedToClient("", [], own=digest)]
    spare.change_tools(ECHO)
    await caller.until(lambda: len(told()) == 2)
    assert told()[1] == ListedToClient("", [])


async def test_a_list_that_cannot_be_read_again_leaves_the_last_one(bench: Bench) -> None:
    await bench.push(upsert(bench))
    bench.servers.tools = GROWN
    lease = await bench.acquire()
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "It did not answer.")]
    bench.servers.opened[0].change_tools(ECHO)
    assert await names(bench, lease) == ["db_new"]


async def test_what_a_spare_reported_before_its_lease_delays_nobody(bench: Bench) -> None:
    await bench.push(upsert(bench, instances=InstancePolicy(warm=1)))
    spare = await bench.until_ready()
    spare.change_tools(ECHO)
    live = next(iter(bench.worker.pool.resolve("db", "").instances))
    assert live.changes.has_unread()
    async with asyncio.timeout(WAIT):
        while live.changes.has_unread():
            await asyncio.sleep(0)


async def test_what_a_spare_lists_while_it_is_leased_is_its_leases(bench: Bench) -> None:
    await bench.push(upsert(bench, instances=InstancePolicy(warm=1)))
    spare = await bench.until_ready()
    asked, gate = asyncio.Event(), asyncio.Event()
    plain = spare.relist

    async def slow() -> Any:
        asked.set()
        await gate.wait()
        return await plain()

    spare.relist = slow
    spare.change_tools(GROWN)
    async with asyncio.timeout(WAIT):
        await asked.wait()
    lease = await bench.acquire()
    assert bench.worker.leases.live_instance(bench.worker.leases.get(lease.id)).instance is spare
    gate.set()
    async with asyncio.timeout(WAIT):
        while await names(bench, lease) != ["db_new"]:
            pass
