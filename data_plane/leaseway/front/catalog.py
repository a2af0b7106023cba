"""What one tenant sees, kept ready to be listed and followed as it changes.

A list is read from the control plane when it is first asked for, and again with every registry
version. While the control plane cannot be reached, the last list goes on serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from leaseway.front.definitions import (
    Listing,
    prompt_listing,
    resource_listing,
    template_listing,
    tool_listing,
)
from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.wire.timing.backoff import Backoff

KINDS: Final = ("tools", "prompts", "resources", "templates")
"""What there is to list."""

Follower = Callable[[str, frozenset[str]], None]
"""Told which kind changed, and of which servers."""

_LISTINGS: Final[dict[str, Callable[[Any], Listing[Any]]]] = {
    "tools": tool_listing,
    "prompts": prompt_listing,
    "resources": resource_listing,
    "templates": template_listing,
}
_RETRY: Final = Backoff(initial=0.1, maximum=5.0)
_FIRST_STARTS: Final = 20.0
"""Seconds that the first list waits for servers without a first result: many clients list once."""
_LOOK: Final = 0.5
"""Seconds between two looks; a start that fails makes no registry version."""
_MOST_SCOPES: Final = 256
"""Servers whose own lists are kept."""

_log = logging.getLogger("leaseway.front")


class Catalog:
    """The lists of one tenant.

    Args:
        client: The tenant's client.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._fetchers: dict[str, Callable[[], Awaitable[Collection[Any]]]] = {
            "tools": client.list_tools,
            "prompts": client.list_prompts,
            "resources": client.list_resources,
            "templates": client.list_resource_templates,
        }
        self._found: dict[str, Collection[Any]] = {}
        self._versions: dict[str, int] = {}
        self._listings: dict[tuple[str, str], Listing[Any]] = {}
        self._reading: dict[str, asyncio.Task[Collection[Any]]] = {}
        self._followers: set[Follower] = set()
        self._watch: asyncio.Task[None] | None = None

    async def listing(self, kind: str, scope: str = "") -> Listing[Any]:
        """Return the list of a kind, of one server where a scope names it.

        Raises:
            LeasewayError: It was never read, and cannot be now.
        """
        found = self._listings.get((kind, scope))
        if found is not None:
            return found
        items = self._found.get(kind)
        if items is None:
            items = await self._read(kind)
        listing = self._listings.get((kind, scope))
        if listing is None:
            wanted = [item for item in items if not scope or item.server_id == scope]
            listing = _LISTINGS[kind](wanted)
            if len(self._listings) >= _MOST_SCOPES:
                self._listings.clear()
            self._listings[kind, scope] = listing
        return listing

    async def fresh(self, kind: str, scope: str = "") -> Listing[Any]:
        """Read a list anew and return it; for a name that the kept one lacks.

        Raises:
            LeasewayError: It cannot be read.
        """
        await self._refresh(kind)
        return await self.listing(kind, scope)

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Tell somebody of every change from now on; return what ends that."""
        self._followers.add(follower)
        return lambda: self._followers.discard(follower)

    async def close(self) -> None:
        """Stop to follow."""
        tasks = [*self._reading.values(), *((self._watch,) if self._watch else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, kind: str) -> Collection[Any]:
        """Read a list; those who ask at the same time share one reading."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._follow(), name="front catalog")
        task = self._reading.get(kind)
        if task is None:
            task = self._reading[kind] = asyncio.create_task(self._fetch(kind))
            task.add_done_callback(lambda done: self._read_done(kind, done))
        return await asyncio.shield(task)

    def _read_done(self, kind: str, task: asyncio.Task[Collection[Any]]) -> None:
        del self._reading[kind]
        if not task.cancelled():
            task.exception()  # seen, also where whoever asked has gone

    async def _fetch(self, kind: str) -> Collection[Any]:
        items = await self._fetchers[kind]()
        if not self._found:
            items = await self._settled(kind, items)
        if kind not in self._found:
            self._replace(kind, items)
        return items

    async def _settled(self, kind: str, items: Collection[Any]) -> Collection[Any]:
        """Wait a moment for servers that are starting for the first time, and list again."""
        runtime, _ = self._client._at()
        version = runtime.resolver.watch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_STARTS):
                while getattr(items, "pending", ()):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            await version.wait_beyond(getattr(items, "registry_version", 0))
                    items = await self._fetchers[kind]()
        return items

    def _replace(self, kind: str, items: Collection[Any]) -> frozenset[str]:
        """Take a list in the place of the last one; return the servers whose part differs."""
        version = getattr(items, "registry_version", 0)
        before = self._found.get(kind)
        if before is not None and version < self._versions.get(kind, 0):
            return frozenset()
        self._found[kind] = items
        self._versions[kind] = version
        changed = _differing(before or (), items) if before is not None else frozenset()
        if changed or before is None:
            for key in [key for key in self._listings if key[0] == kind]:
                del self._listings[key]
        return changed

    async def _follow(self) -> None:
        runtime, _ = self._client._at()
        version = runtime.resolver.watch()
        read_at, attempt = version.version, 0
        while True:
            await version.wait_beyond(read_at)
            if version.ended:
                return
            newest = version.version
            try:
                for kind in tuple(self._found):
                    await self._refresh(kind)
            except LeasewayError as error:
                _log.debug("A list could not be read again; the last one serves: %s", error)
                await asyncio.sleep(_RETRY.delay(attempt))
                attempt += 1
                continue
            read_at, attempt = newest, 0

    async def _refresh(self, kind: str) -> None:
        changed = self._replace(kind, await self._read(kind))
        if changed:
            for follower in tuple(self._followers):
                follower(kind, changed)


def _differing(before: Collection[Any], after: Collection[Any]) -> frozenset[str]:
    """Return the servers whose part of a list differs between two readings."""
    old, new = _by_server(before), _by_server(after)
    return frozenset(
        server for server in old.keys() | new.keys() if old.get(server) != new.get(server)
    )


def _by_server(items: Collection[Any]) -> dict[str, list[Any]]:
    parts: dict[str, list[Any]] = {}
    for item in items:
        parts.setdefault(item.server_id, []).append(item)
    return parts
