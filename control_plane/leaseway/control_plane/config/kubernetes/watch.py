"""Watches a namespace: yields all its resources after each change.

It lists them, watches for changes, and lists again within a minute, in case the watch missed some.
While the API is unavailable, the last known resources stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Final

from leaseway.control_plane.config.kubernetes.api import (
    KubernetesApi,
    KubernetesFailure,
    open_api,
)
from leaseway.control_plane.config.kubernetes.resources import KINDS, CustomResource, ResourceKind
from leaseway.wire.timing.backoff import RECONNECT

_logger = logging.getLogger(__name__)
_OPEN_AGAIN_AFTER: Final = 10.0
"""Seconds until the next attempt to find an API that is not configured here."""
_QUIET: Final = 0.1
"""Seconds without a change until changes are yielded together; at most five times as long."""


class ResourcesUnknown(Exception):
    """The resources could not be listed yet; the message is the reason."""


async def follow_namespace(
    namespace: str,
) -> AsyncGenerator[tuple[CustomResource, ...] | ResourcesUnknown, None]:
    """Yield the results of `watch_resources` for the API that this process's environment names."""
    while True:
        try:
            async with open_api(namespace) as api:
                watch = watch_resources(api)
                async with aclosing(watch):
                    async for change in watch:
                        yield change
        except KubernetesFailure as failure:
            _logger.error("%s", failure)
            yield ResourcesUnknown(str(failure))
            await asyncio.sleep(_OPEN_AGAIN_AFTER)


async def watch_resources(
    api: KubernetesApi,
) -> AsyncGenerator[tuple[CustomResource, ...] | ResourcesUnknown, None]:
    """Yield all resources, at once and after each change, until closed.

    Until the first successful list, yield the reason of the failure.
    """
    watch = _NamespaceWatch(api)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(watch.close)
        while True:
            yield await watch.changed()


class _NamespaceWatch:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._known: dict[ResourceKind, dict[str, CustomResource]] = {}
        self._failures: dict[ResourceKind, str] = {}
        self._dirty = asyncio.Event()
        self._tasks = [asyncio.create_task(self._follow(kind)) for kind in KINDS]
        for task in self._tasks:
            task.add_done_callback(self._note_end)

    def _note_end(self, _task: asyncio.Task[None]) -> None:
        self._dirty.set()  # `changed` raises what the task raised

    async def changed(self) -> tuple[CustomResource, ...] | ResourcesUnknown:
        while True:
            await self._dirty.wait()
            await self._until_quiet()
            for task in self._tasks:
                if task.done():
                    task.result()
            if len(self._known) == len(KINDS):
                return tuple(resource for kind in KINDS for resource in self._known[kind].values())
            if self._failures:
                return ResourcesUnknown(next(iter(self._failures.values())))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_quiet(self) -> None:
        for _ in range(5):
            self._dirty.clear()
            try:
                async with asyncio.timeout(_QUIET):
                    await self._dirty.wait()
            except TimeoutError:
                return
        self._dirty.clear()

    async def _follow(self, kind: ResourceKind) -> None:
        failures = 0
        while True:
            try:
                listed = await self._api.list(kind)
                self._update(kind, {resource.name: resource for resource in listed.resources})
                changes = self._api.changes(kind, listed.version)
                async with aclosing(changes):
                    async for change, resource in changes:
                        failures = 0
                        known = dict(self._known[kind])
                        known.pop(resource.name, None)
                        if change != "DELETED":
                            known[resource.name] = resource
                        self._update(kind, known)
                failures = 0  # only now: if just the watch fails, retries must slow down, too
            except KubernetesFailure as failure:
                self._record_failure(kind, failure, failures)
                failures += 1
                await asyncio.sleep(max(RECONNECT.delay(failures - 1), failure.retry_after or 0.0))

    def _update(self, kind: ResourceKind, found: dict[str, CustomResource]) -> None:
        self._failures.pop(kind, None)
        before = self._known.get(kind)
        self._known[kind] = found
        # Resources that differ only in their status are equal.
        if before is None or before != found:
            self._dirty.set()

    def _record_failure(
        self, kind: ResourceKind, failure: KubernetesFailure, failures: int
    ) -> None:
        level = logging.DEBUG if failures else logging.WARNING
        if kind in self._known:
            _logger.log(level, "%s The last known resources stay; listing is retried.", failure)
            return
        _logger.log(level, "%s Listing is retried until the API answers.", failure)
        if self._failures.get(kind) != str(failure):
            self._failures[kind] = str(failure)
            self._dirty.set()
