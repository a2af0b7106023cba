"""The asynchronous client."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Self, TypeVar

from leaseway.sdk.catalog.providers import describe_refusal
from leaseway.sdk.catalog.tools import Tool
from leaseway.sdk.client.artifacts import ClientMedia, Wait
from leaseway.sdk.client.calls import AsyncCalls
from leaseway.sdk.client.listings import AsyncListings, fetch_tools
from leaseway.sdk.client.options import OnApproval
from leaseway.sdk.client.session import AsyncSession, acquire_lease, release_lease
from leaseway.sdk.client.watches import AsyncToolWatch, WatchedList
from leaseway.sdk.errors import InvalidRequest
from leaseway.sdk.leases.lease import Lease
from leaseway.sdk.operators import operations
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
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.forks import check_fork, forked_after_use
from leaseway.sdk.transport.identity import ClientIdentity, identify
from leaseway.sdk.transport.server_requests import Handlers, OnElicitation, OnSampling, Roots
from leaseway.sdk.validation import (
    check_callback,
    check_count,
    check_key,
    check_seconds,
    check_text,
    checked_token,
)
from leaseway.v1 import admin_pb2
from leaseway.wire.bounds import LEASE_TTL
from leaseway.wire.channels.local import LocalWorker

ResultT = TypeVar("ResultT")

_NO_LOOP: Final = (
    "AsyncClient is used in a running event loop of asyncio, and none runs here; use "
    "leaseway.sdk.Client, which works from any thread, such as one of trio's to_thread."
)


class AsyncClient(AsyncListings, AsyncCalls):
    """Lists and calls tools, and holds leases, in one event loop.

    The client connects at its first use. Close it, or use it as `async with AsyncClient() as
    client`, to release its leases at once. All methods raise a `LeasewayError` if a request fails,
    and a RuntimeError if the client is closed or used in a second event loop. Another `async with`
    opens a closed client again, also in another loop.

    Calls outside a session to a leased server run in a session of the client itself. Its leases
    end with `release` or when the client is closed. After the loss of such a lease, one call
    raises a `LeaseError`, and the next call acquires a new lease.

    Args:
        address: The control plane's HOST:PORT; None means LEASEWAY_ADDRESS, or 127.0.0.1:7600.
        agent: The tenant's agent that calls; shown in leases and traces.
        tenant: The tenant whose tools to use; None means the default tenant.
        key: The shared key, an API key or a token, or the path of a file with one that others
            replace while the client is used (`pathlib.Path`). None means LEASEWAY_KEY, the file
            that LEASEWAY_KEY_FILE names, or no key.
        user: The tenant's user for whom it calls, for servers that act for users; None means the
            user of the key, if it has one. Naming a user needs a key with the role delegate, or
            none at all.
        subject_token: The OAuth token of whoever it calls for, for servers that exchange it for one
            of their own (`token_exchange`, `id_jag`); None means the key, if that is a token.
        on_elicitation: Asks a person for a server; used by all calls, prompts and resources
            unless a call has its own handler; see `CallOptions`.
        on_sampling: Asks a model for a server, in the same way.
        roots: Directories and files that servers may use, in the same way.
        on_approval: Asks a person to approve calls, unless a call has its own callback; see
            `CallOptions`.

    Raises:
        ValueError: The address is not HOST:PORT, the key contains characters that cannot be sent
            or its file cannot be read, or a root is not a `file://` URI.
        TypeError: A parameter has the wrong type.
    """

    _wait: Wait | None = None
    """How results wait for their artifacts in another thread; None in coroutines."""

    _local: LocalWorker | None = None
    """The worker of this process, of a relay that runs in one."""

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
        check_callback("on_approval", on_approval, may_be_async=True)
        self._on_approval = on_approval
        self._identity: ClientIdentity = identify(address, agent, tenant, key, user, subject_token)
        handlers = Handlers(on_elicitation, on_sampling, roots)
        handlers.check(may_be_async=True)
        self._handlers = handlers or None
        self._media = ClientMedia(self, self._wait)
        self._open_runtime: Runtime | None = None
        self._closed = False
        self._sessions: weakref.WeakValueDictionary[str, AsyncSession] = (
            weakref.WeakValueDictionary()
        )

    async def __aenter__(self) -> Self:
        # A closed client is opened again: a web application that a test starts twice enters its
        # only client twice, in two event loops.
        self._closed = False
        self._runtime()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the leases of calls outside any session and close all connections.

        Sessions in an open `with` block end too. Leases of other sessions are kept until no call
        has run on them for their idle limit, because other processes may use them. Calls in
        flight fail with `Cancelled`. Closing twice is allowed.
        """
        self._closed = True
        if forked_after_use():
            return  # the connections belong to the parent process
        runtime, self._open_runtime = self._open_runtime, None
        if runtime is not None:
            self._finalizer.detach()
            if runtime.loop is asyncio.get_running_loop():
                # A copy, because threads of a synchronous client add sessions meanwhile.
                sessions = (ref() for ref in self._sessions.valuerefs())
                await runtime.close([open_.key for open_ in sessions if open_ and open_._entered])
            else:
                runtime.abort()

    def session(
        self,
        key: str,
        *,
        idle: float | None = None,
        user: str | None = None,
        subject_token: str | None = None,
    ) -> AsyncSession:
        """Return the session with a key: one conversation or job, named by the caller.

        The same key names the same session in all processes of the tenant.

        Args:
            key: The session's name.
            idle: Seconds without a call after which a lease of the session is released, also
                after this client was closed; `math.inf` for not before that, and then 600. None
                keeps the current value, which is first 600, or never inside a `with` block. Later
                calls raise `LeaseReleased` until `acquire` or `release`.
            user: The user for whom the session calls, as for the client. None keeps the current
                one, which is first the client's.
            subject_token: The token of whoever the session calls for, as for the client; a new one
                replaces it. None keeps the current one.

        Raises:
            InvalidRequest: The key is empty, has more than 256 characters or control characters,
                `idle` is not positive, or the session calls for another user.
            TypeError: The key, the user or the token is not a str, or `idle` not a number.
        """
        return self._session(key, idle, user, subject_token)._reopen()

    def _session(
        self,
        key: str,
        idle: float | None = None,
        user: str | None = None,
        subject_token: str | None = None,
    ) -> AsyncSession:
        check_key("session", key)
        if user is not None:
            check_key("user", user)
        if idle is not None:
            check_seconds("idle", idle)
            if idle <= 0:
                raise InvalidRequest(f"idle={idle:g} leaves no time for a call; pass more than 0.")
        session = self._sessions.get(key)
        if session is None:
            if not key:
                raise InvalidRequest("A session key must not be empty.")
            session = self._sessions[key] = AsyncSession(self, key)
        if idle is not None:
            session._idle = idle
        if user:
            if session.user not in ("", user):
                raise InvalidRequest(
                    f"Session {key!r} calls for the user {session.user!r}; give each user sessions "
                    "of their own."
                )
            session.user = user
        if subject_token is not None:
            session._subject_token = checked_token(subject_token)
        return session

    async def acquire(
        self, server: str, ttl: float = LEASE_TTL, wait: float | None = None
    ) -> Lease:
        """Acquire a server's lease for calls outside any session; see `AsyncSession.acquire`."""
        runtime = self._runtime()
        return await acquire_lease(runtime, runtime.own_session, server, ttl, wait)

    async def release(self, server: str | Lease) -> bool:
        """Release a server's lease of calls outside any session; see `AsyncSession.release`."""
        runtime = self._runtime()
        return await release_lease(runtime, runtime.own_session, server)

    def watch_tools(self, servers: Sequence[str] | None = None) -> AsyncToolWatch:
        """Watch the tools that the tenant sees: the current list, then a new one at each change.

        Args:
            servers: Only tools of these server ids; None means all servers.

        Returns:
            An asynchronous iterator of `ToolList`s, which ends when the client is closed.
        """
        self._runtime()  # raises if the client is closed
        return AsyncToolWatch(WatchedList(self, "tools", fetch_tools), servers)

    async def servers(
        self, *, load: bool = False, all_tenants: bool = False, timeout: float | None = None
    ) -> list[ServerInfo]:
        """List the configured servers with their state, ordered by id.

        Args:
            load: Whether to ask the workers for the calls in flight; takes at most 3 s.
            all_tenants: Whether to list those of all tenants if the client names none, with a
                variant of a server for each tenant that has its own, as operators and viewers may.
            timeout: Here and in the methods below, the number of seconds until the request fails;
                None means 30.
        """
        fetch = partial(operations.fetch_servers, load=load, all_tenants=all_tenants)
        return await self._ask(fetch, timeout)

    async def workers(
        self, *, load: bool = False, timeout: float | None = None
    ) -> list[WorkerInfo]:
        """List the workers, ordered by id.

        Args:
            load: Whether to ask them for their calls in flight; takes at most 3 s.
            timeout: As for `servers`.
        """
        return await self._ask(partial(operations.fetch_workers, load=load), timeout)

    async def limits(self, *, timeout: float | None = None) -> list[LimitInfo]:
        """List what is left of each limit that holds over all workers, and when it renews.

        A client of a tenant gets the limits of it and its agents, any other all.
        """
        return await self._ask(operations.fetch_limits, timeout)

    async def leases(self, *, idle: bool = False, timeout: float | None = None) -> list[LeaseInfo]:
        """List the leases of all clients of the tenant, ordered by id.

        Args:
            idle: Whether to ask the workers how long each lease has been idle.
            timeout: As for `servers`.
        """
        return await self._ask(partial(operations.fetch_leases, idle=idle), timeout)

    async def lease_ends(self, *, timeout: float | None = None) -> dict[str, str]:
        """Return how the tenant's leases ended within the last minute, by lease id.

        Each value is `released`, `revoked`, `expired` or `lost`, as the worker reported it. Leases
        of a lost worker are not included.
        """
        return await self._ask(operations.fetch_lease_ends, timeout)

    async def problems(self, *, timeout: float | None = None) -> list[ProblemInfo]:
        """List the open problems, the newest first."""
        return await self._ask(operations.fetch_problems, timeout)

    async def status(self, *, timeout: float | None = None) -> Status:
        """Return the state of the control plane and the number of its servers and workers."""
        return await self._ask(operations.fetch_status, timeout)

    async def logs(
        self, server: str, lines: int = 100, *, timeout: float | None = None
    ) -> list[InstanceLog]:
        """Read the last stderr lines of a server's instances on all workers.

        Args:
            server: The server's id.
            lines: The maximum number of lines of each instance.
            timeout: As for `servers`.
        """
        check_text("server", server)
        check_count("lines", lines)
        fetch = partial(operations.fetch_logs, server_id=server, lines=lines)
        return await self._ask(fetch, timeout)

    async def find_lease(
        self, session: str, server: str, *, timeout: float | None = None
    ) -> str | None:
        """Return the id of a session's lease of a server, or None; any client may hold it.

        Args:
            session: The session's key.
            server: The server's id.
            timeout: As for `servers`.
        """
        check_key("session", session)
        check_text("server", server)
        find = partial(operations.find_lease, session=session, server_id=server)
        return await self._ask(find, timeout) or None

    async def revoke_lease(
        self, lease: str, reason: str = "", *, timeout: float | None = None
    ) -> bool:
        """Revoke a lease of any client, as an operator.

        Args:
            lease: The lease's id, as `leases` lists it.
            reason: The reason, shown to the lease's holder.
            timeout: As for `servers`.

        Returns:
            Whether the worker has confirmed the end of the lease; False if it has not answered
            yet.

        Raises:
            LeaseLost: No worker holds this lease.
        """
        check_text("lease", lease)
        check_text("reason", reason)
        revoke = partial(operations.revoke_lease, lease_id=lease, reason=reason)
        return await self._ask(revoke, timeout)

    async def drain_worker(self, worker: str, *, timeout: float | None = None) -> None:
        """Make a worker finish its calls, revoke its leases and exit, as an operator.

        The worker receives no new calls. This does not wait for its exit, which `workers` shows.

        Args:
            worker: The worker's id.
            timeout: As for `servers`.

        Raises:
            InvalidRequest: No such worker is connected.
        """
        check_text("worker", worker)
        await self._ask(partial(operations.drain_worker, worker_id=worker), timeout)

    async def approvals(self, *, timeout: float | None = None) -> list[Approval]:
        """List the calls that need a person's approval, the newest first."""
        return await self._ask(operations.fetch_approvals, timeout)

    async def approve(self, approval: str, note: str = "") -> Approval:
        """Approve a call; it runs when its caller repeats it.

        Args:
            approval: The id, from `approvals` or `ConfirmationRequired.confirmation_id`.
            note: A reason, kept with the approval.

        Raises:
            InvalidRequest: There is no such approval, or it is already decided.
            PermissionDenied: This client's credential may not approve the call.
        """
        return await operations.decide_approval(self._scope, approval, note, approve=True)

    async def deny(self, approval: str, note: str = "") -> Approval:
        """Deny a call; the same call is denied until the approval expires.

        Args:
            approval: As for `approve`.
            note: As for `approve`.

        Raises:
            InvalidRequest: There is no such approval, or it is already decided.
            PermissionDenied: This client's credential may not deny the call.
        """
        return await operations.decide_approval(self._scope, approval, note, approve=False)

    async def report_problem(
        self, reason: str, message: str, *, server: str = "", severity: str = "warning"
    ) -> None:
        """Report a problem of this client to operators.

        Args:
            reason: A reason from the runbook (docs/runbook.md), such as `PROVIDER_REFUSED`.
            message: What happened, where, and what to do; no secrets.
            server: The server's id, or empty if the problem is not about one server.
            severity: `error` or `warning`.
        """
        texts = {"reason": reason, "message": message, "server": server, "severity": severity}
        for parameter, value in texts.items():
            check_text(parameter, value)
        problem = admin_pb2.Problem(
            scope="client", server_id=server, reason=reason, message=message, severity=severity
        )
        await self._ask(partial(operations.send_problem, problem=problem), None)

    async def report_refusal(
        self,
        provider: str,
        error_text: str,
        tool: Tool | Mapping[str, Any] | str | None = None,
        *,
        offered: Sequence[Tool | Mapping[str, Any]] = (),
        session: str = "",
    ) -> None:
        """Report that a model provider refused a request because of the tools in it.

        Operators see the problem PROVIDER_REFUSED. Do not repeat the request: the provider would
        refuse it again.

        Args:
            provider: The provider, as for `project_tools`.
            error_text: The provider's error message; the first 2,000 characters are kept.
            tool: The refused tool, if it is known.
            offered: The tools in the request, in order, as `Tool`s or as `project_tools` returned
                them. Those that `error_text` names are reported, with their servers if they are
                `Tool`s.
            session: The key of the conversation's session, or empty.

        Raises:
            ValueError: There is no such provider.
            TypeError: A parameter has the wrong type.
        """
        refusal = describe_refusal(provider, error_text, tool, offered, session)
        problem = admin_pb2.Problem(
            scope="client",
            server_id=refusal.server_id,
            reason="PROVIDER_REFUSED",
            message=refusal.message,
            severity="error",
            subject=refusal.subject,
        )
        await self._ask(partial(operations.send_problem, problem=problem), None)

    async def _ask(
        self, operation: Callable[[Runtime, float], Awaitable[ResultT]], timeout: float | None
    ) -> ResultT:
        return await operations.perform(self._scope, operation, timeout)

    def _runtime(self) -> Runtime:
        return self._scope()[0]

    def _scope(self) -> tuple[Runtime, str]:  # in one function, because each call asks for it
        runtime = self._open_runtime
        if runtime is not None:
            try:
                if asyncio.get_running_loop() is runtime.loop:
                    return runtime, runtime.own_session
            except RuntimeError:
                check_fork()  # a coroutine that forked continues in the child without a loop
                raise RuntimeError(_NO_LOOP) from None
            check_fork()
            raise RuntimeError(
                "This AsyncClient is used in a second event loop; make one client for each loop, "
                "or use leaseway.sdk.Client, which works from any thread."
            )
        if self._closed:
            raise RuntimeError(
                "This client is closed; make a new one, or open it again by a `with` block."
            )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            check_fork()
            raise RuntimeError(_NO_LOOP) from None
        # gRPC's thread and all timers keep a context of their own, and not that of the first call.
        runtime = Context().run(Runtime, self._identity, self._media, self._local)
        self._open_runtime = runtime
        self._finalizer = weakref.finalize(self, _on_dropped, runtime, repr(self))
        self._finalizer.atexit = False
        return runtime, runtime.own_session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._identity.address}>"


def _on_dropped(runtime: Runtime, name: str) -> None:
    if forked_after_use():
        return  # the runtime belongs to the parent process
    warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2)
    runtime.abort()
