"""Verifies what a sink holds: the order of its objects, and the chain of their lines."""

from __future__ import annotations

from leaseway.data_plane.audit.anchors import Anchors
from leaseway.data_plane.audit.chain import RunCheck, RunReport
from leaseway.data_plane.audit.segments import Segment, gaps, runs_of
from leaseway.data_plane.audit.sinks.port import Sink
from leaseway.wire.audit_heads import AuditHead


async def verify_sink(
    sink: Sink, address: str = "", anchors: Anchors | None = None
) -> dict[str, RunReport]:
    """Check all runs in a sink; memory holds one object at a time, and their names.

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
    for segment in segments:
        content = await sink.get(segment.name)
        check.add_file(segment.name, content.splitlines(keepends=True))
    report = check.finish()
    report.faults[:0] = gaps(segments)
    return report
