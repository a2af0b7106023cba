"""Every limit of a caller: each gives its error, and is counted by name and scope.

A row for each bound says how a caller gets there; the table of docs/security.md has the same rows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct
from tests.calls import call_message
from tests.conftest import BOUND
from tests.control_plane.conftest import Running, serving
from tests.control_plane.fake_worker import worker
from tests.control_plane.services.desk import serve_desk
from tests.data_plane.artifact_calls import PNG, result
from tests.data_plane.conftest import Bench, Caller, worker_bench
from tests.data_plane.notes import end_of, follow
from tests.data_plane.notes import serve as serve_resources

from leaseway.data_plane.core.artifacts.index import ArtifactReader
from leaseway.data_plane.services import replies
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.spec.policy import NO_POLICY, CallLimits, Quota, Rate, ServerPolicy, TenantLimits
from leaseway.telemetry.metrics import Meter
from leaseway.v1 import (
    admin_pb2,
    catalog_pb2,
    execution_pb2,
    execution_pb2_grpc,
    leases_pb2,
)
from leaseway.wire import bounds
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT
from leaseway.wire.sharing.limits import UsageCounter, limit_metadata, reached_limit
from leaseway.wire.status import fault_from_rpc_error, fault_from_status

SECURITY: Final = Path(__file__).parent.parent / "docs" / "security.md"
RARELY: Final = Rate(1, 3600.0)


@dataclass
class Worker:
    """A worker with metrics, and two connections of one caller to it."""

    bench: Bench
    meter: Meter
    metadata: Any
    stubs: list[Any]
    opened: list[Any] = field(default_factory=list)

    @property
    def instance(self) -> Any:
        return self.bench.servers.opened[0]

    async def holding(self, **fields: Any) -> None:
        """Serve one server, which never answers."""
        await self.bench.serve("time", **fields)
        await self.bench.until(lambda: self.bench.servers.opened)
        self.bench.servers.holds = True

    def stream(self, connection: int = 0) -> Any:
        """Open an exchange."""
        stream = self.stubs[connection].Exchange(metadata=self.metadata)
        self.opened.append(stream)
        return stream

    async def unary(self, connection: int = 0, **fields: Any) -> Any:
        """Send a call without a stream."""
        request = execution_pb2.CallToolRequest(
            server_id="time", tool="echo", arguments=_arguments(), **fields
        )
        return await self.stubs[connection].CallTool(request, metadata=self.metadata)


@dataclass
class Plane:
    """A control plane with metrics."""

    running: Running
    meter: Meter


def _arguments() -> Struct:
    arguments = Struct()
    arguments.update({"text": "x"})
    return arguments


async def refusal(answer: Awaitable[Any]) -> Fault:
    """Return the fault of a request."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asyncio.wait_for(answer, BOUND)
    fault = fault_from_rpc_error(error.value)
    assert fault is not None, error.value
    return fault


async def refused_on(stream: Any) -> Fault:
    """Return the fault of the next result of a stream."""
    while True:
        frame = await asyncio.wait_for(stream.read(), BOUND)
        assert frame is not grpc.aio.EOF
        if frame.results:
            return fault_from_status(frame.results[0].status)


def calls(*numbers: int, **fields: Any) -> Any:
    """Return a message with calls."""
    fields.setdefault("arguments", b'{"text": "x"}')
    return execution_pb2.ExchangeRequest(
        calls=[
            call_message(id=number, server_id="time", tool="echo", **fields) for number in numbers
        ]
    )


def chunk(number: int, size: int = 1) -> Any:
    data = b"x" * size
    return execution_pb2.ExchangeRequest(chunks=[execution_pb2.Chunk(call_id=number, data=data)])


async def too_many_streams(house: Worker) -> Fault:
    greeting = await asyncio.wait_for(house.stream().read(), BOUND)
    assert greeting.HasField("worker")
    return await refusal(house.stream(1 if house.metadata else 0).read())


async def too_many_calls_on_a_stream(house: Worker) -> Fault:
    await house.holding()
    stream = house.stream()
    await stream.write(calls(1, 2))
    return await refused_on(stream)


