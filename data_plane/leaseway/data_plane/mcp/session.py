"""The MCP session of an instance: connection, negotiation, listings and health checks.

Separate from `instance`, because importing the official package takes longer than the rest of a
worker: a worker joins first, and imports this module in a thread (`instance.load`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Final, Literal, TypeGuard

from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import ServerCapabilities
from pydantic import ValidationError

from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall
from leaseway.data_plane.core.definitions.sharing import shared
from leaseway.data_plane.core.desired_state import working_folder
from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.data_plane.mcp.context import Connect, ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.failures import not_started
from leaseway.data_plane.mcp.protocol.features import handshake
from leaseway.data_plane.mcp.protocol.features.health import (
    Patience,
    RefusalPolicy,
    default_patience,
    until_refusing,
    until_unresponsive,
)
from leaseway.data_plane.mcp.protocol.features.listing import (
    TOOLS,
    ChangeStream,
    ListingFailed,
    list_all,
    list_prompts_resources,
    notified_lists,
)
from leaseway.data_plane.mcp.protocol.features.subscriptions import InstanceSubscriptions
from leaseway.data_plane.mcp.protocol.messages.client_meta import CLIENT_INFO
from leaseway.data_plane.mcp.protocol.messages.pending import (
    ConnectionLost,
    InvalidResponse,
    http_status,
    postponement,
)
from leaseway.data_plane.mcp.protocol.messages.server_requests import roots_result
from leaseway.data_plane.mcp.protocol.stream_connection import ECHO_ADVICE, StreamPeer
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.spec.model import ServerSpec
from leaseway.spec.policy import folders
from leaseway.wire.channels import ancestors
from leaseway.wire.errors import OF_AUTHORIZATION, Fault, Reason
from leaseway.wire.messages.mcp import NO_INTRODUCTION, admit
from leaseway.wire.secrets.redaction import redact

StartPhase = Literal["connect", "negotiate", "list"]
_ACTIONS = {
    "connect": "open a connection",
    "negotiate": "agree on a protocol version",
    "list": "list its tools",
}

_WRONG_TRANSPORT_STATUSES = frozenset({400, 404, 405})
"""HTTP statuses that servers usually answer to the first message of an unsupported transport."""

_OPENING: Final = 1.0
"""Seconds that the first list waits for the stream of changes. If that takes longer, it opens while
or after the list is read, and the list is read again."""

_PAUSES: Final = (0.1, 0.3, 0.6, 1.0)
"""Seconds until a server that declares tools, but lists none at its start, is asked again."""


class McpSession:
    """An MCP session with one server; created unopened by `McpSession.connect`.

    The caller closes its `peer`, also if opening it fails.

    Attributes:
        warnings: (reason, sentence) about configuration that is not enforced on this worker.
        other: What connects over the transport that the server may speak instead, if any.
        protocol_version: As negotiated; empty before.
        introduction: What the server said about itself at the handshake.
        skipped: Sentences about what the server said or listed that can't be used.
        changed: Sentences about what was corrected: its answer to `initialize`, and listed tools.
    """

    def __init__(
        self,
        spec: ServerSpec,
        connection: UnopenedConnection,
        hide: Callable[[str], str],
        on_tools_changed: Callable[[], None],
        refused: Fault | None,
    ) -> None:
        peer = connection.peer
        self._hide = hide
        self._on_tools_changed = on_tools_changed
        self.peer = peer
        peer.missed.connect(self._on_missed)
        self.pid = connection.pid
        self.warnings = connection.warnings
        self.other = connection.other
        self._refused = refused
        self.protocol_version = ""
        self.introduction = NO_INTRODUCTION
        self.skipped: tuple[str, ...] = ()
        self.changed: tuple[str, ...] = ()
        self._spec = spec
        self._phase: StartPhase = "connect"
        self._not_introduced: tuple[str, ...] = ()
        self._corrected: tuple[str, ...] = ()
        self._capabilities: ServerCapabilities | None = None
        self._has_tools = True
        self._discovers = False
        self._subscriptions: InstanceSubscriptions | None = None

    @classmethod
    async def connect(
        cls, context: ServerContext, connect: Connect, refused: Fault | None = None
    ) -> McpSession:
        """Return a session on a new connection.

        Args:
            context: What the connection needs to know.
            connect: Returns the connection.
            refused: How the server refused the transport of its entry, if this is the other one.

        Raises:
            Fault: SERVER_NOT_READY, with its `problem`.
        """
        connection = await connect(context)
        spec, peer = context.spec, connection.peer
        permissions = spec.policy.permissions
        if permissions.allowed_paths is not None:
            peer.offer_roots(roots_result(folders(permissions, working_folder(spec))))
        return cls(
            spec,
            connection,
            context.hide_in_definitions,
            context.on_tools_changed,
            refused,
        )

    @contextlib.asynccontextmanager
    async def opened(
        self, deadline: float, known_version: str, *, listed: Mapping[str, bytes] | None = None
    ) -> AsyncIterator[Mapping[str, bytes]]:
        """Open the connection, negotiate a protocol version, and yield the tools.

        Changes of lists are heard from before the tools are read until the connection is left.

        Args:
            deadline: For all of that, on the loop's clock.
            known_version: The protocol version of another instance of the server, or empty.
            listed: The tools that another instance of the server listed; None if unknown.

        Raises:
            Exception: Any error; `start_fault` converts it.
        """
        peer = self.peer
        async with asyncio.timeout_at(deadline):
            await peer.open()
        async with ClientSession(dispatcher=peer, client_info=CLIENT_INFO) as client:
            changes = ChangeStream(client, peer, self._on_tools_changed)
            async with asyncio.timeout_at(deadline):
                await self._negotiate(client, known_version)
            listening = asyncio.ensure_future(changes.keep_open())
            try:
                async with asyncio.timeout_at(deadline):
                    await changes.opened(_OPENING)
                    tools = await self._first_tools(deadline, listed)
                self._subscriptions = InstanceSubscriptions(
                    self._spec.key.server_id, client, peer, self._spec.call_timeout
                )
                try:
                    yield tools
                finally:
                    await self._subscriptions.aclose()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _negotiate(self, client: ClientSession, known_version: str) -> None:
        spec = self._spec
        self._phase = "negotiate"
        self._discovers = spec.part.protocol == "auto" and not handshake.is_legacy(known_version)
        await handshake.negotiate(
            client, self.peer, spec.part.protocol, spec.startup_timeout, known_version
        )
        self._reject_own_front(client)
        self.protocol_version = client.protocol_version or ""
        self.peer.era = handshake.build_era(
            self.protocol_version,
            has_roots=self.peer.roots is not None,
            introduces_clients=self.peer.leased,
        )
        self._phase = "list"
        if self.peer.corrected:
            is_legacy = handshake.is_legacy(self.protocol_version)
            greeting = "initialize" if is_legacy else "server/discover"
            self._corrected = (f"Of its answer to {greeting}: {self.peer.corrected}.",)
        self._capabilities = capabilities = client.server_capabilities
        self._has_tools = capabilities is not None and capabilities.tools is not None
        self.introduction, self._not_introduced = admit(
            self._hide(client.instructions or ""),
            (capabilities.extensions if capabilities is not None else None) or (),
            handshake.capabilities_of(capabilities),
        )
        self.peer.sets_log_level = (
            not self.peer.era.modern
            and capabilities is not None
            and capabilities.logging is not None
        )
        if self._has_tools:
            self.peer.cheap_request = "tools/list"
        elif self.peer.era.modern:
            self.peer.cheap_request = "server/discover"

    def _on_missed(self) -> None:
        """List again: a change may have been reported before somebody heard it."""
        if self._phase == "list" and any(notified_lists(self._capabilities)):
            self._on_tools_changed()

    def _reject_own_front(self, client: ClientSession) -> None:
        """Reject the front of this worker's own Leaseway, which would list all tools once more.

        Raises:
            Fault: SERVER_NOT_READY with `problem` START_FAILED.
        """
        result = client.discover_result or client.initialize_result
        meta = (result.meta if result is not None else None) or {}
        if meta.get(ancestors.META_KEY) in ancestors.digests(os.environ):
            text = (
                "it is the MCP front of this Leaseway itself: its tools would be listed again under"
                " other names, without end. Remove it from the configuration."
            )
            raise not_started(self._spec.key.server_id, "START_FAILED", text)

    async def _first_tools(
        self, deadline: float, listed: Mapping[str, bytes] | None
    ) -> Mapping[str, bytes]:
        """List the tools of a server that has just started.

        Some servers connect to what has their tools only then: they list none until that is done,
        or answer with an error, and do not tell when it is. So they are asked again for a moment.
        """
        loop = asyncio.get_running_loop()
        known = listed or {}
        is_known_to_have_none = listed is not None and not listed  # as many that declare tools
        for pause in () if is_known_to_have_none else _PAUSES:
            try:
                tools = await self.list_tools(known, keeps_part=True)
            except (ConnectionLost, InvalidResponse):
                raise
            except MCPError:
                if loop.time() + pause >= deadline:
                    raise
            else:
                if tools or not self._has_tools or loop.time() + pause >= deadline:
                    return tools
            await asyncio.sleep(pause)
        return await self.list_tools(known, keeps_part=True)

    async def list_tools(
        self, known: Mapping[str, bytes], *, keeps_part: bool = False
    ) -> Mapping[str, bytes]:
        """List the tools and let the connection call them.

        Args:
            known: Definitions that are in memory already: equal ones are the same objects.
            keeps_part: Whether a part is better than an error: there is no earlier list.

        Raises:
            Exception: See `opened`.
        """
        listed = await list_all(
            self.peer,
            TOOLS,
            may_be_missing=not self._has_tools,
            keeps_part=keeps_part,
            hide=self._hide,
        )
        self.skipped = (*self._not_introduced, *listed.skipped)
        self.changed = (*self._corrected, *listed.changed)
        return self.peer.accept(shared(listed.definitions, known))

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources
    ) -> ListedPromptsResources:
        """List prompts and resources (see `Instance.list_prompts_resources`)."""
        found = await list_prompts_resources(
            self.peer, self._capabilities, timeout, recorded, self._hide
        )
        return replace(
            found,
            skipped=(*self.skipped, *found.skipped),
            changed=(*self.changed, *found.changed),
        )

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Notify of changes of a resource (see `Subscriptions.follow`)."""
        assert self._subscriptions is not None
        return self._subscriptions.follow(uri, on_update, done)

    async def until_unresponsive(self, patience: Patience | None) -> Fault:
        """Ping an idle server until it no longer answers; return the fault."""
        return await until_unresponsive(self.peer, patience or default_patience(self._spec))

    async def until_refusing(self, patience: Patience | None) -> Fault:
        """Wait until the server refuses everything and must be replaced; return the fault."""
        policy = RefusalPolicy.of(self._spec, patience or default_patience(self._spec))
        return await until_refusing(self.peer, policy)

    def failed_greeting(self, error: BaseException) -> Exception | None:
        """Return the error of a start that may succeed if it begins with `initialize`, or None."""
        cause = first_cause(error)
        return cause.cause if isinstance(cause, handshake.GreetingFailed) else None

    def greeted_in_vain(self, error: BaseException) -> bool:
        """Return whether the server answered nothing after `server/discover`."""
        return self.timed_out(error) and self._discovers and self._phase == "negotiate"

    def refused_transport(self, error: BaseException) -> Fault | None:
        """Return how the server refused its first message if it may speak the other transport."""
        cause = first_cause(error)
        if self.other is None or not self._begins:
            return None
        if not isinstance(cause, InvalidResponse | ConnectionLost):
            return None
        return cause.fault if http_status(cause.fault) in _WRONG_TRANSPORT_STATUSES else None

    @property
    def _begins(self) -> bool:
        """Whether the server has accepted nothing yet: a stream that is open is one of its own."""
        has_stream = isinstance(self.peer, StreamPeer)
        return self._phase == "connect" or (self._phase == "negotiate" and not has_stream)

    @staticmethod
    def timed_out(error: BaseException) -> bool:
        """Return whether a start failed because its time was over."""
        return isinstance(first_cause(error), TimeoutError)

    def start_fault(self, error: BaseException, stderr: StderrTail) -> Fault:
        """Return the fault for a failed start or listing."""
        peer = self.peer
        fault = start_fault(
            self._spec,
            error,
            self._phase,
            stderr,
            garbage=peer.garbage,
            echoes=peer.echoes,
        )
        if self._refused is None or not self._begins or fault.reason in OF_AUTHORIZATION:
            return fault
        text = f"{self._refused.message} It was tried over {peer.transport_type}, too: "
        metadata = {**fault.metadata, **self._refused.metadata}
        return replace(fault, message=f"{text}{fault.message}", metadata=metadata)


