"""Verifies what a sink holds: the order of its objects, and the chain of their lines."""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

from leaseway.data_plane.audit.anchors import Anchors
from leaseway.data_plane.audit.chain import RunCheck, RunReport
from leaseway.data_plane.audit.segments import Segment, gaps, is_sealed, runs_of
from leaseway.data_plane.audit.sinks.port import Sink
from leaseway.wire.audit_heads import AuditHead
from leaseway.wire.bounds import MIB

_MAX_JOINED: Final = 64 * MIB
"""Bytes of the pieces of one write, which is no longer."""


async def verify_sink(
    sink: Sink, address: str = "", anchors: Anchors | None = None
) -> dict[str, RunReport]:
    """Check all runs in a sink.

    Memory holds their names and one object at a time, or one write if the sink takes only pieces.

    Args:
        sink: The sink.
        address: Its address, as workers have it.
        anchors: What a control plane knew of the runs before; None if it was not asked.

    Raises:
        SinkError: The sink failed.
    """
    runs = runs_of([stored async for stored in sink.objects()])
    reports = {
        run: await _verify_run(sink, segments, anchors.head_of(run) if anchors else None)
        for run, segments in runs.items()
    }
    if anchors is not None:
        for run, report in reports.items():
            anchors.compare(run, report)
        reports |= anchors.missing_runs(address, reports)
    return dict(sorted(reports.items()))


async def _verify_run(sink: Sink, segments: list[Segment], head: AuditHead | None) -> RunReport:
    check = RunCheck(head)
    pieces: list[bytes] = []
    name = ""
    for segment, later in zip_longest(segments, segments[1:]):
        content = await sink.get(segment.name)
        name = f"{name.partition(' to ')[0]} to {segment.name}" if pieces else segment.name
        pieces.append(content)
        if _goes_on(segment, later, content) and sum(map(len, pieces)) < _MAX_JOINED:
            continue
        check.add_file(name, b"".join(pieces).splitlines(keepends=True))
        pieces.clear()
    report = check.finish()
    report.faults[:0] = gaps(segments)
    return report


def _goes_on(segment: Segment, later: Segment | None, content: bytes) -> bool:
    """Return whether the next object continues a write that this one has a piece of."""
    follows = later is not None and later.start == segment.after
    return follows and not is_sealed(content)
