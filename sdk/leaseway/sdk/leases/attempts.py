"""What follows each failed try of one `acquire`: another worker, the same again, or the error.

Pure: `manager` sends the requests and waits. `retry_policy.decide` holds the rule that calls share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from leaseway.sdk.retry_policy import UNREADY, FailedTry, decide, more_informative
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import RECONNECT

_MAX_RECONNECTS: Final = 4
"""Times that a request is sent again to a worker whose connection broke."""


class NextTry(NamedTuple):
    """The next try of an acquisition.

    Attributes:
        worker: The worker that is asked; None means that the control plane names it.
        delay: Seconds to wait first.
    """

    worker: WorkerRun | None
    delay: float


class AcquireAttempts:
    """The tries of one `acquire`.

    A worker that rejects the placement is excluded. If no other worker is left, it is tried again,
    at most once a second, because the control plane spaces placements that far apart.

    A worker that was slow or unreachable, but did not report that it is full, is tried again if no
    other has capacity. A worker whose connection broke may have granted the lease: it is tried
    again first, because it would return the same lease and another one a duplicate.

    Args:
        wait_until: Until when the caller waits for capacity.
        deadline: When the last try ends.

    Attributes:
        avoid: The excluded workers.
    """

    def __init__(self, wait_until: float, deadline: float) -> None:
        self.wait_until = wait_until
        self.deadline = deadline
        self.avoid: set[WorkerRun] = set()
        self._slow: set[WorkerRun] = set()  # the avoided workers that did not report being full
        self._known: Fault | None = None
        self._tries = 0
        self._reconnects = 0  # tries of this worker since its connection broke

    def fail(self, worker: WorkerRun | None, fault: Fault, now: float) -> NextTry:
        """Return what follows a failed try.

        Args:
            worker: The worker that was asked; None if the control plane named none.
            fault: How the try failed.
            now: The current time.

        Raises:
            Fault: There is no next try. The most informative fault of all tries is raised.
        """
        self._tries += 1
        if fault.reason is Reason.CAPACITY and now < self.wait_until:
            self._tries = 1  # these tries are limited by time
        if worker is not None and should_reconnect(fault, self._reconnects):
            self._reconnects += 1
            return NextTry(worker, RECONNECT.delay(self._reconnects - 1))
        failed_try = FailedTry(
            tries=self._tries,
            remaining=self.deadline - now,
            placing=True,
            elsewhere=worker is not None,
            slow=bool(self._slow),
        )
        retry = decide(replace(fault, started="no") if self._reconnects else fault, failed_try)
        self._known = more_informative(self._known, fault)
        if retry is None:
            raise self._known from None
        if worker is not None and retry.avoid_worker:
            self.avoid.add(worker)
            if fault.reason in UNREADY:
                self._slow.add(worker)
        if retry.return_to_slow:
            self.avoid -= self._slow
            self._slow.clear()
        self._reconnects = 0
        return NextTry(None, retry.delay)


def should_reconnect(fault: Fault, reconnects: int) -> bool:
    """Return whether to send a request again to a worker whose connection broke.

    Args:
        fault: How the last try failed.
        reconnects: How often the request has been sent again.
    """
    if fault.reason is not Reason.WORKER_LOST or reconnects >= _MAX_RECONNECTS:
        return False
    return reconnects > 0 or fault.started != "no"
