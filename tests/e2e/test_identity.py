"""A whole system with keys: each caller acts as the tenant of its key."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import yaml
from tests.e2e.keys import key_for
from tests.e2e.system import System, eventually, python_server

from leaseway.identity.keys import revoke_key
from leaseway.identity.principal import Role
from leaseway.sdk import (
    AsyncClient,
    LeasewayError,
    PermissionDenied,
    ToolNotFound,
    Unauthenticated,
)
from leaseway.v1 import catalog_pb2, sync_pb2, sync_pb2_grpc
from leaseway.wire.version import PROTOCOL_VERSION

pytestmark = pytest.mark.usefixtures("leak_guard")
SHARED = "the-key-that-planes-share"
ECHO = python_server("echo_raw.py", **{"truely-stateless": True})


@pytest.fixture
async def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[System]:
    monkeypatch.setenv("LEASEWAY_KEY", SHARED)
    keys = tmp_path / "keys.json"
    key_for(keys, Role.CALLER, "unrelated")
    environment = {"LEASEWAY_KEY": SHARED, "LEASEWAY_KEYS": str(keys)}
    environment["LEASEWAY_AUDIT"] = str(tmp_path / "audit")
    servers = {
        "echo": ECHO,
        "counter": python_server("counter.py", transform=[{"prefix": "counter_"}]),
    }
    async with System(tmp_path, servers, environment=environment) as system:
        yield system


async def test_callers_act_as_the_tenant_of_their_key_only(system: System, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    acme, rival = (key_for(keys, Role.CALLER, tenant) for tenant in ("acme", "rival"))
    operator = key_for(keys, Role.OPERATOR)

    async def is_known() -> bool:
        try:
            async with AsyncClient(system.address, key=operator) as client:
                return bool(await client.workers())
        except Unauthenticated:
            return False

    await eventually(is_known)
    async with (
        AsyncClient(system.address, key=acme) as client,
        AsyncClient(system.address, key=rival) as other,
        AsyncClient(system.address, key=operator) as watcher,
    ):
        assert (await client.call_tool("counter_add", {"by": 1}, timeout=20)).is_error is False
        async with client.session("dialog") as session:
            lease = await session.acquire("counter")

            async def is_listed() -> bool:
                return lease.id in {each_lease.id for each_lease in await client.leases()}

            await eventually(is_listed)
            assert lease.id in {each_lease.id for each_lease in await watcher.leases()}
            assert lease.id not in {each_lease.id for each_lease in await other.leases()}
            assert await other.find_lease("dialog", "counter") is None
            with pytest.raises(LeasewayError):
                await other.revoke_lease(lease.id)
            assert {each_lease.tenant for each_lease in await client.leases()} == {"acme"}

        async def is_released() -> bool:
            return lease.id not in {each_lease.id for each_lease in await client.leases()}

        await eventually(is_released)
        for refused in (client.problems(), client.drain_worker("worker-1"), client.logs("echo")):
            with pytest.raises(PermissionDenied):
                await refused
        assert (await watcher.status()).ready
        with pytest.raises(PermissionDenied, match="role caller"):
            await watcher.call_tool("echo", {"text": "x"})
    async with AsyncClient(system.address, key=acme, tenant="rival") as mismatched:
        with pytest.raises(PermissionDenied, match="names another one"):
            await mismatched.list_tools()
        with pytest.raises(PermissionDenied):
            await mismatched.call_tool("echo", {"text": "x"})
    async with AsyncClient(system.address, key="") as anonymous:
        with pytest.raises(Unauthenticated):
            await anonymous.list_tools()
    wanted = {
        ("control-plane", "AdminService/DrainWorker", "PERMISSION_DENIED"),
        ("control-plane", "CatalogService/ListTools", "UNAUTHENTICATED"),
        ("worker", "ExecutionService/ReadLogs", "PERMISSION_DENIED"),
    }
    await eventually(lambda: wanted <= refused_in(tmp_path / "audit"))


def refused_in(audit: Path) -> set[tuple[str, str, str]]:
    lines = [line for path in audit.iterdir() for line in path.read_text().splitlines()]
    records = [json.loads(line) for line in lines if line.endswith("}")]  # complete lines only
    return {
        (record["plane"], record["rpc"], record["outcome"])
        for record in records
        if record["event"] == "refused"
    }


async def test_calls_with_a_revoked_key_are_rejected(system: System, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = key_for(keys, Role.CALLER, "acme")

    async def is_accepted() -> bool:
        try:
            async with AsyncClient(system.address, key=key) as client:
                return bool((await client.call_tool("echo", {"text": "x"})).text)
        except Unauthenticated:
            return False

    await eventually(is_accepted)
    async with AsyncClient(system.address, key=key) as client:
        await client.call_tool("echo", {"text": "x"})
        revoke_key(keys, key[4:12], 0.0)

        async def is_refused() -> bool:
            try:
                await client.call_tool("echo", {"text": "x"}, timeout=10)
            except LeasewayError as error:
                return isinstance(error, Unauthenticated)
            return False

        await eventually(is_refused)
    assert os.environ["LEASEWAY_KEY"] == SHARED


async def test_a_tenant_sees_only_its_granted_tools(system: System, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    acme, rival = (key_for(keys, Role.CALLER, tenant) for tenant in ("acme", "rival"))
    config = yaml.safe_load(system.config.read_text())
    config["servers"]["echo"]["rules"] = ['args.text == "Mars"']
    config["tenants"] = {
        "acme": {"servers": {"echo": {"tools": {"whitelist": ["echo"]}}}},
        "rival": {"servers": ["counter"]},
    }
    system.write_text(yaml.safe_dump(config))
    async with (
        AsyncClient(system.address, key=acme) as client,
        AsyncClient(system.address, key=rival) as other,
        AsyncClient(system.address, key=SHARED, tenant="ungranted") as ungranted,
    ):

        async def is_granted() -> bool:
            """Return whether both planes have read the new keys, grants and rules."""
            with contextlib.suppress(Unauthenticated):
                names = [tool.name for tool in await client.list_tools()]
                if names == ["echo"] and "counter_add" in {
                    tool.name for tool in await other.list_tools()
                }:
                    assert (await client.call_tool("echo", {"text": "Earth"})).text
                    return await is_refused("Mars")
            return False

        async def is_refused(text: str) -> bool:
            try:
                await client.call_tool("echo", {"text": text})
            except PermissionDenied as refused:
                return "Rule 1" in str(refused)
            return False

        await eventually(is_granted)
        for name in ("meta", "echo:meta", "counter_add", "counter:add"):
            with pytest.raises(ToolNotFound):
                await client.call_tool(name, {})
        names = {tool.name for tool in await other.list_tools()}
        assert "counter_add" in names
        assert "echo" not in names
        assert not list(await ungranted.list_tools())
        assert {server.id for server in await client.servers()} == {"echo"}


async def test_a_worker_without_the_key_of_workers_is_rejected(tmp_path: Path) -> None:
    environment = {"LEASEWAY_WORKER_KEY": "the-key-that-workers-have"}
    async with (
        System(tmp_path, {}, environment=environment) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        hello = sync_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            worker=catalog_pb2.WorkerRef(id="rogue", incarnation="1", address="127.0.0.1:1"),
        )

        async def is_refused() -> bool:
            """Join; gRPC reports a failed write if the rejection comes before the hello is sent."""
            stream = sync_pb2_grpc.SyncServiceStub(channel).Sync(
                iter([sync_pb2.SyncRequest(hello=hello)])
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() in (
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.INTERNAL,
            )
            return caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

        await eventually(is_refused)
        async with AsyncClient(system.address) as client:
            assert [worker.id for worker in await client.workers()] == ["worker-1"]
