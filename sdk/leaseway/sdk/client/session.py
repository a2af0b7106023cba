"""Sessions of the asynchronous client: calls and leases under one key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from leaseway.sdk.client.artifacts import AsyncArtifacts
from leaseway.sdk.client.prompts_resources import AsyncPromptsResources
from leaseway.sdk.client.tools import AsyncToolCalls
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.forks import refused
from leaseway.sdk.leases.book import Lease, SessionLeaseKey
from leaseway.sdk.validation import check_seconds, check_text
from leaseway.wire.bounds import LEASE_TTL
from leaseway.wire.errors import Fault

if TYPE_CHECKING:
    from leaseway.sdk.runtime import Runtime, RuntimeOwner


class AsyncSession(AsyncToolCalls, AsyncPromptsResources, AsyncArtifacts):
    """One conversation or job; its leases are found by its key.

    The first call of a server that is leased acquires its lease: the result has `new_lease` and a
    `reminder` to release it. After a lease was lost, calls fail until `acquire` or `release`.

    Use it as `async with client.session(key) as session` to give back what it acquired at the
    end of the block, or without, to keep that until no call has run on it for 10 minutes
    (`client.session(key, idle=...)`) or the client is closed. Outside of such a block that has
    ended it cannot be used; `client.session(key)` gives it anew.

    Attributes:
        key: Its name, unique in the tenant.
    """

    def __init__(self, client: RuntimeOwner, key: str) -> None:
        self._client = client
        self._handlers = client._handlers
        self._on_approval = client._on_approval
        self._entered = 0
        self._left = False
        self._idle: float | None = None
        self.key = key

    def _reopen(self) -> Self:
        made = self._client._made
        if self._left and made is not None:
            made.leases.reopen_session(self.key)
        self._left = False
        return self

    def _use(self) -> Runtime:
        """Return the client's parts.

        Raises:
            RuntimeError: The session was left, or the client is closed.
        """
        if self._left:
            raise RuntimeError(
                f"Session {self.key!r} was left: its `with` block has ended and what it held was "
                "given back. client.session(key) gives it anew, with nothing of what it knew."
            )
        runtime = self._client._runtime()
        if self._idle is not None:
            runtime.leases.set_idle_limit(self.key, self._idle)
        elif self._entered:
            runtime.leases.set_idle_limit(self.key, math.inf)  # the block says when it ends
        return runtime

    def _at(self) -> tuple[Runtime, str]:
        return self._use(), self.key

    async def __aenter__(self) -> Self:
        self._client._runtime()
        self._reopen()
        self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        made = self._client._made
        if self._entered == 0:
            self._left = True
            if made is not None and not refused():  # else what is held is its parent's
                await made.leases.close_session(self.key, self)

    async def acquire(
        self, server: str, ttl: float = LEASE_TTL, wait: float | None = None
    ) -> Lease:
        """Acquire the lease of a server, or renew the one that the session holds.

        The lease is kept alive until it is released.

        Args:
            server: The server's id.
            ttl: Seconds that it outlives this client's silence, 1 to 86,400.
            wait: Seconds to wait for room, 0 or more; None raises `Capacity` at once.
        """
        return await acquire_lease(self._use(), self.key, server, ttl, wait)

    async def release(self, server: str | Lease) -> bool:
        """Give a lease back; its client is closed. A lost one is forgotten.

        Args:
            server: The server's id, or the lease.

        Returns:
            Whether this ended a lease; False where there was none any more.
        """
        return await release_lease(self._use(), self.key, server)

    def leases(self) -> list[Lease]:
        """Return the leases that this client holds in the session."""
        made = self._client._made
        return [Lease(held) for held in made.leases.book.held_leases(self.key)] if made else []

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
        held = await runtime.leases.acquire(SessionLeaseKey(session, server), ttl, wait, 0)
    except Fault as fault:
        raise error_from_fault(fault) from None
    return Lease(held)


async def release_lease(runtime: Runtime, session: str, server: str | Lease) -> bool:
    """Give the lease of a session for a server back; say whether this ended one."""
    server_id = server.server_id if isinstance(server, Lease) else server
    check_text("server", server_id)
    try:
        return await runtime.leases.release(SessionLeaseKey(session, server_id))
    except Fault as fault:
        raise error_from_fault(fault) from None