def first_cause(error: BaseException) -> BaseException:
    """Return the first error in nested exception groups that is not a cancellation."""
    while isinstance(error, BaseExceptionGroup):
        error = next(
            (part for part in error.exceptions if not isinstance(part, asyncio.CancelledError)),
            error.exceptions[0],
        )
    return error


def start_fault(
    spec: ServerSpec,
    error: BaseException,
    phase: StartPhase,
    stderr: StderrTail,
    *,
    garbage: int = 0,
    echoes: int = 0,
) -> Fault:
    """Return the fault for a server that did not start or list.

    Args:
        spec: The server.
        error: What ended the start.
        phase: Where it ended.
        stderr: What its process wrote.
        garbage: How many of its messages were not JSON-RPC.
        echoes: How many of our own requests came back.
    """
    cause = first_cause(error)
    if isinstance(cause, handshake.GreetingFailed):
        cause = cause.cause
    if isinstance(cause, Fault):
        return cause
    if _has_no_token(cause):
        return cause.fault
    server = spec.key.server_id
    problem, text, facts = _describe(spec, cause, phase)
    last_words = stderr.last(lines=10, size=2048)
    metadata = {"server": server, **facts, "problem": problem}
    if last_words:
        metadata["stderr"] = last_words
        if "wrote last" not in text:
            text += f" It wrote last: {stderr.cause}"
    if metadata.get("exit_status") == "0":
        text = (
            f"{text.rstrip('.')}. A server over stdio runs until its input ends, and leaves no"
            " work to processes in the background."
        )
    if garbage and phase != "list":
        text = (
            f"{text.rstrip('.')}. It also sent messages that are not JSON-RPC: check that its"
            " command starts, or its url reaches, an MCP server; one over stdio logs to its"
            " standard error."
        )
    if echoes:
        text = f"{text.rstrip('.')}. It {ECHO_ADVICE}"
    return Fault(Reason.SERVER_NOT_READY, text, metadata=metadata)


