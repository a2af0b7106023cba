"""How far the audit of a worker's run is: what workers tell, and control planes keep. Pure.

The records of a run are numbered and chained by hashes, so one number and its hash hold all records
before it (design.md#anchors-of-the-audit).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class Mark(NamedTuple):
    """A record after which a run's chain has a hash.

    Attributes:
        seq: The number of the record; 0 before the first one.
        hash: The hash, 64 hexadecimal digits; empty before the first one.
    """

    seq: int
    hash: str


NOTHING: Final = Mark(0, "")
"""The mark of a run without records."""


@dataclass(frozen=True, slots=True)
class AuditHead:
    """How far one run of a worker is.

    Attributes:
        run: The run, with which the names of its files and objects begin.
        sink: The address of the sink that it is shipped to; empty without one.
        written: Its last record.
        shipped: Its last record that the sink has acknowledged.
        has_ended: Whether `written` is the last record that the run will ever have.
    """

    run: str
    sink: str
    written: Mark
    shipped: Mark = NOTHING
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class AuditAnchor:
    """What a control plane knows of a run.

    Attributes:
        head: The newest head that a worker has told.
        worker_id: The worker that told it.
        told_at: When, in Unix seconds by the control plane's clock.
        lost_at: Since when its worker has had no stream; None if it has one, or the run has ended.
        is_contradicted: Whether a worker has also told another hash of the same record.
    """

    head: AuditHead
    worker_id: str
    told_at: float
    lost_at: float | None = None
    is_contradicted: bool = False
