"""The watch over all files of a configuration: what was found of each, after every change.

Each file has a watch of its own, a folder one more that sees new files in it. A change is told
after the first look at everything, and never while the last one is still being worked on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from leaseway.control_plane.config.kubernetes.resources import (
    KINDS,
    Resource,
    first_by_name,
    resource_text,
)
from leaseway.control_plane.config.layers.sources import (
    Source,
    files_in,
    resource_source,
    tenant_file,
)
from leaseway.control_plane.config.loading import Found
from leaseway.control_plane.config.tree.read_file import Unreadable
from leaseway.control_plane.config.watch.file_events import FileEvents
from leaseway.control_plane.config.watch.one_file import (
    ConfigEvent,
    ConfigGone,
    ConfigText,
    watch_config,
)

_logger = logging.getLogger(__name__)


async def watch_sources(
    sources: Sequence[Source], *, poll: float = 1.0
) -> AsyncGenerator[dict[Source, Found], None]:
    """Yield what was found of each file, in the order of the layers, at once and when it changes.

    Close the iterator (`contextlib.aclosing`) to stop watching.

    Args:
        sources: The files and folders.
        poll: Seconds between looks that need no event.
    """
    watches = _Watches(sources, poll)
    try:
        while True:
            yield await watches.changed()
    finally:
        await watches.close()


class _Watches:
    def __init__(self, sources: Sequence[Source], poll: float) -> None:
        self._sources = tuple(sources)
        self._poll = poll
        self._found: dict[Source, Found] = {}
        self._unseen: set[Source] = set(sources)
        self._dirty = asyncio.Event()
        self._tasks: dict[Source, asyncio.Task[None]] = {}
        for source in sources:
            self._start(source)

    async def changed(self) -> dict[Source, Found]:
        """Wait for a change and return what there is.

        Raises:
            Exception: A watch ended by an error that is not of the files.
        """
        while not self._dirty.is_set() or self._unseen:
            self._dirty.clear()
            await self._dirty.wait()
            self._check()
        self._check()
        self._dirty.clear()
        return {source: self._found[source] for source in self._ordered()}

    async def close(self) -> None:
        """Stop watching."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check(self) -> None:
        for task in self._tasks.values():
            if task.done():
                task.result()

    def _ordered(self) -> list[Source]:
        # As the sources were given; those of one folder by name.
        rank = {source.path: number for number, source in enumerate(self._sources)}
        return sorted(self._found, key=lambda source: (_rank(source, rank), source.path.name))

    def _start(self, source: Source) -> None:
        if source.namespace:
            watch = self._namespace(source)
        else:
            watch = self._folder(source) if source.folder else self._file(source)
        task = asyncio.create_task(watch, name=f"watch {source.path}")
        self._tasks[source] = task
        task.add_done_callback(lambda _task: self._dirty.set())

    async def _file(self, source: Source) -> None:
        events = watch_config(source.path, poll=self._poll)
        async with aclosing(events):
            async for event in events:
                self._found[source] = _found(event)
                self._unseen.discard(source)
                self._dirty.set()

    async def _namespace(self, source: Source) -> None:
        # The client library takes a third of a second to load and comes with an extra.
        from leaseway.control_plane.config.kubernetes.watch import (
            ResourcesUnknown,
            follow_namespace,
        )

        changes = follow_namespace(source.namespace)
        async with aclosing(changes):
            async for change in changes:
                if isinstance(change, ResourcesUnknown):
                    self._found[source] = Unreadable(str(change))
                else:
                    self._take(source, change)
                self._unseen.discard(source)
                self._dirty.set()

    def _take(self, namespace: Source, resources: Sequence[Resource]) -> None:
        """Replace what is known of a namespace."""
        for source in [each for each in self._found if each.resource is not None]:
            del self._found[source]
        self._found.pop(namespace, None)
        for kind in KINDS:
            kept, left_out = first_by_name(each for each in resources if each.kind == kind)
            if left_out:
                _logger.error(
                    "%d resources of the kind %s are left out: the first %d by name are read.",
                    left_out,
                    kind,
                    len(kept),
                )
            for resource in kept:
                self._found[resource_source(resource)] = resource_text(resource)

    async def _folder(self, folder: Source) -> None:
        events = FileEvents(folder.path / "*", any_name=True)
        try:
            while True:
                await events.ensure()
                await self._compare(folder)
                await events.wait(self._poll)
        finally:
            await events.close()

    async def _compare(self, folder: Source) -> None:
        try:
            paths = await asyncio.to_thread(files_in, folder.path)
        except OSError:
            paths = []  # its files' own watches say that they are gone
        present = {tenant_file(folder, path) for path in paths}
        for source in sorted(present - self._tasks.keys(), key=lambda each: each.path):
            self._unseen.add(source)
            self._start(source)
        watched = {each for each in self._tasks if each.path.parent == folder.path and each.tenant}
        for source in watched - present - set(self._sources):
            if self._found.get(source, "") is None:  # gone for long enough to mean it
                self._tasks.pop(source).cancel()
                del self._found[source]
                self._dirty.set()
        if folder in self._unseen:
            self._unseen.discard(folder)
            self._dirty.set()


def _rank(source: Source, rank: Mapping[Path, int]) -> int:
    if source.resource is not None:
        return rank.get(source.path.parent.parent, 0)
    return rank.get(source.path, rank.get(source.path.parent, 0))


def _found(event: ConfigEvent) -> Found:
    match event:
        case ConfigText():
            return event.text
        case ConfigGone():
            return None
        case _:
            return Unreadable(event.reason)
