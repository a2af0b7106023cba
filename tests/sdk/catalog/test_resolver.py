"""Names are resolved together, cached, and resolved again when the registry changes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection

import pytest
from tests.sdk.fake_plane import FakeTool
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, until

from leaseway.sdk import (
    AsyncClient,
    DeadlineExceeded,
    InternalError,
    LeasewayError,
    ServerNotReady,
    ToolNotFound,
)
from leaseway.sdk.catalog import resolver as resolver_module
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.catalog.targets import PromptOrResource
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.identity import identify
from leaseway.v1.catalog_pb2 import NAME_KIND_PROMPT, NAME_KIND_RESOURCE, NAME_KIND_TOOL
from leaseway.wire.channels import leader_channel
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff


@pytest.fixture
async def resolver(plane: FakeControlPlane) -> AsyncIterator[Resolver]:
    control = ControlPlane(identify(plane.address, None, None, None))
    made = Resolver(control)
    yield made
    await made.close()
    await control.close()


async def call_until(client: AsyncClient, condition: Callable[[], object]) -> None:
    """Call `time_now` until a condition holds."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await client.call_tool("time_now")


async def test_names_with_the_same_workers_share_them_and_get_them_once(
    resolver: Resolver, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.worker_set = 7
    deadline = asyncio.get_running_loop().time() + BOUND
    one, other = await asyncio.gather(
        *(resolver.resolve(item, deadline) for item in ("time_now", "desk_open"))
    )
    assert [each_worker.id for each_worker in one.workers] == [worker.ref.id]
    assert one.workers is other.workers
    later = await resolver.resolve(PromptOrResource(NAME_KIND_PROMPT, "time_now"), deadline)
    assert later.workers is one.workers
    assert plane.sets_sent == 1


async def test_a_version_makes_only_the_names_of_changed_servers_stale(
    resolver: Resolver, plane: FakeControlPlane
) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND
    uri = PromptOrResource(NAME_KIND_RESOURCE, "time_now")
    targets = [await resolver.resolve(item, deadline) for item in ("time_now", "desk_open", uri)]
    await until(lambda: plane.watchers == 1)
    await until(lambda: resolver.registry_version.version == plane.version)
    plane.changed_servers = [targets[1].server_id]
    plane.move()
    await until(lambda: resolver.registry_version.version == plane.version)
    assert [target.stale for target in targets] == [False, True, True], "a URI may have moved"
    plane.changed_servers = None
    plane.move()
    await until(lambda: resolver.registry_version.version == plane.version)
    assert targets[0].stale


async def test_names_of_servers_that_follow_at_the_same_version_become_stale_too(
    resolver: Resolver, plane: FakeControlPlane
) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND
    targets = [await resolver.resolve(item, deadline) for item in ("time_now", "desk_open")]
    await until(lambda: resolver.registry_version.version == plane.version)
    lists = resolver.registry_version.lists
    resolver.record_version(plane.version, workers_changed=True, changed=[targets[1].server_id])
    assert [target.stale for target in targets] == [False, True]
    assert resolver.registry_version.lists == lists + 1, "lists are read again"
    resolver.record_version(plane.version, workers_changed=True, changed=[])
    assert [target.stale for target in targets] == [False, True]
    assert resolver.registry_version.lists == lists + 1


@pytest.mark.parametrize("change", ["version", "lists"])
async def test_a_response_from_before_a_change_serves_one_use(
    resolver: Resolver, plane: FakeControlPlane, change: str
) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND
    plane.hold_resolve["time_now"] = answer = asyncio.Event()
    resolving = asyncio.create_task(resolver.resolve("time_now", deadline))
    await until(lambda: plane.resolves and resolver.registry_version.version == plane.version)
    if change == "version":
        resolver.record_version(plane.version + 1)
    else:
        resolver.record_users([""])
    answer.set()
    assert (await resolving).item == "time_now"
    assert resolver.cached("time_now", 0.0) is None
    plane.version += 1
    current = await resolver.resolve("time_now", deadline)
    assert resolver.cached("time_now", 0.0) is current


async def test_names_are_batched_by_kind_and_server(
    resolver: Resolver, plane: FakeControlPlane
) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND
    items: list[str | PromptOrResource] = [
        "time_now",
        PromptOrResource(NAME_KIND_PROMPT, "time_now"),
        PromptOrResource(NAME_KIND_RESOURCE, "time_now"),
        "desk_open",
        PromptOrResource(NAME_KIND_RESOURCE, "time_now", "time"),
        PromptOrResource(NAME_KIND_RESOURCE, "desk_open"),
    ]
    targets = await asyncio.gather(*(resolver.resolve(item, deadline) for item in items))
    assert sorted(zip(plane.meant, plane.resolves, strict=True)) == [
        ((NAME_KIND_TOOL, ""), ["time_now", "desk_open"]),
        ((NAME_KIND_PROMPT, ""), ["time_now"]),
        ((NAME_KIND_RESOURCE, ""), ["time_now", "desk_open"]),
        ((NAME_KIND_RESOURCE, "time"), ["time_now"]),
    ]
    assert [target.item for target in targets] == items
    assert [target.what.split()[0] for target in targets] == [
        "tool",
        "prompt",
        "resource",
        "tool",
        "resource",
        "resource",
    ]


async def test_a_prompt_and_a_tool_with_one_name_are_cached_separately(
    resolver: Resolver, plane: FakeControlPlane
) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND
    prompt = PromptOrResource(NAME_KIND_PROMPT, "time_now")
    found = await resolver.resolve(prompt, deadline)
    assert resolver.cached(prompt, 0.0) is found
    assert resolver.cached("time_now", 0.0) is None
    resolver.record_version(plane.version + 1)
    assert resolver.cached(prompt, 0.0) is None, "a newer registry may resolve it differently"


async def test_a_rejected_resource_is_not_cached(
    resolver: Resolver, plane: FakeControlPlane
) -> None:
    deadline = asyncio.get_running_loop().time() + BOUND
    uri = PromptOrResource(NAME_KIND_RESOURCE, "file:///a")
    with pytest.raises(Fault, match="There is no"):
        await resolver.resolve(uri, deadline)
    plane.tools["file:///a"] = plane.tools["time_now"]
    assert (await resolver.resolve(uri, deadline)).server_id == "time"


async def test_a_name_is_resolved_once(client: AsyncClient, plane: FakeControlPlane) -> None:
    for _ in range(5):
        await client.call_tool("time_now")
    assert plane.resolves == [["time_now"]]


async def test_concurrent_calls_of_a_name_resolve_it_once(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await asyncio.gather(*(client.call_tool("time_now") for _ in range(50)))
    assert plane.resolves == [["time_now"]]


async def test_names_of_concurrent_calls_are_resolved_together(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.add("many", *(f"t{n}" for n in range(30)))
    await asyncio.gather(*(client.call_tool(f"many_t{n}") for n in range(30)))
    assert len(plane.resolves) == 1
    assert len(plane.resolves[0]) == 30


async def test_names_missing_in_a_full_response_are_requested_again(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    names = [f"t{n}" for n in range(5)]
    plane.add("many", *names)
    plane.most_resolved = 2
    await asyncio.gather(*(client.call_tool(f"many_{name}") for name in names))
    asked = [f"many_{name}" for name in names]
    assert plane.resolves == [asked, asked[2:], asked[4:]]


async def test_a_name_that_is_never_resolved_fails_the_call(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.most_resolved = 0
    with pytest.raises(LeasewayError, match="does not resolve 'time_now'"):
        await client.call_tool("time_now")


async def test_one_unknown_name_does_not_fail_the_others(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    good, bad = await asyncio.gather(
        client.call_tool("time_now"), client.call_tool("nope"), return_exceptions=True
    )
    assert not isinstance(good, BaseException)
    assert isinstance(bad, ToolNotFound)
    assert len(plane.resolves) == 1


async def test_a_failure_is_not_cached(client: AsyncClient, plane: FakeControlPlane) -> None:
    with pytest.raises(ToolNotFound):
        await client.call_tool("late_tool")
    plane.add("late", "tool")
    assert (await client.call_tool("late_tool")).text == "{}"


async def test_an_unexpected_error_fails_the_calls_and_is_not_cached(
    client: AsyncClient, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.add("other", "tool")

    async def breaks(*_: object, **__: object) -> None:
        raise UnicodeError("unexpected")

    with monkeypatch.context() as broken:
        broken.setattr(ControlPlane, "request", breaks)
        async with asyncio.timeout(BOUND):
            ended = await asyncio.gather(
                *map(client.call_tool, ("time_now", "other_tool")), return_exceptions=True
            )
    assert [type(error) for error in ended] == [InternalError, InternalError]
    assert all(isinstance(error, InternalError) and error.started == "no" for error in ended)
    async with asyncio.timeout(BOUND):
        assert (await client.call_tool("time_now")).text == "{}"


async def test_a_starting_server_does_not_delay_other_names(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.add("slow", "tool")
    plane.hold_resolve["slow_tool"] = asyncio.Event()
    slow = asyncio.create_task(client.call_tool("slow_tool", timeout=BOUND))
    quick = asyncio.create_task(client.call_tool("time_now", timeout=BOUND))
    assert (await quick).text == "{}"
    assert not slow.done()
    plane.hold_resolve["slow_tool"].set()
    assert (await slow).text == "{}"


async def test_a_starting_server_in_a_batch_is_resolved_separately(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.add("slow", "tool")
    plane.resolve_faults["slow_tool"] = Fault(Reason.SERVER_NOT_READY, "It does not start.")
    slow, quick = await asyncio.gather(
        client.call_tool("slow_tool"), client.call_tool("time_now"), return_exceptions=True
    )
    assert isinstance(slow, ServerNotReady)
    assert not isinstance(quick, BaseException)
    assert plane.resolves[1:] == [["slow_tool"]]


async def test_a_caller_with_a_short_timeout_does_not_fail_the_others(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.list_tools()  # connects, which may take longer than the short timeout
    plane.hold_resolve["time_now"] = asyncio.Event()
    hasty = asyncio.create_task(client.call_tool("time_now", timeout=0.05))
    patient = asyncio.create_task(client.call_tool("time_now", timeout=BOUND))
    with pytest.raises(DeadlineExceeded):
        await hasty
    plane.hold_resolve["time_now"].set()
    assert (await patient).text == "{}"


async def test_a_new_registry_version_resolves_names_again(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    await until(lambda: plane.watchers)
    plane.tools["time_now"].original_name = "now_v2"
    plane.move()

    await call_until(client, lambda: worker.calls[-1].tool == "now_v2")
    assert worker.calls[-1].registry_version == 2
    assert len(plane.resolves) == 2


async def test_a_name_of_a_server_that_acts_for_users_is_resolved_for_each_of_them(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    for user in ("", "anna", "bob"):
        plane.of_users[user, "time_now"] = FakeTool("time_now", "time", f"now_of_{user}")
    sessions = {user: client.session(user, user=user) for user in ("anna", "bob")}
    for _ in range(2):
        for user, session in sessions.items():
            await session.call_tool("time_now")
            assert worker.calls[-1].tool == f"now_of_{user}"
        await client.call_tool("time_now")
        assert worker.calls[-1].tool == "now_of_"
    assert [info.user for info in plane.clients] == ["anna", "bob", ""]

    await until(lambda: plane.watchers)
    plane.of_users["anna", "time_now"].original_name = "new"
    plane.users_changed = ["anna"]
    plane.notify()

    async def call_anna() -> bool:
        await sessions["anna"].call_tool("time_now")
        return worker.calls[-1].tool == "new"

    async with asyncio.timeout(BOUND):
        while not await call_anna():
            pass
    await sessions["bob"].call_tool("time_now")
    assert worker.calls[-1].tool == "now_of_bob"
    assert "bob" not in [info.user for info in plane.clients[3:]]


async def test_a_name_that_is_the_same_for_all_users_is_resolved_once(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    for user in ("anna", "bob"):
        await client.session(user, user=user).call_tool("time_now")
    await client.call_tool("time_now")
    assert plane.resolves == [["time_now"]]


async def test_lists_are_for_the_user_that_is_named(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.list_tools()
    await client.list_tools(user="anna")
    assert [info.user for info in plane.clients] == ["", "anna"]


async def test_no_call_waits_for_a_name_whose_version_is_unchanged(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.call_tool("time_now")
    address = plane.address
    await plane.stop()
    await plane.start(int(address.rpartition(":")[2]))
    held = plane.hold_resolve["time_now"] = asyncio.Event()

    # Workers may have changed while there was no watch, so the name is refreshed behind the calls.
    await call_until(client, lambda: len(plane.resolves) == 2)
    await client.call_tool("time_now")
    held.set()


async def test_the_watch_reconnects_and_receives_missed_versions(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    port = int(plane.address.rpartition(":")[2])
    await plane.stop()
    assert (await client.call_tool("time_now")).text == "{}"
    plane.version = 7
    await plane.start(port)
    await until(lambda: plane.watchers)
    await call_until(client, lambda: worker.calls[-1].registry_version == 7)


async def test_the_watch_goes_on_when_the_connection_that_it_began_on_is_closed(
    resolver: Resolver, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_channel, "_GRACE", 0.01)
    version = resolver.watch()
    await until(lambda: version.version == plane.version)
    channel = resolver._control._channel
    channel._switch(plane.address)  # as after a moment in which nothing answered
    await until(lambda: not channel._retired)
    plane.move()
    await until(lambda: version.version == plane.version)


async def test_the_watch_goes_on_after_a_fault_in_this_client(
    resolver: Resolver, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, faults = resolver.record_users, [ValueError("A newer control plane sends this.")]

    def fail_once(users: Collection[str]) -> None:
        if faults:
            raise faults.pop()
        record(users)

    monkeypatch.setattr(resolver, "record_users", fail_once)
    version = resolver.watch()
    await until(lambda: not faults)
    plane.move()
    await until(lambda: version.version == plane.version)


async def test_a_fault_that_each_message_meets_is_tried_ever_later_and_logged_once(
    resolver: Resolver,
    plane: FakeControlPlane,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[int] = []

    class Recorded(Backoff):
        def delay(self, attempt: int, *_: object) -> float:
            attempts.append(attempt)
            return 0.0

    def fail(*_: object, **__: object) -> None:
        raise ValueError("A newer control plane sends this.")

    monkeypatch.setattr(resolver_module, "RECONNECT", Recorded())
    monkeypatch.setattr(resolver, "record_version", fail)
    resolver.watch()
    await until(lambda: len(attempts) >= 3)
    assert attempts[:3] == [0, 1, 2]
    said = [record for record in caplog.records if "not be followed" in record.message]
    assert [record.levelname for record in said if record.levelno > logging.DEBUG] == ["ERROR"]


async def test_a_watch_that_keeps_failing_is_logged_as_a_warning_once_per_reason(
    resolver: Resolver,
    plane: FakeControlPlane,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver_module, "RECONNECT", Backoff(initial=0.001, maximum=0.001))
    caplog.set_level(logging.DEBUG, "leaseway.sdk")
    plane.watch_fault = Fault(Reason.UNAUTHENTICATED, "This address wants a shared key.")
    resolver.watch()
    await until(lambda: plane.watches_refused == 18)
    plane.watch_fault = Fault(Reason.INCOMPATIBLE_VERSION, "Use the same release of both.")
    await until(lambda: plane.watches_refused == 21)
    plane.watch_fault = None
    await until(lambda: plane.watchers)
    said = [record for record in caplog.records if "not received" in record.message]
    assert len(said) >= 20
    assert [record.levelname for record in said[:16]] == [*["DEBUG"] * 14, "WARNING", "DEBUG"]
    warnings = [record.message.rpartition(": ")[2] for record in said if record.levelno > 20]
    assert warnings == ["This address wants a shared key.", "Use the same release of both."]


async def test_a_stale_name_is_used_while_the_control_plane_is_unreachable(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.call_tool("time_now")
    runtime = client._runtime()
    await plane.stop()
    await until(lambda: not runtime.control.connected)
    runtime.resolver.record_version(99)
    async with asyncio.timeout(BOUND):
        assert (await client.call_tool("time_now")).text == "{}"


async def test_a_cached_name_is_used_while_the_control_plane_knows_no_worker(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.call_tool("time_now")
    resolver = client._runtime().resolver
    plane.resolve_faults["time_now"] = Fault(Reason.SERVER_NOT_READY, "No worker serves it.")
    resolver.record_version(99)
    for _ in range(3):
        assert (await client.call_tool("time_now")).text == "{}"
    assert len(plane.resolves) == 2, "it is resolved again from time to time, not for each call"
    # Its only worker rejected a call.
    resolver.invalidate(resolver._targets["time_now"], at_once=True)
    with pytest.raises(ServerNotReady, match="No worker serves it"):
        await client.call_tool("time_now")


async def test_new_workers_are_found_without_a_new_version(
    client: AsyncClient, plane: FakeControlPlane, second: FakeWorker
) -> None:
    await client.call_tool("time_now")
    plane.workers.append(second)
    target = client._runtime().resolver._targets["time_now"]
    target.refresh_at = 0.0  # as if the name had been in use for some time
    await call_until(client, lambda: second.calls)
    assert len(plane.resolves) == 2


async def test_a_notification_of_other_workers_brings_them_calls(
    client: AsyncClient, plane: FakeControlPlane, second: FakeWorker
) -> None:
    await client.call_tool("time_now")
    await until(lambda: plane.watchers)
    plane.workers.append(second)
    plane.notify()
    await call_until(client, lambda: second.calls)
    assert len(plane.resolves) == 2


async def test_workers_that_joined_while_the_watch_was_broken_are_found(
    client: AsyncClient, plane: FakeControlPlane, second: FakeWorker
) -> None:
    await client.call_tool("time_now")
    target = client._runtime().resolver._targets["time_now"]
    target.refresh_at = math.inf  # not refreshed because of its age
    port = int(plane.address.rpartition(":")[2])
    await plane.stop()
    plane.workers.append(second)
    await plane.start(port)
    await until(lambda: plane.watchers)
    await call_until(client, lambda: second.calls)


async def test_one_watch_serves_all_names(client: AsyncClient, plane: FakeControlPlane) -> None:
    plane.add("many", "a", "b", "c")
    for name in ("many_a", "many_b", "many_c"):
        await client.call_tool(name)
    await until(lambda: plane.watchers)
    assert plane.watchers == 1


async def test_no_watch_starts_before_a_name_is_resolved(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.list_tools()
    assert plane.watchers == 0


async def test_requests_identify_the_client(client: AsyncClient, plane: FakeControlPlane) -> None:
    await client.call_tool("time_now")
    assert plane.clients[0].agent == "billing"
    assert plane.clients[0].protocol_version == 1


async def test_without_a_control_plane_the_worker_of_a_lease_resolves_names(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.acquire("desk")
    await plane.stop()
    runtime = client._runtime()
    await until(lambda: not runtime.control.connected)
    assert (await session.call_tool("desk_never_called")).text == "{}"
    assert (await session.call_tool("desk_never_called")).text == "{}"
    assert worker.resolved == ["desk_never_called"], "the name is cached"


async def test_a_control_plane_that_is_lost_during_the_request_is_as_good_as_none(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.acquire("desk")
    plane.hold_resolve["desk_never_called"] = asyncio.Event()
    call = asyncio.create_task(session.call_tool("desk_never_called"))
    await until(lambda: ["desk_never_called"] in plane.resolves)
    await plane.stop()
    assert (await call).text == "{}"
    assert worker.resolved == ["desk_never_called"]
