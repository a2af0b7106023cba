"""What happens while somebody looks: one task reads the state, every open page gets what changed.

Nothing is read while no page is open, and what is read is read and written down once for all pages.
A page that does not take what it is sent is closed; it opens its stream again and begins anew.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from leaseway.control_plane.console import records
from leaseway.control_plane.console.records import Json, ServerRows
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane

MAX_PAGES: Final = 64
"""Pages that are open at once."""

_STATE_EVERY: Final = 1.0
_SHARE: Final = 0.02
"""How much of a processor reading the state may take; a large state is read less often."""
_SHARED_FOR: Final = 1.0
_MOST_SHARED: Final = 64
_TRAFFIC_EVERY: Final = 2.0
_QUEUED: Final = 64
_FIRST_EVENTS: Final = 100
_EVENTS_AT_ONCE: Final = 200

Queue = asyncio.Queue[bytes | None]


class TooManyPages(Exception):
    """As many pages are open as may be."""


class Shared:
    """Answers that many pages ask for at once: each is found and written down once a second.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: dict[Hashable, tuple[float, asyncio.Task[str]]] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[object]]) -> str:
        """Return the JSON of an answer; of who asks the same meanwhile, only the first one asks."""
        now = self._clock()
        until, answer = self._answers.get(question, (now, None))
        if answer is None or until <= now:
            for old in [each for each, (end, _) in self._answers.items() if end <= now]:
                del self._answers[old]
            while len(self._answers) >= _MOST_SHARED:
                del self._answers[next(iter(self._answers))]
            answer = asyncio.create_task(_written(ask))
            self._answers[question] = now + _SHARED_FOR, answer
        return await asyncio.shield(answer)


async def _written(ask: Callable[[], Awaitable[object]]) -> str:
    return json.dumps(await ask())


class Live:
    """Tells open pages what has changed.

    Attributes:
        told: Counts what pages were told of the state.
    """

    def __init__(self, plane: Plane, inspector: Inspector, rows: ServerRows) -> None:
        self._plane = plane
        self._inspector = inspector
        self._rows = rows
        self._workers: list[Json] = []
        self._workers_revision = 0
        self._pages: set[Queue] = set()
        self._opened = asyncio.Event()
        self.state_reads = 0

    @contextmanager
    def page(self) -> Iterator[Queue]:
        """Give a new page its queue; None in it means that the page is closed.

        Raises:
            TooManyPages: There is no room.
        """
        if len(self._pages) >= MAX_PAGES:
            raise TooManyPages
        queue: Queue = asyncio.Queue(_QUEUED)
        queue.put_nowait(self._state())
        newest = self._plane.events.history.select(last=_FIRST_EVENTS)
        queue.put_nowait(_message("events", [records.event(each) for each in newest]))
        self._pages.add(queue)
        self._opened.set()
        try:
            yield queue
        finally:
            self._pages.discard(queue)

    async def run(self) -> None:
        """Tell pages what changes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_state())
            tasks.create_task(self._follow_events())
            tasks.create_task(self._follow_traffic())

    async def _somebody(self) -> None:
        while not self._pages:
            self._opened.clear()
            await self._opened.wait()

    async def _follow_state(self) -> None:
        seen = -1
        while True:
            await self._somebody()
            if self._plane.acts == seen:
                await self._plane.wait_for_change(_STATE_EVERY * 5)
            seen = self._plane.acts
            began = time.thread_time()
            text = self._state()
            took = time.thread_time() - began
            for queue in list(self._pages):
                self._put(queue, text)
            await asyncio.sleep(max(_STATE_EVERY, took / _SHARE))

    async def _follow_events(self) -> None:
        history = self._plane.events.history
        while True:
            await self._somebody()
            seen = history.last
            await self._plane.events.changed(seen)
            await asyncio.sleep(_STATE_EVERY / 4)  # what belongs together comes together
            fresh = history.after(seen)[-_EVENTS_AT_ONCE:]
            text = _message("events", [records.event(each) for each in fresh])
            for queue in list(self._pages):
                self._put(queue, text)

    async def _follow_traffic(self) -> None:
        while True:
            await self._somebody()
            text = _message("traffic", records.traffic(await self._inspector.traffic()))
            for queue in list(self._pages):
                self._put(queue, text)
            await asyncio.sleep(_TRAFFIC_EVERY)

    def _state(self) -> bytes:
        plane = self._plane
        self.state_reads += 1
        overview = records.overview(plane, self._rows.all())
        workers = records.workers(plane)["items"]
        if workers != self._workers:
            self._workers = workers
            self._workers_revision += 1
        revisions: Json = {
            "servers": self._rows.revision,
            "tools": plane.state.visible.version,
            "leases": plane.acts,
            "workers": self._workers_revision,
            "problems": plane.state.problems.revision,
        }
        return _message("state", {"overview": overview, "revisions": revisions})

    def _put(self, queue: Queue, text: bytes) -> None:
        try:
            queue.put_nowait(text)
        except asyncio.QueueFull:
            self._pages.discard(queue)
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)


def _message(kind: str, content: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n".encode()
