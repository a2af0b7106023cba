"""The sessions of the asynchronous client: calls and leases under one key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

from leaseway.sdk.catalog.prompts_resources import (
    PromptList,
    ResourceList,
    ResourceTemplateList,
)
from leaseway.sdk.catalog.tools import ToolList
from leaseway.sdk.client.calls import AsyncCalls
from leaseway.sdk.client.listings import (
    CatalogListT,
    Fetch,
    fetch_of_session,
    fetch_prompts,
    fetch_resources,
    fetch_templates,
    fetch_tools,
)
from leaseway.sdk.client.watches import AsyncListWatch, AsyncToolWatch, WatchedList
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.leases.lease import Lease
from leaseway.sdk.operators.operations import perform
from leaseway.sdk.transport.forks import forked_after_use
from leaseway.sdk.validation import check_seconds, check_text
from leaseway.wire.bounds import LEASE_TTL
from leaseway.wire.errors import Fault
from leaseway.wire.listing.definitions import ListKind

if TYPE_CHECKING:
    from leaseway.sdk.runtime import Runtime, RuntimeOwner


class AsyncSession(AsyncCalls):
    """One conversation or job, which holds leases; made by `AsyncClient.session`.

    The first call to a leased server acquires a lease: the result has `new_lease`, and a
    `reminder` to release it. After a lease is lost, calls to its server fail with a `LeaseError`
    until `acquire` or `release`.

    Used as `async with client.session(key) as session`, the session releases its leases at the end
    of the block, except those that another client of the session uses; call `client.session(key)`
    to use it again. Used without a block, it keeps a lease until no call has run on it for 10
    minutes, also if the client is closed before (see `idle` of `AsyncClient.session`).

    If a lease of the session ended without its knowledge, the next call of any client raises that
    `LeaseError` once, within 10 minutes, before a later call gets a new server.

    Attributes:
        key: The session's name, unique in the tenant.
        user: The user for whom it calls; empty means the client's.
    """

    def __init__(self, client: RuntimeOwner, key: str) -> None:
        self._client = client
        self._handlers = client._handlers
        self._on_approval = client._on_approval
        self._entered = 0
        self._closed = False
        self._idle: float | None = None
        self.key = key
        self.user = ""
        self._subject_token = ""

    def _reopen(self) -> Self:
        runtime = self._client._open_runtime
        if self._closed and runtime is not None:
            runtime.leases.reopen_session(self.key)
        self._closed = False
        return self

    def _runtime(self) -> Runtime:
        return self._scope()[0]

    def _scope(self) -> tuple[Runtime, str]:
        if self._closed:
            raise RuntimeError(
                f"Session {self.key!r} is closed: its `with` block has ended, and its leases were "
                "released. Call client.session(key) to use it again, with new leases."
            )
        runtime, _ = self._client._scope()
        key, idle = self.key, self._idle
        if self.user:
            runtime.users.bind(key, self.user)
        if self._subject_token:
            runtime.users.give_token(key, self._subject_token)
        if idle is not None:
            runtime.leases.set_idle_limit(key, idle)
        elif self._entered:
            runtime.leases.set_idle_limit(key, math.inf)  # the end of the block releases
        return runtime, key

    async def __aenter__(self) -> Self:
        self._client._runtime()
        self._reopen()
        self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        runtime = self._client._open_runtime
        if self._entered == 0:
            self._closed = True
            # After a fork, the leases belong to the parent process.
            if runtime is not None and not forked_after_use():
                await runtime.leases.close_session(self.key, self)

    async def acquire(
        self, server: str, ttl: float = LEASE_TTL, wait: float | None = None
    ) -> Lease:
        """Acquire the lease of a server, or renew the one that the session holds.

        The client renews the lease in the background until it is released.

        Args:
            server: The server's id.
            ttl: Seconds that the lease lives without a renewal, 1 to 86,400.
            wait: Seconds to wait for capacity, 0 or more; None raises `Capacity` at once.

        Raises:
            Capacity: No worker has capacity for another lease.
            NotLeasable: The server is shared; call it without a lease.
            ToolNotFound: There is no such server.
            LeasewayError: The request failed otherwise.
        """
        return await acquire_lease(self._runtime(), self.key, server, ttl, wait)

    async def release(self, server: str | Lease) -> bool:
        """Release a lease, also one that other clients use; its instance of the server is closed.

        Releasing a lost lease clears its error, so that the next call acquires a new lease.

        Args:
            server: The server's id, or the lease.

        Returns:
            Whether this ended a lease; False if the session held none.

        Raises:
            LeasewayError: The request failed.
        """
        return await release_lease(self._runtime(), self.key, server)

    async def list_tools(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ToolList:
        """List the tools that the session sees, ordered by name.

        They are those of `AsyncClient.list_tools` with the changes of the servers that the session
        leases: a server may add, remove or change tools within a session, such as after a login.
        Such a tool means nothing in other sessions, and ends with the lease. If another server's
        tool has its name, only its qualified name calls it.

        Args:
            servers: Only tools of these server ids; None means all servers.
            timeout: Seconds until the request fails; None means 30.

        Raises:
            ToolNotFound: One of the servers does not exist; the message names the nearest ids.
            LeasewayError: The request failed otherwise.
        """
        return await self._list("tools", fetch_tools, servers, timeout)

    async def list_prompts(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> PromptList:
        """List the prompts that the session sees, ordered by name; see `list_tools`."""
        return await self._list("prompts", fetch_prompts, servers, timeout)

    async def list_resources(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceList:
        """List the resources that the session sees, by server and URI; see `list_tools`."""
        return await self._list("resources", fetch_resources, servers, timeout)

    async def list_resource_templates(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceTemplateList:
        """List the templates that the session sees, by server and template; see `list_tools`."""
        return await self._list("templates", fetch_templates, servers, timeout)

    async def _list(
        self,
        kind: ListKind,
        fetch: Fetch[CatalogListT],
        servers: Sequence[str] | None,
        timeout: float | None,
    ) -> CatalogListT:
        of_session = partial(
            fetch_of_session,
            kind=kind,
            fetch=fetch,
            session=self.key,
            servers=servers,
            user=self.user or None,
        )
        return await perform(self._scope, of_session, timeout)

    def watch_tools(self, servers: Sequence[str] | None = None) -> AsyncToolWatch:
        """Watch the tools that the session sees: the current list, then a new one at each change.

        They are those of `list_tools`. After a lease was lost, the watch raises its `LeaseError`,
        as calls do, until `acquire` or `release`.

        Args:
            servers: Only tools, and leases, of these server ids; None means all servers.

        Returns:
            An asynchronous iterator of `ToolList`s, which ends when the session or the client is
            closed.
        """
        return AsyncToolWatch(self._watched("tools", fetch_tools), servers)

    def watch_prompts(self, servers: Sequence[str] | None = None) -> AsyncListWatch[PromptList]:
        """Watch the prompts that the session sees; see `watch_tools`."""
        return AsyncListWatch(self._watched("prompts", fetch_prompts), servers)

    def watch_resources(self, servers: Sequence[str] | None = None) -> AsyncListWatch[ResourceList]:
        """Watch the resources that the session sees; see `watch_tools`."""
        return AsyncListWatch(self._watched("resources", fetch_resources), servers)

    def watch_resource_templates(
        self, servers: Sequence[str] | None = None
    ) -> AsyncListWatch[ResourceTemplateList]:
        """Watch the resource templates that the session sees; see `watch_tools`."""
        return AsyncListWatch(self._watched("templates", fetch_templates), servers)

    def _watched(self, kind: ListKind, fetch: Fetch[CatalogListT]) -> WatchedList[CatalogListT]:
        self._runtime()  # raises if the session is closed
        return WatchedList(self._client, kind, fetch, self)

    def leases(self) -> list[Lease]:
        """Return the leases that this client holds in the session."""
        runtime = self._client._open_runtime
        if runtime is None:
            return []
        return [Lease(held) for held in runtime.leases.book.held_leases(self.key)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"


async def acquire_lease(
    runtime: Runtime, session: str, server: str, ttl: float, wait: float | None
) -> Lease:
    """Acquire or renew the lease of a session for a server."""
    check_text("server", server)
    check_seconds("ttl", ttl)
    if wait is not None:
        check_seconds("wait", wait)
    try:
        held = await runtime.leases.acquire(runtime.leases.key(session, server), ttl, wait, 0)
    except Fault as fault:
        raise error_from_fault(fault) from None
    return Lease(held)


async def release_lease(runtime: Runtime, session: str, server: str | Lease) -> bool:
    """Release the lease of a session for a server; return whether this ended one."""
    server_id = server.server_id if isinstance(server, Lease) else server
    check_text("server", server_id)
    try:
        return await runtime.leases.release(runtime.leases.key(session, server_id))
    except Fault as fault:
        raise error_from_fault(fault) from None
