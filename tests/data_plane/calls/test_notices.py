"""Notifications of clients to the servers that they have leased."""

from __future__ import annotations

from typing import Any

from leaseway.spec.filters.names import NameFilter
from leaseway.spec.policy import Grant, ServerPolicy, TenantLimits
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ROOTS, ROOTS_CHANGED

Bench = Any
NOTICE = {"method": ROOTS_CHANGED, "arguments": b"", "answers": [ROOTS]}


async def test_a_notice_reaches_a_leased_server_whatever_its_limits_of_calls_and_grants(
    bench: Bench,
) -> None:
    some = Grant(NameFilter(whitelist=("echo",)))
    policy = ServerPolicy(
        grants={"default": some}, limits={"default": TenantLimits(concurrent=1, weight=1)}
    )
    await bench.serve("db", shared=False, max_calls=1, policy=policy)
    caller = bench.caller()
    lease = await bench.acquire()
    on_lease = {"session": "s1", "lease_id": lease.id}
    await bench.hold_call(caller, "db", **on_lease)
    await caller.begin("db", "", **NOTICE, **on_lease)
    _, notice = await bench.wait_for_calls(2)
    assert notice.request.method == ROOTS_CHANGED
    assert notice.request.callbacks.answers == {ROOTS}


async def test_a_notice_needs_a_lease_of_its_session(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    caller = bench.caller()
    lease = await bench.acquire()
    fault = await caller.refused("db", "", session="s1", **NOTICE)
    assert fault.reason is Reason.INVALID_REQUEST
    fault = await caller.refused("db", "", session="s2", lease_id=lease.id, **NOTICE)
    assert fault.reason is Reason.LEASE_LOST
    params = {**NOTICE, "arguments": b'{"roots":[]}'}
    fault = await caller.refused("db", "", session="s1", lease_id=lease.id, **params)
    assert fault.reason is Reason.INVALID_ARGUMENTS
