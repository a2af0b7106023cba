"""The audit in a sink: shipped in order and once, and every damage there is named."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.data_plane.audit.memory_sink import MemorySink
from tests.data_plane.audit.shipped import RUN, Shipped, eventually
from tests.data_plane.conftest import worker_bench

from leaseway.data_plane.audit import shipping
from leaseway.data_plane.audit.backlog import Policy
from leaseway.data_plane.audit.log import AuditUnavailable, runs_in
from leaseway.data_plane.audit.segments import sealed_part
from leaseway.data_plane.audit.sinks.addresses import check_address
from leaseway.data_plane.audit.verifying import verify_sink
from leaseway.spec.policy import ServerPolicy
from leaseway.wire.audit_heads import Mark
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status

READS = ServerPolicy(risks=(("*", "read_only"),))


@contextlib.asynccontextmanager
async def running(shipped: Shipped) -> AsyncIterator[None]:
    task = asyncio.create_task(shipped.shipper.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=10)


async def damaged_at(sink: MemorySink) -> list[str]:
    return (await verify_sink(sink))[RUN].faults


async def filled(folder: Path) -> MemorySink:
    """Return a sink with a run of three files, several objects each."""
    shipped = Shipped(folder, file_size=700)
    for number in range(12):
        shipped.write(number)
        await shipped.shipper.ship_all()
    shipped.log.close()
    await shipped.shipper.ship_all()
    assert not await damaged_at(shipped.sink)
    return shipped.sink


async def test_files_are_shipped_in_order_once_and_deleted_when_acknowledged(
    tmp_path: Path,
) -> None:
    shipped = Shipped(tmp_path, file_size=700)
    for number in range(20):
        shipped.write(number)
        if number % 3 == 0:
            await shipped.shipper.ship_all()
    shipped.log.close()
    await shipped.shipper.ship_all()
    assert shipped.numbers() == list(range(20))
    report = (await verify_sink(shipped.sink))[RUN]
    assert (report.faults, report.remarks) == ([], [])
    assert len(list(tmp_path.iterdir())) == 1
    assert shipped.backlog.size == 0


async def test_a_run_that_ends_in_order_leaves_no_file(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path)
    async with running(shipped):
        shipped.write(1)
        shipped.log.close()
        await shipped.shipper.finish()
    assert shipped.numbers() == [1]
    assert not list(tmp_path.iterdir())


async def test_a_lost_reply_of_the_sink_stores_no_record_twice(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path)
    shipped.sink.loses_replies = 1
    shipped.write(1)
    await shipped.shipper.ship_all()
    shipped.write(2)
    await shipped.shipper.ship_all()
    assert shipped.numbers() == [1, 2]


async def test_a_lost_reply_before_the_sink_takes_less_holds_up_nothing(tmp_path: Path) -> None:
    """As of a server of a cluster, after which another one with a smaller limit answers."""
    shipped = Shipped(tmp_path)

    def take_less(problem: str) -> None:
        shipped.sink.largest = 5_000

    shipped.sink.loses_replies = 1
    shipped.shipper.problem.connect(take_less)
    for number in range(3):
        shipped.write(number)
        shipped.log.write([b'"text":"%b"' % (b"x" * 30_000)])
    async with asyncio.timeout(BOUND):
        await shipped.shipper.ship_all()
    assert shipped.numbers() == [0, 1, 2]
    assert not await damaged_at(shipped.sink)


async def test_records_that_could_not_be_read_are_shipped_without_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, read = Shipped(tmp_path), shipping._read

    def fail_once(*_: object) -> bytes:
        monkeypatch.setattr(shipping, "_read", read)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(shipping, "_read", fail_once)
    shipped.write(1)
    with pytest.raises(OSError, match="too many"):
        await shipped.shipper.run()
    async with running(shipped):
        await eventually(shipped.numbers)


async def test_an_object_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    shipped, problems = Shipped(tmp_path), list[str]()
    shipped.shipper.problem.connect(problems.append)
    name = f"{RUN}/000001.000000000000"
    shipped.sink.stored[name] = b"other"
    async with running(shipped):
        await eventually(lambda: problems)
    assert "with other content" in problems[0]
    assert shipped.sink.stored == {name: b"other"}


async def test_after_an_outage_the_sink_gets_all_records_and_the_problem_ends(
    tmp_path: Path,
) -> None:
    shipped, problems = Shipped(tmp_path), list[str]()
    shipped.shipper.problem.connect(problems.append)
    shipped.sink.is_down = True
    async with running(shipped):
        for number in range(500):
            shipped.write(number)
        await eventually(lambda: shipped.sink.refused > 2)
        assert shipped.numbers() == []
        shipped.sink.is_down = False
        await eventually(lambda: len(shipped.numbers()) == 500)
        await eventually(lambda: len(problems) > 1)
    assert shipped.numbers() == list(range(500))
    assert problems == ["The sink is down.", ""]
    assert not await damaged_at(shipped.sink)


async def test_under_spill_calls_that_change_something_are_refused_when_the_files_are_full(
    tmp_path: Path,
) -> None:
    shipped = Shipped(tmp_path, space=2_000)
    while not shipped.backlog.is_full:
        shipped.write(0)
    with pytest.raises(AuditUnavailable, match="have reached their limit"):
        shipped.write(1)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 2_000 <= size < 2_400
    await shipped.shipper.ship_all()
    shipped.write(2)


async def test_under_drop_records_beyond_the_space_are_lost_and_counted(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path, Policy.DROP, space=2_000)
    for number in range(100):
        shipped.write(number)
    await shipped.shipper.ship_all()
    kept = len(shipped.numbers())
    shipped.write(100)
    await shipped.shipper.ship_all()
    lines = b"".join(content for _, content in sorted(shipped.sink.stored.items())).splitlines()
    [lost] = [line for line in map(json.loads, lines) if line["event"] == "lost"]
    assert lost["records"] == 100 - kept > 0
    assert not await damaged_at(shipped.sink)


async def test_a_worker_ships_what_a_killed_one_left_and_leaves_what_a_running_one_writes(
    tmp_path: Path,
) -> None:
    killed = Shipped(tmp_path, file_size=700)
    for number in range(9):
        killed.write(number)
        if number == 1:
            await killed.shipper.ship_all()
    last = max(tmp_path.iterdir())
    with last.open("ab") as file:
        file.write(b'{"seq":99,"ev')
    os.close(killed.log._descriptor)  # as the kernel does when the process is killed
    running_one = Shipped(tmp_path, run="def")
    heir = Shipped(tmp_path, run="ghi", sink=killed.sink)
    task = asyncio.create_task(heir.shipper.recover())
    await eventually(lambda: set(runs_in(tmp_path)) == {"w1.def", "w1.ghi"})
    task.cancel()
    report = (await verify_sink(killed.sink))[RUN]
    assert report.faults == []
    assert "middle of a line" in report.remarks[0]
    stored = b"".join(content for _, content in sorted(killed.sink.stored.items()))
    assert [stored.count(b'"n":%d,' % number) for number in range(9)] == [1] * 9
    assert running_one.log.path_of(1).exists()


async def test_a_run_that_cannot_be_shipped_keeps_its_file_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    sink = MemorySink()
    sink.stored[f"{RUN}/000001.000000000000"] = b"x" * 10_000
    for run in ("abc", "def"):
        killed = Shipped(tmp_path, run=run, sink=sink)
        killed.write(1)
        os.close(killed.log._descriptor)  # as the kernel does when the process is killed
    heir = Shipped(tmp_path, run="ghi", sink=sink)
    task = asyncio.create_task(heir.shipper.recover())
    await eventually(lambda: set(runs_in(tmp_path)) == {RUN, "w1.ghi"})
    task.cancel()
    assert any(name.startswith("w1.def/") for name in sink.stored)


async def test_what_a_sink_takes_only_in_pieces_holds_up_nothing_and_each_piece_is_verified(
    tmp_path: Path,
) -> None:
    shipped = Shipped(tmp_path)
    shipped.sink.largest = 5_000
    for number in range(3):
        shipped.write(number)
        shipped.log.write([b'"text":"%b"' % (b"x" * 30_000)])
    shipped.log.close()
    await shipped.shipper.ship_all()
    sink = shipped.sink
    assert max(map(len, sink.stored.values())) <= 5_000
    assert shipped.numbers() == [0, 1, 2]
    assert shipped.shipper.shipped_mark == shipped.log.mark
    assert not await damaged_at(sink)
    for name, content in list(sink.stored.items())[1:-1]:
        del sink.stored[name]
        assert any(name in fault for fault in await damaged_at(sink))
        sink.stored[name] = content[:-9] + b"y" + content[-8:]
        assert await damaged_at(sink)
        sink.stored[name] = content


async def test_the_last_record_of_a_killed_run_is_found_before_a_long_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_TAIL", 64)
    killed = Shipped(tmp_path)
    for number in range(40):
        killed.write(number)
    with killed.log.path_of(1).open("ab") as file:
        file.write(b'{"seq":99,"text":"' + b"x" * 3_000)
    os.close(killed.log._descriptor)  # as the kernel does when the process is killed
    heir, found = Shipped(tmp_path, run="def"), list[Mark]()
    heir.shipper.recovered.connect(lambda _run, mark: found.append(mark))
    task = asyncio.create_task(heir.shipper.recover())
    await eventually(lambda: found)
    task.cancel()
    assert found == [killed.log.mark]


async def test_verify_names_a_deleted_object(tmp_path: Path) -> None:
    sink = await filled(tmp_path)
    for name in sorted(sink.stored)[1:-1]:
        content = sink.stored.pop(name)
        assert any(fault.startswith(f"{name}:") for fault in await damaged_at(sink)) or any(
            "records before this one are missing" in fault for fault in await damaged_at(sink)
        )
        sink.stored[name] = content


async def test_verify_names_a_changed_object(tmp_path: Path) -> None:
    sink = await filled(tmp_path)
    for name, content in list(sink.stored.items()):
        if b'"n":1' in content:
            sink.stored[name] = content.replace(b'"n":1', b'"n":2')
            assert any(fault.startswith(f"{name}:") for fault in await damaged_at(sink))
            sink.stored[name] = content


async def test_verify_names_exchanged_objects(tmp_path: Path) -> None:
    sink = await filled(tmp_path)
    one, other = sorted(sink.stored)[3:5]
    sink.stored[one], sink.stored[other] = sink.stored[other], sink.stored[one]
    assert any(fault.startswith(f"{one}:") for fault in await damaged_at(sink))


async def test_under_block_a_call_is_sent_when_the_sink_has_its_record(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path, Policy.BLOCK)
    shipped.sink.is_down = True
    async with worker_bench(audit=shipped.log, shipper=shipped.shipper) as bench:
        await bench.serve("time", policy=READS)
        caller = bench.caller()
        call_id = await caller.begin("time")
        await eventually(lambda: shipped.sink.refused > 1)
        assert not any(instance.calls for instance in bench.servers.opened)
        shipped.sink.is_down = False
        await caller.result(call_id)
        lines = b"".join(shipped.sink.stored.values()).splitlines()
        assert [json.loads(line)["event"] for line in lines][:2] == ["opened", "begin"]
    shipped.log.close()


async def test_under_block_a_call_is_refused_if_the_sink_stays_silent(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path, Policy.BLOCK, hold_timeout=0.1)
    shipped.sink.is_down = True
    async with worker_bench(audit=shipped.log, shipper=shipped.shipper) as bench:
        await bench.serve("time")
        fault = await bench.caller().refused("time")
        assert (fault.reason, fault.started) == (Reason.OVERLOADED, "no")
        assert not any(instance.calls for instance in bench.servers.opened)
    shipped.log.close()


async def test_under_block_a_reply_waits_until_the_sink_has_the_end_of_its_call(
    tmp_path: Path,
) -> None:
    shipped = Shipped(tmp_path, Policy.BLOCK)
    async with worker_bench(audit=shipped.log, shipper=shipped.shipper) as bench:
        await bench.hold("time", policy=READS)
        caller = bench.caller()
        call_ids = [await caller.begin("time") for _ in range(5)]
        calls = await bench.wait_for_calls(5)
        shipped.sink.is_down = True
        for call in calls:
            call.answer(b"{}")
        await eventually(lambda: shipped.sink.refused > 1)
        assert bench.worker.executor.in_flight == 5
        assert not any(caller.results[call_id].done() for call_id in call_ids)
        before = len(shipped.sink.stored)
        shipped.sink.is_down = False
        for call_id in call_ids:
            await caller.result(call_id)
        assert len(shipped.sink.stored) == before + 1
        lines = b"".join(shipped.sink.stored.values()).splitlines()
        outcomes = [json.loads(line).get("outcome") for line in lines]
        assert outcomes.count("ok") == 5
        assert bench.worker.executor.in_flight == 0
    shipped.log.close()


async def test_under_block_a_result_is_withheld_if_the_sink_stays_silent(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path, Policy.BLOCK, hold_timeout=0.1)
    async with worker_bench(audit=shipped.log, shipper=shipped.shipper) as bench:
        await bench.hold("time")
        caller = bench.caller()
        call_id = await caller.begin("time")
        [call] = await bench.wait_for_calls()
        shipped.sink.is_down = True
        call.answer(b"{}")
        fault = fault_from_status((await caller.result(call_id)).status)
        assert fault is not None
        assert (fault.reason, fault.started) == (Reason.OVERLOADED, "yes")
        assert "its result is withheld" in fault.message
    shipped.log.close()


async def test_records_of_a_deleted_file_are_never_taken_as_acknowledged(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path, Policy.BLOCK, check_interval=0)
    shipped.write(1)
    waiting = asyncio.create_task(shipped.shipper.acknowledged())
    await asyncio.sleep(0)
    shipped.log.path_of(1).unlink()
    async with running(shipped):
        shipped.write(2)
        with pytest.raises(AuditUnavailable, match="was deleted before it was shipped"):
            await asyncio.wait_for(waiting, BOUND)
        await shipped.shipper.acknowledged()
    assert shipped.numbers() == [2]
    assert shipped.backlog.size == 0


def test_a_part_ends_with_a_whole_write() -> None:
    sealed = b'{"n":1}\n{"n":2,"hash":"%b"}\n' % (b"a" * 64)
    assert sealed_part(sealed * 3, len(sealed) * 2 + 5) == sealed * 2
    assert sealed_part(sealed * 2, 10) == sealed
    assert sealed_part(sealed + b'{"n":3}\n{"n"', 10_000) == sealed
    assert sealed_part(b'{"n":3}\n{"n"', 10_000) == b'{"n":3}\n{"n"'


@pytest.mark.parametrize(
    "address",
    [
        "s3://",
        "http://bucket/x",
        "s3://key:secret@bucket/x",
        "s3://bucket?secret=x",
        "bucket",
        "nats://user:secret@host/A/b",
        "nats://host:4222",
        "nats://host/STREAM",
        "nats://host/STREAM/a.>",
    ],
)
def test_an_address_with_a_credential_or_without_a_bucket_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="sink"):
        check_address(address)
