"""The workers of resolved names, sent once for all names that have the same ones.

See design.md#names-and-versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.control_plane.services import messages
from leaseway.v1 import catalog_pb2
from leaseway.wire.sharing.newest import Newest

_KEPT: Final = 64


class WorkerSets:
    """The messages of sets of workers; those for the same workers are built once."""

    def __init__(self) -> None:
        # By the identity of the workers, which the entry keeps alive.
        self._known: Newest[int, tuple[Sequence[WorkerRecord], catalog_pb2.WorkerSet]] = Newest(
            _KEPT
        )

    def of(self, workers: Sequence[WorkerRecord]) -> catalog_pb2.WorkerSet:
        """Return the set of some workers; do not modify it."""
        known = self._known.get(id(workers))
        if known is None:
            known = self._known[id(workers)] = (workers, _build(workers))
        return known[1]


def _build(workers: Iterable[WorkerRecord]) -> catalog_pb2.WorkerSet:
    built = catalog_pb2.WorkerSet(workers=map(messages.worker_ref, workers))
    content = built.SerializeToString(deterministic=True)
    # Never 0, which means none.
    built.id = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") | 1
    return built
