"""Compares what a sink or a folder holds with the anchors of a control plane. Pure.

A chain of hashes shows that nothing was changed inside it. That its end, or all of it, was cut off
shows only to somebody who knows how long it was: the control plane, whom workers tell it each
minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from leaseway.data_plane.audit.chain import RunReport
from leaseway.wire.audit_heads import AuditAnchor, AuditHead

LOST_AFTER: Final = 120.0
"""Seconds without a stream after which a worker has vanished: it may be between two streams."""


@dataclass(frozen=True, slots=True)
class Anchors:
    """What a control plane knows of runs.

    Attributes:
        at: When it was asked, in Unix seconds.
        by_run: The anchors.
    """

    at: float
    by_run: Mapping[str, AuditAnchor] = field(default_factory=dict)

    @classmethod
    def of(cls, anchors: Iterable[AuditAnchor], at: float) -> Anchors:
        return cls(at, {anchor.head.run: anchor for anchor in anchors})

    def head_of(self, run: str) -> AuditHead | None:
        """Return how far a run was, or None if that is not known."""
        anchor = self.by_run.get(run)
        return anchor.head if anchor is not None else None

    def compare(self, run: str, report: RunReport) -> None:
        """Add to the report of a run what its anchor says about its end."""
        anchor = self.by_run.get(run)
        if anchor is None:
            report.remarks.append(
                "The control plane has no anchor of this run: its worker is older, or the control "
                "plane has started since it ended. So records may be missing at its end."
            )
            return
        is_lost = anchor.lost_at is not None and self.at - anchor.lost_at > LOST_AFTER
        report.faults += _faults(anchor, report.last, is_lost=is_lost)
        report.remarks += _remarks(anchor, report.last, is_lost=is_lost)
        waiting = anchor.head.written.seq - report.last
        if waiting > 0 and not report.faults:
            report.remarks.append(f"{waiting} records wait to be shipped.")

    def missing_runs(self, sink: str, found: Iterable[str]) -> dict[str, RunReport]:
        """Return a report for each run of a sink that is not there at all."""
        known = set(found)
        missing = {
            run: RunReport()
            for run, anchor in self.by_run.items()
            if run not in known and anchor.head.sink == sink
        }
        for run, report in missing.items():
            self.compare(run, report)
        return missing


def _faults(anchor: AuditAnchor, last: int, *, is_lost: bool) -> list[str]:
    """Return what is wrong with a run whose last record has this number."""
    head, worker = anchor.head, anchor.worker_id
    told = _time(anchor.told_at)
    found: list[str] = []
    if anchor.is_contradicted:
        found.append(
            "Workers have told the control plane different hashes of one record: the run was "
            "rewritten, or another one has its name."
        )
    if last < head.shipped.seq:
        found.append(
            f"The records from {last + 1} to {head.shipped.seq} are missing: the sink had "
            f"acknowledged them, as worker {worker} said at {told}."
        )
    elif last < head.written.seq and (head.has_ended or is_lost or not head.sink):
        found.append(
            f"The records from {last + 1} to {head.written.seq} are missing: they were written, as "
            f"worker {worker} said at {told}, and are not here."
        )
    if head.has_ended and last > head.written.seq:
        found.append(
            f"The run ended with record {head.written.seq}, as worker {worker} said at {told}; "
            "somebody else has added the records after it."
        )
    if head.sink and is_lost and not head.has_ended:
        found.append(
            f"{_vanished(anchor)}: what it has recorded since then is not known. Start a worker "
            "with its audit folder, which ships the rest; if the folder is lost, so is that."
        )
    return found


def _remarks(anchor: AuditAnchor, last: int, *, is_lost: bool) -> list[str]:
    """Return what nobody knows of a run without a sink: the files are all that there ever was."""
    head = anchor.head
    if head.sink or head.has_ended or not is_lost or last < head.written.seq:
        return []
    more = last - head.written.seq
    note = (
        f"{_vanished(anchor)}. Its files have all that it told, and {more} records after that. If "
        "more were removed at the end, that does not show."
    )
    return [note]


def _vanished(anchor: AuditAnchor) -> str:
    assert anchor.lost_at is not None
    return (
        f"Worker {anchor.worker_id} has vanished at {_time(anchor.lost_at)}, after record "
        f"{anchor.head.written.seq} at {_time(anchor.told_at)}"
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
