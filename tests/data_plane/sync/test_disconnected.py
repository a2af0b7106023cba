"""An instance whose server gave no sign of life: reported, and replaced or lost."""

from __future__ import annotations

from typing import Any

from leaseway.wire.errors import Reason

Bench = Any
MUTE = "The server time has not answered a ping for 10 s; its connection was closed."


async def test_an_unresponsive_shared_instance_is_reported_and_replaced(bench: Bench) -> None:
    await bench.serve("time")
    await bench.until(lambda: bench.servers.live)
    first = bench.servers.opened[0]
    await bench.until(lambda: first.state == "ready")
    first.fall_silent()
    await bench.plane.expect_report(
        lambda report: "disconnected" in [instance.state for instance in report.instances]
    )
    first.crash(MUTE)
    await bench.until(lambda: len(bench.servers.opened) == 2)
    await bench.until(lambda: bench.servers.opened[1].state == "ready")
    assert (await bench.caller().call("time")).payload


async def test_a_lease_whose_instance_is_unresponsive_is_lost_with_the_reason(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    lease = await bench.acquire()
    instance = bench.servers.opened[-1]
    instance.fall_silent()
    instance.crash(MUTE)
    fault = await bench.caller().refused("db", session="s1", lease_id=lease.id)
    assert fault.reason is Reason.LEASE_LOST
    assert "has not answered a ping for 10 s" in fault.message
