"""Watches all files of a configuration; yields the content of each after every change.

All files, folders and resources share one quiet period, after which all are read at once: so a
change across several files is seen whole. File events make it fast, polling makes it reliable. Only
contents are compared; nothing is parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from leaseway.control_plane.config.kubernetes.resources import (
    KINDS,
    CustomResource,
    resource_text,
    within_limit,
)
from leaseway.control_plane.config.layers.sources import Source, resource_source
from leaseway.control_plane.config.loading import FileContent, LeftOut
from leaseway.control_plane.config.tree.files import Gone, Unreadable
from leaseway.control_plane.config.watch.file_events import FileEvents
from leaseway.control_plane.config.watch.reading import FileSnapshot, file_stamps, read_sources

Clock = Callable[[], float]


@dataclass(frozen=True)
class Debounce:
    """A burst of events, by their times in seconds of any one clock.

    The debounce of `watchfiles` covers one watched directory. This one covers several directories,
    polls, files that change while they are read, and Kubernetes resources together.

    Attributes:
        quiet: The burst ends this long after its last event.
        longest: The burst ends at the latest this long after its first event.
        first: Time of its first event; None if there is no burst.
        last: Time of its last event.
    """

    quiet: float
    longest: float
    first: float | None = None
    last: float | None = None

    def event(self, now: float) -> Debounce:
        return replace(self, first=now if self.first is None else self.first, last=now)

    @property
    def due(self) -> float | None:
        """The end of the burst unless another event arrives, or None if there is no burst."""
        if self.first is None or self.last is None:
            return None
        return min(self.last + self.quiet, self.first + self.longest)


async def watch_sources(
    sources: Sequence[Source],
    *,
    quiet: float = 0.1,
    longest: float | None = None,
    deleted_after: float = 2.0,
    poll: float = 1.0,
    clock: Clock = time.monotonic,
) -> AsyncGenerator[dict[Source, FileContent], None]:
    """Yield the content of each file, in the order of the layers, at once and after changes.

    Close the iterator (`contextlib.aclosing`) to stop watching. Changes during the caller's work
    are yielded together.

    Args:
        sources: The files, folders and namespaces. No file or directory need exist.
        quiet: Seconds without an event until a burst of events ends.
        longest: Seconds from the first event until a burst ends at the latest; by default 0.5 for
            one file, 2 for several, which take longer to write.
        deleted_after: Seconds that a file must be absent to count as `Gone`, or as deleted if it
            may be missing. A file that is absent from the start counts as missing at once.
        poll: Seconds between polls.
        clock: Monotonic time.
    """
    alone = len(sources) == 1 and not sources[0].folder
    burst = Debounce(quiet, (0.5 if alone else 2.0) if longest is None else longest)
    watch = _SourcesWatch(sources, burst, deleted_after, poll, clock)
    try:
        yield await watch.first_contents()
        while True:
            yield await watch.next_contents()
    finally:
        await watch.close()


class _SourcesWatch:
    def __init__(
        self,
        sources: Sequence[Source],
        idle: Debounce,
        deleted_after: float,
        poll: float,
        clock: Clock,
    ) -> None:
        self._sources = tuple(sources)
        self._paths = tuple(source for source in sources if not source.namespace)
        self._idle = idle
        self._deleted_after = deleted_after
        self._poll = poll
        self._clock = clock
        self._changed = asyncio.Event()
        self._events = [
            FileEvents(directory, names, self._changed)
            for directory, names in _directories(self._paths).items()
        ]
        self._reading = FileSnapshot({}, {}, torn=False)
        self._files: dict[Source, FileContent] = {}
        self._absent_since: dict[Source, float] = {}
        self._resources: dict[Source, FileContent] = {}
        self._pending = {source for source in sources if source.namespace}
        self._yielded: dict[Source, FileContent] = {}
        self._tasks = [
            asyncio.create_task(self._follow(source), name=f"watch {source.path}")
            for source in sources
            if source.namespace
        ]
        for task in self._tasks:
            task.add_done_callback(self._note_end)

    def _note_end(self, _task: asyncio.Task[None]) -> None:
        self._changed.set()  # who waits for contents raises what the task raised

    async def first_contents(self) -> dict[Source, FileContent]:
        """Return all contents, once every source was read."""
        await self._ensure_events()
        while self._pending:
            await self._changed.wait()
            self._changed.clear()
            self._raise_failures()
        await self._read(self._idle.event(self._clock()))
        return self._contents()

    async def next_contents(self) -> dict[Source, FileContent]:
        """Wait for a change and return all contents.

        Raises:
            Exception: The watch of a namespace failed unexpectedly.
        """
        while True:
            await self._read(await self._until_quiet(self._idle))
            self._raise_failures()
            current = {**self._files, **self._resources}
            if _comparable(self._yielded) != _comparable(current):
                return self._contents()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for events in self._events:
            await events.close()

    def _contents(self) -> dict[Source, FileContent]:
        contents = {**self._files, **self._resources}
        # In the order of the sources; those of one folder by name.
        rank = {source.path: number for number, source in enumerate(self._sources)}
        ordered = sorted(contents, key=lambda source: (_rank(source, rank), source.path.name))
        self._yielded = {source: contents[source] for source in ordered}
        return dict(self._yielded)

    async def _until_quiet(self, burst: Debounce) -> Debounce:
        """Wait for the end of a burst of events and return it; then all files must be read."""
        polled = self._clock()
        while True:
            now = self._clock()
            deleted_at = self._deleted_at()
            due = min(at for at in (burst.due, deleted_at, polled + self._poll) if at is not None)
            if due > now:
                if await self._event_within(due - now):
                    burst = burst.event(self._clock())
            elif due in (burst.due, deleted_at):
                return burst
            else:
                polled = now
                await self._ensure_events()
                current = await asyncio.to_thread(file_stamps, self._paths)
                if current != self._reading.stamps:
                    burst = burst.event(now)

    async def _event_within(self, timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed.clear()
        return has_changed

    async def _read(self, burst: Debounce) -> None:
        """Read all files; again if one changes meanwhile, until the burst ends at the latest."""
        while True:
            self._reading = await asyncio.to_thread(read_sources, self._paths)
            now = self._clock()
            first = now if burst.first is None else burst.first
            if not self._reading.torn or now >= first + burst.longest:
                break
            burst = await self._until_quiet(burst.event(now))
        self._apply_reading(now)

    def _apply_reading(self, now: float) -> None:
        contents = self._reading.contents
        for source in contents.keys() | self._files.keys() | set(self._paths):
            if source in contents:
                self._files[source] = contents[source]
                self._absent_since.pop(source, None)
            elif not source.folder:
                self._apply_absence(source, now)

    def _apply_absence(self, source: Source, now: float) -> None:
        is_lost = self._is_lost(source)
        if is_lost and isinstance(self._files.get(source), Gone):
            self._absent_since.pop(source, None)
            return
        since = self._absent_since.setdefault(source, now)
        if source in self._files and now - since < self._deleted_after:
            return  # its last content stays for now
        if is_lost:
            self._files[source] = Gone()
            # If its folder comes back, the file gets time anew: the folder may still be filled.
            del self._absent_since[source]
        elif source in self._paths:
            self._files[source] = None
        else:
            self._files.pop(source, None)
            del self._absent_since[source]

    def _is_lost(self, source: Source) -> bool:
        """Return whether a file that is gone is still needed.

        Nobody removes all servers by deleting their file: it is being replaced, its volume is not
        mounted, or it was a mistake. A folder's file is removed to remove its tenant's overrides.
        """
        if source in self._paths:
            return self._files.get(source) is not None and not source.optional
        return source in self._files and source.path.parent in self._reading.unlisted

    def _deleted_at(self) -> float | None:
        """Return when the first of the absent files counts as deleted."""
        absent = [
            since
            for source, since in self._absent_since.items()
            if self._files.get(source) is not None
        ]
        return min(absent) + self._deleted_after if absent else None

    async def _ensure_events(self) -> None:
        for events in self._events:
            await events.ensure()

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _follow(self, source: Source) -> None:
        # The client library is optional, and loading it takes a third of a second.
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
                    self._resources = _resources(source, change)
                self._pending.discard(source)
                self._changed.set()


def _directories(sources: Sequence[Source]) -> dict[Path, set[str] | None]:
    """Return the directories to watch, with the file names in each; None for all files."""
    directories: dict[Path, set[str] | None] = {}
    for source in sources:
        if source.folder:
            directories[source.path] = None
            continue
        names = directories.setdefault(source.path.parent, set())
        if names is not None:
            names.add(source.path.name)
    return directories


def _resources(namespace: Source, resources: Sequence[CustomResource]) -> dict[Source, FileContent]:
    found: dict[Source, FileContent] = {}
    for kind in KINDS:
        kept, others = within_limit(resource for resource in resources if resource.kind == kind)
        if others and kind == "MCPTenant":  # they would get the common servers
            message = (
                f"The namespace {namespace.namespace} has {len(kept) + len(others)} resources of"
                f" the kind {kind}, and {len(kept)} are the limit. The configuration stays as it"
                " was: remove some."
            )
            return {namespace: Unreadable(message)}
        found.update((resource_source(resource), resource_text(resource)) for resource in kept)
        found.update((resource_source(resource), LeftOut()) for resource in others)
    return found


def _comparable(contents: Mapping[Source, FileContent]) -> dict[Source, tuple[type, str]]:
    # Two errors with the same text are equal.
    return {source: (type(content), str(content)) for source, content in contents.items()}


def _rank(source: Source, rank: Mapping[Path, int]) -> int:
    if source.resource is not None:
        return rank.get(source.path.parent.parent, 0)
    return rank.get(source.path, rank.get(source.path.parent, 0))
