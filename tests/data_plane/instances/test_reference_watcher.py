"""Local generations: a changed secret or file is tried, then taken over, as a reload is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.data_plane.changing_values import (
    ON_DEMAND,
    look,
    secrets,
    uses,
    write,
)
from tests.data_plane.conftest import worker_bench

from leaseway.spec.codec import encode_spec, key_to_proto
from leaseway.spec.references import Value
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Reason

Bench = Any


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with worker_bench(watch_timing=ON_DEMAND) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A referenced file."""
    path = tmp_path / "secret"
    path.write_text("one")
    return path


def newest(bench: Bench) -> Any:
    return bench.servers.opened[-1].resolved_values


async def test_a_changed_file_replaces_the_generation_of_its_server_only(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.serve("other", env={"SECRET": Value("literal", "x")})
    await bench.until_ready(2)
    await look(bench)
    hash_before = bench.worker.pool.resolve("uses", "").launch_hash
    version = bench.worker.pool.registry_version
    write(file, "two")
    await look(bench)
    await bench.until(lambda: sorted(secrets(bench)) == ["two", "x"])
    assert len(bench.servers.opened) == 3
    assert bench.worker.pool.resolve("uses", "").launch_hash == hash_before
    assert bench.worker.pool.registry_version == version


async def test_rewriting_a_file_with_equal_content_changes_nothing(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.until_ready(1)
    for _ in range(3):
        write(file, "one")
        await look(bench)
    assert len(bench.servers.opened) == 1


async def test_calls_in_flight_finish_on_the_old_values_and_new_ones_use_the_new(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.until_ready(1)
    await look(bench)
    bench.servers.holds = True
    caller = bench.caller()
    old_call = await caller.begin("uses")
    await bench.until(lambda: bench.servers.opened[0].calls)
    write(file, "two")
    await look(bench)
    await bench.until_ready(2)
    await bench.until(lambda: bench.worker.pool.resolve("uses", "").shared is not None)
    new_call = await caller.begin("uses")
    await bench.until(lambda: bench.servers.opened[1].calls)
    assert bench.servers.opened[0].state == "ready"
    bench.servers.opened[0].calls[0].answer(b'{"from":"old"}')
    bench.servers.opened[1].calls[0].answer(b'{"from":"new"}')
    assert (await caller.result(old_call)).payload == b'{"from":"old"}'
    assert (await caller.result(new_call)).payload == b'{"from":"new"}'
    await bench.until(lambda: bench.servers.opened[0].state == "closed")


async def test_no_call_fails_or_waits_while_values_keep_changing(bench: Bench, file: Path) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.until_ready(1)
    stop = asyncio.Event()

    async def keep_calling() -> int:
        caller, calls = bench.caller(), 0
        while not stop.is_set():
            result = await caller.call("uses")
            assert not result.HasField("status"), result.status.message
            calls += 1
        return calls

    calling = [asyncio.ensure_future(keep_calling()) for _ in range(4)]
    for number in range(8):
        write(file, f"value {number}")
        await look(bench)
    await bench.until(lambda: secrets(bench) == ["value 7"])
    stop.set()
    assert min(await asyncio.gather(*calling)) > 0


async def test_old_leases_keep_their_instance_for_the_drain_timeout(
    bench: Bench, file: Path
) -> None:
    await bench.serve("db", shared=False, env=uses(file), lease_drain_timeout=2.0)
    old = await bench.acquire("s1")
    await look(bench)
    write(file, "two")
    await look(bench)
    await bench.until(lambda: secrets(bench) == ["one", "two"])
    caller = bench.caller()
    assert (await caller.call("db", session="s1", lease_id=old.id)).payload
    new = await bench.acquire("s2")
    assert new.launch_hash == old.launch_hash
    assert secrets(bench) == ["one", "two"]  # what was tried became the spare that s2 got
    await bench.plane.expect_report(lambda report: old.id in report.leases_lost)
    fault = await caller.refused("db", session="s1", lease_id=old.id)
    assert fault.reason is Reason.LEASE_REVOKED
    assert "a secret or file of server db changed" in fault.message
    assert (await caller.call("db", session="s2", lease_id=new.id)).payload


async def test_a_lease_that_was_starting_during_the_change_ends_too(
    bench: Bench, file: Path
) -> None:
    await bench.serve("db", shared=False, env=uses(file), lease_drain_timeout=0.05)
    await bench.acquire("s1")
    await look(bench)
    gate = bench.servers.gate = asyncio.Event()
    starting = asyncio.ensure_future(bench.acquire("s2"))
    await bench.until(lambda: len(bench.servers.opened) == 2)
    bench.servers.gate = None
    write(file, "two")
    await look(bench)
    await bench.until(lambda: "two" in secrets(bench))
    gate.set()
    lease = await starting
    await bench.plane.expect_report(lambda report: lease.id in report.leases_lost)


async def test_reverting_a_value_keeps_the_leases_with_that_value(bench: Bench, file: Path) -> None:
    await bench.serve("db", shared=False, env=uses(file), lease_drain_timeout=600)
    lease = await bench.acquire("s1")
    pool = bench.worker.pool
    for text in ("two", "one"):
        write(file, text)
        await look(bench)
        await bench.until(
            lambda text=text: text == bench.servers.opened[-1].resolved_values.env["SECRET"]
        )
        await bench.until(lambda: not pool.resolve("db", "").instances.is_behind(newest(bench)))
    assert bench.worker.leases.get(lease.id).ends_by is None


async def test_a_probes_instance_with_outdated_values_is_replaced(bench: Bench, file: Path) -> None:
    spec = bench.spec("uses", env=uses(file))
    probe = sync_pb2.Probe(
        id=1, key=key_to_proto(spec.key), spec=encode_spec(spec), launch_hash=spec.launch_hash
    )
    bench.plane.send(probe=probe)
    await bench.plane.expect("probe_result")
    write(file, "two")
    await bench.push(bench.upsert(spec))
    assert secrets(bench) == ["one"]
    await look(bench)
    await bench.until(lambda: secrets(bench) == ["two"])


async def test_a_change_during_a_trial_ends_with_the_newest_value(bench: Bench, file: Path) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.until_ready(1)
    await look(bench)
    gate = bench.servers.gate = asyncio.Event()
    write(file, "two")
    await look(bench)
    await bench.until(lambda: len(bench.servers.opened) == 2)
    write(file, "three")
    await look(bench)
    gate.set()
    await bench.until(lambda: secrets(bench) == ["three"])


async def test_a_new_configuration_wins_over_values_that_are_being_tried(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.until_ready(1)
    await look(bench)
    gate = bench.servers.gate = asyncio.Event()
    write(file, "two")
    await look(bench)
    await bench.until(lambda: len(bench.servers.opened) == 2)
    await bench.serve("uses", env=uses(file), args=("--new",))
    gate.set()
    await bench.until(
        lambda: [server.spec.part.args for server in bench.servers.live] == [("--new",)]
    )
    await look(bench)
    assert secrets(bench) == ["two"]


async def test_a_removed_server_is_not_watched(bench: Bench, file: Path) -> None:
    spec = await bench.serve("uses", env=uses(file))
    await bench.until_ready(1)
    await look(bench)
    await bench.push(removals=[key_to_proto(spec.key)])
    write(file, "two")
    await look(bench)
    assert len(bench.servers.opened) == 1
    assert not bench.worker.references._resolutions