async def too_many_calls(house: Worker) -> Fault:
    """Calls on a stream and without one; for the tenant also on two connections."""
    await house.holding()
    first = asyncio.ensure_future(house.unary(1 if house.metadata else 0))
    await house.bench.until(lambda: len(house.instance.calls) == 1)
    stream = house.stream()
    await stream.write(calls(1))
    fault = await refused_on(stream)
    house.instance.calls[0].answer(b'{"content":[]}')
    await asyncio.wait_for(first, BOUND)
    return fault


async def too_many_chunks(house: Worker) -> Fault:
    await house.holding()
    stream = house.stream()
    for number in (1, 2):
        await stream.write(chunk(number))
    await stream.write(calls(2))
    return await refused_on(stream)


async def too_many_chunks_of_a_client(house: Worker) -> Fault:
    await house.holding()
    first, second = house.stream(1 if house.metadata else 0), house.stream()
    await first.write(chunk(1))
    exchanges = house.bench.worker.execution._exchanges
    await house.bench.until(lambda: any(stream.chunked for stream in exchanges._streams))
    await second.write(chunk(1))
    await second.write(calls(1))
    return await refused_on(second)


async def too_many_subscriptions(house: Worker) -> Fault:
    await serve_resources(house.bench)
    caller: Caller = house.bench.caller()
    await follow(caller, "note://1")
    return await end_of(caller, await follow(caller, "note://2"))


async def too_much_unread(house: Worker) -> Fault:
    await house.holding()
    stream = house.stream()
    await stream.write(calls(*range(1, 9)))
    await house.bench.until(lambda: len(house.instance.calls) == 8)
    (open_stream,) = house.bench.worker.execution._exchanges._streams
    for call in tuple(house.instance.calls):
        call.answer(b'"' + b"x" * bounds.MIB + b'"')
    await house.bench.until(lambda: open_stream._replies.fault is not None)
    return open_stream._replies.fault or Fault(Reason.INTERNAL, "")


async def too_much_held(house: Worker) -> Fault:
    stream = house.stream()
    await asyncio.wait_for(stream.read(), BOUND)
    (open_stream,) = house.bench.worker.execution._exchanges._streams
    # The caller may get another status, as its writes race with the end.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await stream.write(chunk(1, 2 * bounds.KIB))
    await house.bench.until(lambda: open_stream._replies.fault is not None)
    return open_stream._replies.fault or Fault(Reason.INTERNAL, "")


async def too_many_parked(house: Worker, *, connection: int, tenant: str) -> Fault:
    """A second call from another connection or tenant, which reaches one of the limits."""
    await house.holding()
    first = asyncio.ensure_future(house.unary(answers=[ELICIT], tenant="acme"))
    await house.bench.until(lambda: len(house.instance.calls) == 1)
    house.instance.calls[0].ask(ELICIT)
    assert (await asyncio.wait_for(first, BOUND)).request_state
    second = asyncio.ensure_future(house.unary(connection, answers=[ELICIT], tenant=tenant))
    await house.bench.until(lambda: len(house.instance.calls) == 2)
    house.instance.calls[1].ask(ELICIT)
    return await refusal(second)


async def too_many_reads(house: Worker) -> Fault:
    await house.holding()
    stream = house.stream()
    await stream.write(calls(1, session="s1"))
    await house.bench.until(lambda: house.instance.calls)
    house.instance.calls[0].answer(result(PNG))
    store = house.bench.worker.artifacts
    await house.bench.until(lambda: len(store))
    [ref] = store._index._by_ref
    parts = store.read_parts(store.find(ref, ArtifactReader("default", "s1")), 0, 10)
    await anext(parts)
    request = execution_pb2.ReadArtifactRequest(ref=ref, session="s1")
    fault = await refusal(_all(house.stubs[0].ReadArtifact(request)))
    await parts.aclose()
    return fault


async def _all(stream: Any) -> list[Any]:
    return [message async for message in stream]


