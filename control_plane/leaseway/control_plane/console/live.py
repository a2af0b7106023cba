"""Live updates of open console pages.

The state is read and serialized once for all pages, and only while a page is open. The stream of a
page that does not read its updates is closed; the page reconnects and starts again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from leaseway.control_plane.console import records
from leaseway.control_plane.console.records import ServerRows
from leaseway.control_plane.console.rows import Json
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane
from leaseway.wire.sharing.fair_shares import Holder, who_gives_way
from leaseway.wire.sharing.newest import Newest

MAX_PAGES: Final = 64
"""Limit of open pages."""

_STATE_INTERVAL: Final = 1.0
_MAX_CPU_SHARE: Final = 0.02
"""Share of a processor that reading the state may use; a large state is read less often."""
_CACHE_SECONDS: Final = 1.0
_MAX_CACHED: Final = 64
_TRAFFIC_INTERVAL: Final = 2.0
_HEARTBEAT: Final = 5.0
_MAX_QUEUED: Final = 64
_FIRST_EVENTS: Final = 100
_MAX_EVENTS: Final = 200

Queue = asyncio.Queue[bytes | None]


class TooManyPages(Exception):
    """The limit of open pages is reached."""


class ResponseCache:
    """Caches JSON responses for a second, as many pages send the same request at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cached: Newest[Hashable, tuple[float, asyncio.Task[str]]] = Newest(_MAX_CACHED)

    async def get(self, key: Hashable, build: Callable[[], Awaitable[object]]) -> str:
        """Return the JSON of a response; concurrent requests with the same key share one."""
        now = self._clock()
        until, response = self._cached.get(key, (now, None))
        if response is None or until <= now:
            for old in [page for page, (end, _) in self._cached.items() if end <= now]:
                del self._cached[old]
            response = asyncio.create_task(_serialize(build))
            self._cached[key] = now + _CACHE_SECONDS, response
        return await asyncio.shield(response)


async def _serialize(build: Callable[[], Awaitable[object]]) -> str:
    return json.dumps(await build())


class Live:
    """Sends updates to open pages.

    Attributes:
        state_reads: Number of times that the state was read.
    """

    def __init__(self, plane: Plane, inspector: Inspector, rows: ServerRows) -> None:
        self._plane = plane
        self._inspector = inspector
        self._rows = rows
        self._workers: list[Json] = []
        self._workers_revision = 0
        self._pages: dict[Queue, Holder] = {}  # the oldest first
        self._opened = asyncio.Event()
        self.state_reads = 0

    @contextmanager
    def page(self, holder: Holder) -> Iterator[Queue]:
        """Return the queue of updates of a new page; None in it closes the page.

        At the limit of open pages, whoever has more than the new page's holder loses the oldest.

        Args:
            holder: Who opens the page.

        Raises:
            TooManyPages: Nobody has more open pages.
        """
        if len(self._pages) >= MAX_PAGES:
            payer = who_gives_way(Counter(self._pages.values()), holder)
            if payer is None or not payer.at_once:
                raise TooManyPages
            oldest = next(page for page, by in self._pages.items() if by == payer.holder)
            self._close(oldest)
        queue: Queue = asyncio.Queue(_MAX_QUEUED)
        queue.put_nowait(self._state())
        newest = self._plane.events.history.select(last=_FIRST_EVENTS)
        queue.put_nowait(_message("events", [records.event(entry) for entry in newest]))
        self._pages[queue] = holder
        self._opened.set()
        try:
            yield queue
        finally:
            self._pages.pop(queue, None)

    async def run(self) -> None:
        """Send updates until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_state())
            tasks.create_task(self._follow_events())
            tasks.create_task(self._follow_traffic())
            tasks.create_task(self._beat())

    async def _wait_for_page(self) -> None:
        while not self._pages:
            self._opened.clear()
            await self._opened.wait()

    async def _follow_state(self) -> None:
        seen = -1
        while True:
            await self._wait_for_page()
            if self._plane.transitions == seen:
                await self._plane.wait_for_change(_STATE_INTERVAL * 5)
            seen = self._plane.transitions
            began = time.thread_time()
            message = self._state()
            took = time.thread_time() - began
            self._send(message)
            await asyncio.sleep(max(_STATE_INTERVAL, took / _MAX_CPU_SHARE))

    async def _follow_events(self) -> None:
        history = self._plane.events.history
        while True:
            await self._wait_for_page()
            seen = history.last
            await self._plane.events.changed(seen)
            await asyncio.sleep(_STATE_INTERVAL / 4)  # merges related events
            fresh = history.after(seen)[-_MAX_EVENTS:]
            self._send(_message("events", [records.event(entry) for entry in fresh]))

    async def _follow_traffic(self) -> None:
        while True:
            await self._wait_for_page()
            self._send(_message("traffic", records.traffic(await self._inspector.traffic())))
            await asyncio.sleep(_TRAFFIC_INTERVAL)

    async def _beat(self) -> None:
        """Tell pages that updates go on, although a slow worker may delay those of the traffic."""
        while True:
            await self._wait_for_page()
            await asyncio.sleep(_HEARTBEAT)
            self._send(_message("heartbeat", {}))

    def _state(self) -> bytes:
        plane = self._plane
        self.state_reads += 1
        overview = records.overview(plane, self._rows.all())
        workers = records.workers(plane, {})["items"]
        if workers != self._workers:
            self._workers = workers
            self._workers_revision += 1
        revisions: Json = {
            "servers": self._rows.revision,
            "tools": plane.state.visible.version,
            "leases": plane.transitions,
            "workers": self._workers_revision,
            "problems": plane.state.problems.revision,
        }
        return _message("state", {"overview": overview, "revisions": revisions})

    def _send(self, message: bytes) -> None:
        for queue in list(self._pages):
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._close(queue)

    def _close(self, queue: Queue) -> None:
        """Make a page close; it connects again if its reader is still there."""
        self._pages.pop(queue, None)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


def _message(kind: str, content: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n".encode()
