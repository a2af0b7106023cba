"""Calls on leases wait until the control plane has confirmed the leases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from leaseway.data_plane.leases import confirmation
from leaseway.data_plane.leases.confirmation import LeaseConfirmation
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason

Bench = Any


async def rejoin_unconfirmed(bench: Bench) -> sync_pb2.Pulse:
    """Let the worker join a control plane that answers pulses; return the first one."""
    bench.plane.patience = timedelta(hours=1)
    bench.plane.pulse_interval = 3600.0
    bench.plane.end_stream()
    await bench.plane.hello()
    pulse: sync_pb2.Pulse = await bench.plane.expect("pulse")
    return pulse


async def test_a_call_on_a_lease_waits_for_the_word_of_a_control_plane_that_is_back(
    bench: Bench,
) -> None:
    await bench.serve("time")
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    pulse = await rejoin_unconfirmed(bench)
    caller = bench.caller()
    waiting = await caller.begin("db", session="s1", lease_id=lease.id)
    assert (await caller.call("time")).payload  # nobody else can have a shared server's state
    assert not caller.results[waiting].done()
    bench.plane.send(pulse=pulse)
    assert (await caller.result(waiting)).payload


async def test_a_lease_that_was_given_away_meanwhile_serves_no_call_after_the_gap(
    bench: Bench,
) -> None:
    await bench.hold("db", shared=False)
    lease = await bench.acquire()
    pulse = await rejoin_unconfirmed(bench)
    caller = bench.caller()
    waiting = await caller.begin("db", session="s1", lease_id=lease.id)
    bench.plane.send(revoke=sync_pb2.Revoke(lease_id=lease.id, reason="it was lost"))
    bench.plane.send(pulse=pulse)
    result = await caller.result(waiting)
    assert "it was lost" in result.status.message
    assert not [call for instance in bench.servers.opened for call in instance.calls]


async def test_a_control_plane_that_says_nothing_for_some_seconds_counts_as_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirmation, "MAX_WAIT", 0.01)
    leases = LeaseConfirmation(lambda: 100.0)
    leases.handle_welcome(10.0)
    await leases.wait()
    assert leases.until == 110.0


async def test_calls_fail_while_a_control_plane_refuses_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirmation, "MAX_WAIT", 0.01)
    leases = LeaseConfirmation(lambda: 100.0)
    leases.handle_welcome(10.0)
    leases.handle_refusal()
    with pytest.raises(Fault, match="refuses this worker") as refused:
        await leases.wait()
    assert refused.value.reason is Reason.SYNCING
