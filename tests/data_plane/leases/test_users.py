"""Servers that act for users: no two users share an instance or a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.data_plane.conftest import rpc_fault, worker_bench

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.spec.auth import Auth
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.errors import Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET, RELEASE_TOOL
from leaseway.wire.messages.mcp import ELICIT
from leaseway.wire.status import fault_from_status

FOR_USERS = Auth("authorization_code", "user")
Users = tuple[Any, dict[str, str]]
FOR_TENANTS = Auth("authorization_code", "tenant")


def keys_of(bench: Any) -> list[tuple[str, str]]:
    return [(server.spec.key.tenant, server.spec.key.user) for server in bench.servers.opened]


async def test_users_and_tenants_never_share_an_instance_of_a_server_that_acts_for_users(
    bench: Any,
) -> None:
    await bench.serve("mail", auth=FOR_USERS)
    bench.servers.opened.clear()
    caller = bench.caller()
    for _ in range(2):
        for tenant, user in (("acme", "anna"), ("acme", "bob"), ("beta", "anna")):
            await caller.call("mail", tenant=tenant, user=user)
    assert keys_of(bench) == [("acme", "anna"), ("acme", "bob"), ("beta", "anna")]


async def test_a_server_that_acts_for_tenants_is_shared_within_the_tenant(bench: Any) -> None:
    await bench.serve("mail", auth=FOR_TENANTS)
    bench.servers.opened.clear()
    caller = bench.caller()
    for tenant, user in (("acme", "anna"), ("acme", "bob"), ("acme", ""), ("beta", "anna")):
        await caller.call("mail", tenant=tenant, user=user)
    assert keys_of(bench) == [("acme", ""), ("beta", "")]


async def test_a_call_for_no_user_is_refused_and_starts_nothing(bench: Any) -> None:
    await bench.serve("mail", auth=FOR_USERS, shared=False)
    bench.servers.opened.clear()
    fault = await bench.caller().refused("mail", session="s1")
    assert (fault.reason, fault.started) == (Reason.USER_REQUIRED, "no")
    asked = bench.leases.AcquireLease(
        leases_pb2.AcquireLeaseRequest(session="s1", server_id="mail")
    )
    assert (await rpc_fault(asked)).reason is Reason.USER_REQUIRED
    assert not bench.servers.opened


@pytest.mark.parametrize("names_lease", [True, False])
async def test_another_user_of_the_session_gets_no_call_on_the_lease(
    bench: Any, names_lease: bool
) -> None:
    await bench.serve("mail", auth=FOR_USERS, shared=False)
    anna = catalog_pb2.ClientInfo(protocol_version=1, user="anna")
    lease = await bench.acquire(server_id="mail", client=anna)
    assert lease.user == "anna"
    named = {"lease_id": lease.id} if names_lease else {}
    caller = bench.caller()
    await caller.call("mail", session="s1", user="anna", **named)
    for other in ("bob", ""):
        fault = await caller.refused("mail", session="s1", user=other, **named)
        assert fault.reason in (Reason.PERMISSION_DENIED, Reason.USER_REQUIRED)
        assert fault.started == "no"
    again = leases_pb2.AcquireLeaseRequest(
        client=catalog_pb2.ClientInfo(protocol_version=1, user="bob"),
        session="s1",
        server_id="mail",
    )
    fault = await rpc_fault(bench.leases.AcquireLease(again))
    assert fault.reason is Reason.PERMISSION_DENIED
    assert [lease.user for lease in bench.worker.leases.leases] == ["anna"]


async def test_a_credential_speaks_for_its_own_user_and_only_a_delegate_names_others(
    tmp_path: Any,
) -> None:
    path = tmp_path / "keys.json"
    keys = {}
    for name, fields in {
        "anna": {"user": "anna"},
        "service": {},
        "delegate": {"roles": (Role.CALLER, Role.DELEGATE)},
    }.items():
        given: Any = {"roles": (Role.CALLER,), "tenant": "acme", "agent": None, "now": 0.0}
        keys[name], record = make_key(**given | fields)
        add_key(path, record)
    guard = IdentityInterceptor(Authenticator(keys=path))
    async with worker_bench(interceptors=(guard,)) as bench:
        await bench.serve("mail", auth=FOR_USERS)
        bench.servers.opened.clear()
        caller = {name: bench.caller(key) for name, key in keys.items()}
        await caller["anna"].call("mail")
        await caller["anna"].call("mail", user="anna")
        await caller["delegate"].call("mail", user="bob")
        for name, user, reason in (
            ("anna", "bob", Reason.PERMISSION_DENIED),
            ("service", "anna", Reason.PERMISSION_DENIED),
            ("service", "", Reason.USER_REQUIRED),
            ("delegate", "", Reason.USER_REQUIRED),
        ):
            fault = await caller[name].refused("mail", user=user)
            assert (fault.reason, fault.started) == (reason, "no"), (name, user)
        assert keys_of(bench) == [("acme", "anna"), ("acme", "bob")]


@pytest.fixture
async def users(tmp_path: Path) -> AsyncIterator[Users]:
    """A worker that anna and bob call, each with a key of his own."""
    path, keys = tmp_path / "keys.json", {}
    for name in ("anna", "bob"):
        keys[name], record = make_key(
            roles=(Role.CALLER,), tenant="acme", agent=None, now=0.0, user=name
        )
        add_key(path, record)
    guard = IdentityInterceptor(Authenticator(keys=path))
    async with worker_bench(interceptors=(guard,)) as bench:
        yield bench, keys


async def test_another_user_neither_sees_nor_keeps_nor_ends_a_lease(users: Users) -> None:
    bench, keys = users
    await bench.serve("mail", auth=FOR_USERS, shared=False)
    await bench.caller(keys["anna"]).call("mail", session="s1")
    anna, bob = (bearer_metadata(keys[name]) for name in ("anna", "bob"))
    everything = leases_pb2.ListLeasesRequest(tenant="acme")
    [lease] = (await bench.leases.ListLeases(everything, metadata=anna)).leases
    assert not (await bench.leases.ListLeases(everything, metadata=bob)).leases
    named = {"lease_id": lease.id, "session": "s1"}
    release = leases_pb2.ReleaseLeaseRequest(**named)
    resolve = leases_pb2.ResolveLeasedRequest(name="mail_echo", **named)
    keep = leases_pb2.KeepAliveRequest(lease_ids=[lease.id], sessions=["s1"])
    refused = [
        await rpc_fault(bench.leases.ReleaseLease(release, metadata=bob)),
        await rpc_fault(bench.leases.ResolveLeased(resolve, metadata=bob)),
        fault_from_status((await bench.leases.KeepAlive(keep, metadata=bob)).renewals[0].error),
        await bench.caller(keys["bob"]).refused(
            ADMIN_TOOLSET, RELEASE_TOOL, session="s1", arguments=b'{"serverId": "mail"}'
        ),
    ]
    assert [fault.reason for fault in refused] == [Reason.PERMISSION_DENIED] * 4
    assert (await bench.leases.KeepAlive(keep, metadata=anna)).renewals[0].HasField("ttl")
    assert (await bench.leases.ReleaseLease(release, metadata=anna)).released


@pytest.mark.parametrize("by_call", [True, False])
async def test_a_lease_of_a_token_is_listed_for_the_credential_that_brought_it(
    tmp_path: Path, by_call: bool
) -> None:
    path, keys = tmp_path / "keys.json", {}
    for name in ("one", "two"):
        keys[name], record = make_key(roles=(Role.CALLER,), tenant="acme", agent=None, now=0.0)
        add_key(path, record)
    one, two = (bearer_metadata(keys[name]) for name in ("one", "two"))
    guard = IdentityInterceptor(Authenticator(keys=path))
    async with worker_bench(interceptors=(guard,)) as bench:
        await bench.serve("mail", auth=Auth("token_exchange", "caller"), shared=False)
        if by_call:
            caller = bench.caller(keys["one"])
            await caller.call("mail", session="s1", subject_token="of-anna")
        else:
            request = leases_pb2.AcquireLeaseRequest(
                session="s1", server_id="mail", subject_token="of-anna"
            )
            await bench.leases.AcquireLease(request, metadata=one)
        everything = leases_pb2.ListLeasesRequest(tenant="acme")
        [lease] = (await bench.leases.ListLeases(everything, metadata=one)).leases
        assert (lease.session, lease.user, bool(lease.holder)) == ("s1", "", True)
        assert not (await bench.leases.ListLeases(everything, metadata=two)).leases


async def test_another_user_cannot_continue_a_suspended_call(users: Users) -> None:
    bench, keys = users
    await bench.hold("mail", auth=FOR_USERS)
    anna, bob = (bearer_metadata(keys[name]) for name in ("anna", "bob"))
    request = execution_pb2.CallToolRequest(server_id="mail", tool="echo", answers=[ELICIT])
    request.arguments.update({"text": "hi"})
    reply = asyncio.ensure_future(bench.execution.CallTool(request, metadata=anna))
    [running] = await bench.wait_for_calls()
    running.ask(ELICIT)
    again = execution_pb2.CallToolRequest(request_state=(await reply).request_state)
    fault = await rpc_fault(bench.execution.CallTool(again, metadata=bob))
    assert (fault.reason, "No call waits" in fault.message) == (Reason.INVALID_REQUEST, True)
    running.answer(b"{}")
    await bench.execution.CallTool(again, metadata=anna)
