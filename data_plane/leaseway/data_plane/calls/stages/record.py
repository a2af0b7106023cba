"""The stage in which the audit records calls that may change something, before they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import copy_context

from leaseway.data_plane.audit.record import Recorder
from leaseway.data_plane.background import Background
from leaseway.data_plane.calls.call import ActiveCall


class RecordStage:
    """Records all calls that arrive together in one write.

    Args:
        recorder: Writes the audit.
        resume: Lets calls that have waited here go on.
        background: Runs the wait for a sink that must acknowledge the records.
    """

    def __init__(
        self,
        recorder: Recorder,
        resume: Callable[[Iterable[ActiveCall]], None],
        background: Background,
    ) -> None:
        self._recorder = recorder
        self._resume = resume
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of no caller: one write serves all of them
        self._waiting: list[ActiveCall] = []

    def enter(self, active: ActiveCall) -> bool:
        """Keep a call until it is recorded."""
        audit = active.audit
        if audit is None or audit.written:
            return True
        if not self._waiting:
            self._loop.call_soon(self._record, context=self._context)
        self._waiting.append(active)
        return False

    def _record(self) -> None:
        waiting, self._waiting = self._waiting, []
        waiting = [active for active in waiting if not active.has_ended]
        if not waiting:
            return
        try:
            self._recorder.start(waiting)
        except Exception as error:  # noqa: BLE001 - the calls that wait for it get it
            for active in waiting:
                active.fail_with(error)
            return
        if self._recorder.holds_calls:
            self._background.spawn(self._resume_acknowledged(waiting), "wait for the audit's sink")
            return
        self._resume(waiting)

    async def _resume_acknowledged(self, waiting: list[ActiveCall]) -> None:
        """Resume calls when the sink has their records; calls that ended meanwhile ignore it."""
        try:
            await self._recorder.acknowledged()
        except Exception as error:  # noqa: BLE001 - the calls that wait for it get it
            for active in waiting:
                if not active.has_ended:
                    active.fail_with(error)
            return
        for active in waiting:
            active.holds_reply = True  # from now on the sink has answered it once
        self._resume(waiting)