async def no_lease(house: Worker) -> Fault:
    await house.bench.serve("db", shared=False)
    request = leases_pb2.AcquireLeaseRequest(session="s1", server_id="db", tenant="acme")
    return await refusal(house.bench.leases.AcquireLease(request))


async def too_many_by_policy(house: Worker, **policy: Any) -> Fault:
    await house.holding(policy=ServerPolicy(**policy))
    stream = house.stream()
    await stream.write(calls(1, 2, tenant="acme", agent="bot"))
    return await refused_on(stream)


async def watches_tools(plane: Plane) -> Fault:
    watch = plane.running.catalog.WatchTools(catalog_pb2.WatchToolsRequest(tenant="acme"))
    return await refusal(watch.read())


async def watches_events(plane: Plane) -> Fault:
    watch = plane.running.admin.WatchEvents(admin_pb2.WatchEventsRequest(follow=True))
    return await refusal(watch.read())


async def places(plane: Plane) -> Fault:
    request = leases_pb2.PlaceRequest(session="s", server_id="desk", tenant="acme")
    return await refusal(plane.running.placement.Place(request))


async def finds(plane: Plane) -> Fault:
    request = leases_pb2.FindLeaseRequest(session="s", server_id="desk", tenant="acme")
    return await refusal(plane.running.placement.FindLease(request))


async def resolves(plane: Plane) -> Fault:
    request = catalog_pb2.ResolveToolsRequest(names=["a"], tenant="acme")
    return await refusal(plane.running.catalog.ResolveTools(request))


async def places_without_room(
    plane: Plane, *, wait: bool = False, policy: ServerPolicy = NO_POLICY
) -> Fault:
    async with worker(plane.running.address) as w1:
        await serve_desk(plane.running, w1, policy)
        place = plane.running.placement.Place

        def request(session: str) -> leases_pb2.PlaceRequest:
            wanted = leases_pb2.PlaceRequest(session=session, server_id="desk", tenant="acme")
            wanted.wait.FromSeconds(int(BOUND) if wait else 0)
            return wanted

        for number in range(4):  # as many as the worker accepts
            await place(request(f"s{number}"))
        waiting = []
        if wait:
            waiting.append(asyncio.ensure_future(place(request("waits"))))
            await plane.running.until(lambda state: len(state.wait_queue))
        fault = await refusal(place(request("s")))
        for message in waiting:
            message.cancel()
        return fault


