"""Starts that released leases leave to the next ones, or do not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.data_plane.conftest import rpc_fault, worker_bench

from leaseway.data_plane.core.calls.call import Callbacks
from leaseway.data_plane.leases.acquirer import UNNAMED
from leaseway.spec.codec import key_to_proto
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.spec.references import Value
from leaseway.v1 import leases_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT, LeaseKey

Bench = Any
ROOTS = "roots/list"


def key_of(session: str) -> LeaseKey:
    return LeaseKey(DEFAULT_TENANT, session, "db")


def starts_for(bench: Bench, session: str) -> bool:
    """Return whether the instance of a session's lease is starting."""
    lease = bench.worker.leases.find(key_of(session))
    instances = bench.worker.pool.resolve("db", "").instances
    return lease is not None and lease.id in [live.lease_id for live in instances]


async def begin(bench: Bench, *sessions: str) -> list[asyncio.Task[Any]]:
    """Ask for leases of server db, one after the other, whose instances do not start yet."""
    asked = []
    for session in sessions:
        asked.append(asyncio.create_task(bench.acquire(session)))
        await bench.until(partial(starts_for, bench, session))
    return asked


async def release(bench: Bench, *sessions: str) -> None:
    """Release leases whose instances have not started."""
    for session in sessions:
        lease = bench.worker.leases.find(key_of(session))
        await bench.leases.ReleaseLease(
            leases_pb2.ReleaseLeaseRequest(lease_id=lease.id, session=session)
        )


async def test_a_client_that_waits_shorter_than_its_server_starts_gets_it_in_the_end(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False)
    bench.servers.gate = asyncio.Event()
    for number in range(3):  # it names another session with each call
        (asked,) = await begin(bench, f"s{number}")
        await release(bench, f"s{number}")
        assert (await rpc_fault(asked)).reason is Reason.LEASE_RELEASED
    (server,) = bench.servers.opened
    report = await bench.plane.expect_report(
        lambda report: [each.role for each in report.instances] == ["spare"]
    )
    assert report.instances[0].state == "starting"
    bench.servers.gate.set()
    await bench.until_ready()
    assert (await bench.acquire("s9")).instance_id == server.id


async def test_few_starts_are_left() -> None:
    async with worker_bench(64, concurrent_starts=9) as bench:
        await bench.serve("db", shared=False)
        bench.servers.gate = asyncio.Event()
        sessions = [f"s{number}" for number in range(9)]
        asked = await begin(bench, *sessions)
        await release(bench, *sessions)
        await asyncio.gather(*asked, return_exceptions=True)
        bench.servers.gate.set()
        await bench.until(lambda: [each.state for each in bench.servers.live] == ["ready"] * 4)


@pytest.mark.parametrize("warm", [0, 1])
async def test_a_start_that_has_not_begun_ends_with_its_lease(warm: int) -> None:
    async with worker_bench(64, concurrent_starts=1) as bench:
        bench.servers.gate = asyncio.Event()
        await bench.serve("other", shared=False, instances=InstancePolicy(warm=1))
        await bench.until(lambda: bench.servers.opened)  # it has the only place
        await bench.serve("db", shared=False, instances=InstancePolicy(warm=warm))
        (asked,) = await begin(bench, "s1")
        await release(bench, "s1")
        assert (await rpc_fault(asked)).reason is Reason.LEASE_RELEASED
        await bench.until(lambda: bench.servers.opened[1] not in bench.servers.live)


async def test_a_start_with_the_name_of_a_session_ends_with_its_lease(bench: Bench) -> None:
    await bench.serve("db", shared=False, env={"STATE": Value("literal", "${session}")})
    bench.servers.gate = asyncio.Event()
    (asked,) = await begin(bench, "s1")
    await release(bench, "s1")
    assert (await rpc_fault(asked)).reason is Reason.LEASE_RELEASED
    await bench.until(lambda: not bench.servers.live)


@pytest.mark.parametrize("warm", [0, 1])
async def test_a_start_that_has_asked_its_caller_ends_with_its_lease(
    bench: Bench, warm: int
) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=warm))
    bench.servers.gate = asyncio.Event()
    callbacks = Callbacks(on_ask=lambda _: None, answers=frozenset({ROOTS}))
    leases = bench.worker.leases
    asked = asyncio.create_task(leases.acquire(key_of("s1"), UNNAMED, callbacks=callbacks))
    await bench.until(lambda: starts_for(bench, "s1"))
    bench.servers.opened[0].ask(ROOTS)
    leases.release(leases.find(key_of("s1")).id)
    with pytest.raises(Fault, match="released"):
        await asked
    await bench.until(lambda: bench.servers.opened[0] not in bench.servers.live)


async def test_a_left_start_ends_with_the_generation(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    bench.servers.gate = asyncio.Event()
    (asked,) = await begin(bench, "s1")
    await release(bench, "s1")
    assert (await rpc_fault(asked)).reason is Reason.LEASE_RELEASED
    await bench.push(removals=[key_to_proto(VariantKey("db"))])
    await bench.until(lambda: not bench.servers.live)


async def test_the_start_of_a_spare_of_a_removed_server_ends_with_its_lease(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    (asked,) = await begin(bench, "s1")
    await bench.push(removals=[key_to_proto(VariantKey("db"))])
    await release(bench, "s1")
    assert (await rpc_fault(asked)).reason is Reason.LEASE_RELEASED
    await bench.until(lambda: not bench.servers.live)
