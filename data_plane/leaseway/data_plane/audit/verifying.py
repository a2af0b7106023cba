"""Verifies what a sink holds: the order of its objects, and the chain of their lines."""

from __future__ import annotations

from leaseway.data_plane.audit.chain import RunCheck, RunReport
from leaseway.data_plane.audit.segments import Segment, gaps, runs_of
from leaseway.data_plane.audit.sinks.port import Sink


async def verify_sink(sink: Sink) -> dict[str, RunReport]:
    """Check all runs in a sink; memory holds one object at a time, and their names.

    Raises:
        SinkError: The sink failed.
    """
    runs = runs_of([each async for each in sink.objects()])
    return {run: await _verify_run(sink, segments) for run, segments in runs.items()}


async def _verify_run(sink: Sink, segments: list[Segment]) -> RunReport:
    check = RunCheck()
    for segment in segments:
        content = await sink.get(segment.name)
        check.add_file(segment.name, content.splitlines(keepends=True))
    report = check.finish()
    report.faults[:0] = gaps(segments)
    return report
