"""The relay: calls in bytes, for programs that pass on the calls of others, such as the MCP front.

Arguments and results are JSON as the other side sent it, so that nothing is parsed or written anew.
A call's events arrive at a `RelayEvents`. Everything here is asynchronous and belongs to the event
loop of the client. Services that call tools themselves use `AsyncClient` and `AsyncSession`.

Errors are those of the SDK. A relay has no `acquire` to offer to its own callers: so the end of a
lease is raised once, and the next call acquires a new lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from leaseway.sdk.calls.begun import BegunCall, CallWay
from leaseway.sdk.calls.relayed_requests import (
    prompt_completion,
    prompt_request,
    read_request,
    template_completion,
)
from leaseway.sdk.calls.requests import McpRequest, mcp_call, relayed_call
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.catalog.introductions import IntroductionList, ServerIntroduction
from leaseway.sdk.catalog.lease_items import LeaseItems, with_lease_items
from leaseway.sdk.catalog.resolver import RegistryVersion
from leaseway.sdk.catalog.search import ToolIndex
from leaseway.sdk.catalog.tools import SharedItems
from leaseway.sdk.client.client import AsyncClient
from leaseway.sdk.client.listings import fetch_introductions, list_shared
from leaseway.sdk.client.session import AsyncSession
from leaseway.sdk.errors import LeasewayError, error_from_fault
from leaseway.sdk.operators.operations import perform
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.sdk.transport.workers import WorkerLink, WorkerRun
from leaseway.v1 import execution_pb2, leases_pb2
from leaseway.wire.channels.local import LocalWorker
from leaseway.wire.errors import Fault
from leaseway.wire.listing.definitions import ListKind
from leaseway.wire.messages.frames import head_field
from leaseway.wire.messages.mcp import ROOTS_CHANGED
from leaseway.wire.messages.states import LEASE_ENDED
from leaseway.wire.status import fault_from_status

__all__ = [
    "BegunCall",
    "CallWay",
    "IntroductionList",
    "LeaseItems",
    "McpRequest",
    "PlacedCall",
    "RegistryVersion",
    "RelayClient",
    "RelayEvents",
    "ServerIntroduction",
    "ServerRequest",
    "SessionEnds",
    "SharedItems",
    "ToolIndex",
    "announce_roots",
    "begin_call",
    "begin_outside",
    "call_placed",
    "call_tool",
    "call_way",
    "hear_servers",
    "hear_session_ends",
    "leased_servers",
    "leave_leases",
    "list_introductions",
    "list_lease_items",
    "list_shared",
    "own_request",
    "prompt_completion",
    "prompt_request",
    "read_request",
    "send_request",
    "share_session_ends",
    "speak_for",
    "template_completion",
    "watch_registry",
    "with_lease_items",
]

_RELEASE_TIMEOUT: Final = 5.0

Caller = AsyncSession | AsyncClient
"""Whose session a call runs in; a client's own session is for calls outside any session."""


class RelayClient(AsyncClient):
    """A client of a relay, which may run in the process of a worker.

    Calls of that worker's servers and leases then need no connection. Everything else is as for
    other clients: its credential, the tenant's policy and limits, and the audit.

    Args:
        address: As for `AsyncClient`.
        agent: As for `AsyncClient`.
        tenant: As for `AsyncClient`.
        key: As for `AsyncClient`.
        user: As for `AsyncClient`.
        local: The worker of this process, or None.
    """

    def __init__(
        self,
        address: str,
        *,
        agent: str,
        tenant: str,
        key: str | None,
        user: str = "",
        local: LocalWorker | None = None,
    ) -> None:
        super().__init__(address, agent=agent, tenant=tenant, key=key, user=user)
        self._local = local


