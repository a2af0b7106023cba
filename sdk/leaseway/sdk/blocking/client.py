"""The synchronous client and its sessions: the asynchronous ones, run in a background loop.

All clients of a process share one event-loop thread, and any number of threads may use one
client at the same time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from leaseway.sdk.blocking.artifacts import Artifacts
from leaseway.sdk.blocking.listings import Catalog
from leaseway.sdk.blocking.loop_thread import Blocking, background
from leaseway.sdk.blocking.prompts_resources import PromptsResources
from leaseway.sdk.blocking.streams import ToolWatches
from leaseway.sdk.blocking.tools import ToolCalls
from leaseway.sdk.catalog.tools import Tool
from leaseway.sdk.client.approvals import OnApproval
from leaseway.sdk.client.client import AsyncClient
from leaseway.sdk.client.session import AsyncSession
from leaseway.sdk.forks import ThreadLock
from leaseway.sdk.leases.book import Lease
from leaseway.sdk.operators.views import (
    Approval,
    InstanceLog,
    LeaseInfo,
    ProblemInfo,
    ServerInfo,
    Status,
    WorkerInfo,
)
from leaseway.sdk.transport.server_requests import Handlers, OnElicitation, OnSampling, Roots
from leaseway.sdk.validation import check_callback
from leaseway.wire.bounds import LEASE_TTL


class Client(Catalog, ToolCalls, PromptsResources, Artifacts, ToolWatches):
    """Lists and calls tools, and holds leases, from any thread.

    It connects when it is first used. Close it, or use it as `with Client() as client`, so that
    the leases that it acquired are given back at once. All methods raise `LeasewayError`s, and a
    RuntimeError where the client is closed.

    It may be made before a fork and used after it. Where a process has used a client, the clients
    of the children that it forks afterwards raise a RuntimeError that says so; it goes on itself.

    Args:
        address: The control plane as HOST:PORT; None means LEASEWAY_ADDRESS, or 127.0.0.1:7600.
        agent: Which agent of the tenant calls; it shows in leases and traces.
        tenant: Whose tools to see; None means the default tenant.
        key: The shared key; None means LEASEWAY_KEY, or none.
        on_elicitation: As for `AsyncClient`, a plain function; it runs in the calling thread.
        on_sampling: Likewise.
        roots: As for `AsyncClient`.
        on_approval: As for `AsyncClient`, a plain function.

    Raises:
        ValueError: The address is not HOST:PORT, the key cannot be sent, or a root is no
            `file://` URI.
        TypeError: A parameter is of the wrong type.
    """

    _inner: AsyncClient

    def __init__(
        self,
        address: str | None = None,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        on_approval: OnApproval | None = None,
    ) -> None:
        check_callback("on_approval", on_approval, may_be_async=False)
        self._on_approval = on_approval
        handlers = Handlers(on_elicitation, on_sampling, roots)
        handlers.check(may_be_async=False)
        self._handlers = handlers or None
        self._inner = AsyncClient(address, agent=agent, tenant=tenant, key=key)
        self._inner._media.wait = lambda make: background().run(make)
        self._lock = ThreadLock()
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the leases that this client acquired and end all connections.

        Calls in flight fail with `Cancelled`. Closing twice is allowed.
        """
        self._inner._closed = True
        background().leave(self._inner.close)

    def session(self, key: str, *, idle: float | None = None) -> Session:
        """Return the session of a key; see `AsyncClient.session`."""
        with self._lock.current:
            inner = self._inner._session(key, idle)
            if inner._left:
                background().run(partial(_reopened, inner))
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = Session(self, inner)
            return session

    def acquire(self, server: str, ttl: float = LEASE_TTL, wait: float | None = None) -> Lease:
        """Acquire a server's lease for calls outside any session; see `AsyncClient.acquire`."""
        return background().run(lambda: self._inner.acquire(server, ttl, wait))

    def release(self, server: str | Lease) -> bool:
        """Give back a lease of calls outside any session; see `AsyncClient.release`."""
        return background().run(lambda: self._inner.release(server))

    def servers(self, *, timeout: float | None = None) -> list[ServerInfo]:
        """List the configured servers with their state, ordered by id."""
        return background().run(lambda: self._inner.servers(timeout=timeout))

    def workers(self, *, timeout: float | None = None) -> list[WorkerInfo]:
        """List the workers, ordered by id."""
        return background().run(lambda: self._inner.workers(timeout=timeout))

    def leases(self, *, idle: bool = False, timeout: float | None = None) -> list[LeaseInfo]:
        """List the leases of all clients of the tenant, ordered by id; see `AsyncClient.leases`."""
        return background().run(lambda: self._inner.leases(idle=idle, timeout=timeout))

    def lease_ends(self, *, timeout: float | None = None) -> dict[str, str]:
        """Ask how leases of the tenant ended within the last minute, by lease id."""
        return background().run(lambda: self._inner.lease_ends(timeout=timeout))

    def problems(self, *, timeout: float | None = None) -> list[ProblemInfo]:
        """List the open problems, the newest first."""
        return background().run(lambda: self._inner.problems(timeout=timeout))

    def status(self, *, timeout: float | None = None) -> Status:
        """Ask how far the system is."""
        return background().run(lambda: self._inner.status(timeout=timeout))

    def logs(
        self, server: str, lines: int = 100, *, timeout: float | None = None
    ) -> list[InstanceLog]:
        """Read the last stderr lines of a server's instances; see `AsyncClient.logs`."""
        return background().run(lambda: self._inner.logs(server, lines, timeout=timeout))

    def find_lease(self, session: str, server: str, *, timeout: float | None = None) -> str | None:
        """Return the id of a session's lease of a server; see `AsyncClient.find_lease`."""
        return background().run(lambda: self._inner.find_lease(session, server, timeout=timeout))

    def revoke_lease(self, lease: str, reason: str = "", *, timeout: float | None = None) -> bool:
        """End a lease against its holder's will; see `AsyncClient.revoke_lease`."""
        return background().run(lambda: self._inner.revoke_lease(lease, reason, timeout=timeout))

    def drain_worker(self, worker: str, *, timeout: float | None = None) -> None:
        """Drain a worker: it finishes its calls and ends; see `AsyncClient.drain_worker`."""
        background().run(lambda: self._inner.drain_worker(worker, timeout=timeout))

    def approvals(self, *, timeout: float | None = None) -> list[Approval]:
        """List calls that need a person, the newest first."""
        return background().run(lambda: self._inner.approvals(timeout=timeout))

    def approve(self, approval: str, note: str = "") -> Approval:
        """Agree to a call that waits for a person; see `AsyncClient.approve`."""
        return background().run(lambda: self._inner.approve(approval, note))

    def deny(self, approval: str, note: str = "") -> Approval:
        """Refuse a call that waits for a person; see `AsyncClient.deny`."""
        return background().run(lambda: self._inner.deny(approval, note))

    def report_problem(
        self, reason: str, message: str, *, server: str = "", severity: str = "warning"
    ) -> None:
        """Report a problem that this caller met; see `AsyncClient.report_problem`."""
        background().run(
            lambda: self._inner.report_problem(reason, message, server=server, severity=severity)
        )

    def report_refusal(
        self,
        provider: str,
        error_text: str,
        tool: Tool | Mapping[str, Any] | str | None = None,
        *,
        offered: Sequence[Tool | Mapping[str, Any]] = (),
        session: str = "",
    ) -> None:
        """Report that a provider refused a request; see `AsyncClient.report_refusal`."""
        background().run(
            lambda: self._inner.report_refusal(
                provider, error_text, tool, offered=offered, session=session
            )
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._inner._identity.address}>"


class Session(Blocking, ToolCalls, PromptsResources, Artifacts):
    """One conversation or job; see `AsyncSession`.

    Attributes:
        key: Its name, unique in the tenant.
    """

    _inner: AsyncSession

    def __init__(self, client: Client, inner: AsyncSession) -> None:
        self._client = client  # so that the client lives as long as its sessions are used
        self._inner = inner
        self._handlers = client._handlers
        self._on_approval = client._on_approval
        self.key = inner.key

    def acquire(self, server: str, ttl: float = LEASE_TTL, wait: float | None = None) -> Lease:
        """Acquire the lease of a server; see `AsyncSession.acquire`."""
        return background().run(lambda: self._inner.acquire(server, ttl, wait))

    def release(self, server: str | Lease) -> bool:
        """Give a lease back; see `AsyncSession.release`."""
        return background().run(lambda: self._inner.release(server))

    def leases(self) -> list[Lease]:
        """Return the leases that this client holds in the session."""
        return background().run(partial(_leases, self._inner))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"


# What a client knows of its leases is read and changed in its loop only.


async def _reopened(session: AsyncSession) -> AsyncSession:
    return session._reopen()


async def _leases(session: AsyncSession) -> list[Lease]:
    return session.leases()
