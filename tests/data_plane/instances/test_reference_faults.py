"""Missing, wrong or unreadable secrets and files, and the servers that use them."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.changing_values import (
    ON_DEMAND,
    look,
    release,
    secrets,
    until_looking,
    uses,
    write,
)
from tests.data_plane.conftest import worker_bench

from leaseway.data_plane.instances.reference_watcher import ReferenceWatcher, WatchTiming
from leaseway.data_plane.references.vault import WorkerVault
from leaseway.spec.codec import encode_spec, key_to_proto
from leaseway.spec.model import InstancePolicy
from leaseway.spec.references import Value
from leaseway.v1 import sync_pb2
from leaseway.vault.file import set_secret
from leaseway.vault.key import VaultPlace
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff

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


async def test_a_missing_reference_keeps_the_old_generation_and_is_a_problem(
    bench: Bench, file: Path
) -> None:
    await bench.serve("db", shared=False, env=uses(file))
    await bench.acquire("s1")
    await look(bench)
    file.unlink()
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.problems)
    [problem] = report.problems
    assert (problem.reason, problem.server_id) == ("MISSING_REFERENCE", "db")
    assert "keeps the values" in problem.message
    assert f"env.SECRET refers to the file {file}" in problem.message
    await bench.acquire("s2")  # a new instance of the old generation has the old value
    assert secrets(bench) == ["one", "one"]
    write(file, "one")
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "MISSING_REFERENCE"
    assert secrets(bench) == ["one", "one"]


async def test_values_that_the_server_does_not_start_with_are_not_used(
    bench: Bench, file: Path
) -> None:
    restart = InstancePolicy(restart=Backoff(0.001, 0.001))
    await bench.serve("uses", env=uses(file), instances=restart)
    await bench.until_ready(1)
    await look(bench)
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "wrong password")]
    write(file, "two")
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert [(problem.reason, problem.server_id) for problem in report.problems] == [
        ("CHANGED_VALUE_FAILED", "uses")
    ]
    assert "wrong password" in report.problems[0].message
    assert secrets(bench) == ["one"]
    assert (await bench.caller().call("uses")).payload
    await until_looking(bench, lambda: secrets(bench) == ["two"])
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "CHANGED_VALUE_FAILED"


async def test_reverting_values_that_fail_clears_the_problem(bench: Bench, file: Path) -> None:
    await bench.serve("uses", env=uses(file))
    await bench.until_ready(1)
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


async def test_a_server_with_a_missing_file_starts_when_the_file_appears(
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


async def test_a_vault_that_cannot_be_read_is_a_problem_of_the_worker(tmp_path: Path) -> None:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key", "a key of sixteen or more")
    async with worker_bench(watch_timing=ON_DEMAND, vault=place) as bench:
        place.path.write_bytes(b"damaged")
        place.path.chmod(0o600)
        await look(bench)
        report = await bench.plane.expect_report(lambda report: report.problems)
        [problem] = report.problems
        assert (problem.reason, problem.server_id) == ("VAULT_UNREADABLE", "")
        assert problem.worker_id == "w1"
        assert str(place.path) in problem.message
        place.path.unlink()
        await look(bench)
        report = await bench.plane.expect_report(lambda report: report.cleared)
        assert report.cleared[0].reason == "VAULT_UNREADABLE"


class _Watched(WorkerVault):
    """Records the threads that read it."""

    def __init__(self) -> None:
        super().__init__(None)
        self.readers: set[threading.Thread] = set()

    def refresh(self) -> None:
        self.readers.add(threading.current_thread())
        super().refresh()


class _SlowVault(WorkerVault):
    """A vault that is read only after a test allows it, like one on a busy machine."""

    def __init__(self, place: VaultPlace) -> None:
        super().__init__(place)
        self.may_read = threading.Event()
        self.may_read.set()

    def refresh(self) -> None:
        self.may_read.wait(BOUND)
        super().refresh()


async def test_a_changed_vault_that_is_read_slowly_is_used_once_it_has_been_read(
    tmp_path: Path,
) -> None:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key", "a key of sixteen or more")
    set_secret(place, "password", "one")
    vault = _SlowVault(place)
    timing = WatchTiming(poll=3600.0, debounce=0.005, file_timeout=0.2)
    async with worker_bench(watch_timing=timing, known=vault) as bench:
        bench.servers.vault = vault
        await until_looking(bench, lambda: vault.get("password") == "one")
        await bench.serve("uses", env={"SECRET": Value("secret", "password")})
        await bench.until_ready(1)
        await look(bench)
        set_secret(place, "password", "two")
        vault.may_read.clear()
        await look(bench)
        assert secrets(bench) == ["one"]
        vault.may_read.set()
        await until_looking(bench, lambda: secrets(bench) == ["two"])


async def test_references_are_read_in_threads_that_do_not_delay_the_exit(
    file: Path,
) -> None:
    """Their disk may hang."""
    vault = _Watched()
    async with worker_bench(watch_timing=ON_DEMAND, known=vault) as bench:
        await bench.serve("uses", env=uses(file))
        await look(bench)
    assert {reader.daemon for reader in vault.readers} == {True}


async def test_a_hanging_file_holds_up_only_its_own_server(file: Path) -> None:
    """Opening a pipe without a writer hangs like a disk that does not respond."""
    hangs = file.with_name("hangs")
    hangs.write_text("one")
    timing = WatchTiming(poll=3600.0, debounce=0.005, file_timeout=0.2)
    async with worker_bench(watch_timing=timing) as bench:
        await bench.serve("stuck", env=uses(hangs))
        await bench.until_ready(1)
        await bench.serve("uses", env=uses(file))
        await bench.until_ready(2)
        await look(bench)
        hangs.unlink()
        os.mkfifo(hangs)
        for text in ("two", "three", "four"):
            write(file, text)
            await until_looking(bench, lambda text=text: text in secrets(bench))
        assert sorted(secrets(bench)) == ["four", "one"]
        report = await bench.plane.expect_report(lambda report: report.problems)
        [problem] = report.problems
        assert (problem.reason, problem.server_id) == ("MISSING_REFERENCE", "stuck")
        assert f"{hangs}, which was not read within 0.2 s" in problem.message
        release(hangs)
        write(hangs, "two")
        await until_looking(bench, lambda: "two" in secrets(bench))


async def test_an_unexpected_failure_does_not_end_the_watcher(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    """Otherwise changed secrets would be ignored until the worker restarts."""
    check, failures = ReferenceWatcher.check, [RuntimeError("What is this?")]

    async def fail_first(watch: ReferenceWatcher) -> None:
        if failures:
            raise failures.pop()
        await check(watch)

    monkeypatch.setattr(ReferenceWatcher, "check", fail_first)
    async with worker_bench(watch_timing=WatchTiming(poll=0.01, debounce=0.005)) as bench:
        await bench.serve("uses", env=uses(file))
        await bench.until_ready(1)
        write(file, "two")
        await bench.until(lambda: secrets(bench) == ["two"])
    assert not failures


async def miss(bench: Bench, file: Path, reason: str = "MISSING_REFERENCE") -> None:
    """Probe a server that fails, as its file is missing or wrong."""
    spec = bench.spec("uses", env=uses(file))
    probe = sync_pb2.Probe(
        id=1, key=key_to_proto(spec.key), spec=encode_spec(spec), launch_hash=spec.launch_hash
    )
    bench.plane.send(probe=probe)
    result = await bench.plane.expect("probe_result")
    assert result.problem.reason == reason


async def test_a_probe_that_failed_for_a_missing_file_is_cleared_once_the_file_appears(
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
    assert bench.worker.references._unstarted == {}


async def test_a_server_that_never_started_is_probed_once_its_file_changes(
    bench: Bench, file: Path
) -> None:
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "wrong password")]
    await miss(bench, file, "SERVER_NOT_READY")
    await look(bench)
    assert bench.worker.references._unstarted
    write(file, "two")
    await look(bench)
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert [(problem.reason, problem.server_id) for problem in report.cleared] == [
        ("CHANGED_VALUE_FAILED", "uses")
    ]
    assert bench.worker.references._unstarted == {}


async def test_a_file_that_appears_between_a_probe_and_the_next_check_is_noticed(
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
