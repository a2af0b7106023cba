"""Local generations: a changed secret or file is tried, then taken over, as a reload is."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.edge.conftest import worker_bench

from leaseway.data_plane.core.reading import Resolved
from leaseway.data_plane.edge import reference_watch
from leaseway.data_plane.edge.reference_watch import ReferenceWatch
from leaseway.data_plane.mcp.vault import WorkerVault
from leaseway.v1 import leases_pb2, sync_pb2
from leaseway.wire.backoff import Backoff
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason
from leaseway.wire.spec import InstancePolicy, ServerSpec, Value
from leaseway.wire.spec_wire import key_to_wire, spec_to_wire
from leaseway.wire.vault_key import VaultPlace

Bench = Any


@pytest.fixture(autouse=True)
def look_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the bench look when a test says so, and at once; patched before the bench begins."""
    monkeypatch.setattr(reference_watch, "POLL", 3600.0)
    monkeypatch.setattr(reference_watch, "_QUIET", 0.005)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A referenced file."""
    path = tmp_path / "secret"
    path.write_text("one")
    return path


def uses(file: Path) -> dict[str, Value]:
    return {"SECRET": Value("file", str(file))}


def write(file: Path, text: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


async def look(bench: Bench) -> None:
    async with asyncio.timeout(BOUND):
        await bench.worker.references.look()


async def ready(bench: Bench, number: int) -> None:
    await bench.until(lambda: len(bench.servers.opened) >= number)
    await bench.until(lambda: bench.servers.opened[number - 1].state == "ready")


def secrets(bench: Bench) -> list[str]:
    """What each instance that is up was given."""
    return [each.reading.env["SECRET"] for each in bench.servers.live]


async def test_a_changed_file_makes_a_new_generation_of_its_server_and_of_no_other(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.serve("other", env={"SECRET": Value("literal", "x")})
    await ready(bench, 2)
    await look(bench)
    hash_before = bench.worker.pool.find("uses", "").launch_hash
    version = bench.worker.pool.registry_version
    write(file, "two")
    await look(bench)
    await bench.until(lambda: sorted(secrets(bench)) == ["two", "x"])
    assert len(bench.servers.opened) == 3
    assert bench.worker.pool.find("uses", "").launch_hash == hash_before
    assert bench.worker.pool.registry_version == version


async def test_a_file_written_anew_with_the_same_content_changes_nothing(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await ready(bench, 1)
    for _ in range(3):
        write(file, "one")
        await look(bench)
    assert len(bench.servers.opened) == 1


async def test_calls_in_flight_finish_on_the_old_values_and_new_ones_use_the_new(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await ready(bench, 1)
    await look(bench)
    bench.servers.holds = True
    caller = bench.caller()
    old_call = await caller.begin("uses")
    await bench.until(lambda: bench.servers.opened[0].calls)
    write(file, "two")
    await look(bench)
    await ready(bench, 2)
    await bench.until(lambda: bench.worker.pool.find("uses", "").shared is not None)
    new_call = await caller.begin("uses")
    await bench.until(lambda: bench.servers.opened[1].calls)
    assert bench.servers.opened[0].state == "ready"
    bench.servers.opened[0].calls[0].answer(b'{"from":"old"}')
    bench.servers.opened[1].calls[0].answer(b'{"from":"new"}')
    assert (await caller.result(old_call)).payload == b'{"from":"old"}'
    assert (await caller.result(new_call)).payload == b'{"from":"new"}'
    await bench.until(lambda: bench.servers.opened[0].state == "closed")


async def test_no_call_fails_or_waits_while_values_change_again_and_again(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await ready(bench, 1)
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


async def test_old_leases_stay_on_their_instance_until_their_time_is_over(
    bench: Bench, file: Path
) -> None:
    await bench.serve("db", shared=False, env=uses(file), lease_drain_timeout=2.0)
    old = await acquire(bench, "s1")
    await look(bench)
    write(file, "two")
    await look(bench)
    await bench.until(lambda: secrets(bench) == ["one", "two"])
    caller = bench.caller()
    assert (await caller.call("db", lease_id=old.id)).payload
    new = await acquire(bench, "s2")
    assert new.launch_hash == old.launch_hash
    assert secrets(bench) == ["one", "two"]  # what was tried became the spare that s2 got
    await bench.plane.expect_report(lambda report: old.id in report.leases_lost)
    fault = await caller.refused("db", lease_id=old.id)
    assert fault.reason is Reason.LEASE_REVOKED
    assert "a secret or file of server db has changed" in fault.message
    assert (await caller.call("db", lease_id=new.id)).payload


async def test_a_lease_whose_instance_was_starting_during_the_change_ends_in_time_too(
    bench: Bench, file: Path
) -> None:
    await bench.serve("db", shared=False, env=uses(file), lease_drain_timeout=0.05)
    await acquire(bench, "s1")
    await look(bench)
    gate = bench.servers.gate = asyncio.Event()
    starting = asyncio.ensure_future(acquire(bench, "s2"))
    await bench.until(lambda: len(bench.servers.opened) == 2)
    bench.servers.gate = None
    write(file, "two")
    await look(bench)
    await bench.until(lambda: "two" in secrets(bench))
    gate.set()
    lease = await starting
    await bench.plane.expect_report(lambda report: lease.id in report.leases_lost)


async def test_a_value_that_is_changed_back_keeps_the_leases_that_have_it(
    bench: Bench, file: Path
) -> None:
    await bench.serve("db", shared=False, env=uses(file), lease_drain_timeout=600)
    lease = await acquire(bench, "s1")
    for text in ("two", "one"):
        write(file, text)
        await look(bench)
        await bench.until(lambda text=text: text == bench.servers.opened[-1].reading.env["SECRET"])
        await bench.until(lambda: not bench.worker.pool.find("db", "").lags(newest(bench)))
    assert bench.worker.leases.get(lease.id).ends_by is None


def newest(bench: Bench) -> Any:
    return bench.servers.opened[-1].reading


async def test_a_reference_that_is_gone_keeps_the_old_generation_and_is_a_problem(
    bench: Bench, file: Path
) -> None:
    await bench.serve("db", shared=False, env=uses(file))
    await acquire(bench, "s1")
    await look(bench)
    file.unlink()
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.problems)
    [problem] = report.problems
    assert (problem.reason, problem.server_id) == ("MISSING_REFERENCE", "db")
    assert "goes on" in problem.message
    assert f"env.SECRET refers to the file {file}" in problem.message
    await acquire(bench, "s2")  # a new instance of the old generation has the old value
    assert secrets(bench) == ["one", "one"]
    write(file, "one")
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "MISSING_REFERENCE"
    assert secrets(bench) == ["one", "one"]


async def test_values_that_the_server_does_not_start_with_are_not_taken_over(
    bench: Bench, file: Path
) -> None:
    restart = InstancePolicy(restart=Backoff(0.001, 0.001))
    await bench.serve("uses", env=uses(file), instances=restart)
    await ready(bench, 1)
    await look(bench)
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "wrong password")]
    write(file, "two")
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert [(each.reason, each.server_id) for each in report.problems] == [
        ("CHANGED_VALUE_FAILED", "uses")
    ]
    assert "wrong password" in report.problems[0].message
    assert secrets(bench) == ["one"]
    assert (await bench.caller().call("uses")).payload
    await until_looking(bench, lambda: secrets(bench) == ["two"])
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "CHANGED_VALUE_FAILED"


async def until_looking(bench: Bench, condition: Any) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await look(bench)


async def test_values_that_fail_and_are_taken_back_are_no_problem_any_more(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await ready(bench, 1)
    await look(bench)
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "wrong password")]
    write(file, "two")
    await look(bench)
    await bench.plane.expect_report(lambda report: report.problems)
    write(file, "one")
    await look(bench)
    await bench.plane.expect_report(lambda report: report.cleared)
    assert secrets(bench) == ["one"]
    assert len(bench.servers.opened) == 2


async def test_a_server_that_waits_for_a_file_starts_when_it_is_there(
    bench: Bench, file: Path
) -> None:
    file.unlink()
    restart = InstancePolicy(restart=Backoff(3600.0, 3600.0))
    await bench.serve("uses", env=uses(file), instances=restart)
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert report.problems[0].reason == "MISSING_REFERENCE"
    await look(bench)
    write(file, "here")
    await look(bench)
    assert (await bench.caller().call("uses")).payload
    assert secrets(bench) == ["here"]
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "MISSING_REFERENCE"


async def test_a_probes_instance_with_values_of_before_is_replaced(
    bench: Bench, file: Path
) -> None:
    spec = bench.spec("uses", env=uses(file))
    probe = sync_pb2.Probe(id=1, spec=spec_to_wire(spec), launch_hash=spec.launch_hash)
    bench.plane.send(probe=probe)
    await bench.plane.expect("probe_result")
    write(file, "two")
    await bench.push(bench.upsert(spec))
    assert secrets(bench) == ["one"]
    await look(bench)
    await bench.until(lambda: secrets(bench) == ["two"])


async def test_a_change_while_another_is_tried_ends_with_the_newest(
    bench: Bench, file: Path
) -> None:
    await bench.serve("uses", env=uses(file))
    await ready(bench, 1)
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
    await ready(bench, 1)
    await look(bench)
    gate = bench.servers.gate = asyncio.Event()
    write(file, "two")
    await look(bench)
    await bench.until(lambda: len(bench.servers.opened) == 2)
    await bench.serve("uses", env=uses(file), args=("--new",))
    gate.set()
    await bench.until(lambda: [each.spec.args for each in bench.servers.live] == [("--new",)])
    await look(bench)
    assert secrets(bench) == ["two"]


async def test_a_removed_server_is_watched_no_longer(bench: Bench, file: Path) -> None:
    spec = await bench.serve("uses", env=uses(file))
    await ready(bench, 1)
    await look(bench)
    await bench.push(removals=[key_to_wire(spec.key)])
    write(file, "two")
    await look(bench)
    assert len(bench.servers.opened) == 1
    assert not bench.worker.references._seen


async def test_a_vault_that_cannot_be_read_is_a_problem_of_the_worker(
    bench: Bench, tmp_path: Path, file: Path
) -> None:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key", "a key of sixteen or more")
    vault = WorkerVault(place)
    bench.worker.references._vault = vault
    place.path.write_bytes(b"damaged")
    place.path.chmod(0o600)
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.problems)
    [problem] = report.problems
    assert (problem.reason, problem.server_id, problem.worker_id) == ("VAULT_UNREADABLE", "", "w1")
    assert str(place.path) in problem.message
    place.path.unlink()
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "VAULT_UNREADABLE"


async def test_files_are_read_in_threads_that_the_end_of_the_process_does_not_wait_for(
    bench: Bench, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk that they are on may hang."""
    watch, readers = bench.worker.references, []
    real = watch._read

    def read(spec: ServerSpec) -> Resolved:
        readers.append(threading.current_thread())
        return real(spec)  # type: ignore[no-any-return]

    monkeypatch.setattr(watch, "_read", read)
    await bench.serve("uses", env=uses(file))
    await look(bench)
    assert [each.daemon for each in readers] == [True]