ON_WORKER: Final[list[tuple[str, str, dict[str, int], Callable[[Worker], Awaitable[Fault]]]]] = [
    ("streams", "connection", {"MAX_STREAMS": 1}, too_many_streams),
    ("streams", "tenant", {"MAX_TENANT_STREAMS": 1}, too_many_streams),
    ("stream_calls", "connection", {"MAX_CALLS_IN_FLIGHT": 1}, too_many_calls_on_a_stream),
    ("calls", "connection", {"MAX_CLIENT_CALLS": 1}, too_many_calls),
    ("calls", "tenant", {"MAX_CLIENT_CALLS": 1}, too_many_calls),
    ("stream_chunks", "connection", {"MAX_CHUNKED": 1}, too_many_chunks),
    ("chunks", "connection", {"MAX_CLIENT_CHUNKED": 1}, too_many_chunks_of_a_client),
    ("chunks", "tenant", {"MAX_CLIENT_CHUNKED": 1}, too_many_chunks_of_a_client),
    ("stream_subscriptions", "connection", {"MAX_SUBSCRIPTIONS": 1}, too_many_subscriptions),
    ("stream_unread", "connection", {}, too_much_unread),
    ("held", "connection", {"MAX_CLIENT_HELD": bounds.KIB}, too_much_held),
    ("held", "tenant", {"MAX_CLIENT_HELD": bounds.KIB}, too_much_held),
    (
        "parked",
        "connection",
        {"MAX_CONNECTION_PARKED": 1},
        partial(too_many_parked, connection=0, tenant="rival"),
    ),
    (
        "parked",
        "tenant",
        {"MAX_TENANT_PARKED": 1},
        partial(too_many_parked, connection=1, tenant="acme"),
    ),
    (
        "parked",
        "worker",
        {"MAX_PARKED": 1},
        partial(too_many_parked, connection=1, tenant="rival"),
    ),
    ("artifact_reads", "tenant", {"TENANT_ARTIFACT_READERS": 1}, too_many_reads),
    ("artifact_reads", "worker", {"ARTIFACT_READERS": 1}, too_many_reads),
    ("acquisitions", "connection", {"MAX_PLACEMENTS": 0}, no_lease),
    ("acquisitions", "tenant", {"MAX_TENANT_PLACEMENTS": 0}, no_lease),
    ("leases", "tenant", {"MAX_TENANT_LEASES": 0}, no_lease),
    (
        "limits.concurrent",
        "tenant",
        {},
        partial(too_many_by_policy, limits={"acme": TenantLimits(concurrent=1)}),
    ),
    (
        "limits.calls",
        "tenant",
        {},
        partial(too_many_by_policy, limits={"acme": TenantLimits(calls=RARELY)}),
    ),
    (
        "limits.external",
        "tenant",
        {},
        partial(too_many_by_policy, rate=RARELY, risks=(("echo", "external"),)),
    ),
    *(
        (f"limits.{quota}", scope, {}, partial(too_many_by_policy, **policy))
        for quota, limits in (("calls", CallLimits(RARELY)), ("concurrent", CallLimits(None, 1)))
        for scope, policy in (
            ("agent", {"agent_limits": {"acme": {"bot": limits}}}),
            ("server", {"quota": Quota(limits.calls, limits.concurrent)}),
            ("tool", {"quota": Quota(tools=(("*", limits),))}),
        )
    ),
]
"""Limit, scope, the setting that lowers it, and the function that reaches it."""

ON_CONTROL_PLANE: Final[
    list[tuple[str, str, dict[str, int], Callable[[Plane], Awaitable[Fault]]]]
] = [
    ("watchers", "connection", {"MAX_WATCHERS": 0}, watches_tools),
    ("watchers", "connection", {"MAX_WATCHERS": 0}, watches_events),
    ("watchers", "tenant", {"MAX_TENANT_WATCHERS": 0}, watches_tools),
    ("placements", "connection", {"MAX_PLACEMENTS": 0}, places),
    ("placements", "connection", {"MAX_PLACEMENTS": 0}, finds),
    ("placements", "connection", {"MAX_PLACEMENTS": 0}, resolves),
    ("placements", "tenant", {"MAX_TENANT_PLACEMENTS": 0}, places),
    ("placements", "tenant", {"MAX_TENANT_PLACEMENTS": 0}, finds),
    ("placements", "tenant", {"MAX_TENANT_PLACEMENTS": 0}, resolves),
    (
        "leases",
        "tenant",
        {"MAX_TENANT_LEASES": 4, "RESERVATION": 600},
        places_without_room,
    ),
    (
        "leases",
        "server",
        {"RESERVATION": 600},
        partial(places_without_room, policy=ServerPolicy(quota=Quota(leases=4))),
    ),
    (
        "lease_waits",
        "tenant",
        {"MAX_WAITING": 1, "RESERVATION": 600},
        partial(places_without_room, wait=True),
    ),
]

REASONS: Final = {
    "leases": Reason.CAPACITY,
    "lease_waits": Reason.CAPACITY,
    "limits.concurrent": Reason.RATE_LIMITED,
    "limits.calls": Reason.RATE_LIMITED,
    "limits.external": Reason.RATE_LIMITED,
}
"""The reason of a fault by limit; OVERLOADED for all others."""

KEYED: Final = {
    ("streams", "tenant"),
    ("calls", "tenant"),
    ("chunks", "tenant"),
    ("held", "tenant"),
}
"""Limits of a tenant that count only with its credential."""