class RelayEvents(CallEvents):
    """The events of one call, and what the call requests; a subclass passes them on.

    The methods run on the connection's receive loop: they must return at once and must not raise.
    The attributes are read when a call starts, and again at each further try.

    Attributes:
        wants_progress: Whether progress is requested.
        log_level: The lowest requested level of log messages, or empty for none.
        answers: The MCP methods of server requests that are answered.
        inline_media: Whether images and audio stay in the result instead of becoming artifacts.
        passes_input: Whether `input_required` results are returned unchanged.
        input: Answers to such a result, as a JSON object with `inputResponses` and `requestState`,
            or empty.
        meta: Members for the request's `_meta`, as a JSON object, or empty.
        mcp_client: The MCP client that the call is for, as `McpClient.encoded`, or empty.
        lease_ttl: Seconds that a lease acquired by the call lives; 0 means the default.
        deadline: When the call fails, in the event loop's time; set at each try.
        cancel_reason: What the server is told if the call's task is cancelled.
    """

    # Class attributes, because most calls use the defaults.
    wants_progress = False
    log_level = ""
    answers: tuple[str, ...] = ()
    inline_media = True

    def __init__(self) -> None:
        """Take the defaults, which are attributes of the class."""

    def on_progress(self, progress: float, total: float | None, message: str, extra: bytes) -> None:
        """Pass a progress report on; `message` may be empty.

        `extra` are the members of the notification that MCP does not name, and `_meta`, as a JSON
        object, or empty.
        """

    def on_log(self, level: str, logger: str, data: bytes, extra: bytes) -> None:
        """Pass a log message on; `logger` may be empty, `data` is JSON, or empty for null.

        `extra` as for a progress report.
        """

    def handle_progress(self, frame: execution_pb2.Progress) -> None:
        """Convert a progress frame."""
        total = frame.total if frame.HasField("total") else None
        self.on_progress(frame.progress, total, frame.message, frame.extra)

    def handle_log(self, frame: execution_pb2.LogMessage) -> None:
        """Convert a frame of a log message."""
        self.on_log(frame.level, frame.logger, frame.data, frame.extra)

    def handle_request(self, request: ServerRequest) -> None:
        """Answer a server's request, now or later, or reject it; the base class rejects it."""
        super().handle_request(request)

    def handle_withdrawal(self, ask_id: int) -> None:
        """Withdraw the request with this `ask_id`: its server no longer needs the answer."""

    def handle_lease_end(self, forget: Callable[[], object]) -> None:
        """Handle that the call's error tells the end of a lease, which other calls need no more.

        `forget` it now, or later if nobody can be told yet: until then the session's calls fail.
        """
        forget()

    def reset(self) -> None:
        """Withdraw all open requests: the call has ended, or is tried again."""


async def call_tool(
    caller: Caller,
    name: str,
    arguments: bytes,
    events: RelayEvents,
    timeout: float | None = None,
    begun: BegunCall | None = None,
) -> ToolResult:
    """Call a tool.

    Args:
        caller: The session, or the client for a call outside any session.
        name: The tool's name, or its qualified name.
        arguments: The arguments: one JSON object in UTF-8, or empty for none. It is not parsed
            here.
        events: Receives the events of this call only.
        timeout: Seconds until the call fails; None means the server's `call_timeout`.
        begun: The same call if it has begun, and then `on_other` was called or it was detached;
            it goes on.

    Returns:
        The result; its `payload` is the server's JSON.

    Raises:
        LeasewayError: The call failed.
    """
    runtime, session = caller._scope()
    if begun is None:
        call = relayed_call(session, name, arguments, timeout, events)
    else:
        call = await begun.state()
    try:
        return await runtime.caller.run(call)
    except Fault as fault:
        raise _error(runtime, session, fault, events) from None
    finally:
        events.reset()


def call_way(caller: Caller, name: str) -> CallWay:
    """Return what the calls of one tool that begin without a task share.

    Args:
        caller: As for `call_tool`.
        name: As for `call_tool`.
    """
    _, session = caller._scope()
    return CallWay(session, name)


def begin_outside(client: AsyncClient, call: BegunCall) -> bool:
    """Like `begin_call`, for a call outside any session."""
    return client._scope()[0].caller.begin(call)


def begin_call(caller: AsyncSession, call: BegunCall) -> bool:
    """Begin a call without a task, if it needs no wait; return whether it has begun.

    If not, `call_tool` makes it.
    """
    way, runtime = call.way, caller._client._open_runtime
    if (
        runtime is None
        or runtime is not way.runtime
        or way.leases is None
        or runtime.leases.book.sessions.get(way.session) is not way.leases
        or caller._closed
    ):
        runtime, key = caller._scope()  # tells the client what it must know of a session
        way.runtime, way.leases = runtime, runtime.leases.book.sessions.get(key)
    return runtime.caller.begin(call)


@dataclass(frozen=True, kw_only=True)
class PlacedCall:
    """A call of a tool whose worker is known already, for a program that chooses workers itself.

    Attributes:
        worker: The id of the worker.
        address: The worker's address.
        server: The id of the server.
        tool: The tool's original name.
        tenant: The tenant.
        session: The session; empty for a shared server.
        agent: The agent that calls.
        key: The credential of the caller, or None.
    """

    worker: str
    address: str
    server: str
    tool: str
    tenant: str
    session: str
    agent: str
    key: str | None = field(repr=False)