async def test_an_unforeseen_failure_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    """Else no secret that changes would be followed for as long as the worker lives."""
    look_around, failures = ReferenceWatch.look, [RuntimeError("What is this?")]

    async def fail_first(watch: ReferenceWatch) -> None:
        if failures:
            raise failures.pop()
        await look_around(watch)

    monkeypatch.setattr(ReferenceWatch, "look", fail_first)
    monkeypatch.setattr(reference_watch, "POLL", 0.01)
    async with worker_bench() as bench:
        await bench.serve("uses", env=uses(file))
        await ready(bench, 1)
        write(file, "two")
        await bench.until(lambda: secrets(bench) == ["two"])
    assert not failures


async def acquire(bench: Bench, session: str) -> Any:
    request = leases_pb2.AcquireLeaseRequest(session=session, server_id="db")
    return (await bench.leases.AcquireLease(request)).lease


async def miss(bench: Bench, file: Path) -> None:
    """Have a server tried whose file is not there."""
    spec = bench.spec("uses", env=uses(file))
    probe = sync_pb2.Probe(id=1, spec=spec_to_wire(spec), launch_hash=spec.launch_hash)
    bench.plane.send(probe=probe)
    result = await bench.plane.expect("probe_result")
    assert result.problem.reason == "MISSING_REFERENCE"


async def test_a_probe_that_missed_a_file_is_told_of_once_the_file_is_there(
    bench: Bench, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    await miss(bench, late)
    await look(bench)
    write(late, "two")
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.cleared)
    [mended] = report.cleared
    assert (mended.reason, mended.server_id) == ("MISSING_REFERENCE", "uses")
    write(late, "three")
    await look(bench)
    assert bench.worker.references._missed == {}


async def test_a_file_that_came_between_a_probe_and_the_next_look_is_told_of(
    bench: Bench, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    for _ in range(2):  # the second time it was looked at already
        late.unlink(missing_ok=True)
        await miss(bench, late)
        write(late, "two")
        await look(bench)
        report = await bench.plane.expect_report(lambda report: report.cleared)
        assert report.cleared[0].server_id == "uses"
