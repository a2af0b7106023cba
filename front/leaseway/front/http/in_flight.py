"""The requests of one caller that are in flight, and how they are cut off at the front's end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

from leaseway.front.http.direct_calls import DirectCall
from leaseway.front.http.streams import Reply
from leaseway.front.messages import CUT_OFF, error_message

_RESPONSE_TIMEOUT: Final = 1.0
"""Seconds in which tasks that are cut off respond."""


class RequestsInFlight(set["asyncio.Task[Any] | DirectCall"]):
    """The requests in flight: their tasks, and calls that have none.

    Attributes:
        are_cut_off: Whether the front ends, so that a cancelled request needs a response: its
            client would wait for it, or repeat what has run.
    """

    are_cut_off = False

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the current task as a request while the block runs."""
        task = asyncio.current_task()
        assert task is not None
        self.add(task)
        try:
            yield
        finally:
            self.discard(task)

    async def finish(self, *tasks: asyncio.Task[None]) -> None:
        """Wait for requests that their client does not cancel when it disconnects."""
        try:
            await asyncio.shield(asyncio.gather(*tasks))
        except asyncio.CancelledError:
            if not self.are_cut_off:
                raise
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def cut_off_calls(self) -> None:
        """Cancel the calls without tasks; from now on, what is cancelled is cut off."""
        self.are_cut_off = True
        for request in tuple(self):
            if isinstance(request, DirectCall):
                request.cut_off()

    async def cut_off_tasks(self) -> None:
        """Cancel all tasks, and let them respond."""
        tasks = [request for request in self if isinstance(request, asyncio.Task)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_RESPONSE_TIMEOUT)

    def answer_cancelled(self, reply: Reply, request_id: bytes) -> bool:
        """Respond to a cancelled request if it is cut off; return whether it is."""
        if self.are_cut_off:
            reply.finish(error_message(request_id, CUT_OFF))
        return self.are_cut_off
