"""Watches a list of the catalog: yields the current one, then a new one after each change.

Nothing is queued: a list is fetched when the caller asks for the next one, so a slow caller gets
the newest list and skips those between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Protocol, Self

import grpc

from leaseway.sdk.calls.own_lists import first_of
from leaseway.sdk.catalog.lease_items import LeaseItems
from leaseway.sdk.catalog.resolver import RegistryVersion
from leaseway.sdk.catalog.tools import ToolList
from leaseway.sdk.client.listings import CatalogListT, Fetch, with_own
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.runtime import Runtime, RuntimeOwner
from leaseway.sdk.transport.handles import ProcessHandle
from leaseway.wire.bounds import STARTUP_TIMEOUT
from leaseway.wire.errors import SETTLING, UNANSWERED, Fault, Reason
from leaseway.wire.listing.definitions import ListKind
from leaseway.wire.timing.backoff import RECONNECT
from leaseway.wire.timing.running_tasks import is_cancelled

_TRANSIENT: Final = UNANSWERED | SETTLING | {Reason.DRAINING, Reason.OVERLOADED}
"""Reasons for which a list is missing for a while only, for example during a restart."""


class WatchedSession(Protocol):
    """An `AsyncSession`, as its watch uses it."""

    key: str
    user: str
    _client: RuntimeOwner
    _closed: bool

    def _runtime(self) -> Runtime:
        """Return the runtime; raises a RuntimeError if the session or its client is closed."""


class WatchedList(Generic[CatalogListT]):
    """The list that a watch yields: a tenant's, or a session's, whose leases may differ.

    Args:
        client: The client.
        kind: Which list it is.
        fetch: Reads the list of all.
        session: The session, or None for the tenant's list.
    """

    def __init__(
        self,
        client: RuntimeOwner,
        kind: ListKind,
        fetch: Fetch[CatalogListT],
        session: WatchedSession | None = None,
    ) -> None:
        self._client = client
        self._kind: ListKind = kind
        self.fetch = fetch
        self._session = session
        self._seen: Mapping[ClientLease, LeaseItems[Any] | None] = {}

    def is_closed(self) -> bool:
        """Return whether the client or the session is closed."""
        return self._client._closed or (self._session is not None and self._session._closed)

    @property
    def user(self) -> str | None:
        """The user for whom is listed; None means the client's."""
        return (self._session.user or None) if self._session is not None else None

    def runtime(self) -> Runtime:
        """Return the client's runtime; raises a RuntimeError if it cannot be used."""
        return self._client._runtime() if self._session is None else self._session._runtime()

    def check(self, runtime: Runtime, servers: Sequence[str] | None) -> None:
        """Raise how a lease of the session ended."""
        if self._session is not None:
            ended = runtime.leases.book.find_end(self._session.key, servers)
            if ended is not None:
                raise ended

    async def complete(
        self, runtime: Runtime, items: CatalogListT, servers: Sequence[str] | None
    ) -> CatalogListT:
        """Return the list that is yielded, from that of the tenant."""
        if self._session is None:
            return items
        self._seen = await runtime.caller.own_lists.of_session(self._session.key, self._kind)
        return with_own(items, self._kind, self._seen.values(), servers)

    async def wait_beyond(
        self, runtime: Runtime, registry: RegistryVersion, version: int, lists: int | None
    ) -> None:
        """Wait for a change of the registry, of the session's leases or of their lists."""
        if self._session is None:
            await registry.wait_beyond(version, lists)
            return
        own = runtime.caller.own_lists
        await first_of(
            registry.wait_beyond(version, lists),
            own.wait_beyond(self._session.key, self._kind, self._seen),
        )


class AsyncListWatch(ProcessHandle, Generic[CatalogListT]):
    """What a tenant or a session sees of one kind, as it changes: an iterator of lists.

    The first list is returned at once, or its error is raised. Each later list differs from the
    one before in its items or in `pending`. While the control plane or a worker is unreachable, the
    watch waits; a server that is removed has no items until it is added again. The iterator ends
    when the client or the session is closed. Iterating may stop early without clean-up.

    After a lease of a watched session was lost, the iterator raises a `LeaseError`, as calls do,
    until `acquire` or `release`.
    """

    def __init__(self, source: WatchedList[CatalogListT], servers: Sequence[str] | None) -> None:
        self._source = source
        self._servers = list(servers) if servers is not None else None
        self._last: CatalogListT | None = None
        self._read_at = 0
        self._lists: int | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CatalogListT:
        source = self._source
        if source.is_closed():
            raise StopAsyncIteration
        runtime = source.runtime()
        registry_version = runtime.resolver.watch()
        while not registry_version.ended:
            if self._last is not None:
                await source.wait_beyond(runtime, registry_version, self._read_at, self._lists)
            lists = registry_version.lists
            if source.is_closed():
                break
            items = await self._read(runtime)
            if items is None or source.is_closed() or registry_version.ended:
                break
            # Only now: a read that failed or was cancelled is due again.
            self._lists = lists
            self._read_at = max(self._read_at, items.registry_version)
            if self._last is None or _differs(self._last, items):
                self._last = items
                return items
        raise StopAsyncIteration

    async def _read(self, runtime: Runtime) -> CatalogListT | None:
        """Return the current list, or None if the client was closed meanwhile."""
        attempt = 0
        registry_version = runtime.resolver.registry_version
        while True:
            try:
                deadline = runtime.loop.time() + STARTUP_TIMEOUT
                self._source.check(runtime, self._servers)
                items = await self._fetch(runtime, deadline)
                return await self._source.complete(runtime, items, self._servers)
            except Fault as fault:
                if registry_version.ended:
                    return None
                if self._last is None or fault.reason not in _TRANSIENT:
                    raise error_from_fault(fault) from None
            except (asyncio.CancelledError, grpc.aio.BaseError):
                # A request on a channel that is closed ends with one of these.
                if registry_version.ended and not is_cancelled():
                    return None
                raise
            await asyncio.sleep(RECONNECT.delay(attempt))
            attempt += 1

    async def _fetch(self, runtime: Runtime, deadline: float) -> CatalogListT:
        user, fetch = self._source.user, self._source.fetch
        try:
            return await fetch(runtime, deadline, servers=self._servers, user=user)
        except Fault as fault:
            if self._last is None or fault.reason is not Reason.TOOL_NOT_FOUND:
                raise
        # One of the servers was removed: select the items of the others from the whole list.
        items = await fetch(runtime, deadline, servers=None, user=user)
        wanted = [item for item in items if item.server_id in (self._servers or ())]
        return type(items)(**(items._asdict() | {"items": wanted}))


class AsyncToolWatch(AsyncListWatch[ToolList]):
    """The tools that a tenant or a session sees, as they change: an iterator of `ToolList`s.

    See `AsyncListWatch`.
    """


def _differs(before: CatalogListT, after: CatalogListT) -> bool:
    return list(before) != list(after) or before.pending != after.pending
