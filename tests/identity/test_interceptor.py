"""Authorization of every RPC of the protocol, for every role."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from tests.conftest import BOUND
from tests.identity.rpcs import METHODS, SERVICES

from leaseway.identity.authenticator import Authenticator, authenticator_for
from leaseway.identity.interceptor import IdentityInterceptor, caller
from leaseway.identity.keys import add_key, make_key, revoke_key
from leaseway.identity.principal import Principal, Role
from leaseway.identity.rpc_memory import CallerMemory
from leaseway.identity.rules import RULES
from leaseway.identity.tokens import MAX_TOKEN
from leaseway.v1 import catalog_pb2, catalog_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.health import HealthService, enable_reflection
from leaseway.wire.channels.serving import bind, make_server
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_rpc_error

SHARED = "the-shared-key-of-this-test"


@dataclass
class System:
    """A server that implements every RPC, and credentials for it."""

    address: str
    path: Path
    authenticator: Authenticator
    keys: dict[str, str]
    received: list[tuple[str, Any, Principal]] = field(default_factory=list)


def handlers_of(service: Any, received: list[tuple[str, Any, Principal]]) -> Any:
    handlers = {}
    for method in service.methods:
        full = f"/{service.full_name}/{method.name}"
        handlers[method.name] = handler_of(full, method, received)
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def handler_of(full: str, method: Any, received: list[tuple[str, Any, Principal]]) -> Any:
    request_class = message_factory.GetMessageClass(method.input_type)
    response_class = message_factory.GetMessageClass(method.output_type)

    async def unary(request: Any, _context: Any) -> Any:
        received.append((full, request, caller()))
        return response_class()

    async def streaming(request: Any, _context: Any) -> AsyncIterator[Any]:
        received.append((full, request, caller()))
        yield response_class()

    async def exchanging(requests: Any, context: Any) -> None:
        received.append((full, None, caller()))
        await context.write(response_class())
        async for _ in requests:
            pass

    make: Any
    behaviour: Any
    if method.client_streaming:
        make, behaviour = grpc.stream_stream_rpc_method_handler, exchanging
    elif method.server_streaming:
        make, behaviour = grpc.unary_stream_rpc_method_handler, streaming
    else:
        make, behaviour = grpc.unary_unary_rpc_method_handler, unary
    return make(
        behaviour,
        request_deserializer=request_class.FromString,
        response_serializer=response_class.SerializeToString,
    )


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with running(tmp_path / "keys.json") as system:
        yield system


@pytest.fixture(scope="module")
async def running_once(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with running(tmp_path_factory.mktemp("keys") / "keys.json") as system:
        yield system


@pytest.fixture
def shared(running_once: System) -> System:
    """One server for tests that change nothing of it; it has received nothing yet."""
    running_once.received.clear()
    return running_once


@contextlib.asynccontextmanager
async def running(path: Path) -> AsyncIterator[System]:
    key_fields: dict[str, dict[str, Any]] = {
        "acme": {"roles": [Role.CALLER], "tenant": "acme", "agent": "billing"},
        "rival": {"roles": [Role.CALLER], "tenant": "rival"},
        "operator": {"roles": [Role.OPERATOR], "tenant": None},
        "viewer": {"roles": [Role.VIEWER], "tenant": None},
        "approver": {"roles": [Role.APPROVER], "tenant": None},
        "worker": {"roles": [Role.PLANE], "tenant": None},
        "expired": {"roles": [Role.CALLER], "tenant": "acme", "expires_at": 1.0},
        "revoked": {"roles": [Role.CALLER], "tenant": "acme"},
    }
    keys = {"shared": SHARED, "wrong": "lwk_aaaaaaaa_" + "x" * 43}
    for name, fields in key_fields.items():
        keys[name], record = make_key(**{"agent": None, "now": 0.0, **fields})
        add_key(path, record)
        if name == "revoked":
            revoke_key(path, record.id, 0.0)
    authenticator = authenticator_for(SHARED, keys=path)
    server = make_server(interceptors=(IdentityInterceptor(authenticator),))
    received: list[tuple[str, Any, Principal]] = []
    for service in SERVICES:
        server.add_generic_rpc_handlers((handlers_of(service, received),))
    health = HealthService(server)
    enable_reflection(server, [service.full_name for service in SERVICES])
    endpoint = bind(server, Endpoint("127.0.0.1", 0))
    await server.start()
    await health.set_serving("")
    yield System(
        address=str(endpoint), path=path, authenticator=authenticator, keys=keys, received=received
    )
    await server.stop(None)


async def send(
    system: System, full: str, credential: str | None, tenant: str = "", user: str = ""
) -> grpc.aio.AioRpcError | None:
    """Send one RPC; return its error, or None."""
    method = METHODS[full]
    request: Any = message_factory.GetMessageClass(method.input_type)()
    target = getattr(request, "call", request)
    if not method.client_streaming and "tenant" in target.DESCRIPTOR.fields_by_name:
        target.tenant = tenant
    if user:
        target.client.user = user
    response = message_factory.GetMessageClass(method.output_type)
    codec: dict[str, Any] = {
        "request_serializer": type(request).SerializeToString,
        "response_deserializer": response.FromString,
    }
    metadata = bearer_metadata(None if credential is None else system.keys[credential])
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(system.address) as channel:
        try:
            if method.client_streaming:
                stream: Any = channel.stream_stream(full, **codec)(metadata=metadata)
                await stream.read()
                stream.cancel()
            elif method.server_streaming:
                async for _ in channel.unary_stream(full, **codec)(request, metadata=metadata):
                    pass
            else:
                await channel.unary_unary(full, **codec)(request, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error
    return None


def reason_of(error: grpc.aio.AioRpcError | None) -> Reason | None:
    if error is None:
        return None
    fault = fault_from_rpc_error(error)
    assert fault is not None, error
    assert fault.started == "no"
    return fault.reason


def test_the_rules_list_exactly_the_rpcs_of_the_protocol() -> None:
    assert set(RULES) == set(METHODS)


@pytest.mark.parametrize("full", sorted(METHODS))
@pytest.mark.parametrize("credential", [None, "wrong", "expired", "revoked"])
async def test_without_a_valid_credential_every_rpc_is_refused(
    shared: System, full: str, credential: str | None
) -> None:
    error = await send(shared, full, credential)
    assert reason_of(error) is Reason.UNAUTHENTICATED
    assert not shared.received


READS = ("Find", "Get", "List", "Read", "Resolve", "Watch")
"""Prefixes of the names of read-only RPCs."""
ROLE_OF = {
    "acme": Role.CALLER,
    "operator": Role.OPERATOR,
    "viewer": Role.VIEWER,
    "approver": Role.APPROVER,
    "worker": Role.PLANE,
}


@pytest.mark.parametrize("full", sorted(METHODS))
def test_viewers_may_send_exactly_the_read_only_rpcs_of_operators(full: str) -> None:
    rule, name = RULES[full], METHODS[full].name
    assert rule.changes != name.startswith(READS)
    if rule.changes:
        assert Role.VIEWER not in rule.roles
    else:
        assert (Role.VIEWER in rule.roles) == (Role.OPERATOR in rule.roles)


def roles_of(full: str) -> frozenset[Role]:
    return RULES[full].roles


@pytest.mark.parametrize("full", sorted(METHODS))
@pytest.mark.parametrize(
    "credential", ["acme", "operator", "viewer", "approver", "worker", "shared"]
)
async def test_each_role_may_send_only_its_rpcs(shared: System, full: str, credential: str) -> None:
    role = ROLE_OF.get(credential)
    error = await send(shared, full, credential)
    if role is None or role in roles_of(full):
        assert error is None
        assert [name for name, _, _ in shared.received] == [full]
    else:
        assert reason_of(error) is Reason.PERMISSION_DENIED
        assert not shared.received


def names_tenant(full: str) -> bool:
    return RULES[full].tenant in ("own", "filter") and Role.CALLER in roles_of(full)


@pytest.mark.parametrize("full", sorted(filter(names_tenant, METHODS)))
async def test_a_caller_may_not_name_another_tenant_and_its_own_is_filled_in(
    shared: System, full: str
) -> None:
    there, nowhere = [await send(shared, full, "rival", tenant) for tenant in ("acme", "nobody")]
    assert reason_of(there) is reason_of(nowhere) is Reason.PERMISSION_DENIED
    assert there is not None
    assert nowhere is not None
    assert there.details() == nowhere.details()
    for tenant in ("", "acme"):
        assert await send(shared, full, "acme", tenant) is None
    for _, request, principal in shared.received:
        assert getattr(request, "call", request).tenant == "acme"
        assert principal.tenant == "acme"


def test_the_tenant_of_every_request_is_checked() -> None:
    for full, method in METHODS.items():
        message = method.input_type
        inner = message.fields_by_name.get("call")
        named = message if inner is None or inner.message_type is None else inner.message_type
        if not method.client_streaming and "tenant" in named.fields_by_name:
            assert RULES[full].tenant in ("own", "filter"), full


async def test_refused_rpcs_are_recorded(system: System) -> None:
    reported: list[tuple[str, str, str]] = []
    system.authenticator.refusals.refused.connect(
        lambda refusal, _: reported.append((refusal.rpc, refusal.by, refusal.outcome))
    )
    names = {name: f"key {system.keys[name][4:12]}" for name in ("acme", "viewer", "revoked")}
    drain, listing = "AdminService/DrainWorker", "CatalogService/ListTools"
    for rpc, credential, tenant in (
        (drain, None, ""),
        (drain, "revoked", ""),
        (drain, None, ""),
        (drain, "acme", ""),
        (drain, "viewer", ""),
        (listing, "acme", "rival"),
        (listing, "acme", ""),
        ("AdminService/WatchEvents", "acme", ""),
        ("SyncService/Sync", "acme", ""),
    ):
        await send(system, f"/leaseway.v1.{rpc}", credential, tenant)
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(system.address) as channel:
        guess: Any = channel.unary_unary("/leaseway.v1.CatalogService/Guess")
        with pytest.raises(grpc.aio.AioRpcError):
            await guess(b"")
    assert reported == [
        (drain, "", "UNAUTHENTICATED"),
        (drain, names["revoked"], "UNAUTHENTICATED"),
        (drain, names["acme"], "PERMISSION_DENIED"),
        (drain, names["viewer"], "PERMISSION_DENIED"),
        (listing, names["acme"], "PERMISSION_DENIED"),
        ("AdminService/WatchEvents", names["acme"], "PERMISSION_DENIED"),
        ("SyncService/Sync", names["acme"], "PERMISSION_DENIED"),
        ("", "", "UNAUTHENTICATED"),
    ]
    system.authenticator.refusals.flush()
    assert reported[-1] == (drain, "", "UNAUTHENTICATED")


async def test_the_agent_of_the_credential_is_filled_in(system: System) -> None:
    await send(system, "/leaseway.v1.CatalogService/ListTools", "acme")
    [(_, request, principal)] = system.received
    assert request.client.agent == "billing"
    assert principal.agent == "billing"


def names_user(full: str) -> bool:
    """Return whether an RPC says for which user it is."""
    fields = METHODS[full].input_type.fields_by_name
    inner = fields["call"].message_type if "call" in fields else METHODS[full].input_type
    return inner is not None and "client" in inner.fields_by_name


@pytest.mark.parametrize("full", sorted(filter(names_user, METHODS)))
async def test_only_delegates_name_a_user_in_any_request(shared: System, full: str) -> None:
    for credential in ("acme", "operator", "approver"):
        if METHODS[full].client_streaming or not RULES[full].roles & roles_held(credential):
            continue
        error = await send(shared, full, credential, user="anna")
        assert reason_of(error) is Reason.PERMISSION_DENIED, credential
        assert await send(shared, full, credential) is None
    assert all(not client_of(request).user for _, request, _ in shared.received)


def roles_held(credential: str) -> set[Role]:
    return {Role.CALLER if credential == "acme" else Role(credential)}


def client_of(request: Any) -> Any:
    return getattr(request, "call", request).client


async def test_health_needs_no_credential_and_reflection_needs_one(system: System) -> None:
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(system.address) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        full = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        for name, code in ((None, grpc.StatusCode.UNAUTHENTICATED), ("worker", None)):
            metadata = bearer_metadata(None if name is None else system.keys[name])
            stream: Any = channel.stream_stream(full)(metadata=metadata)
            await stream.write(b"\x3a\x01*")  # list_services: "*"
            if code is None:
                assert b"leaseway.v1" in await stream.read()
                stream.cancel()
            else:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await stream.read()
                assert raised.value.code() is code


async def test_an_unknown_method_is_unimplemented_only_with_a_credential(system: System) -> None:
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(system.address) as channel:
        for name, code in (
            (None, grpc.StatusCode.UNAUTHENTICATED),
            ("acme", grpc.StatusCode.UNIMPLEMENTED),
        ):
            metadata = bearer_metadata(None if name is None else system.keys[name])
            call: Any = channel.unary_unary("/leaseway.v1.CatalogService/Guess")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(b"", metadata=metadata)
            assert raised.value.code() is code


async def test_an_open_stream_ends_when_its_key_is_revoked(system: System) -> None:
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(system.address) as channel:
        full = "/leaseway.v1.ExecutionService/Exchange"
        streams: dict[str, Any] = {
            name: channel.stream_stream(full)(metadata=bearer_metadata(system.keys[name]))
            for name in ("acme", "rival")
        }
        for stream in streams.values():
            assert await stream.read() == b""
        revoke_key(system.path, system.keys["acme"][4:12], 0.0)
        await system.authenticator.refresh()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await streams["acme"].read()
        assert reason_of(raised.value) is Reason.UNAUTHENTICATED
        await streams["rival"].write(b"")
        assert not streams["rival"].done()
        streams["rival"].cancel()


async def test_a_reached_limit_of_memory_is_told_for_the_metrics() -> None:
    authenticator, told = authenticator_for(SHARED), list[Mapping[str, str]]()
    authenticator.limit_reached.connect(told.append)
    guard = IdentityInterceptor(authenticator, CallerMemory(bounds.KIB))
    server = make_server(interceptors=(guard,))
    for service in SERVICES:
        server.add_generic_rpc_handlers((handlers_of(service, []),))
    endpoint = bind(server, Endpoint("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(str(endpoint)) as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        request = catalog_pb2.ResolveToolsRequest(names=["x" * 20 * bounds.KIB])
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.ResolveTools(request, metadata=bearer_metadata(SHARED))
    await server.stop(None)
    assert told == [{"limit": "held", "scope": "connection"}]


async def test_a_handler_that_fails_after_its_caller_disconnected_is_no_error_of_the_loop() -> None:
    reached, failed = asyncio.Event(), asyncio.Event()

    async def failing(_request: Any, context: Any) -> None:
        await context.write(b"one")
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            failed.set()
            raise ConnectionError("The write failed.")

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: reported.append(context)
    )
    server = make_server(interceptors=(IdentityInterceptor(authenticator_for(SHARED)),))
    service = catalog_pb2.DESCRIPTOR.services_by_name["CatalogService"].full_name
    method = next(name for name in METHODS if name.startswith(f"/{service}/Watch"))
    handlers: Any = {method.rpartition("/")[2]: grpc.unary_stream_rpc_method_handler(failing)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    endpoint = bind(server, Endpoint("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(BOUND):
        async with grpc.aio.insecure_channel(str(endpoint)) as channel:
            request = message_factory.GetMessageClass(METHODS[method].input_type)()
            call: Any = channel.unary_stream(method, type(request).SerializeToString)(
                request, metadata=bearer_metadata(SHARED)
            )
            await reached.wait()
            call.cancel()
            await failed.wait()
        await server.stop(None)
    gc.collect()
    assert reported == []


@pytest.mark.parametrize("size", [8 * 1024, 12 * 1024, MAX_TOKEN - 1, MAX_TOKEN])
async def test_a_token_of_the_greatest_size_reaches_its_check(system: System, size: int) -> None:
    credential = "lwk_" + "x" * (size - 4)
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(system.address) as channel:
        call: Any = channel.unary_unary("/leaseway.v1.AdminService/GetStatus")
        for _ in range(10):  # gRPC refuses some of those between its two limits
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(b"", metadata=bearer_metadata(credential))
            assert reason_of(raised.value) is Reason.UNAUTHENTICATED


async def test_watches_of_health_have_a_limit_as_they_need_no_credential(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_OPEN_WATCHES", 2)
    async with asyncio.timeout(BOUND), grpc.aio.insecure_channel(system.address) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        held = [watch(b""), watch(b"")]
        assert [await stream.read() for stream in held] == [b"\x08\x01"] * 2
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watch(b"").read()
        assert reason_of(raised.value) is Reason.OVERLOADED
        held[0].cancel()
        while True:  # until the server has noticed
            try:
                assert await watch(b"").read() == b"\x08\x01"
            except grpc.aio.AioRpcError:
                continue
            break
