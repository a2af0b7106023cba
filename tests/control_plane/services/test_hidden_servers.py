"""A server that is hidden from a tenant looks like an unknown one in every state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, worker

from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.services import admin as admin_service
from leaseway.control_plane.services import catalog as catalog_service
from leaseway.identity.principal import Principal, Role
from leaseway.spec.model import ServerSpec
from leaseway.spec.policy import Grant, ServerPolicy
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2

HIDDEN, ABSENT = "vaults", "absent"
POLICY = ServerPolicy(grants={"acme": Grant()})
FAILED = admin_pb2.Problem(scope="server", reason="START_FAILED", message="It exited at once.")


def hidden(**changes: Any) -> ServerSpec:
    return replace(spec(HIDDEN, shared=False), policy=POLICY, **changes)


async def up(running: Running, fake: FakeWorker) -> None:
    running.load(spec("open"), hidden())
    await fake.serve("look")
    await fake.serve("look")
    await fake.apply_until("open", HIDDEN)


async def failing(running: Running, fake: FakeWorker) -> None:
    running.load(spec("open"))
    await fake.serve_until("open", "look")
    running.load(spec("open"), hidden())
    probe = (await fake.receive("probe")).probe
    await fake.send(probe_result=sync_pb2.ProbeResult(id=probe.id, problem=FAILED))
    await running.until(lambda state: state.servers.failures)


async def pending(running: Running, fake: FakeWorker) -> None:
    running.load(spec("open"))
    await fake.serve_until("open", "look")
    running.load(spec("open"), hidden())
    await fake.receive("probe")


async def unplaced(running: Running, fake: FakeWorker) -> None:
    running.load(spec("open"), hidden(worker_labels={"pool": "other"}))
    await fake.serve_until("open", "look")
    await running.until(lambda state: state.servers.unplaced)


async def rejected(running: Running, fake: FakeWorker) -> None:
    """Tenants do not see an entry with an error while another server is restricted."""
    running.load(spec("open"), replace(spec("else"), policy=POLICY))
    await fake.serve("look")
    await fake.serve("look")
    await fake.apply_until("open", "else")
    problem = Problem("workspace", "BAD_VALUE", "mcp.yaml:1:1: no", HIDDEN)
    servers = {
        each_spec.key: each_spec
        for each_spec in (spec("open"), replace(spec("else"), policy=POLICY))
    }
    with running.plane.transition() as (s, now):
        s.apply_config(servers, frozenset({HIDDEN}), (problem,), now)


Ask = Callable[[Running, str], Awaitable[Any]]


def _resolve(kind: Any = 0, **fields: Any) -> Callable[[Running, str], Any]:
    def ask(running: Running, server: str) -> Any:
        known: dict[str, Any] = {
            name: [text.replace("X", server) for text in value]
            if isinstance(value, list)
            else value.replace("X", server)
            for name, value in fields.items()
        }
        request = catalog_pb2.ResolveToolsRequest(tenant="rival", kind=kind, **known)
        return running.catalog.ResolveTools(request, timeout=BOUND)

    return ask


def _list(name: str) -> Callable[[Running, str], Any]:
    def ask(running: Running, server: str) -> Any:
        request = getattr(catalog_pb2, f"{name}Request")(tenant="rival", servers=[server])
        return getattr(running.catalog, name)(request, timeout=BOUND)

    return ask


def _lease(kind: Any, name: str) -> Callable[[Running, str], Any]:
    def ask(running: Running, server: str) -> Any:
        request = kind(tenant="rival", session="s", server_id=server)
        return getattr(running.placement, name)(request, timeout=BOUND)

    return ask


ASKED = {
    "ListTools": _list("ListTools"),
    "ListPrompts": _list("ListPrompts"),
    "ListResources": _list("ListResources"),
    "ListServers": lambda running, _server: running.catalog.ListServers(
        catalog_pb2.ListServersRequest(tenant="rival"), timeout=BOUND
    ),
    "a qualified tool": _resolve(names=["X:look"]),
    "an exposed tool": _resolve(names=["X_look"]),
    "a tool of a server": _resolve(names=["look"], server_id="X"),
    "a prompt": _resolve(catalog_pb2.NAME_KIND_PROMPT, names=["X:ask"]),
    "a resource": _resolve(catalog_pb2.NAME_KIND_RESOURCE, names=["file:///X"], server_id="X"),
    "Place": _lease(leases_pb2.PlaceRequest, "Place"),
    "FindLease": _lease(leases_pb2.FindLeaseRequest, "FindLease"),
}


async def answer(running: Running, ask: Callable[[Running, str], Any], server: str) -> bytes:
    """Return all responses, with the server's name replaced."""
    try:
        told = (await ask(running, server)).SerializeToString(deterministic=True)
    except grpc.aio.AioRpcError as error:
        trailers = error.trailing_metadata() or ()
        told = repr((error.code(), error.details(), sorted(map(str, trailers)))).encode()
    return bytes(told).replace(server.encode(), b"<name>")


@pytest.mark.parametrize("state", [up, failing, pending, unplaced, rejected])
async def test_a_hidden_server_looks_like_an_unknown_one(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    state: Callable[[Running, FakeWorker], Awaitable[None]],
) -> None:
    rival = Principal("a key", frozenset({Role.CALLER}), "rival")
    for service in (catalog_service, admin_service):
        monkeypatch.setattr(service, "caller", lambda: rival)
    async with worker(running.address) as fake:
        await state(running, fake)
        await running.until(lambda now: now.visible.version)
        for name, ask in ASKED.items():
            told = await answer(running, ask, HIDDEN)
            assert told == await answer(running, ask, ABSENT), name
            assert HIDDEN.encode() not in told, name
        status = await running.admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=BOUND)
        assert (status.servers_up, status.servers) == (1, 1), "it tells how many there are"
