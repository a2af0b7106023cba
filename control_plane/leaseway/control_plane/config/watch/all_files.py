"""The watch over all files of a configuration: what was found of each, after every change.

All files, folders and resources have one quiet period, after which all of them are read at once: a
change that spans several is seen whole. File events make it fast, polling makes it sure; content
decides. It reads and compares, and never parses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from leaseway.control_plane.config.kubernetes.resources import (
    KINDS,
    CustomResource,
    first_by_name,
    resource_text,
)
from leaseway.control_plane.config.layers.sources import Source, resource_source
from leaseway.control_plane.config.loading import FileContent
from leaseway.control_plane.config.tree.read_file import Unreadable
from leaseway.control_plane.config.watch.debounce import Debounce
from leaseway.control_plane.config.watch.file_events import FileEvents
from leaseway.control_plane.config.watch.reading import Reading, read_sources, signatures

Clock = Callable[[], float]

_logger = logging.getLogger(__name__)


async def watch_sources(
    sources: Sequence[Source],
    *,
    quiet: float = 0.1,
    longest: float | None = None,
    gone_after: float = 2.0,
    poll: float = 1.0,
    clock: Clock = time.monotonic,
) -> AsyncGenerator[dict[Source, FileContent], None]:
    """Yield what was found of each file, in the order of the layers, at once and when it changes.

    Close the iterator (`contextlib.aclosing`) to stop watching. While the caller is busy with one
    change, later ones become one.

    Args:
        sources: The files, folders and namespaces. No file or directory need exist.
        quiet: Seconds without an event of any of them after which a burst of events is over.
        longest: Seconds after the first event at which it is over in any case: 0.5 for one file,
            2 for several, which take longer to write.
        gone_after: Seconds that a file must be absent to count as deleted. One that is absent from
            the start counts at once.
        poll: Seconds between looks that need no event.
        clock: Monotonic time.
    """
    alone = len(sources) == 1 and not sources[0].folder
    burst = Debounce(quiet, (0.5 if alone else 2.0) if longest is None else longest)
    watch = _SourcesWatch(sources, burst, gone_after, poll, clock)
    try:
        yield await watch.first()
        while True:
            yield await watch.changed()
    finally:
        await watch.close()


class _SourcesWatch:
    def __init__(
        self,
        sources: Sequence[Source],
        idle: Debounce,
        gone_after: float,
        poll: float,
        clock: Clock,
    ) -> None:
        self._sources = tuple(sources)
        self._paths = tuple(source for source in sources if not source.namespace)
        self._idle = idle
        self._gone_after = gone_after
        self._poll = poll
        self._clock = clock
        self._stirred = asyncio.Event()
        self._events = [
            FileEvents(directory, names, self._stirred)
            for directory, names in _directories(self._paths).items()
        ]
        self._reading = Reading({}, {}, torn=False)
        self._files: dict[Source, FileContent] = {}
        self._absent_since: dict[Source, float] = {}
        self._resources: dict[Source, FileContent] = {}
        self._unheard = {source for source in sources if source.namespace}
        self._told: dict[Source, FileContent] = {}
        self._tasks = [
            asyncio.create_task(self._follow(source), name=f"watch {source.path}")
            for source in sources
            if source.namespace
        ]
        for task in self._tasks:
            task.add_done_callback(lambda _task: self._stirred.set())

    async def first(self) -> dict[Source, FileContent]:
        """Return what there is, once everything was looked at."""
        await self._ensure_events()
        while self._unheard:
            await self._stirred.wait()
            self._stirred.clear()
            self._check()
        await self._read(self._idle.event(self._clock()))
        return self._tell()

    async def changed(self) -> dict[Source, FileContent]:
        """Wait for a change and return what there is.

        Raises:
            Exception: The watch over a namespace ended by an error that is not of its resources.
        """
        while True:
            await self._read(await self._until_quiet(self._idle))
            self._check()
            if _differs(self._told, {**self._files, **self._resources}):
                return self._tell()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for events in self._events:
            await events.close()

    def _tell(self) -> dict[Source, FileContent]:
        found = {**self._files, **self._resources}
        # As the sources were given; those of one folder by name.
        rank = {source.path: number for number, source in enumerate(self._sources)}
        ordered = sorted(found, key=lambda source: (_rank(source, rank), source.path.name))
        self._told = {source: found[source] for source in ordered}
        return dict(self._told)

    async def _until_quiet(self, burst: Debounce) -> Debounce:
        """Return the burst of events after which everything should be read."""
        polled = self._clock()
        while True:
            now = self._clock()
            gone_at = self._gone_at()
            due = min(at for at in (burst.due, gone_at, polled + self._poll) if at is not None)
            if due > now:
                if await self._event_within(due - now):
                    burst = burst.event(self._clock())
            elif due in (burst.due, gone_at):
                return burst
            else:
                polled = now
                await self._ensure_events()
                seen = await asyncio.to_thread(signatures, self._paths)
                if seen != self._reading.signatures:
                    burst = burst.event(now)

    async def _event_within(self, timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        happened = self._stirred.is_set()
        self._stirred.clear()
        return happened

    async def _read(self, burst: Debounce) -> None:
        """Read all files, again while they change under the reader and the burst may go on."""
        while True:
            self._reading = await asyncio.to_thread(read_sources, self._paths)
            now = self._clock()
            first = now if burst.first is None else burst.first
            if not self._reading.torn or now >= first + burst.longest:
                break
            burst = await self._until_quiet(burst.event(now))
        self._take_reading(now)

    def _take_reading(self, now: float) -> None:
        contents = self._reading.contents
        for source in contents.keys() | self._files.keys() | set(self._paths):
            if source in contents:
                self._files[source] = contents[source]
                self._absent_since.pop(source, None)
            elif not source.folder:
                self._miss(source, now)

    def _miss(self, source: Source, now: float) -> None:
        since = self._absent_since.setdefault(source, now)
        if source in self._files and now - since < self._gone_after:
            return  # what it said stays for now
        if source in self._paths:
            self._files[source] = None
        else:
            self._files.pop(source, None)
            del self._absent_since[source]

    def _gone_at(self) -> float | None:
        """Return when a file that was there, and is absent, counts as deleted."""
        absent = [
            since
            for source, since in self._absent_since.items()
            if self._files.get(source) is not None
        ]
        return min(absent) + self._gone_after if absent else None

    async def _ensure_events(self) -> None:
        for events in self._events:
            await events.ensure()

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _follow(self, source: Source) -> None:
        # The client library takes a third of a second to load and comes with an extra.
        from leaseway.control_plane.config.kubernetes.watch import (
            ResourcesUnknown,
            follow_namespace,
        )

        changes = follow_namespace(source.namespace)
        async with aclosing(changes):
            async for change in changes:
                if isinstance(change, ResourcesUnknown):
                    self._resources[source] = Unreadable(str(change))
                else:
                    self._resources = _resources(change)
                self._unheard.discard(source)
                self._stirred.set()


def _directories(sources: Sequence[Source]) -> dict[Path, set[str] | None]:
    """Return the directories to watch, with the names that count in each; None where all do."""
    found: dict[Path, set[str] | None] = {}
    for source in sources:
        if source.folder:
            found[source.path] = None
            continue
        names = found.setdefault(source.path.parent, set())
        if names is not None:
            names.add(source.path.name)
    return found


def _resources(resources: Sequence[CustomResource]) -> dict[Source, FileContent]:
    found: dict[Source, FileContent] = {}
    for kind in KINDS:
        kept, skipped = first_by_name(each for each in resources if each.kind == kind)
        if skipped:
            _logger.error(
                "%d resources of the kind %s are left out: the first %d by name are read.",
                skipped,
                kind,
                len(kept),
            )
        for resource in kept:
            found[resource_source(resource)] = resource_text(resource)
    return found


def _differs(one: Mapping[Source, FileContent], other: Mapping[Source, FileContent]) -> bool:
    return {source: _said(found) for source, found in one.items()} != {
        source: _said(found) for source, found in other.items()
    }


def _said(found: FileContent) -> tuple[type, str]:
    return type(found), str(found)  # two errors of one text are the same


def _rank(source: Source, rank: Mapping[Path, int]) -> int:
    if source.resource is not None:
        return rank.get(source.path.parent.parent, 0)
    return rank.get(source.path, rank.get(source.path.parent, 0))
