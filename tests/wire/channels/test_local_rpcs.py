"""RPCs within the process are held to what RPCs over a connection are held to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.interceptor import IdentityInterceptor, caller
from leaseway.identity.principal import Principal, Role
from leaseway.v1 import (
    execution_pb2,
    execution_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)
from leaseway.wire import bounds
from leaseway.wire.channels.local_rpcs import LocalChannel, LocalRpcs
from leaseway.wire.channels.serving import make_server
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import abort, fault_from_rpc_error

KEY, OTHER = "k" * 24, "v" * 24
AUTHENTICATOR = Authenticator(
    shared=[
        (KEY, Principal("the caller", frozenset({Role.CALLER}), "acme")),
        (OTHER, Principal("the viewer", frozenset({Role.VIEWER}))),
    ]
)
Code = grpc.StatusCode
OF_SENDER: ContextVar[str] = ContextVar("of-sender", default="")


LeaseServicer: Any = leases_pb2_grpc.LeaseServiceServicer
ExecutionServicer: Any = execution_pb2_grpc.ExecutionServiceServicer


class Service(LeaseServicer, ExecutionServicer):  # type: ignore[misc]  # it serves some methods
    """Handlers whose request says what they do."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.started = asyncio.Event()
        self.written = 0
        self.peers: list[str] = []

    async def ReleaseLease(self, request: Any, context: Any) -> Any:
        self.peers.append(context.peer())
        match request.lease_id:
            case "refused":
                await abort(context, Fault(Reason.LEASE_LOST, "It is gone.", retry_delay=2.0))
            case "waits":
                self.started.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
            case "broken":
                raise ZeroDivisionError
            case "whose":
                name = f"{caller().name} {OF_SENDER.get()}".strip()
                return leases_pb2.ReleaseLeaseResponse(released=name == "the caller")
        return leases_pb2.ReleaseLeaseResponse(released=True)

    async def ReadArtifact(self, request: Any, context: Any) -> None:
        for _ in range(request.offset):
            await context.write(execution_pb2.ReadArtifactResponse(data=b"x"))
            self.written += 1
        if request.ref:
            await abort(context, Fault(Reason.ARTIFACT_LOST, "It is gone."))


def local_channel(service: Service, authenticator: Authenticator, peer: str = "here") -> Any:
    rpcs = LocalRpcs(
        IdentityInterceptor(authenticator),
        partial(leases_pb2_grpc.add_LeaseServiceServicer_to_server, service),
        partial(execution_pb2_grpc.add_ExecutionServiceServicer_to_server, service),
    )
    return LocalChannel(rpcs, peer)