def _has_no_token(cause: BaseException) -> TypeGuard[ConnectionLost | InvalidResponse]:
    if not isinstance(cause, ConnectionLost | InvalidResponse):
        return False
    return cause.fault.reason in OF_AUTHORIZATION


def _describe(
    spec: ServerSpec, cause: BaseException, phase: StartPhase
) -> tuple[str, str, dict[str, str]]:
    """Return the problem, its sentence, and further metadata."""
    server = spec.key.server_id
    failed = "LIST_FAILED" if phase == "list" else "START_FAILED"
    head = f"The server {server} did not {_ACTIONS[phase]}"
    match cause:
        case ConnectionLost(fault=fault):
            facts = dict(fault.metadata)
            problem = "EXITED" if "exit_status" in facts else failed
            return problem, _with_hint(spec, fault, phase), facts
        case InvalidResponse(fault=fault):
            return failed, _with_hint(spec, fault, phase), dict(fault.metadata)
        case TimeoutError():
            said = postponement(cause)
            cause_shown = f": {said} Raise" if said else ". See what it logs, or raise"
            text = f"{head} within {spec.startup_timeout:g} s{cause_shown} startup_timeout."
            return "START_TIMEOUT", text, {}
        case MCPError(error=answer):
            message = redact(answer.message)[:500].rstrip(".")
            text = f"{head}: it answered with error {answer.code}: {message}."
            return failed, text, {"code": str(answer.code)}
        case ValidationError():  # its text would quote the server's answer
            errors = "; ".join(
                f"{'.'.join(map(str, error['loc']))}: {error['msg']}"
                for error in cause.errors(include_input=False, include_url=False)[:3]
            )
            return failed, f"{head}: its answer does not conform to MCP ({errors:.300}).", {}
        case ListingFailed():
            return failed, f"{head}: {cause}.", {}
        case asyncio.CancelledError():
            return "START_FAILED", f"{head}: the start was cancelled.", {}
        case _:
            text = redact(str(cause))[:300]
            return failed, f"{head}: its answer does not conform to MCP ({text}).", {}


def _with_hint(spec: ServerSpec, fault: Fault, phase: StartPhase) -> str:
    """Return a fault's message; if its status suggests another transport, ask about that."""
    if phase == "list" or http_status(fault) not in _WRONG_TRANSPORT_STATUSES:
        return fault.message
    return f"{fault.message.rstrip('.')}; is its transport really {spec.transport}?"