async def call_placed(
    call: PlacedCall, arguments: bytes, events: RelayEvents, timeout: float
) -> ToolResult:
    """Make one call, once, on the worker that it names; a lease that it acquires is released.

    It needs no client: the control plane is not asked, and the connection closes with the call.

    Args:
        call: The call.
        arguments: As for `call_tool`.
        events: As for `call_tool`.
        timeout: Seconds until the call fails.

    Raises:
        LeasewayError: The call failed.
    """
    identity = ClientIdentity(address="", agent=call.agent, tenant=call.tenant, key=call.key)
    link = WorkerLink(WorkerRun(call.worker, "", call.address), identity)
    head = execution_pb2.CallHead(
        server_id=call.server,
        tool=call.tool,
        tenant=call.tenant,
        agent=call.agent,
        session=call.session,
        options=execution_pb2.CallOptions(inline_media=events.inline_media),
    )
    what = f"tool '{call.tool}' of server '{call.server}'"
    deadline = asyncio.get_running_loop().time() + timeout
    try:
        result, payload = await link.exchange.call(
            head_field(head.SerializeToString()), arguments, deadline, what, events
        )
        if result.is_new_lease:
            await _release(link, call, result.lease.id)
        if not payload and result.HasField("status"):
            raise fault_from_status(result.status)
        return ToolResult(payload, result.is_error)
    except Fault as fault:
        raise error_from_fault(fault) from None
    finally:
        events.reset()
        await link.close()


async def _release(link: WorkerLink, call: PlacedCall, lease_id: str) -> None:
    request = leases_pb2.ReleaseLeaseRequest(
        lease_id=lease_id, tenant=call.tenant, session=call.session
    )
    with contextlib.suppress(Fault):  # without renewals, the lease expires
        await link.request(link.leases.ReleaseLease, request, _RELEASE_TIMEOUT)


async def send_request(
    caller: Caller, request: McpRequest, events: RelayEvents, timeout: float | None = None
) -> ToolResult:
    """Send a request about a prompt or a resource; the parameters are those of `call_tool`.

    Raises:
        LeasewayError: The request failed.
    """
    runtime, session = caller._scope()
    call = mcp_call(session, request, timeout, events)
    try:
        return await runtime.caller.run(call)
    except Fault as fault:
        raise _error(runtime, session, fault, events) from None
    finally:
        events.reset()


def own_request(
    ask_id: int, method: str, params: bytes, on_answer: Callable[[bytes], object]
) -> ServerRequest:
    """Return a request that the relay itself asks, in the form of a server's request.

    Args:
        ask_id: A number that no other open request of the call has.
        method: The MCP method.
        params: Its params as JSON.
        on_answer: Called once with the MCP result as JSON, or with no bytes if it was rejected.
    """

    def send(answer: execution_pb2.Answer) -> None:
        on_answer(answer.result)

    return ServerRequest(execution_pb2.Ask(ask_id=ask_id, method=method, params=params), send)


def speak_for(session: AsyncSession, mcp_client: bytes) -> None:
    """Set the MCP client for which a session acquires leases without a call.

    Args:
        session: The session.
        mcp_client: The client, as `McpClient.encoded`, or empty for none.
    """
    runtime, key = session._scope()
    runtime.leases.set_mcp_client(key, mcp_client)


def hear_servers(
    session: AsyncSession,
    on_notification: Callable[[str, str, bytes], None],
    on_lease_end: Callable[[], object],
) -> Callable[[], None]:
    """Hear what the leased servers of a session tell their client outside of its calls.

    A worker sends it to the relay that made the newest call of an MCP client on the lease.

    Args:
        session: The session; it has one hearer, the newest.
        on_notification: Called with the server's id, the MCP method (`notifications/message`,
            `notifications/elicitation/complete` or `notifications/tools/list_changed`) and its
            params as JSON, of the last one a `ListedToClient`; must not block or raise.
        on_lease_end: Called after a lease has ended, however that became known; must not block.

    Returns:
        A function that ends this.
    """
    runtime, key = session._scope()
    hearers, end_hearers = runtime.pool.hearers, runtime.leases.ends.hearers

    def hear(frame: execution_pb2.ServerNotification) -> None:
        on_notification(frame.server_id, frame.method, frame.params)

    def stop() -> None:
        if hearers.get(key) is hear:
            del hearers[key], end_hearers[key]

    hearers[key], end_hearers[key] = hear, on_lease_end
    return stop


async def announce_roots(
    session: AsyncSession, server: str, events: RelayEvents, timeout: float
) -> None:
    """Tell the server that a session has leased that the roots of its client have changed.

    A server that asks for them because of that asks `events`. It is told only if the MCP client
    for which it was leased declared that it tells of such changes.

    Args:
        session: The session; without a lease of the server, nothing happens.
        server: The id of the server.
        events: Speaks for the client, and answers `roots/list`.
        timeout: Seconds that the server may take to ask, and the client to answer.

    Raises:
        LeasewayError: The lease has ended, or its worker was not reached.
    """
    runtime, key = session._scope()
    now = runtime.loop.time()
    lease = runtime.leases.book.find_held(key, server, now)
    if lease is None:
        return
    try:
        await runtime.caller.run_on_lease(lease, ROOTS_CHANGED, events, now + timeout)
    except Fault as fault:  # the end of a lease is still told to the next call
        raise error_from_fault(fault) from None
    finally:
        events.reset()


