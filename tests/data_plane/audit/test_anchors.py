"""What is missing at the end of a run shows in comparison with its anchor."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data_plane.audit.memory_sink import MemorySink
from tests.data_plane.audit.shipped import RUN, Shipped, eventually

from leaseway.data_plane.audit.anchors import LOST_AFTER, Anchors
from leaseway.data_plane.audit.chain import RunReport
from leaseway.data_plane.audit.heads import RunHeads
from leaseway.data_plane.audit.log import AuditUnavailable
from leaseway.data_plane.audit.verifying import verify_sink
from leaseway.wire.audit_heads import AuditAnchor, AuditHead, Mark

NOW = 1_800_000_000.0
SINK = "s3://audit/fleet"


async def shipped_run(folder: Path, *, ends: bool = False) -> tuple[MemorySink, AuditHead]:
    """Return a sink with a run of several objects, and the head that its worker tells."""
    shipped = Shipped(folder, file_size=700)
    heads = RunHeads(shipped.log, shipped.shipper, SINK)
    for number in range(12):
        shipped.write(number)
        await shipped.shipper.ship_all()
    if ends:
        shipped.log.close()
        await shipped.shipper.ship_all()
    return shipped.sink, heads.current()


async def verified(
    sink: MemorySink, head: AuditHead, *, lost_for: float | None = None
) -> RunReport:
    lost_at = NOW - lost_for if lost_for is not None else None
    anchors = Anchors.of([AuditAnchor(head, "w1", NOW, lost_at)], NOW)
    return (await verify_sink(sink, SINK, anchors))[RUN]


@pytest.mark.parametrize("ends", [False, True], ids=["running", "ended"])
async def test_an_undamaged_run_agrees_with_its_anchor(tmp_path: Path, ends: bool) -> None:
    sink, head = await shipped_run(tmp_path, ends=ends)
    assert head.written == head.shipped
    assert head.has_ended is ends
    assert (await verified(sink, head)).faults == []


@pytest.mark.parametrize("ends", [False, True], ids=["running", "ended"])
async def test_a_deleted_last_object_is_a_fault(tmp_path: Path, ends: bool) -> None:
    sink, head = await shipped_run(tmp_path, ends=ends)
    del sink.stored[max(sink.stored)]
    assert (await verify_sink(sink))[RUN].faults == []
    [fault] = (await verified(sink, head)).faults
    assert f"to {head.shipped.seq} are missing: the sink had acknowledged them" in fault


async def test_a_run_that_is_not_there_at_all_is_a_fault(tmp_path: Path) -> None:
    sink, head = await shipped_run(tmp_path)
    sink.stored.clear()
    [fault] = (await verified(sink, head)).faults
    assert fault.startswith(f"The records from 1 to {head.shipped.seq} are missing")
    other = replace(head, sink="s3://elsewhere")
    anchors = Anchors.of([AuditAnchor(other, "w1", NOW)], NOW)
    assert await verify_sink(sink, SINK, anchors) == {}


async def test_a_run_that_was_written_anew_with_a_valid_chain_is_a_fault(tmp_path: Path) -> None:
    _, head = await shipped_run(tmp_path / "real")
    forged = Shipped(tmp_path / "forged", file_size=700)
    for _ in range(12):
        forged.write(0)
        await forged.shipper.ship_all()
    assert (await verify_sink(forged.sink))[RUN].faults == []
    faults = (await verified(forged.sink, head)).faults
    assert any("not the record that the worker has told" in fault for fault in faults)


async def test_records_that_were_written_and_never_shipped_are_a_fault_when_nobody_will(
    tmp_path: Path,
) -> None:
    sink, head = await shipped_run(tmp_path)
    ahead = replace(head, written=head.written._replace(seq=head.written.seq + 3))
    connected = await verified(sink, ahead)
    assert (connected.faults, connected.remarks[-1]) == ([], "3 records wait to be shipped.")
    assert (await verified(sink, ahead, lost_for=LOST_AFTER / 2)).faults == []
    missing, vanished = (await verified(sink, ahead, lost_for=LOST_AFTER + 1)).faults
    assert "they were written, as worker w1 said" in missing
    assert "Worker w1 has vanished" in vanished


async def test_a_vanished_worker_is_a_fault_until_another_has_shipped_its_folder(
    tmp_path: Path,
) -> None:
    killed = Shipped(tmp_path)
    before = RunHeads(killed.log, killed.shipper, SINK)
    killed.write(1)
    await killed.shipper.ship_all()
    head = before.current()
    killed.write(2)
    os.close(killed.log._descriptor)  # as the kernel does when the process is killed
    [fault] = (await verified(killed.sink, head, lost_for=LOST_AFTER + 1)).faults
    assert "Start a worker with its audit folder" in fault
    heir = Shipped(tmp_path, run="ghi", sink=killed.sink)
    heads = RunHeads(heir.log, heir.shipper, SINK)
    task = asyncio.create_task(heir.shipper.recover())
    await eventually(lambda: heads.earlier)
    task.cancel()
    [told] = heads.earlier
    assert (told.run, told.has_ended) == (RUN, True)
    assert told.written.seq == head.written.seq + 1
    assert (await verified(killed.sink, told)).faults == []
    killed.sink.stored[f"{RUN}/000002.000000000000"] = killed.sink.stored[
        f"{RUN}/000001.000000000000"
    ]
    assert (await verified(killed.sink, told)).faults


def test_a_killed_worker_without_a_sink_leaves_a_note_as_its_files_are_all_that_there_is() -> None:
    head = AuditHead(RUN, sink="", written=Mark(48, "a"))

    def compared(last: int) -> RunReport:
        report = RunReport(last=last)
        Anchors.of([AuditAnchor(head, "w1", NOW, NOW - LOST_AFTER - 1)], NOW).compare(RUN, report)
        return report

    whole = compared(63)
    [note] = whole.remarks
    assert whole.faults == []
    assert "Worker w1 has vanished" in note
    assert "15 records after that" in note
    cut = compared(40)
    [fault] = cut.faults
    assert fault.startswith("The records from 41 to 48 are missing")


async def test_a_run_without_an_anchor_says_so(tmp_path: Path) -> None:
    sink, _ = await shipped_run(tmp_path)
    report = (await verify_sink(sink, SINK, Anchors(NOW)))[RUN]
    assert report.faults == []
    assert "has no anchor of this run" in report.remarks[-1]


async def test_a_closed_audit_takes_no_more_records(tmp_path: Path) -> None:
    shipped = Shipped(tmp_path)
    shipped.log.close()
    size = shipped.log.path_of(1).stat().st_size
    shipped.log.add(b'"event":"call"')
    with pytest.raises(AuditUnavailable, match="has ended"):
        shipped.write(1)
    assert shipped.log.path_of(1).stat().st_size == size
