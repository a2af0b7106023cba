"""Turns of tenants on a server with `max_calls`."""

from __future__ import annotations

import pytest
from tests.data_plane.conftest import Bench
from tests.data_plane.doubles.servers import MemoryCall

from leaseway.spec.policy import ArgumentRule, ServerPolicy, TenantLimits
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status


def first(bench: Bench) -> MemoryCall:
    """Return the server's oldest unanswered call."""
    return bench.servers.opened[0].calls[0]


def texts(bench: Bench) -> list[bytes]:
    return [call.request.arguments for call in bench.servers.opened[0].calls]


async def flood(bench: Bench, calls: int) -> list[int]:
    """Send calls of the tenant `acme` that the server does not answer."""
    bench.servers.holds = True
    caller = bench.caller()
    ids = [await caller.begin("time", tenant="acme") for _ in range(calls)]
    await bench.until(lambda: bench.worker.executor.in_flight == calls)
    return ids


async def test_a_tenant_that_floods_a_server_gets_its_fair_share_of_turns(bench: Bench) -> None:
    await bench.serve("time", max_calls=2)
    await flood(bench, 50)
    assert len(texts(bench)) == 2
    caller = bench.caller()
    for _ in range(3):
        await caller.begin("time", tenant="rival", arguments=b'{"text": "rival"}')
    await bench.until(lambda: bench.worker.executor.in_flight == 53)
    next_ones = []
    for _ in range(6):
        first(bench).answer(b"{}")
        await bench.until(lambda: len(texts(bench)) == 2)
        next_ones.append(texts(bench)[-1])
    assert next_ones.count(b'{"text": "rival"}') == 3


async def test_weights_say_how_many_turns_a_tenant_has(bench: Bench) -> None:
    policy = ServerPolicy(limits={"rival": TenantLimits(weight=4)})
    await bench.serve("time", max_calls=1, policy=policy)
    await flood(bench, 20)
    caller = bench.caller()
    for _ in range(8):
        await caller.begin("time", tenant="rival", arguments=b'{"text": "rival"}')
    await bench.until(lambda: bench.worker.executor.in_flight == 28)
    had = []
    for _ in range(11):
        await bench.until(lambda: len(texts(bench)) == 1)
        had.append(texts(bench)[0] == b'{"text": "rival"}')
        first(bench).answer(b"{}")
    assert sum(had[1:]) == 8


async def test_a_call_that_expires_while_it_waits_for_a_turn_never_reaches_the_server(
    bench: Bench,
) -> None:
    await bench.serve("time", max_calls=1)
    await flood(bench, 1)
    caller = bench.caller()
    waits = await caller.begin("time", tenant="rival")
    expires = await caller.begin("time", tenant="rival", timeout_ms=50)
    await bench.until(lambda: bench.worker.executor.waiting == 2)
    fault = fault_from_status((await caller.result(expires)).status)
    assert (fault.reason, fault.started) == (Reason.DEADLINE_EXCEEDED, "no")
    assert bench.worker.executor.waiting == 1
    first(bench).answer(b"{}")
    await bench.until(lambda: len(texts(bench)) == 1)
    first(bench).answer(b"{}")
    assert (await caller.result(waits)).payload == b"{}"
    await bench.until(lambda: bench.worker.executor.in_flight == 0)
    assert not texts(bench)


async def test_calls_that_wait_for_a_turn_fail_as_not_started_when_the_server_crashes(
    bench: Bench,
) -> None:
    await bench.hold("time", max_calls=1)
    caller = bench.caller()
    begun = [await caller.begin("time", tenant="acme") for _ in range(100)]
    await bench.until(lambda: bench.worker.executor.waiting == 99)
    bench.servers.opened[0].crash()
    faults = [fault_from_status((await caller.result(call_id)).status) for call_id in begun]
    assert [fault.started for fault in faults[1:]] == ["no"] * 99
    assert bench.worker.executor.in_flight == bench.worker.executor.waiting == 0


async def test_a_call_that_waits_for_its_turn_is_judged_by_a_rule_that_comes_meanwhile(
    bench: Bench,
) -> None:
    await bench.serve("time", max_calls=1)
    await flood(bench, 1)
    caller = bench.caller()
    waits = await caller.begin("time", tenant="rival")
    await bench.until(lambda: bench.worker.executor.waiting == 1)
    denies = ServerPolicy(rules=(ArgumentRule('tenant == "rival"'),))
    await bench.serve("time", max_calls=1, policy=denies)
    first(bench).answer(b"{}")
    fault = fault_from_status((await caller.result(waits)).status)
    assert (fault.reason, fault.started) == (Reason.PERMISSION_DENIED, "no")
    assert not texts(bench)
    await caller.begin("time", tenant="acme")
    await bench.until(lambda: len(texts(bench)) == 1)  # the turn is free again


async def test_a_call_that_waits_for_its_turn_runs_if_its_server_has_no_limit_any_more(
    bench: Bench,
) -> None:
    await bench.serve("time", max_calls=1)
    await flood(bench, 1)
    caller = bench.caller()
    waits = await caller.begin("time", tenant="rival")
    await bench.until(lambda: bench.worker.executor.waiting == 1)
    await bench.serve("time")
    first(bench).answer(b"{}")
    await bench.until(lambda: len(texts(bench)) == 1)
    first(bench).answer(b"{}")
    assert (await caller.result(waits)).payload == b"{}"
    assert bench.worker.executor.in_flight == bench.worker.executor.waiting == 0


@pytest.mark.parametrize("max_calls", [3, None])
async def test_calls_that_wait_start_as_soon_as_their_server_may_have_more(
    bench: Bench, max_calls: int | None
) -> None:
    await bench.serve("time", max_calls=1)
    await flood(bench, 3)
    await bench.until(lambda: bench.worker.executor.waiting == 2)
    await bench.serve("time", max_calls=max_calls)
    await bench.until(lambda: len(texts(bench)) == 3)
    assert bench.worker.executor.waiting == 0
