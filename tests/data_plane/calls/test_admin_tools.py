"""`mcp_release` on a worker: a model releases a lease of its session."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.data_plane.conftest import rpc_fault

from leaseway.v1 import execution_pb2, leases_pb2
from leaseway.wire.errors import Reason

Bench = Any


def arguments(server_id: str) -> bytes:
    return json.dumps({"serverId": server_id}).encode()


async def acquire(bench: Bench, server_id: str, session: str = "s1", tenant: str = "") -> str:
    request = leases_pb2.AcquireLeaseRequest(session=session, server_id=server_id, tenant=tenant)
    granted = await bench.leases.AcquireLease(request)
    return str(granted.lease.id)


async def release(
    caller: Any, server_id: str, session: str = "s1", **fields: Any
) -> tuple[str, bool]:
    """Call `mcp_release`; return its text and whether it is an error."""
    result = await caller.call(
        "mcp_admin",
        "mcp_release",
        session=session,
        arguments=arguments(server_id),
        **fields,
    )
    assert not result.HasField("status"), result.status
    payload = json.loads(caller.payloads[result.call_id])
    (item,) = payload["content"]
    assert payload["isError"] == result.is_error
    return item["text"], result.is_error


async def test_a_model_releases_the_lease_of_its_session(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease_id = await acquire(bench, "db")
    caller = bench.caller()
    text, is_error = await release(caller, "db")
    assert not is_error
    assert text.startswith("Released the lease of server db.")
    fault = await caller.refused("db", lease_id=lease_id, session="s1")
    assert fault.reason is Reason.LEASE_RELEASED
    await bench.until(lambda: not bench.servers.live)
    fresh = await caller.call("db", session="s1")
    assert fresh.lease.id != lease_id


async def test_a_release_that_names_its_lease_may_be_repeated(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease_id = await acquire(bench, "db")
    caller = bench.caller()
    for _ in range(2):
        text, is_error = await release(caller, "db", lease_id=lease_id)
        assert (text.startswith("Released"), is_error) == (True, False)


async def test_a_release_of_an_older_lease_leaves_the_newer_one(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    older = await acquire(bench, "db")
    caller = bench.caller()
    await release(caller, "db")
    newer = await acquire(bench, "db")
    await release(caller, "db", lease_id=older)
    assert bench.worker.leases.get(newer) is not None


async def test_releasing_a_revoked_lease_reports_the_revocation(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease_id = await acquire(bench, "db")
    bench.worker.leases.revoke(lease_id, "an operator wanted it")
    text, is_error = await release(bench.caller(), "db", lease_id=lease_id)
    assert is_error
    assert "revoked: an operator wanted it" in text


async def test_releasing_a_missing_lease_lists_the_leases_of_the_session(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    await bench.serve("desk", shared=False)
    await bench.serve("time")
    await acquire(bench, "desk")
    await acquire(bench, "db", session="another")
    await acquire(bench, "db", tenant="acme")
    caller = bench.caller()
    text, is_error = await release(caller, "db")
    assert is_error
    nothing = "There is nothing to release: "
    assert text == f"{nothing}this session holds no lease of server db. It holds leases of: desk."
    text, is_error = await release(caller, "time", session="s2")
    assert is_error
    assert text == f"{nothing}server time is shared and has no leases."
    text, _ = await release(caller, "db", session="s2")
    assert text == f"{nothing}this session holds no lease of server db."


async def test_an_unknown_server_is_answered_with_the_nearest_names(bench: Bench) -> None:
    await bench.serve("desk", shared=False)
    text, is_error = await release(bench.caller(), "dest")
    assert is_error
    assert "there is no server 'dest' (did you mean desk?)" in text
    text, _ = await release(bench.caller(), "\x1b[31m")
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (b"{}", "serverId"),
        (b'{"serverId": 7}', "the value"),
        (b'{"serverId": "db", "server": "db"}', "server"),
        (b'{"serverId": ""}', "the value"),
    ],
)
async def test_wrong_arguments_are_violations(bench: Bench, given: bytes, wrong: str) -> None:
    fault = await bench.caller().refused("mcp_admin", "mcp_release", session="s1", arguments=given)
    assert fault.reason is Reason.INVALID_ARGUMENTS
    assert wrong in fault.violations[0][1]


async def test_there_is_no_other_admin_tool(bench: Bench) -> None:
    fault = await bench.caller().refused("mcp_admin", "mcp_relase", session="s1", arguments=b"")
    assert fault.reason is Reason.TOOL_NOT_FOUND
    assert fault.metadata["nearest"].split(",")[0] == "mcp_release"


async def test_a_release_without_a_session_is_refused_on_streams_and_unary(bench: Bench) -> None:
    fault = await bench.caller().refused("mcp_admin", "mcp_release", arguments=arguments("db"))
    assert fault.reason is Reason.SESSION_REQUIRED
    request = execution_pb2.CallToolRequest(tool="mcp_release")
    request.arguments["serverId"] = "db"
    unary = await rpc_fault(bench.execution.CallTool(request))
    assert unary.reason is Reason.SESSION_REQUIRED


async def test_a_unary_caller_releases_by_the_exposed_name(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    await acquire(bench, "db")
    request = execution_pb2.CallToolRequest(tool="mcp_release", session="s1")
    request.arguments["serverId"] = "db"
    answer = await bench.execution.CallTool(request)
    assert answer.content[0].text.startswith("Released the lease of server db.")
    assert not answer.is_error
    await bench.until(lambda: not bench.servers.live)


async def test_calls_in_flight_on_a_released_lease_fail(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease_id = await acquire(bench, "db")
    bench.servers.holds = True
    caller = bench.caller()
    call_id = await caller.begin("db", session="s1", lease_id=lease_id)
    await bench.wait_for_calls()
    await release(caller, "db")
    result = await caller.result(call_id)
    assert "LEASE_RELEASED" in str(result.status)


async def test_a_lease_is_released_while_its_instance_starts(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    bench.servers.gate = asyncio.Event()
    caller = bench.caller()
    call_id = await caller.begin("db", session="s1")
    await bench.until(lambda: list(bench.worker.leases.leases))
    text, is_error = await release(caller, "db")
    assert not is_error, text
    bench.servers.gate.set()
    result = await caller.result(call_id)
    assert "LEASE_RELEASED" in str(result.status)
    assert not tuple(bench.worker.leases.leases)


async def test_a_leaving_worker_refuses_it_like_every_call(bench: Bench) -> None:
    bench.worker.executor.reject_new_calls()
    assert bench.worker.executor.draining
    fault = await bench.caller().refused(
        "mcp_admin", "mcp_release", session="s1", arguments=arguments("db")
    )
    assert fault.reason is Reason.DRAINING


async def test_a_call_that_joins_a_lease_gets_its_id(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    first, second = bench.caller(), bench.caller()
    made = await first.call("db", session="s1")
    assert made.lease.id
    assert made.is_new_lease
    joined = await second.call("db", session="s1")
    assert not joined.is_new_lease
    assert joined.lease.id == made.lease.id
    assert joined.lease.ttl.seconds == 60
    named = await second.call("db", session="s1", lease_id=made.lease.id)
    assert not named.HasField("lease")
