"""Cached lists of the tools, prompts and resources that one tenant sees, and what servers say.

A list is read from the control plane on first use, and again with every registry version. While the
control plane is unreachable, the last list is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from leaseway.front.lists.definitions import (
    LIST_TTL,
    LISTINGS,
    PagedListing,
)
from leaseway.front.lists.linked_resources import LinkedResources
from leaseway.front.lists.login_tool import login_to, servers_of
from leaseway.front.lists.seen import SeenLists
from leaseway.front.lists.ui_resources import (
    ServerResource,
    is_ui,
    items_for_client,
    of_server,
)
from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.sdk.relay import (
    ServerIntroduction,
    SharedItems,
    list_introductions,
    list_shared,
    watch_registry,
)
from leaseway.wire.bounds import KIB
from leaseway.wire.clients.mcp_client import ListedToClient
from leaseway.wire.messages.admin import LOGIN_TOOL
from leaseway.wire.timing.backoff import RECONNECT

ChangeListener = Callable[[str, frozenset[str], bytes], None]
"""Called with the kind of a changed list, the ids of the changed servers, and the MCP client whose
list it is, as `McpClient.encoded`; empty for all."""

_FIRST_START_WAIT: Final = 3.0
"""Seconds from the cache's creation that first lists wait for servers that are starting: many
clients list only once."""
_FIRST_TOOL_WAIT: Final = 20.0
"""Seconds that a first list waits while there is no tool at all."""
_POLL: Final = 0.5
"""Seconds between two polls; a failed start makes no registry version."""
_MAX_LISTINGS: Final = 256
_INTRODUCTIONS: Final = "introductions"
"""The kind of what servers say about themselves; it is cached like a list, but is none of MCP's."""
_MAX_NAMED: Final = 20
_INTRODUCTION_WAIT: Final = 2.0
"""Seconds that a client's handshake waits for them: without an answer it gets none."""
_MAX_INSTRUCTIONS: Final = 32 * KIB
"""Characters of the joined instructions of all servers, which models read in every conversation."""

_shared: Final = SharedItems()
"""The items of all caches of the process: each credential has its own cache."""
_decode_listed: Final = msgspec.json.Decoder(ListedToClient).decode
_log = logging.getLogger("leaseway.front")