def check(fault: Fault, limit: str, scope: str, meter: Meter) -> None:
    """Check that a fault names the limit and was counted once."""
    assert fault.reason is REASONS.get(limit, Reason.OVERLOADED), fault
    assert (fault.metadata["limit"], fault.metadata["scope"]) == (limit, scope)
    [family] = [metric for metric in meter.collect() if metric.name == "leaseway.limits.reached"]
    counts = {tuple(point.labels.values())[:2]: point.value for point in family.points}
    assert counts == {(limit, scope): 1}


@pytest.mark.parametrize(
    ("limit", "scope", "small", "drive"),
    ON_WORKER,
    ids=[f"{case[0]}-{case[1]}" for case in ON_WORKER],
)
async def test_a_limit_of_a_worker_gives_its_error_and_is_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    scope: str,
    small: dict[str, int],
    drive: Callable[[Worker], Awaitable[Fault]],
) -> None:
    for name, most in small.items():
        monkeypatch.setattr(bounds, name, most)
    monkeypatch.setattr(replies, "MAX_UNREAD", 2 * bounds.MIB)
    metadata: Any = ()
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = ()
    if (limit, scope) in KEYED:
        key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=0.0)
        add_key(tmp_path / "keys.json", record)
        known = authenticator_for(None, keys=tmp_path / "keys.json")
        metadata, interceptors = bearer_metadata(key), (IdentityInterceptor(known),)
    meter = Meter()
    options = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each channel
    async with (
        worker_bench(meter=meter, interceptors=interceptors) as bench,
        AsyncExitStack() as stack,
    ):
        stubs = []
        for _ in range(2):
            channel = grpc.aio.insecure_channel(bench.address, options=options)
            await stack.enter_async_context(channel)
            stubs.append(execution_pb2_grpc.ExecutionServiceStub(channel))
        house = Worker(bench, meter, metadata, stubs)
        try:
            check(await drive(house), limit, scope, meter)
        finally:
            for stream in house.opened:
                stream.cancel()


@pytest.mark.parametrize(
    ("limit", "scope", "small", "drive"),
    ON_CONTROL_PLANE,
    ids=[f"{case[0]}-{case[1]}-{number}" for number, case in enumerate(ON_CONTROL_PLANE)],
)
async def test_a_limit_of_a_control_plane_gives_its_error_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    scope: str,
    small: dict[str, int],
    drive: Callable[[Plane], Awaitable[Fault]],
) -> None:
    for name, most in small.items():
        monkeypatch.setattr(bounds, name, most)
    meter = Meter()
    async with serving(meter=meter) as running:
        check(await drive(Plane(running, meter)), limit, scope, meter)


def test_the_table_of_limits_matches_the_documentation() -> None:
    rows = re.findall(
        r"^\|.*\| `([a-z_.]+)`, `?([a-z` ,]+)`? \|$", SECURITY.read_text(), re.MULTILINE
    )
    documented = {
        (limit, scope) for limit, scopes in rows for scope in re.findall(r"[a-z]+", scopes)
    }
    assert documented == {row[:2] for row in (*ON_WORKER, *ON_CONTROL_PLANE)}


def test_the_size_limit_of_results_is_not_a_limit_of_callers() -> None:
    assert reached_limit({"server": "a", "limit": "16777216"}) is None
    assert reached_limit(limit_metadata("streams", "tenant")) == ("streams", "tenant")


def test_released_quota_is_available_to_others() -> None:
    in_use = UsageCounter("things", "things", 2, 3, "Wait.")
    in_use.acquire("c1", "acme")
    in_use.acquire("c1", "acme")
    with pytest.raises(Fault, match="This connection has 2 things"):
        in_use.acquire("c1", None)
    in_use.acquire("c2", "acme")
    with pytest.raises(Fault, match="This tenant has 3 things"):
        in_use.acquire("c3", "acme")
    in_use.acquire("c3", "rival")
    in_use.release("c1", "acme")
    in_use.acquire("c3", "acme")
    for connection, tenant in (("c1", "acme"), ("c2", "acme"), ("c3", "rival"), ("c3", "acme")):
        in_use.release(connection, tenant)
    assert not in_use._counts
