"""The synchronous client and its sessions: the asynchronous ones, run in a background loop.

All clients of a process share one event-loop thread. A client is thread-safe.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from leaseway.sdk.blocking.calls import Calls
from leaseway.sdk.blocking.loop_thread import LOOP_THREAD, BlockingContext
from leaseway.sdk.blocking.streams import ListWatch, ToolWatch
from leaseway.sdk.catalog.prompts_resources import PromptList, ResourceList, ResourceTemplateList
from leaseway.sdk.catalog.tools import Tool, ToolList
from leaseway.sdk.client.client import AsyncClient
from leaseway.sdk.client.listings import CatalogListT
from leaseway.sdk.client.options import OnApproval
from leaseway.sdk.client.session import AsyncSession
from leaseway.sdk.client.watches import AsyncListWatch
from leaseway.sdk.leases.lease import Lease
from leaseway.sdk.operators.views import (
    Approval,
    InstanceLog,
    LeaseInfo,
    LimitInfo,
    ProblemInfo,
    ServerInfo,
    Status,
    WorkerInfo,
)
from leaseway.sdk.transport.forks import ThreadLock
from leaseway.sdk.transport.server_requests import Handlers, OnElicitation, OnSampling, Roots
from leaseway.sdk.validation import check_callback
from leaseway.wire.bounds import LEASE_TTL


class _LoopClient(AsyncClient):
    """The asynchronous client of a synchronous one, whose results wait in the calling thread."""

    _wait = LOOP_THREAD.run

    def __repr__(self) -> str:
        return f"<Client of {self._identity.address}>"


class Client(Calls):
    """Lists and calls tools, and holds leases, from any thread.

    The client connects at its first use. Close it, or use it as `with Client() as client`, to
    release its leases at once. All methods raise a `LeasewayError` if a request fails, and a
    RuntimeError if the client is closed. Another `with` opens a closed client again. See
    `AsyncClient` for calls outside a session.

    A client may be created before a fork and used after it. But once a process has used a client,
    all clients in children that it forks afterwards raise a RuntimeError; the process itself can
    continue to use its own.

    Args:
        address: The control plane's HOST:PORT; None means LEASEWAY_ADDRESS, or 127.0.0.1:7600.
        agent: The tenant's agent that calls; shown in leases and traces.
        tenant: The tenant whose tools to use; None means the default tenant.
        key: The shared key, an API key or a token, or the path of a file with one that others
            replace while the client is used (`pathlib.Path`). None means LEASEWAY_KEY, the file
            that LEASEWAY_KEY_FILE names, or no key.
        user: As for `AsyncClient`.
        subject_token: As for `AsyncClient`.
        on_elicitation: As for `AsyncClient`, but not async; it runs in the calling thread.
        on_sampling: As for `AsyncClient`, but not async; it runs in the calling thread.
        roots: As for `AsyncClient`.
        on_approval: As for `AsyncClient`, but not async; it runs in the calling thread.

    Raises:
        ValueError: The address is not HOST:PORT, the key contains characters that cannot be sent
            or its file cannot be read, or a root is not a `file://` URI.
        TypeError: A parameter has the wrong type.
    """

    _inner: AsyncClient

    def __init__(  # noqa: PLR0913 - the names and handlers of a client
        self,
        address: str | None = None,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        key: str | os.PathLike[str] | None = None,
        user: str | None = None,
        subject_token: str | None = None,
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
        self._inner = _LoopClient(
            address, agent=agent, tenant=tenant, key=key, user=user, subject_token=subject_token
        )
        self._lock = ThreadLock()
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

    def __enter__(self) -> Self:
        self._inner._closed = False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the leases of calls outside any session; see `AsyncClient.close`."""
        self._inner._closed = True
        LOOP_THREAD.run_exit(self._inner.close)

    def session(
        self,
        key: str,
        *,
        idle: float | None = None,
        user: str | None = None,
        subject_token: str | None = None,
    ) -> Session:
        """Return the session with a key; see `AsyncClient.session`."""
        with self._lock.current:
            inner = self._inner._session(key, idle, user, subject_token)
            if inner._closed:
                LOOP_THREAD.run(partial(_reopened, inner))
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = Session(self, inner)
            return session

    def acquire(self, server: str, ttl: float = LEASE_TTL, wait: float | None = None) -> Lease:
        """Acquire a server's lease for calls outside any session; see `AsyncClient.acquire`."""
        return LOOP_THREAD.run(partial(self._inner.acquire, server, ttl, wait))

    def release(self, server: str | Lease) -> bool:
        """Release a lease of calls outside any session; see `AsyncClient.release`."""
        return LOOP_THREAD.run(partial(self._inner.release, server))

    def list_tools(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> ToolList:
        """List the tools that the tenant sees; see `AsyncClient.list_tools`."""
        return LOOP_THREAD.run(partial(self._inner.list_tools, servers, user=user, timeout=timeout))

    def search_tools(
        self,
        query: str,
        limit: int = 5,
        *,
        servers: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> list[Tool]:
        """Search the tools by their purpose; see `AsyncClient.search_tools`."""
        return LOOP_THREAD.run(
            partial(self._inner.search_tools, query, limit, servers=servers, timeout=timeout)
        )

    def describe_tool(self, name: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return a tool's MCP definition; see `AsyncClient.describe_tool`."""
        return LOOP_THREAD.run(partial(self._inner.describe_tool, name, timeout=timeout))

    def list_prompts(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> PromptList:
        """List the prompts that the tenant sees; see `AsyncClient.list_prompts`."""
        return LOOP_THREAD.run(
            partial(self._inner.list_prompts, servers, user=user, timeout=timeout)
        )

    def list_resources(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> ResourceList:
        """List the resources that the tenant sees; see `AsyncClient.list_resources`."""
        return LOOP_THREAD.run(
            partial(self._inner.list_resources, servers, user=user, timeout=timeout)
        )

    def list_resource_templates(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> ResourceTemplateList:
        """List the templates that the tenant sees; see `AsyncClient.list_resource_templates`."""
        return LOOP_THREAD.run(
            partial(self._inner.list_resource_templates, servers, user=user, timeout=timeout)
        )

    def instructions(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, str]:
        """Return what servers tell models about their use; see `AsyncClient.instructions`."""
        return LOOP_THREAD.run(partial(self._inner.instructions, servers, timeout=timeout))

    def watch_tools(self, servers: Sequence[str] | None = None) -> ToolWatch:
        """Watch the tools that the tenant sees; see `AsyncClient.watch_tools`."""
        return ToolWatch(LOOP_THREAD.run(partial(_watch, self._inner.watch_tools, servers)))

    def servers(
        self, *, load: bool = False, all_tenants: bool = False, timeout: float | None = None
    ) -> list[ServerInfo]:
        """List the configured servers with their state; see `AsyncClient.servers`.

        Here and in the methods below, `timeout` is the number of seconds until the request fails;
        None means 30.
        """
        return LOOP_THREAD.run(
            partial(self._inner.servers, load=load, all_tenants=all_tenants, timeout=timeout)
        )

    def workers(self, *, load: bool = False, timeout: float | None = None) -> list[WorkerInfo]:
        """List the workers, ordered by id; see `AsyncClient.workers`."""
        return LOOP_THREAD.run(partial(self._inner.workers, load=load, timeout=timeout))

    def limits(self, *, timeout: float | None = None) -> list[LimitInfo]:
        """List what is left of limits over all workers; see `AsyncClient.limits`."""
        return LOOP_THREAD.run(partial(self._inner.limits, timeout=timeout))

    def leases(self, *, idle: bool = False, timeout: float | None = None) -> list[LeaseInfo]:
        """List the leases of all clients of the tenant, ordered by id; see `AsyncClient.leases`."""
        return LOOP_THREAD.run(partial(self._inner.leases, idle=idle, timeout=timeout))

    def lease_ends(self, *, timeout: float | None = None) -> dict[str, str]:
        """Return how recent leases of the tenant ended; see `AsyncClient.lease_ends`."""
        return LOOP_THREAD.run(partial(self._inner.lease_ends, timeout=timeout))

    def problems(self, *, timeout: float | None = None) -> list[ProblemInfo]:
        """List the open problems, the newest first."""
        return LOOP_THREAD.run(partial(self._inner.problems, timeout=timeout))

    def status(self, *, timeout: float | None = None) -> Status:
        """Return the state of the control plane and the number of its servers and workers."""
        return LOOP_THREAD.run(partial(self._inner.status, timeout=timeout))

    def logs(
        self, server: str, lines: int = 100, *, timeout: float | None = None
    ) -> list[InstanceLog]:
        """Read the last stderr lines of a server's instances; see `AsyncClient.logs`."""
        return LOOP_THREAD.run(partial(self._inner.logs, server, lines, timeout=timeout))

    def find_lease(self, session: str, server: str, *, timeout: float | None = None) -> str | None:
        """Return the id of a session's lease of a server; see `AsyncClient.find_lease`."""
        return LOOP_THREAD.run(partial(self._inner.find_lease, session, server, timeout=timeout))

    def revoke_lease(self, lease: str, reason: str = "", *, timeout: float | None = None) -> bool:
        """Revoke a lease of any client; see `AsyncClient.revoke_lease`."""
        return LOOP_THREAD.run(partial(self._inner.revoke_lease, lease, reason, timeout=timeout))

    def drain_worker(self, worker: str, *, timeout: float | None = None) -> None:
        """Make a worker finish its calls and exit; see `AsyncClient.drain_worker`."""
        LOOP_THREAD.run(partial(self._inner.drain_worker, worker, timeout=timeout))

    def approvals(self, *, timeout: float | None = None) -> list[Approval]:
        """List the calls that need a person's approval, the newest first."""
        return LOOP_THREAD.run(partial(self._inner.approvals, timeout=timeout))

    def approve(self, approval: str, note: str = "") -> Approval:
        """Approve a call; see `AsyncClient.approve`."""
        return LOOP_THREAD.run(partial(self._inner.approve, approval, note))

    def deny(self, approval: str, note: str = "") -> Approval:
        """Deny a call; see `AsyncClient.deny`."""
        return LOOP_THREAD.run(partial(self._inner.deny, approval, note))

    def report_problem(
        self, reason: str, message: str, *, server: str = "", severity: str = "warning"
    ) -> None:
        """Report a problem of this client to operators; see `AsyncClient.report_problem`."""
        LOOP_THREAD.run(
            partial(self._inner.report_problem, reason, message, server=server, severity=severity)
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
        """Report that a model provider refused a request; see `AsyncClient.report_refusal`."""
        LOOP_THREAD.run(
            partial(
                self._inner.report_refusal,
                provider,
                error_text,
                tool,
                offered=offered,
                session=session,
            )
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._inner._identity.address}>"


class Session(BlockingContext, Calls):
    """One conversation or job, which holds leases; made by `Client.session`. See `AsyncSession`.

    Attributes:
        key: The session's name, unique in the tenant.
    """

    _inner: AsyncSession

    def __init__(self, client: Client, inner: AsyncSession) -> None:
        self._client = client  # keeps the client alive while its sessions are used
        self._inner = inner
        self._handlers = client._handlers
        self._on_approval = client._on_approval
        self.key = inner.key

    def acquire(self, server: str, ttl: float = LEASE_TTL, wait: float | None = None) -> Lease:
        """Acquire the lease of a server; see `AsyncSession.acquire`."""
        return LOOP_THREAD.run(partial(self._inner.acquire, server, ttl, wait))

    def release(self, server: str | Lease) -> bool:
        """Release a lease; see `AsyncSession.release`."""
        return LOOP_THREAD.run(partial(self._inner.release, server))

    def list_tools(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ToolList:
        """List the tools that the session sees; see `AsyncSession.list_tools`."""
        return LOOP_THREAD.run(partial(self._inner.list_tools, servers, timeout=timeout))

    def list_prompts(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> PromptList:
        """List the prompts that the session sees; see `AsyncSession.list_prompts`."""
        return LOOP_THREAD.run(partial(self._inner.list_prompts, servers, timeout=timeout))

    def list_resources(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceList:
        """List the resources that the session sees; see `AsyncSession.list_resources`."""
        return LOOP_THREAD.run(partial(self._inner.list_resources, servers, timeout=timeout))

    def list_resource_templates(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceTemplateList:
        """List the templates that the session sees; see `AsyncSession.list_resource_templates`."""
        return LOOP_THREAD.run(
            partial(self._inner.list_resource_templates, servers, timeout=timeout)
        )

    def watch_tools(self, servers: Sequence[str] | None = None) -> ToolWatch:
        """Watch the tools that the session sees; see `AsyncSession.watch_tools`."""
        return ToolWatch(LOOP_THREAD.run(partial(_watch, self._inner.watch_tools, servers)))

    def watch_prompts(self, servers: Sequence[str] | None = None) -> ListWatch[PromptList]:
        """Watch the prompts that the session sees; see `AsyncSession.watch_tools`."""
        return ListWatch(LOOP_THREAD.run(partial(_watch, self._inner.watch_prompts, servers)))

    def watch_resources(self, servers: Sequence[str] | None = None) -> ListWatch[ResourceList]:
        """Watch the resources that the session sees; see `AsyncSession.watch_tools`."""
        return ListWatch(LOOP_THREAD.run(partial(_watch, self._inner.watch_resources, servers)))

    def watch_resource_templates(
        self, servers: Sequence[str] | None = None
    ) -> ListWatch[ResourceTemplateList]:
        """Watch the resource templates that the session sees; see `AsyncSession.watch_tools`."""
        return ListWatch(
            LOOP_THREAD.run(partial(_watch, self._inner.watch_resource_templates, servers))
        )

    def leases(self) -> list[Lease]:
        """Return the leases that this client holds in the session."""
        return LOOP_THREAD.run(partial(_leases, self._inner))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"


# A client's leases may be read and changed in its loop only.


async def _reopened(session: AsyncSession) -> AsyncSession:
    return session._reopen()


async def _watch(
    watch: Callable[[Sequence[str] | None], AsyncListWatch[CatalogListT]],
    servers: Sequence[str] | None,
) -> AsyncListWatch[CatalogListT]:
    return watch(servers)


async def _leases(session: AsyncSession) -> list[Lease]:
    return session.leases()