@asynccontextmanager
async def open_stubs(
    way: str, service: Service, authenticator: Authenticator = AUTHENTICATOR
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the stubs of a server, over a connection or within the process."""
    server = make_server(interceptors=(IdentityInterceptor(authenticator),))
    if way == "grpc":
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(service, server)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(service, server)
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
    else:
        channel = local_channel(service, authenticator)
    async with channel:
        yield (
            leases_pb2_grpc.LeaseServiceStub(channel),
            execution_pb2_grpc.ExecutionServiceStub(channel),
        )
    await server.stop(None)


def bearer(key: str) -> Any:
    return (("authorization", f"Bearer {key}"),)


def release(lease_id: str = "", tenant: str = "") -> leases_pb2.ReleaseLeaseRequest:
    return leases_pb2.ReleaseLeaseRequest(lease_id=lease_id, tenant=tenant)


async def error_of(rpc: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(rpc, BOUND)
    return caught.value


BOTH_WAYS = pytest.mark.parametrize("way", ["grpc", "in process"])


@BOTH_WAYS
async def test_an_rpc_runs_for_the_principal_of_its_credential_and_its_tenant(way: str) -> None:
    async with open_stubs(way, Service()) as (leases, _):
        OF_SENDER.set("and variables of the sender")
        request = release("whose")
        assert (await leases.ReleaseLease(request, metadata=bearer(KEY))).released
        assert request == release("whose"), "the server fills in the tenant of its own copy"


@BOTH_WAYS
@pytest.mark.parametrize(
    ("key", "tenant", "code"),
    [
        ("x" * 24, "", Code.UNAUTHENTICATED),
        (OTHER, "", Code.PERMISSION_DENIED),
        (KEY, "other", Code.PERMISSION_DENIED),
    ],
)
async def test_an_rpc_without_an_accepted_credential_does_not_run(
    way: str, key: str, tenant: str, code: grpc.StatusCode
) -> None:
    service = Service()
    async with open_stubs(way, service) as (leases, _):
        rpc = leases.ReleaseLease(release(tenant=tenant), metadata=bearer(key))
        assert (await error_of(rpc)).code() is code
    assert not service.peers


@BOTH_WAYS
async def test_a_request_over_its_bound_is_refused(way: str) -> None:
    async with open_stubs(way, Service()) as (leases, _):
        request = release("x" * (bounds.MAX_MESSAGE + 1))
        fault = fault_from_rpc_error(
            await error_of(leases.ReleaseLease(request, metadata=bearer(KEY)))
        )
    assert fault is not None
    assert fault.reason is Reason.INVALID_REQUEST


@BOTH_WAYS
async def test_a_fault_arrives_with_its_details(way: str) -> None:
    async with open_stubs(way, Service(), Authenticator()) as (leases, _):
        fault = fault_from_rpc_error(await error_of(leases.ReleaseLease(release("refused"))))
    assert fault is not None
    assert (fault.reason, fault.message, fault.retry_delay) == (
        Reason.LEASE_LOST,
        "It is gone.",
        2.0,
    )


@BOTH_WAYS
async def test_a_handler_is_cancelled_when_the_deadline_passes(way: str) -> None:
    service = Service()
    async with open_stubs(way, service, Authenticator()) as (leases, _):
        error = await error_of(leases.ReleaseLease(release("waits"), timeout=0.05))
        assert error.code() is Code.DEADLINE_EXCEEDED
        if service.started.is_set():
            await asyncio.wait_for(service.cancelled.wait(), BOUND)


@BOTH_WAYS
async def test_a_handler_is_cancelled_with_its_sender(way: str) -> None:
    service = Service()
    async with open_stubs(way, service, Authenticator()) as (leases, _):

        async def send() -> None:
            await leases.ReleaseLease(release("waits"))

        sending = asyncio.create_task(send())
        await asyncio.wait_for(service.started.wait(), BOUND)
        sending.cancel()
        await asyncio.wait_for(service.cancelled.wait(), BOUND)


@BOTH_WAYS
async def test_responses_arrive_before_the_fault_that_ends_their_stream(way: str) -> None:
    async with open_stubs(way, Service(), Authenticator()) as (_, execution):
        request = execution_pb2.ReadArtifactRequest(ref="r", offset=3)
        call = execution.ReadArtifact(request)
        for _ in range(3):
            assert (await asyncio.wait_for(call.read(), BOUND)).data == b"x"
        assert (await error_of(call.read())).code() is Code.NOT_FOUND


@BOTH_WAYS
async def test_a_stream_ends_after_its_last_response(way: str) -> None:
    async with open_stubs(way, Service(), Authenticator()) as (_, execution):
        call = execution.ReadArtifact(execution_pb2.ReadArtifactRequest(offset=1))
        assert (await asyncio.wait_for(call.read(), BOUND)).data == b"x"
        assert await asyncio.wait_for(call.read(), BOUND) is grpc.aio.EOF


async def test_a_handler_waits_until_its_response_has_been_read() -> None:
    service = Service()
    async with open_stubs("in process", service, Authenticator()) as (_, execution):
        call = execution.ReadArtifact(execution_pb2.ReadArtifactRequest(offset=9))
        await call.read()
        await call.read()
        for _ in range(20):
            await asyncio.sleep(0)
        assert service.written <= 3
        call.cancel()


async def test_a_handler_that_fails_ends_its_rpc_without_its_text() -> None:
    async with open_stubs("in process", Service(), Authenticator()) as (leases, _):
        error = await error_of(leases.ReleaseLease(release("broken")))
    assert error.code() is Code.UNKNOWN
    assert "ZeroDivisionError" in (error.details() or "")


async def test_a_channel_counts_as_one_connection() -> None:
    service = Service()
    for peer in ("first", "second"):
        channel = local_channel(service, Authenticator(), peer)
        await leases_pb2_grpc.LeaseServiceStub(channel).ReleaseLease(release())
    assert service.peers == ["first", "second"]


async def test_rpcs_over_the_limit_of_a_channel_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_RPCS", 1)
    service = Service()
    async with open_stubs("in process", service, Authenticator()) as (leases, _):
        first = asyncio.ensure_future(leases.ReleaseLease(release("waits")))
        await asyncio.wait_for(service.started.wait(), BOUND)
        error = await error_of(leases.ReleaseLease(release(), timeout=0.01))
        assert error.code() is Code.DEADLINE_EXCEEDED
        first.cancel()
        await asyncio.wait([first])
        assert (await asyncio.wait_for(leases.ReleaseLease(release()), BOUND)).released


async def test_a_closed_channel_cancels_its_rpcs_and_takes_no_more() -> None:
    service = Service()
    channel = local_channel(service, Authenticator())
    leases: Any = leases_pb2_grpc.LeaseServiceStub(channel)
    waiting = asyncio.ensure_future(leases.ReleaseLease(release("waits")))
    await asyncio.wait_for(service.started.wait(), BOUND)
    await channel.close()
    assert (await error_of(waiting)).code() is Code.CANCELLED
    assert (await error_of(leases.ReleaseLease(release()))).code() is Code.CANCELLED


async def test_a_stream_of_requests_is_refused() -> None:
    execution: Any = execution_pb2_grpc.ExecutionServiceStub(
        local_channel(Service(), Authenticator())
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        execution.Exchange()
    assert caught.value.code() is Code.UNIMPLEMENTED
