"""What watchers are told of when it changes: the version that callers see, and who serves it.

Each acknowledgement of each worker may change it, and each shared instance that starts or ends. It
is brought up to date for those workers that have moved, not looked for in the whole fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leaseway.control_plane.core.workers.records import (
    VisibleState,
    VisibleWorker,
    WorkerRecord,
)


class Visibility:
    """Keeps it. Its owner is the coordinator.

    Attributes:
        now: What is in force; another object only when it is something else.
    """

    def __init__(self) -> None:
        self.state = VisibleState()
        self._listed: dict[str, VisibleWorker] = {}

    def update(
        self, version: int, workers: Mapping[str, WorkerRecord], moved: Iterable[str]
    ) -> None:
        """Take the version that callers see, and which workers may stand otherwise than before."""
        listed = self.state.workers
        for worker_id in [*workers, *self._listed] if version != self.state.version else moved:
            was, is_now = self._listed.get(worker_id), _visible(version, workers.get(worker_id))
            if was == is_now:
                continue
            if was is not None:
                del self._listed[worker_id]
                listed = listed - {was}
            if is_now is not None:
                self._listed[worker_id] = is_now
                listed = listed | {is_now}
        if listed is not self.state.workers or version != self.state.version:
            self.state = VisibleState(version, listed)


def _visible(version: int, record: WorkerRecord | None) -> VisibleWorker | None:
    if record is None or not record.accepts_work or record.subscription.acked_version < version:
        return None
    return VisibleWorker(record.hello.address, record.shares)