class CatalogCache:
    """The cached lists of the tenant of `client`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._fetchers: dict[str, Callable[[], Awaitable[Collection[Any]]]] = {
            **{kind: partial(list_shared, client, kind, _shared) for kind in LISTINGS},
            _INTRODUCTIONS: partial(list_introductions, client),
        }
        self._items: dict[str, Collection[Any]] = {}
        self._versions: dict[str, int] = {}
        self._listings: dict[tuple[str, str], PagedListing[Any]] = {}
        self._fetches: dict[str, asyncio.Task[Collection[Any]]] = {}
        self._listeners: set[ChangeListener] = set()
        self._seen = SeenLists()
        self._linked = LinkedResources()
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._created = asyncio.get_running_loop().time()
        self._asked_at = -math.inf

    def cached(self, kind: str, scope: str = "") -> PagedListing[Any] | None:
        """Return the list of a kind as `listing` does, or None if it must be read or built."""
        return self._listings.get((kind, scope))

    async def listing(self, kind: str, scope: str = "") -> PagedListing[Any]:
        """Return the list of a kind, limited to the server `scope` unless that is empty.

        Raises:
            LeasewayError: The list is not cached and cannot be read.
        """
        listing = self._listings.get((kind, scope))
        if listing is not None:
            return listing
        items = self._items.get(kind)
        if items is None:
            items = await self._read(kind)
        listing = self._listings.get((kind, scope))
        if listing is None:
            in_scope = _in_scope(kind, items, scope) if scope else items_for_client(items)
            # While servers start, the list is about to change.
            ttl = 0 if getattr(items, "pending", ()) else LIST_TTL
            listing = replace(LISTINGS[kind](in_scope), ttl=ttl)
            if len(self._listings) >= _MAX_LISTINGS:
                self._listings.clear()
            self._listings[kind, scope] = listing
        return listing

    def visible(
        self, kind: str, listing: PagedListing[Any], client: bytes, scope: str = ""
    ) -> PagedListing[Any]:
        """Return a list without what servers do not show to an MCP client.

        What they show is known once one of them was leased for the same client.

        Args:
            kind: The kind of the list.
            listing: The list.
            client: The client, as `McpClient.encoded`, or empty.
            scope: The server to which the list is limited; empty means all.
        """
        return self._seen.visible(kind, listing, client, scope)

    def learn_lists(self, server: str, listed: bytes) -> None:
        """Learn from a `ListedToClient` what a server shows to an MCP client."""
        try:
            told = _decode_listed(listed)
        except ValueError as error:
            _log.warning("A worker told wrongly what %s lists: %s", server, error)
            return
        client = told.client.encode()
        if not client:
            return
        absent = {
            "tools": told.absent,
            "prompts": told.absent_prompts,
            "resources": told.absent_resources,
            "templates": told.absent_templates,
        }
        for kind in self._seen.learn(server, client, absent):
            self._tell(kind, frozenset({server}), client)

    async def fresh(self, kind: str, scope: str = "") -> PagedListing[Any]:
        """Read a list again and return it; used if the cached list lacks a name.

        Raises:
            LeasewayError: It cannot be read.
        """
        await self._refresh(kind)
        return await self.listing(kind, scope)

    def learn_links(self, session: str, server: str, payload: bytes) -> None:
        """Learn which resources a server's result names, for `resource`.

        Args:
            session: The id of the protocol's session, or empty.
            server: The server's id.
            payload: The result of a tool or a prompt.
        """
        self._linked.learn(session, server, payload)

    def may_link(self, server: str) -> bool:
        """Return whether a server may have resources, so that its results may name them."""
        known = [item for item in self._items.get(_INTRODUCTIONS, ()) if item.server_id == server]
        return not known or "resources" in known[0].capabilities

    async def resource(self, uri: str, scope: str, session: str = "") -> ServerResource:
        """Return the resource that a client means by a URI.

        If several servers list it, or none, it is that of the server whose result has named it
        last, if one has.

        Args:
            uri: The URI.
            scope: The server that the client sees; empty means all.
            session: The id of the protocol's session, or empty.

        Raises:
            LeasewayError: The servers are not cached and cannot be read.
        """
        if scope:
            return ServerResource(uri, scope)
        if not is_ui(uri):
            return ServerResource(uri, await self._linking(uri, session))
        listings = [await self.listing(kind) for kind in ("tools", "resources")]
        servers = {item.server_id for listing in listings for item in listing.items.values()}
        return of_server(uri, servers)

    async def _linking(self, uri: str, session: str) -> str | None:
        """Return the server that has named a resource, unless only others list it; or None."""
        server = self._linked.server_of(session, uri)
        if server is None:
            return None
        try:
            await self.listing("resources")
        except LeasewayError:
            return server  # the link is what is known
        listed = {item.server_id for item in self._items["resources"] if item.uri == uri}
        return server if server in listed or not listed else None

    async def introductions(self, scope: str = "") -> list[ServerIntroduction]:
        """Return what servers say about themselves; empty while that is not known."""
        items = self._items.get(_INTRODUCTIONS)
        if items is None:
            try:
                async with asyncio.timeout(_INTRODUCTION_WAIT):
                    items = await self._read(_INTRODUCTIONS)
            except (LeasewayError, TimeoutError) as error:
                _log.debug("What servers say about themselves is not known: %s", error)
                return []
        return [item for item in items if not scope or item.server_id == scope]

    async def introduced(self) -> Collection[ServerIntroduction] | None:
        """Return the list of `introductions`, with the servers that are starting; None if unknown.

        It is the same object until it changes.
        """
        await self.introductions()
        items = self._items.get(_INTRODUCTIONS)
        now = asyncio.get_running_loop().time()
        if getattr(items, "pending", ()) and now >= self._asked_at + _POLL:
            self._asked_at = now
            # A failed start makes no registry version.
            with contextlib.suppress(LeasewayError, TimeoutError):
                async with asyncio.timeout(_INTRODUCTION_WAIT):
                    await self._refresh(_INTRODUCTIONS)
        return self._items.get(_INTRODUCTIONS)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call a listener at every change; return a function that unsubscribes it."""
        self._listeners.add(listener)
        return partial(self._listeners.discard, listener)

    async def close(self) -> None:
        tasks = [*self._fetches.values(), *self._followers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, kind: str) -> Collection[Any]:
        """Read a list; concurrent callers share one fetch."""
        if kind not in self._followers:
            follower = asyncio.create_task(self._follow_registry(kind), name=f"front lists {kind}")
            self._followers[kind] = follower
        task = self._fetches.get(kind)
        if task is None:
            task = self._fetches[kind] = asyncio.create_task(self._fetch(kind))
            task.add_done_callback(partial(self._on_fetched, kind))
        return await asyncio.shield(task)

    def _on_fetched(self, kind: str, task: asyncio.Task[Collection[Any]]) -> None:
        del self._fetches[kind]
        if not task.cancelled():
            task.exception()  # mark as retrieved, in case every waiting caller was cancelled

    async def _fetch(self, kind: str) -> Collection[Any]:
        items = await self._fetchers[kind]()
        if kind in LISTINGS and self._items.keys().isdisjoint(LISTINGS):
            items = await self._await_first_starts(kind, items)
        if kind not in self._items:
            self._replace(kind, items)
        return items

    async def _await_first_starts(self, kind: str, items: Collection[Any]) -> Collection[Any]:
        """Wait, within a limit, for servers that start for the first time, and list again."""
        version = watch_registry(self._client)
        some_at = self._created + _FIRST_START_WAIT
        any_at = asyncio.get_running_loop().time() + _FIRST_TOOL_WAIT
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(any_at if kind == "tools" else some_at) as waiting:
                while getattr(items, "pending", ()):
                    if items:
                        waiting.reschedule(some_at)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_POLL):
                            await version.wait_beyond(getattr(items, "registry_version", 0))
                    items = await self._fetchers[kind]()
        return items

    def _replace(self, kind: str, items: Collection[Any]) -> frozenset[str]:
        """Replace a cached list unless it is newer; return the servers whose items changed."""
        version = getattr(items, "registry_version", 0)
        before = self._items.get(kind)
        if before is not None and version < self._versions.get(kind, 0):
            return frozenset()
        self._items[kind] = items
        self._versions[kind] = version
        changed = _changed_servers(before, items) if before is not None else frozenset()
        if changed or before is None:
            for key in [key for key in self._listings if key[0] == kind]:
                del self._listings[key]
        return changed

    async def _follow_registry(self, kind: str) -> None:
        """Read a list again at every new registry version, once it is cached."""
        version = watch_registry(self._client)
        read_version, read_lists, attempt = version.version, version.lists, 0
        while True:
            await version.wait_beyond(read_version, read_lists)
            if version.ended:
                return
            newest, lists = version.version, version.lists
            begun = self._fetches.get(kind)
            if begun is not None:  # it may return the list of an earlier version
                await asyncio.wait([begun])
            try:
                if kind in self._items:
                    await self._refresh(kind)
            except Exception as error:  # noqa: BLE001 - or else no later change would be read
                is_bug = not isinstance(error, LeasewayError)
                _log.log(
                    logging.ERROR if is_bug else logging.DEBUG,
                    "A list could not be read again; the last one is served: %s",
                    error,
                    exc_info=is_bug,
                )
                await asyncio.sleep(RECONNECT.delay(attempt))
                attempt += 1
                continue
            read_version, read_lists, attempt = newest, lists, 0

    async def _refresh(self, kind: str) -> None:
        changed = self._replace(kind, await self._read(kind))
        if changed and kind in LISTINGS:
            self._seen.forget(kind, changed)
            self._tell(kind, changed)

    def _tell(self, kind: str, servers: frozenset[str], client: bytes = b"") -> None:
        for listener in tuple(self._listeners):
            listener(kind, servers, client)


