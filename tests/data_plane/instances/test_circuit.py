"""Failing servers are started less and less often, and their callers fail at once."""

from __future__ import annotations

import asyncio
from typing import Any

from leaseway.spec.model import InstancePolicy
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff

Bench = Any
BROKEN = Fault(
    Reason.SERVER_NOT_READY, "no licence", metadata={"problem": "EXITED", "exit_status": "3"}
)
LATER = InstancePolicy(restart=Backoff(3600.0, 3600.0))
"""A backoff that no test sees the end of: with full jitter, one in 360,000 is under 10 ms."""


def restart(bench: Bench, server_id: str = "db") -> Any:
    return bench.worker.pool.resolve(server_id, "").instances.circuit_breaker


async def test_five_acquires_may_fail_at_once_and_then_none_starts_a_process(bench: Bench) -> None:
    bench.servers.faults = [BROKEN] * 100
    await bench.serve("db", shared=False, instances=LATER)
    for number in range(5):
        assert (await bench.acquire_fault(f"s{number}")).message == "no licence"
    for number in range(10):
        fault = await bench.acquire_fault(f"t{number}")
        assert fault.reason is Reason.SERVER_NOT_READY
        assert "5 failures in a row" in fault.message
        assert ": no licence. It " in fault.message
        assert fault.metadata["exit_status"] == "3"
        assert fault.retry_delay is not None
        assert fault.retry_delay > 0
    assert len(bench.servers.opened) == 5
    assert not tuple(bench.worker.leases.leases)
    report = await bench.plane.expect_report(
        lambda report: any(instance.circuit == "open" for instance in report.instances)
    )
    (status,) = report.instances
    assert (status.state, status.failures, status.starts) == ("backoff", 5, 5)
    assert status.next_start_at.ToSeconds() > 0


async def test_a_start_that_raises_no_fault_is_told_as_one(bench: Bench) -> None:
    """As the instance of a package's kind may."""
    bench.servers.faults = [KeyError("region")]
    await bench.serve("db", shared=False, instances=LATER)
    fault = await bench.acquire_fault()
    assert fault.reason is Reason.SERVER_NOT_READY
    assert fault.message == "Server db did not start: the worker failed with KeyError; see its log."
    assert fault.metadata["problem"] == "START_FAILED"


async def test_one_acquire_tries_an_open_circuit_and_the_others_are_rejected(
    bench: Bench,
) -> None:
    bench.servers.faults = [BROKEN] * 5
    policy = InstancePolicy(restart=Backoff(0.001, 0.001))
    await bench.serve("db", shared=False, instances=policy)
    for _ in range(5):
        await bench.acquire_fault()
    assert restart(bench).circuit == "open"
    bench.servers.gate = asyncio.Event()
    await bench.until(lambda: restart(bench).retry_at < asyncio.get_running_loop().time())
    asked = asyncio.ensure_future(bench.acquire("first"))
    await bench.until(lambda: restart(bench).circuit == "half_open")
    others = await asyncio.gather(*(bench.acquire_fault(f"s{number}") for number in range(3)))
    assert all("starting again now" in fault.message for fault in others)
    assert len(bench.servers.opened) == 6
    bench.servers.gate.set()
    assert (await asked).id
    assert (restart(bench).circuit, restart(bench).failures) == ("closed", 0)
    await asyncio.gather(*(bench.acquire(f"s{number}") for number in range(3)))


async def test_a_failed_trial_opens_the_circuit_again(bench: Bench) -> None:
    bench.servers.faults = [BROKEN] * 6
    policy = InstancePolicy(restart=Backoff(0.001, 0.001))
    await bench.serve("db", shared=False, instances=policy)
    for number in range(6):
        await bench.until(lambda: restart(bench).allows_start(asyncio.get_running_loop().time()))
        await bench.acquire_fault(f"s{number}")
    assert (restart(bench).circuit, restart(bench).failures) == ("open", 6)
    await bench.until(lambda: restart(bench).allows_start(asyncio.get_running_loop().time()))
    assert (await bench.acquire("s")).id


async def test_a_failing_leased_server_without_spares_is_tried_without_a_lease(
    bench: Bench,
) -> None:
    bench.servers.faults = [BROKEN] * 2
    policy = InstancePolicy(restart=Backoff(0.001, 0.001))
    await bench.serve("db", shared=False, instances=policy)
    await bench.acquire_fault()
    await bench.plane.expect_report(
        lambda report: any(
            instance.state == "backoff" and instance.failures for instance in report.instances
        )
    )
    await bench.plane.expect_report(
        lambda report: (
            [(instance.role, instance.state) for instance in report.instances]
            == [("spare", "ready")]
        )
    )
    assert len(bench.servers.opened) == 3


async def test_spares_are_retried_until_they_start(bench: Bench) -> None:
    bench.servers.faults = [BROKEN] * 8
    policy = InstancePolicy(warm=1, restart=Backoff(0.001, 0.002))
    await bench.serve("db", shared=False, instances=policy)
    await bench.until(lambda: len(bench.servers.opened) == 9 and not restart(bench).failures)
    assert len(bench.servers.live) == 1


async def test_a_ready_spare_is_leased_while_other_starts_fail(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1, restart=LATER.restart))
    await bench.until_ready()
    bench.servers.faults = [BROKEN] * 100
    assert (await bench.acquire("s1")).instance_id == "db-1"
    await bench.until(lambda: restart(bench).failures == 1)
    for number in range(4):
        await bench.acquire_fault(f"t{number}")
    assert restart(bench).circuit == "open"
    opened = len(bench.servers.opened)
    assert (await bench.caller().call("db", session="s1")).payload
    assert len(bench.servers.opened) == opened


async def test_calls_of_a_failing_shared_server_are_rejected_at_once(
    bench: Bench,
) -> None:
    bench.servers.faults = [BROKEN] * 100_000
    await bench.serve("time", instances=InstancePolicy(restart=Backoff(0.002, 0.002)))
    await bench.until(lambda: restart(bench, "time").circuit != "closed")
    bench.servers.gate = asyncio.Event()  # the next try never ends
    await bench.until(lambda: restart(bench, "time").circuit == "half_open")
    fault = await bench.caller().refused("time")
    assert fault.reason is Reason.SERVER_NOT_READY
    assert ": no licence. It " in fault.message
    assert fault.retry_delay is not None
    bench.servers.faults.clear()
    bench.servers.gate.set()
    await bench.until(lambda: restart(bench, "time").circuit == "closed")
    assert (await bench.caller().call("time")).payload


async def test_a_shared_server_that_was_up_is_lost_not_unready(bench: Bench) -> None:
    await bench.serve("time", instances=InstancePolicy(restart=LATER.restart))
    await bench.until_ready()
    bench.servers.opened[0].crash("exit status 9")
    await bench.until(lambda: restart(bench, "time").failures == 1)
    fault = await bench.caller().refused("time")
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    assert ": exit status 9. It " in fault.message


async def test_leases_that_end_because_of_their_use_break_no_circuit(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    for number in range(7):
        lease = await bench.acquire(f"s{number}")
        bench.servers.opened[number].crash()
        await bench.until(lambda held=lease: bench.worker.leases.get(held.id) is None)
    assert restart(bench).failures == 0


async def test_what_is_kept_of_a_failed_start_holds_nothing_of_its_instance(bench: Bench) -> None:
    bench.servers.faults = [BROKEN]
    await bench.serve("time", instances=LATER)
    instances = bench.worker.pool.resolve("time", "").instances
    await bench.until(lambda: instances.last_fault is not None)
    assert instances.last_fault is not None
    assert instances.last_fault.__traceback__ is None
