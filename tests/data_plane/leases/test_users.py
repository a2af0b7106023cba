"""Servers that act for users: no two users share an instance or a lease."""

from __future__ import annotations

from typing import Any

import pytest
from tests.data_plane.conftest import rpc_fault, worker_bench

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.spec.model import Auth
from leaseway.v1 import catalog_pb2, leases_pb2
from leaseway.wire.errors import Reason

FOR_USERS = Auth("authorization_code", "user")
FOR_TENANTS = Auth("authorization_code", "tenant")


def keys_of(bench: Any) -> list[tuple[str, str]]:
    return [(one.spec.key.tenant, one.spec.key.user) for one in bench.servers.opened]


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
    assert keys_of(bench)[-1] == ("default", "anna")


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