class Instructions:
    """What clients are told at first: about this Leaseway itself, then what servers say.

    Args:
        catalog: Knows what servers say.

    Attributes:
        own: What clients are told about this Leaseway itself, or empty.
    """

    def __init__(self, catalog: CatalogCache) -> None:
        self._catalog = catalog
        self.own = ""

    async def text(self, scope: str = "") -> str:
        """Return the instructions, limited to the server `scope` unless that is empty."""
        servers = joined_instructions(await self._catalog.introductions(scope))
        return "\n\n".join(part for part in (self.own, servers) if part)


def _in_scope(kind: str, items: Collection[Any], server: str) -> list[Any]:
    """Return the items of one server; it may list more once a person has logged in."""
    own = [item for item in items if item.server_id == server]
    return own + login_to(server, items) if kind == "tools" else own


def joined_instructions(introductions: Iterable[ServerIntroduction]) -> str:
    """Return the instructions of servers, each below a heading with the server's id.

    Those that exceed the bound of all together are left out whole, and named.
    """
    parts, left_out, size = [], [], 0
    for introduction in introductions:
        if not introduction.instructions:
            continue
        part = f"# {introduction.server_id}\n\n{introduction.instructions}"
        if size + len(part) > _MAX_INSTRUCTIONS:
            left_out.append(introduction.server_id)
        else:
            parts.append(part)
            size += len(part)
    if left_out:
        named = ", ".join(left_out[:_MAX_NAMED]) + (" …" if len(left_out) > _MAX_NAMED else "")
        parts.append(
            f"The instructions of {len(left_out)} servers are left out, because all together are"
            f" too long: {named}"
        )
    return "\n\n".join(parts)


def _changed_servers(before: Collection[Any], after: Collection[Any]) -> frozenset[str]:
    old, new = _by_server(before), _by_server(after)
    return frozenset(
        server for server in old.keys() | new.keys() if old.get(server) != new.get(server)
    )


def _by_server(items: Collection[Any]) -> dict[str, list[Any]]:
    parts: dict[str, list[Any]] = {}
    for item in items:
        parts.setdefault(item.server_id, []).append(item)
        for server in servers_of(item):
            parts.setdefault(server, []).append(LOGIN_TOOL)  # its clients see that, too
    return parts