async def list_lease_items(
    session: AsyncSession, kind: ListKind, *, of_others: bool = False
) -> list[LeaseItems[Any]]:
    """List in what the leases of a session differ from the list of all; of most, nothing.

    The workers of the leases are asked. A lease whose worker does not answer has what it told last.
    `with_lease_items` puts it over the list of all.

    Args:
        session: The session.
        kind: Which list is meant.
        of_others: Whether leases count that only other relays of the session use.
    """
    runtime, key = session._scope()
    leases = await runtime.caller.own_lists.of_session(key, kind, of_others=of_others)
    return [own for own in leases.values() if own]


async def leave_leases(session: AsyncSession, keep: float) -> None:
    """Stop renewing a session's leases, which live until no call has run for `keep` seconds.

    Another client of the session may continue with them until then.
    """
    runtime, key = session._scope()
    await runtime.leases.leave_session(key, keep)


def leased_servers(session: AsyncSession) -> list[str]:
    """Return the servers of which a session has a lease, or may have one that nobody knows.

    A first call that was given up may have acquired it; `release` looks for it.
    """
    runtime = session._client._open_runtime
    leases = None if runtime is None else runtime.leases.book.sessions.get(session.key)
    return [] if leases is None else leases.servers()


@dataclass(frozen=True, slots=True)
class SessionEnds:
    """What the control plane knows about sessions that have ended for good.

    Attributes:
        ended: Those of the asked sessions that have ended.
        run: Identifies the control plane's run; a new run knows no end that it was not told.
        states: What relays said of those of the asked sessions that other relays may continue.
        last: The number of the tenant's newest end in this run; 0 from older control planes.
    """

    ended: tuple[str, ...]
    run: str
    states: Mapping[str, bytes]
    last: int


async def share_session_ends(
    client: AsyncClient,
    ended: Iterable[str],
    asked: Iterable[str],
    timeout: float,
    states: Mapping[str, bytes] | None = None,
) -> SessionEnds:
    """Tell the control plane which sessions have ended for good, and ask about others.

    Args:
        client: The client of the sessions' tenant.
        ended: Sessions that have ended here.
        asked: Sessions that may have ended at another relay.
        timeout: Seconds until the request fails.
        states: What another relay needs to continue sessions, by session, at most 16 KiB each.

    Raises:
        LeasewayError: The control plane did not answer, or rejected the request.
    """
    runtime, _ = client._scope()
    deadline = runtime.loop.time() + timeout
    try:
        answer = await runtime.control.share_session_ends(ended, asked, states or {}, deadline)
    except Fault as fault:
        raise error_from_fault(fault) from None
    found = {item.session: item.state for item in answer.states}
    return SessionEnds(tuple(answer.ended), answer.run, found, answer.last)


async def hear_session_ends(
    client: AsyncClient, run: str, known: int, wait: float, timeout: float
) -> SessionEnds:
    """Wait until a session of the tenant ends for good, at any relay.

    Args:
        client: The client of the sessions' tenant.
        run: The run of the control plane of which an end is known, or empty.
        known: The number of that end (`SessionEnds.last`).
        wait: For how many seconds to wait.
        timeout: Seconds beyond them until the request fails.

    Raises:
        LeasewayError: The control plane did not answer, or rejected the request.
    """
    runtime, _ = client._scope()
    deadline = runtime.loop.time() + wait + timeout
    try:
        answer = await runtime.control.hear_session_ends(run, known, wait, deadline)
    except Fault as fault:
        raise error_from_fault(fault) from None
    return SessionEnds(tuple(answer.ended), answer.run, {}, answer.last)


async def list_introductions(client: AsyncClient) -> IntroductionList:
    """List what the servers that the tenant sees say about themselves, ordered by server.

    Raises:
        LeasewayError: The control plane did not answer, or rejected the request.
    """
    return await perform(client._scope, partial(fetch_introductions, servers=None), None)


def watch_registry(client: AsyncClient) -> RegistryVersion:
    """Watch the registry; lists that are read after a new version may differ from earlier ones."""
    runtime, _ = client._scope()
    return runtime.resolver.watch()


def _error(runtime: Runtime, session: str, fault: Fault, events: RelayEvents) -> LeasewayError:
    """Return the error of a failed call; that a lease has ended is forgotten with it."""
    if fault.reason in LEASE_ENDED:
        lease_id = fault.metadata.get("lease", "")
        events.handle_lease_end(partial(runtime.leases.book.forget_end, session, lease_id))
    return error_from_fault(fault)
