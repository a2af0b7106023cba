"""The asynchronous client: the surface; the work is done below it."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from leaseway.sdk.catalog.providers import describe_refusal
from leaseway.sdk.catalog.tools import Tool
from leaseway.sdk.client.approvals import OnApproval, decide
from leaseway.sdk.client.artifacts import AsyncArtifacts, ClientMedia
from leaseway.sdk.client.listings import AsyncCatalog
from leaseway.sdk.client.prompts_resources import AsyncPromptsResources
from leaseway.sdk.client.session import AsyncSession, acquire_lease, release_lease
from leaseway.sdk.client.tools import AsyncToolCalls
from leaseway.sdk.client.watches import AsyncToolWatches
from leaseway.sdk.errors import InvalidRequest
from leaseway.sdk.forks import check_fork, refused
from leaseway.sdk.leases.book import Lease
from leaseway.sdk.operators import operations
from leaseway.sdk.operators.views import (
    Approval,
    InstanceLog,
    LeaseInfo,
    ProblemInfo,
    ServerInfo,
    Status,
    WorkerInfo,
)
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.identity import Identity, identify
from leaseway.sdk.transport.server_requests import Handlers, OnElicitation, OnSampling, Roots
from leaseway.sdk.validation import (
    check_callback,
    check_count,
    check_key,
    check_seconds,
    check_text,
)
from leaseway.v1 import admin_pb2
from leaseway.wire.bounds import LEASE_TTL

AnswerT = TypeVar("AnswerT")


class AsyncClient(
    AsyncCatalog, AsyncToolCalls, AsyncPromptsResources, AsyncArtifacts, AsyncToolWatches
):
    """Lists and calls tools, and holds leases, from one event loop.

    A server that is leased runs calls made outside any session in this client's own; its lease is
    released by `release`, or when the client is closed. Where it is lost, one call raises that;
    the next one acquires another.

    It connects when it is first used. Close it, or use it as `async with AsyncClient() as
    client`, so that the leases that it acquired are given back at once. All methods raise
    `LeasewayError`s and a RuntimeError where the client is closed or used from another event
    loop than before.

    Args:
        address: The control plane as HOST:PORT; None means LEASEWAY_ADDRESS, or 127.0.0.1:7600.
        agent: Which agent of the tenant calls; it shows in leases and traces.
        tenant: Whose tools to see; None means the default tenant.
        key: The shared key; None means LEASEWAY_KEY, or none.
        on_elicitation: Answers what servers want to know of a person, in every call that names
            no other, and while prompts and resources are got; see `call_tool`.
        on_sampling: Answers what servers ask of a model, likewise.
        roots: What servers may work on, likewise.
        on_approval: Asks a person about calls of tools that need one; see `call_tool`.

    Raises:
        ValueError: The address is not HOST:PORT, the key cannot be sent, or a root is no
            `file://` URI.
        TypeError: A parameter is of the wrong type.
    """

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
        check_callback("on_approval", on_approval, may_be_async=True)
        self._on_approval = on_approval
        self._identity: Identity = identify(address, agent, tenant, key)
        handlers = Handlers(on_elicitation, on_sampling, roots)
        handlers.check(may_be_async=True)
        self._handlers = handlers or None
        self._media = ClientMedia(self)
        self._made: Runtime | None = None
        self._closed = False
        self._sessions: weakref.WeakValueDictionary[str, AsyncSession] = (
            weakref.WeakValueDictionary()
        )

    async def __aenter__(self) -> Self:
        self._runtime()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the leases that this client acquired and end all connections.

        Calls in flight fail with `Cancelled`. Closing twice is allowed.
        """
        self._closed = True
        if refused():
            return  # what it had open is its parent's
        made, self._made = self._made, None
        if made is not None:
            self._finalizer.detach()
            if made.loop is asyncio.get_running_loop():
                await made.close()
            else:
                made.abort()

    def session(self, key: str, *, idle: float | None = None) -> AsyncSession:
        """Return the session of a key: one conversation or job, named by the caller.

        The same key gives the same session, here and in other processes of the tenant.

        Args:
            key: Its name.
            idle: Seconds without a call after which a lease of the session is given back, so that
                what nobody uses any more ends; `math.inf` for never. None leaves it as it is: at
                first 600, and never in a `with` block, whose end gives everything back. Calls that
                come later raise `LeaseReleased`, until `acquire` or `release`.

        Raises:
            InvalidRequest: The key is empty, longer than 256 characters or has control characters,
                or `idle` is not more than 0.
            TypeError: It is no text, or `idle` no number.
        """
        return self._session(key, idle)._reopen()

    def _session(self, key: str, idle: float | None = None) -> AsyncSession:
        check_key("session", key)
        if idle is not None:
            check_seconds("idle", idle)
            if idle <= 0:
                raise InvalidRequest(f"idle={idle:g} leaves no time for a call; give more than 0.")
        session = self._sessions.get(key)
        if session is None:
            if not key:
                raise InvalidRequest("A session key is not empty.")
            session = self._sessions[key] = AsyncSession(self, key)
        if idle is not None:
            session._idle = idle
        return session

    async def acquire(
        self, server: str, ttl: float = LEASE_TTL, wait: float | None = None
    ) -> Lease:
        """Acquire a server's lease for calls outside any session; see `AsyncSession.acquire`."""
        runtime = self._runtime()
        return await acquire_lease(runtime, runtime.own_session, server, ttl, wait)

    async def release(self, server: str | Lease) -> bool:
        """Give back the lease that calls outside any session run on; see `AsyncSession.release`."""
        runtime = self._runtime()
        return await release_lease(runtime, runtime.own_session, server)

    async def servers(self, *, timeout: float | None = None) -> list[ServerInfo]:
        """List the configured servers with their state, ordered by id."""
        return await self._ask(operations.fetch_servers, timeout)

    async def workers(self, *, timeout: float | None = None) -> list[WorkerInfo]:
        """List the workers, ordered by id."""
        return await self._ask(operations.fetch_workers, timeout)

    async def leases(self, *, idle: bool = False, timeout: float | None = None) -> list[LeaseInfo]:
        """List the leases of all clients of the tenant, ordered by id.

        Args:
            idle: Whether workers are asked for how long no call has run on each.
            timeout: Seconds until it is given up.
        """
        return await self._ask(partial(operations.fetch_leases, idle=idle), timeout)

    async def lease_ends(self, *, timeout: float | None = None) -> dict[str, str]:
        """Ask how leases of the tenant ended within the last minute, by lease id.

        `released`, `revoked`, `expired` or `lost`, as their workers said; nobody says it of the
        leases of a worker that is lost.
        """
        return await self._ask(operations.fetch_lease_ends, timeout)

    async def problems(self, *, timeout: float | None = None) -> list[ProblemInfo]:
        """List the open problems, the newest first."""
        return await self._ask(operations.fetch_problems, timeout)

    async def status(self, *, timeout: float | None = None) -> Status:
        """Ask how far the system is."""
        return await self._ask(operations.fetch_status, timeout)

    async def logs(
        self, server: str, lines: int = 100, *, timeout: float | None = None
    ) -> list[InstanceLog]:
        """Read the last stderr lines of a server's instances on all workers.

        Args:
            server: The server's id.
            lines: The most lines wanted of each instance.
            timeout: Seconds until the request is given up; None means 30.
        """
        check_text("server", server)
        check_count("lines", lines)
        fetch = partial(operations.fetch_logs, server_id=server, lines=lines)
        return await self._ask(fetch, timeout)

    async def find_lease(
        self, session: str, server: str, *, timeout: float | None = None
    ) -> str | None:
        """Return the id of a session's lease of a server, whoever holds it; None without one.

        Args:
            session: The session's key.
            server: The server's id.
            timeout: Seconds until the request is given up; None means 30.
        """
        check_key("session", session)
        check_text("server", server)
        find = partial(operations.find_lease, session=session, server_id=server)
        return await self._ask(find, timeout) or None

    async def revoke_lease(
        self, lease: str, reason: str = "", *, timeout: float | None = None
    ) -> bool:
        """End a lease against its holder's will, as an operator.

        Args:
            lease: The lease's id, as `leases` lists it.
            reason: Why, for its holder.
            timeout: Seconds until the request is given up; None means 30.

        Returns:
            Whether its worker has confirmed the end; False where it was told and has not answered
            yet.

        Raises:
            LeaseLost: No worker holds such a lease.
        """
        check_text("lease", lease)
        check_text("reason", reason)
        revoke = partial(operations.revoke_lease, lease_id=lease, reason=reason)
        return await self._ask(revoke, timeout)

    async def drain_worker(self, worker: str, *, timeout: float | None = None) -> None:
        """Have a worker finish its calls, revoke its leases and end, as an operator.

        It gets no new work from now on; this does not wait for its end, which `workers` shows.

        Args:
            worker: The worker's id.
            timeout: Seconds until the request is given up; None means 30.

        Raises:
            InvalidRequest: No such worker is connected.
        """
        check_text("worker", worker)
        await self._ask(partial(operations.drain_worker, worker_id=worker), timeout)

    async def approvals(self, *, timeout: float | None = None) -> list[Approval]:
        """List calls that need a person, the newest first."""
        return await self._ask(operations.fetch_approvals, timeout)

    async def approve(self, approval: str, note: str = "") -> Approval:
        """Agree to a call that waits for a person; it runs when its caller makes it again.

        Args:
            approval: Its id, as `approvals` and `ConfirmationRequired.confirmation_id` say.
            note: Why, for the history.

        Raises:
            InvalidRequest: There is no such approval, or it was decided on already.
            PermissionDenied: This client's credential may not agree.
        """
        return await decide(self._at, approval, note, approve=True)

    async def deny(self, approval: str, note: str = "") -> Approval:
        """Refuse a call that waits for a person; the same call is refused until that expires.

        Args:
            approval: As for `approve`.
            note: As for `approve`.

        Raises:
            InvalidRequest: There is no such approval, or it was decided on already.
            PermissionDenied: This client's credential may not refuse.
        """
        return await decide(self._at, approval, note, approve=False)

    async def report_problem(
        self, reason: str, message: str, *, server: str = "", severity: str = "warning"
    ) -> None:
        """Report a problem that this caller met, for operators to see.

        Args:
            reason: One of the runbook (docs/runbook.md), such as `PROVIDER_REFUSED`.
            message: What happened, where, and what to do; no secrets.
            server: The server's id, where it is about one.
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
        """Report that a model's provider refused a request because of its tools.

        Operators see it as the problem PROVIDER_REFUSED. The same request would be refused again,
        so do not repeat it.

        Args:
            provider: Who refused, as for `project_tools`.
            error_text: What the provider said; 2,000 characters of it are kept.
            tool: The tool that it refused, where that is known.
            offered: What the request offered, in its order, as Tools or as `project_tools` made
                them; those that the text names are reported. Of Tools the server is known, too.
            session: The conversation that the request was made for.

        Raises:
            ValueError: The provider is not known.
            TypeError: A parameter is of the wrong type.
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
        self, operation: Callable[[Runtime, float], Awaitable[AnswerT]], timeout: float | None
    ) -> AnswerT:
        return await operations.perform(self._at, operation, timeout)

    def _at(self) -> tuple[Runtime, str]:
        runtime = self._runtime()
        return runtime, runtime.own_session

    def _runtime(self) -> Runtime:
        made = self._made
        if made is not None:
            try:
                if asyncio.get_running_loop() is made.loop:
                    return made
            except RuntimeError:
                check_fork()  # a coroutine that forked goes on in the child without its loop
                raise
            check_fork()
            raise RuntimeError(
                "This AsyncClient is used from another event loop than before; make one client "
                "for each loop, or use leaseway.sdk.Client, which works from any thread."
            )
        if self._closed:
            raise RuntimeError("This client is closed; make a new one.")
        made = self._made = Runtime(self._identity)
        made.caller.media = self._media
        self._finalizer = weakref.finalize(self, _dropped, made, repr(self))
        self._finalizer.atexit = False
        return made

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._identity.address}>"


def _dropped(runtime: Runtime, name: str) -> None:
    if refused():
        return  # it is its parent's
    warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2)
    runtime.abort()
