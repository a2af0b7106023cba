"""Spares: started before a lease needs them, replaced, and evicted for leases."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import msgspec
from tests.data_plane.doubles.servers import ECHO, MemoryInstance

from leaseway.spec.codec import key_to_proto
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff

Bench = Any
FAST = InstancePolicy(restart=Backoff(initial=0.001, maximum=0.001))
OTHER = msgspec.json.encode({"name": "other", "inputSchema": {"type": "object"}})


def ready(bench: Bench) -> list[MemoryInstance]:
    return [server for server in bench.servers.live if server.state == "ready"]


async def until_ready(bench: Bench, count: int) -> None:
    await bench.until(lambda: len(ready(bench)) == count == len(bench.servers.live))


def spares(bench: Bench, server_id: str = "db") -> int:
    instances = bench.worker.pool.resolve(server_id, "").instances
    return sum(not live.lease_id for live in instances)


async def test_spares_start_before_a_lease_needs_them_and_are_no_leases(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=3))
    await until_ready(bench, 3)
    report = await bench.plane.expect_report(
        lambda report: [instance.state for instance in report.instances] == ["ready"] * 3
    )
    assert {(instance.role, instance.lease_id) for instance in report.instances} == {("spare", "")}
    assert not tuple(bench.worker.leases.leases)


async def test_spares_start_one_at_a_time(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=3))
    await bench.until(lambda: bench.servers.live)
    await bench.push(bench.upsert(bench.spec("other")))
    assert [server.spec.key.server_id for server in bench.servers.opened].count("db") == 1
    bench.servers.gate.set()
    await bench.until(lambda: spares(bench) == 3)


async def test_a_lease_gets_a_spare_while_no_instance_can_start(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await until_ready(bench, 1)
    bench.servers.gate = asyncio.Event()
    lease = await bench.acquire()
    assert lease.instance_id == bench.servers.opened[0].id
    assert (await bench.caller().call("db", lease_id=lease.id, session=lease.session)).payload
    await bench.until(lambda: len(bench.servers.opened) == 2)  # its successor is on its way
    bench.servers.gate.set()
    await until_ready(bench, 2)


async def test_no_spare_starts_while_leases_that_take_spares_are_answered(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=4))
    await until_ready(bench, 4)
    loop = asyncio.get_running_loop()
    with patch.object(loop, "time", return_value=loop.time()):  # no time passes after the leases
        leases = await asyncio.gather(*(bench.acquire(f"s{number}") for number in range(4)))
        await bench.release(leases[0])
        assert len(bench.servers.opened) == 4
    await until_ready(bench, 7)


async def test_concurrent_leases_have_instances_of_their_own(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=2))
    for _ in range(5):
        leases = await asyncio.gather(*(bench.acquire(f"s{number}") for number in range(4)))
        assert len({lease.instance_id for lease in leases}) == 4
        await asyncio.gather(*(bench.release(lease) for lease in leases))
    await until_ready(bench, 2)
    assert spares(bench) == 2


async def test_a_lease_takes_over_the_start_of_a_spare(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await bench.until(lambda: bench.servers.live)
    asked = asyncio.ensure_future(bench.acquire())
    await bench.until(lambda: tuple(bench.worker.leases.leases))
    bench.servers.gate.set()
    assert (await asked).instance_id == bench.servers.opened[0].id
    await until_ready(bench, 2)


async def test_a_lease_that_took_over_a_failed_start_gets_its_fault(bench: Bench) -> None:
    bench.servers.gate = asyncio.Event()
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no licence")]
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await bench.until(lambda: bench.servers.live)
    asked = asyncio.ensure_future(bench.caller().refused("db", session="s1"))
    await bench.until(lambda: tuple(bench.worker.leases.leases))
    bench.servers.gate.set()
    fault = await asked
    assert (fault.reason, fault.message) == (Reason.SERVER_NOT_READY, "no licence")
    await until_ready(bench, 1)


async def test_a_crashed_spare_is_replaced(bench: Bench) -> None:
    policy = InstancePolicy(warm=1, restart=Backoff(0.01, 0.01))
    await bench.serve("db", shared=False, instances=policy)
    await until_ready(bench, 1)
    bench.servers.gate = asyncio.Event()
    bench.servers.opened[0].crash()
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert (report.problems[0].reason, report.problems[0].message) == (
        "SERVER_LOST",
        "exit status 1",
    )
    bench.servers.gate.set()
    await until_ready(bench, 1)
    await bench.plane.expect_report(lambda report: report.cleared)
    assert (await bench.acquire()).instance_id == bench.servers.opened[1].id


async def test_spares_that_keep_crashing_open_the_circuit(
    bench: Bench,
) -> None:
    policy = InstancePolicy(warm=1, restart=Backoff(0.005, 60.0, 1.5))
    await bench.serve("db", shared=False, instances=policy)
    for number in range(6):
        await bench.until(lambda at=number: len(bench.servers.opened) > at)
        await bench.until(lambda at=number: bench.servers.opened[at].state == "ready")
        bench.servers.opened[number].crash()
    restart = bench.worker.pool.resolve("db", "").instances.circuit_breaker
    assert (restart.failures, restart.circuit) == (6, "open")


async def test_leases_come_before_spares_at_max_instances(bench: Bench) -> None:
    policy = InstancePolicy(warm=2, max_instances=3)
    await bench.serve("db", shared=False, instances=policy)
    await until_ready(bench, 2)
    first, second = await bench.acquire("s1"), await bench.acquire("s2")
    await until_ready(bench, 3)
    assert spares(bench) == 1
    third = await bench.acquire("s3")
    assert len({first.instance_id, second.instance_id, third.instance_id}) == 3
    assert (spares(bench), len(bench.servers.live)) == (0, 3)
    fault = await bench.caller().refused("db", session="s4", timeout_ms=200)
    assert fault.reason in (Reason.CAPACITY, Reason.DEADLINE_EXCEEDED)
    await bench.release(third)
    await bench.until(lambda: spares(bench) == 1)


async def test_a_spare_gives_way_to_a_lease_of_a_tenants_own_variant(bench: Bench) -> None:
    policy = InstancePolicy(warm=2, max_instances=2)
    common = bench.spec("db", shared=False, instances=policy)
    own = bench.spec(
        "db", tenant="acme", shared=False, args=("own",), instances=InstancePolicy(max_instances=2)
    )
    await bench.push(bench.upsert(common), bench.upsert(own))
    await until_ready(bench, 2)
    lease = await bench.acquire(tenant="acme")
    assert sorted(server.spec.part.args for server in bench.servers.live) == [(), ("own",)]
    await bench.release(lease)
    await bench.until(lambda: spares(bench) == 2)


async def test_a_changed_number_of_spares_needs_no_new_generation(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await until_ready(bench, 1)
    lease = await bench.acquire()
    await until_ready(bench, 2)
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=3))
    await until_ready(bench, 4)
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await until_ready(bench, 2)
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=0))
    await until_ready(bench, 1)
    assert bench.servers.live[0].id == lease.instance_id
    assert (await bench.caller().call("db", lease_id=lease.id, session=lease.session)).payload
    assert len(bench.servers.opened) == 4


async def test_the_spares_of_a_replaced_generation_close(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=2))
    await until_ready(bench, 2)
    lease = await bench.acquire()
    await until_ready(bench, 3)
    await bench.serve("db", shared=False, args=("--new",), instances=InstancePolicy(warm=2))
    await until_ready(bench, 3)
    old = [server for server in bench.servers.live if not server.spec.part.args]
    assert [server.id for server in old] == [lease.instance_id]
    await bench.push(removals=[key_to_proto(VariantKey("db"))])
    await bench.until(lambda: not bench.servers.live)


async def test_a_spare_that_starts_while_its_generation_is_replaced_is_closed(
    bench: Bench,
) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await bench.until(lambda: bench.servers.live)
    await bench.serve("db", shared=False, args=("--new",), instances=InstancePolicy(warm=1))
    bench.servers.gate.set()
    await until_ready(bench, 1)
    assert bench.servers.live[0].spec.part.args == ("--new",)


async def test_a_lease_that_waits_for_a_spare_of_a_replaced_generation_still_gets_it(
    bench: Bench,
) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await bench.until(lambda: bench.servers.live)
    asked = asyncio.ensure_future(bench.acquire())
    await bench.until(lambda: tuple(bench.worker.leases.leases))
    await bench.serve("db", shared=False, args=("--new",))
    bench.servers.gate.set()
    lease = await asked
    assert (await bench.caller().call("db", lease_id=lease.id, session=lease.session)).payload
    await until_ready(bench, 1)


async def test_an_eager_leased_server_has_one_instance_ready_and_a_lazy_one_none(
    bench: Bench,
) -> None:
    await bench.serve("eager", shared=False, instances=InstancePolicy(start="eager"))
    await bench.serve("lazy", shared=False, instances=InstancePolicy(start="lazy"))
    await bench.serve("usual", shared=False)
    await until_ready(bench, 1)
    lease = await bench.acquire(server_id="eager")
    assert lease.instance_id == "eager-1"
    await until_ready(bench, 2)
    assert {server.spec.key.server_id for server in bench.servers.live} == {"eager"}


async def test_the_probes_instance_is_the_first_spare_even_of_a_lazy_server(
    bench: Bench,
) -> None:
    policy = InstancePolicy(start="lazy", warm=2)
    await bench.probe(bench.spec("db", shared=False, instances=policy))
    await until_ready(bench, 2)
    assert len(bench.servers.opened) == 2
    assert (await bench.acquire()).instance_id == "db-1"


async def test_an_unused_spare_of_a_probe_ends_after_the_idle_timeout(bench: Bench) -> None:
    policy = InstancePolicy(idle_timeout=0.05)
    await bench.probe(bench.spec("db", shared=False, instances=policy))
    await bench.until(lambda: bench.servers.opened and not bench.servers.live)
    await bench.probe(bench.spec("kept", shared=False))
    assert spares(bench, "kept") == 1


async def test_spares_within_the_target_do_not_end_as_idle(bench: Bench) -> None:
    policy = InstancePolicy(warm=1, idle_timeout=0.02)
    await bench.serve("db", shared=False, instances=policy)
    await bench.serve("other", instances=InstancePolicy(idle_timeout=0.06))
    await bench.until(
        lambda: (
            [
                server.state
                for server in bench.servers.opened
                if server.spec.key.server_id == "other"
            ]
            == ["closed"]
        )
    )  # three idle times have passed
    assert (await bench.acquire()).instance_id == "db-1"


async def test_a_spare_is_replaced_at_half_of_max_age(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1, max_age=0.2))
    await bench.until(lambda: len(bench.servers.opened) > 2)
    await bench.until(lambda: bench.servers.opened[1].state == "closed")
    lease = await bench.acquire()
    assert lease.instance_id not in (bench.servers.opened[0].id, bench.servers.opened[1].id)


async def test_a_spare_with_the_tools_before_a_change_is_replaced(
    bench: Bench,
) -> None:
    spec = await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await until_ready(bench, 1)
    old = bench.servers.opened[0]
    relist = old.relist

    async def still_the_old_tools() -> Any:
        bench.servers.tools, new = dict(ECHO), bench.servers.tools
        try:
            return await relist()
        finally:
            bench.servers.tools = new

    old.relist = still_the_old_tools
    bench.servers.tools = {**ECHO, "other": OTHER}
    await bench.push(bench.upsert(spec))
    await bench.until(lambda: old.state == "closed")
    await until_ready(bench, 1)
    lease = await bench.acquire()
    result = await bench.caller().call(
        "db", "other", arguments=b"{}", lease_id=lease.id, session=lease.session
    )
    assert result.payload, result.status.message


async def test_a_spare_whose_tools_always_differ_is_not_replaced_again_and_again(
    bench: Bench,
) -> None:
    spec = bench.spec("db", shared=False, instances=InstancePolicy(warm=1))
    await bench.push(bench.upsert(spec, tools={**ECHO, "other": OTHER}))
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert report.problems[0].reason == "TOOL_DIFFERS"
    lease = await bench.acquire()
    caller = bench.caller()
    assert (await caller.call("db", lease_id=lease.id, session=lease.session)).payload
    fault = await caller.refused(
        "db", "other", lease_id=lease.id, session=lease.session, arguments=b"{}"
    )
    assert fault.reason is Reason.TOOL_DIFFERS
    await until_ready(bench, 2)
    assert len(bench.servers.opened) == 2


async def test_a_server_that_uses_its_sessions_name_has_no_spares(bench: Bench) -> None:
    env = {"STATE": Value("literal", "/data/${session}.json")}
    await bench.serve("db", shared=False, env=env)
    first, second = await bench.acquire("alice"), await bench.acquire("bob")
    one, two = bench.servers.opened
    assert {first.instance_id, second.instance_id} == {one.id, two.id}
    assert one.names.session == LeaseNames.of("default", "alice").session
    assert two.names.session == LeaseNames.of("default", "bob").session
    await bench.release(first)
    again = await bench.acquire("alice")
    assert bench.servers.opened[-1].names.session == one.names.session
    assert bench.servers.opened[-1].names.lease != one.names.lease
    assert again.instance_id == bench.servers.opened[-1].id


async def test_a_failing_server_that_uses_its_sessions_name_keeps_no_trial_as_a_spare(
    bench: Bench,
) -> None:
    env = {"STATE": Value("literal", "${session}")}
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no")]
    await bench.serve("db", shared=False, env=env, instances=FAST)
    await bench.acquire_fault()
    await bench.until(lambda: len(bench.servers.opened) == 2 and not bench.servers.live)
    await bench.acquire()
    assert bench.servers.opened[-1].names is not None


async def test_a_change_without_spares_that_is_reverted_before_its_start_starts_spares_again(
    bench: Bench,
) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=2))
    await until_ready(bench, 2)
    bench.servers.failing["--new",] = Fault(Reason.SERVER_NOT_READY, "no such command")
    await bench.serve("db", shared=False, args=("--new",), instances=InstancePolicy(warm=0))
    await until_ready(bench, 0)
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=2))
    await until_ready(bench, 2)
