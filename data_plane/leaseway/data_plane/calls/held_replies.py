"""Replies that wait until the audit's sink has the records of their calls' ends.

Only under the policy `block`: then each call whose reply a caller has seen is in the sink, with its
outcome, whatever happens to the worker and its disk afterwards. Replies that come together share
one write, and all that come while the sink stores an object share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context

from leaseway.data_plane.audit.record import Recorder
from leaseway.data_plane.background import Background
from leaseway.wire.errors import Fault, Reason

Deliver = Callable[[], object]
Withhold = Callable[[Fault], object]


class HeldReplies:
    """Keeps replies in the order of their calls' ends; there are as many as calls in flight.

    Args:
        recorder: Writes the audit.
        background: Runs the waits for the sink.
        on_delivered: Called when replies were delivered.
    """

    def __init__(
        self, recorder: Recorder, background: Background, on_delivered: Callable[[], object]
    ) -> None:
        self._recorder = recorder
        self._background = background
        self._on_delivered = on_delivered
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of no caller: one write serves all of them
        self._waiting: list[tuple[Deliver, Withhold]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, deliver: Deliver, withhold: Withhold) -> None:
        """Keep the reply of a call whose end is recorded.

        Args:
            deliver: Sends it.
            withhold: Sends a fault instead, if the sink does not acknowledge the record.
        """
        if not self._waiting:
            self._loop.call_soon(self._flush, context=self._context)
        self._waiting.append((deliver, withhold))
        self._count += 1

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._background.spawn(self._deliver(waiting), "wait for the audit's sink")

    async def _deliver(self, waiting: list[tuple[Deliver, Withhold]]) -> None:
        fault = None
        try:
            self._recorder.flush()
            await self._recorder.acknowledged()
        except Fault as error:
            fault = Fault(
                Reason.OVERLOADED,
                f"The call has ended, and its result is withheld: {error.message}",
                "yes",
            )
        finally:
            self._count -= len(waiting)
        for deliver, withhold in waiting:
            if fault is None:
                deliver()
            else:
                withhold(fault)
        self._on_delivered()
