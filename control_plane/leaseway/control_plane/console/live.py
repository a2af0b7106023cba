"""What happens while somebody looks: one task reads the state, every open page gets what changed.

Nothing is read while no page is open. A page that does not take what it is sent is closed; it opens
its stream again and begins anew.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from leaseway.control_plane.console import records
from leaseway.control_plane.console.records import Json
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane

MAX_PAGES: Final = 64
"""Pages that are open at once."""

_STATE_EVERY: Final = 1.0
_TRAFFIC_EVERY: Final = 2.0
_QUEUED: Final = 64
_FIRST_EVENTS: Final = 100
_EVENTS_AT_ONCE: Final = 200

Queue = asyncio.Queue[bytes | None]


class TooManyPages(Exception):
    """As many pages are open as may be."""


class Live:
    """Tells open pages what has changed."""

    def __init__(self, plane: Plane, inspector: Inspector) -> None:
        self._plane = plane
        self._inspector = inspector
        self._pages: dict[Queue, bool] = {}
        self._opened = asyncio.Event()

    @contextmanager
    def page(self, *, operator: bool) -> Iterator[Queue]:
        """Give a new page its queue; None in it means that the page is closed.

        Raises:
            TooManyPages: There is no room.
        """
        if len(self._pages) >= MAX_PAGES:
            raise TooManyPages
        queue: Queue = asyncio.Queue(_QUEUED)
        queue.put_nowait(self._state(operator=operator))
        newest = self._plane.events.history.select(last=_FIRST_EVENTS)
        queue.put_nowait(_message("events", [records.event(each) for each in newest]))
        self._pages[queue] = operator
        self._opened.set()
        try:
            yield queue
        finally:
            self._pages.pop(queue, None)

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
                await self._plane.changed(_STATE_EVERY * 5)
            seen = self._plane.acts
            texts = {who: self._state(operator=who) for who in set(self._pages.values())}
            for queue, operator in list(self._pages.items()):
                self._put(queue, texts[operator])
            await asyncio.sleep(_STATE_EVERY)

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

    def _state(self, *, operator: bool) -> bytes:
        plane = self._plane
        revisions: Json = {
            "servers": plane.acts,
            "tools": plane.state.visible.version,
            "leases": plane.acts,
            "workers": plane.acts,
            "problems": plane.state.problems.revision,
        }
        overview = records.overview(plane, operator=operator)
        return _message("state", {"overview": overview, "revisions": revisions})

    def _put(self, queue: Queue, text: bytes) -> None:
        try:
            queue.put_nowait(text)
        except asyncio.QueueFull:
            self._pages.pop(queue, None)
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)


def _message(kind: str, content: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n".encode()
