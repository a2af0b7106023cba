"""Heads of the audit, which a worker tells the control plane."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.conftest import BOUND
from tests.data_plane.audit.shipped import Shipped

from leaseway.data_plane.audit.heads import RunHeads
from leaseway.data_plane.audit.planes import PlaneRecords
from leaseway.data_plane.sync.audit import AuditSync
from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.v1 import admin_pb2, sync_pb2
from leaseway.wire.audit_heads import Mark
from leaseway.wire.messages.audit_heads import head_from_proto
from leaseway.wire.timing.durations import duration

WELCOME = sync_pb2.Welcome(audit_interval=duration(60.0))


def made(folder: Path) -> tuple[Shipped, AuditSync, asyncio.Queue[sync_pb2.SyncRequest]]:
    shipped, outgoing = Shipped(folder), Outgoing("control-plane:1")
    heads = RunHeads(shipped.log, shipped.shipper, "s3://audit")
    return shipped, AuditSync(PlaneRecords(None), heads, outgoing), outgoing.open()


async def test_a_worker_tells_its_head_at_once_and_the_last_one_when_it_ends(
    tmp_path: Path,
) -> None:
    shipped, audit, queue = made(tmp_path)
    audit.handle_welcome(WELCOME)
    assert audit.tells_heads
    task = asyncio.create_task(audit.tell_heads())
    first = head_from_proto((await asyncio.wait_for(queue.get(), BOUND)).audit_head)
    assert first is not None
    assert (first.written, first.has_ended) == (shipped.log.mark, False)
    shipped.write(1)
    shipped.log.close()
    audit.tell()
    last = head_from_proto(queue.get_nowait().audit_head)
    task.cancel()
    assert last is not None
    assert (last.written.seq, last.shipped.seq, last.has_ended) == (3, 0, True)


async def test_a_new_control_plane_is_told_the_runs_that_were_shipped_for_others(
    tmp_path: Path,
) -> None:
    shipped, audit, queue = made(tmp_path)
    audit.handle_welcome(WELCOME)
    shipped.shipper.recovered.emit("w1.killed", Mark(7, "a" * 64))
    audit.handle_welcome(WELCOME)
    told = [queue.get_nowait().audit_head for _ in range(2)]
    assert [(head.run, head.written, head.has_ended) for head in told] == [
        ("w1.killed", 7, True)
    ] * 2
    assert queue.empty()


async def test_an_older_control_plane_is_told_nothing(tmp_path: Path) -> None:
    shipped, audit, queue = made(tmp_path)
    audit.handle_welcome(sync_pb2.Welcome())
    shipped.shipper.recovered.emit("w1.killed", Mark(7, "a" * 64))
    audit.tell()
    assert not audit.tells_heads
    assert queue.empty()


def test_a_head_that_names_no_run_or_record_is_malformed() -> None:
    good = admin_pb2.AuditHead(run="w1.a", written=2, written_hash="a" * 64)
    assert head_from_proto(good) is not None
    for changes in (
        {"run": "a/b"},
        {"run": "x" * 257},
        {"written_hash": "A" * 64},
        {"written_hash": ""},
        {"shipped": 3, "shipped_hash": "a" * 64},
        {"shipped_hash": "a" * 64},
        {"sink": "s" * 1_025},
    ):
        bad = admin_pb2.AuditHead()
        bad.CopyFrom(good)
        bad.MergeFrom(admin_pb2.AuditHead(**changes))
        if changes.get("written_hash") == "":
            bad.written_hash = ""
        assert head_from_proto(bad) is None, changes
