"""A live MCP client of a worker: it starts, lists, calls and closes.

One owner task opens and closes the connection; any task may call through it
(design.md#one-mcp-connection). The code
that speaks MCP is in `session`; it is imported when the first instance starts, or by `load`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from leaseway.data_plane.background import LightEvent
from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.core.definitions.sharing import shared_items
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    ClientState,
    InstanceListener,
    InstanceRequest,
    ListedPromptsResources,
)
from leaseway.data_plane.mcp.eras import LEGACY_GREETING
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.protocol.messages.era import params_head, reject_call
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.data_plane.oauth.tokens import InstanceProblems
from leaseway.data_plane.outgoing import Outgoing
from leaseway.data_plane.references.resolver import ReadValues
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import NO_INTRODUCTION
from leaseway.wire.timing.running_tasks import start_lasting_task

if TYPE_CHECKING:
    from leaseway.data_plane.mcp.context import Connect, ServerContext
    from leaseway.data_plane.mcp.protocol.connection import Peer
    from leaseway.data_plane.mcp.protocol.features.health import Patience
    from leaseway.data_plane.mcp.session import McpSession

_logger = logging.getLogger(__name__)

_owners: Final[set[asyncio.Task[None]]] = set()
"""The loop holds tasks weakly. An owner must complete even if nothing references the instance."""


async def load() -> None:
    """Import the code that speaks MCP, in a thread: it takes a second.

    Each instance's start does so, too; a worker calls this to make the first start faster.
    """
    await asyncio.to_thread(_import_mcp)


def _import_mcp() -> tuple[type[McpSession], type[ServerContext]]:
    import anyio._backends._asyncio  # noqa: F401  # else the first task group imports it

    from leaseway.data_plane.mcp.context import ServerContext
    from leaseway.data_plane.mcp.session import McpSession

    return McpSession, ServerContext


class Instance:
    """A live MCP client of one server.

    Args:
        listener: Notified of the instance's state changes.
        request: What it is needed for.
        instance_id: Unique on its worker.
        read_values: Reads the values of its kind.
        load_connect: Imports what connects to a server of its kind, which may take long, and
            returns it.
        starts_process: Whether that starts a process on this machine.
        patience: How long the server may be silent, or None for the default
        (design.md#bounds-and-defaults).

    Attributes:
        state: Its state.
        call: Starts a tool call, with its request and a callback for the outcome; from any task,
            never blocks.
        starts_process: Whether its start runs a process on this machine.
        pid: The process, or None.
        protocol_version: As negotiated; empty before.
        introduction: What the server said about itself at the handshake; empty before.
        resolved_values: Of the references; None before the start, or if one is missing.
        tools: Each tool's definition as received, by original name, in the server's order.
        prompts_resources: As last listed; None before `list_prompts_resources`.
        stderr: The last lines of its standard error.
        warnings: (reason, sentence) about configuration that is not enforced on this worker.
    """

    def __init__(  # noqa: PLR0913 - what an instance depends on
        self,
        spec: ServerSpec,
        host: Host,
        listener: InstanceListener,
        request: InstanceRequest,
        *,
        instance_id: str,
        read_values: ReadValues,
        load_connect: Callable[[], Connect],
        starts_process: bool,
        patience: Patience | None = None,
    ) -> None:
        self.id = instance_id
        self.spec = spec
        self.state: ClientState = "starting"
        self.call: Callable[[ToolRequest, Callable[[Outcome], None]], PendingCall] = self._reject
        self.starts_process = starts_process
        self.pid: int | None = None
        self.protocol_version = ""
        self.introduction = NO_INTRODUCTION
        self.resolved_values = request.resolved_values
        self.tools: Mapping[str, bytes] = {}
        self.stderr = StderrTail()
        self.warnings: tuple[tuple[str, str], ...] = ()
        self._server = spec.key.server_id
        self._host = host
        self._read_values = read_values
        self._load_connect = load_connect
        self._listener = listener
        self._known_version = request.known_version
        self._listed = request.listed
        self._patience = patience
        self._greeting = request.greeting
        self._names = request.names or LeaseNames.of_none(str(spec.key))
        self.prompts_resources: ListedPromptsResources | None = None
        self._session: McpSession | None = None
        self._peer: Peer | None = None
        self._outgoing: Outgoing | None = None
        self._deadline = 0.0
        self._changed_early = False
        self._broken: Fault | None = None
        self._stop = LightEvent()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        return self._peer.in_flight if self._peer is not None else 0

    @property
    def mcp_session(self) -> str:
        """The id of the MCP session that the server opened, or empty."""
        return self._peer.session_id if self._peer is not None else ""

    @property
    def late_replies(self) -> int:
        """How many responses had no pending request: cancelled, duplicate or unknown."""
        peer = self._peer
        return peer.late_replies + peer.stray_replies if peer is not None else 0

    def prepare(self, tool_name: str) -> bytes:
        """Return a tool's `ToolRequest.params_head`, to reuse for all its calls."""
        return params_head(tool_name)

    async def start(self) -> None:
        """Connect, negotiate and list the tools. Call it once.

        Raises:
            Fault: SERVER_NOT_READY. `close` waits for the clean-up. Its `problem` is
                MISSING_REFERENCE, COMMAND_NOT_FOUND, SANDBOX_NOT_AVAILABLE, EXITED, START_TIMEOUT,
                LIST_FAILED or START_FAILED; with `exit_status` and `stderr` if known.
        """
        assert self._owner is None, "An instance starts once."
        if self._stop.is_set:
            raise self._start_fault(asyncio.CancelledError())
        self._owner = start_lasting_task(self._run(), f"mcp instance {self.id} of {self._server}")
        _owners.add(self._owner)
        self._owner.add_done_callback(_owners.discard)
        self._owner.add_done_callback(self._on_owner_ended)
        try:
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            self._stop.set()
            self._owner.cancel()
            raise

    def _enter(self, state: ClientState) -> None:
        """Change the state; while it is `ready`, calls go straight to the connection."""
        self.state = state
        peer = self._peer if state == "ready" else None
        self.call = peer.call if peer is not None else self._reject

    def _reject(self, _request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        return reject_call(done, self._closed_fault())

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Notify of changes of a resource (see `Subscriptions.follow`); from any task."""
        if self.state == "ready" and self._session is not None:
            return self._session.follow(uri, on_update, done)
        return reject_call(done, self._closed_fault())

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources = NO_PROMPTS_RESOURCES
    ) -> ListedPromptsResources:
        """List prompts, resources and templates; keep them in `prompts_resources`.

        Args:
            timeout: Seconds for all lists together.
            recorded: The lists of another instance of the server. A list that fails stays as it
                was, here or there.

        Raises:
            Fault: SERVER_LOST: the instance is not ready.
        """
        if self.state != "ready" or self._session is None:
            raise self._closed_fault()
        before = self.prompts_resources or recorded
        listed = await self._session.list_prompts_resources(timeout, before)
        if self.spec.stands_for_all:  # one person's documents are no other one's business
            listed = replace(listed, resources=())
        self.prompts_resources = listed = replace(
            listed,
            prompts=shared_items(listed.prompts, recorded.prompts),
            resources=shared_items(listed.resources, recorded.resources),
            templates=shared_items(listed.templates, recorded.templates),
        )
        return listed

    async def relist(self) -> Mapping[str, bytes]:
        """List the tools again and keep the result in `tools`.

        Raises:
            Fault: SERVER_NOT_READY with `problem` LIST_FAILED; `tools` stays as it was.
        """
        if self.state != "ready" or self._session is None:
            raise self._closed_fault()
        try:
            async with asyncio.timeout(self.spec.startup_timeout):
                self.tools = await self._session.list_tools(self.tools)
        except Exception as error:
            raise self._start_fault(error) from error
        return self.tools

    async def close(self) -> None:
        """Close the instance and everything it started; idempotent, from any task.

        Rejects new calls and fails calls in flight. Completes even if the caller is cancelled.
        """
        if self.state in ("starting", "ready"):
            self._enter("closing")
        self._stop.set()
        if self.state == "closing" and self._owner is not None and not self._ready.done():
            self._owner.cancel()
        if self._owner is not None:
            await asyncio.wait([self._owner])
        else:
            self._enter("closed")

    # The owner task.

    def _on_owner_ended(self, _owner: asyncio.Task[None]) -> None:
        """End an instance that was closed before the first step of its owner."""
        if not self._ready.done():
            self._fail(asyncio.CancelledError())
            self._finish()

    async def _run(self) -> None:
        try:
            await self._connect_and_live()
        except BaseException as error:
            if not self._ready.done():
                self._fail(error)
            elif isinstance(error, Exception):
                self._break(error)
            if not isinstance(error, Exception):
                raise
        finally:
            try:
                if self._peer is not None:
                    # A server that failed to start gets less time to exit.
                    await self._peer.aclose(hurry=self.state == "failed")
            finally:
                self._finish()

    async def _connect_and_live(self) -> None:
        """Run the connection to its end; a second one if the first was greeted wrongly.

        Or if the server refused its transport, and may speak another one.
        """
        known = self._known_version or self._host.eras.recall(self.spec.launch_hash)
        if self._greeting.is_legacy:
            known = LEGACY_GREETING
        try:
            await self._live(await self._connect(), known)
            return
        except Exception as error:
            if self._session is None or self._ready.done():
                raise
            first = self._session.failed_greeting(error)
            refused = self._session.refused_transport(error)
            if not self._greeting.is_legacy:
                self._host.eras.note_failure(
                    self.spec.launch_hash, self._session.greeted_in_vain(error)
                )
            if (first is None and refused is None) or self._stop.is_set:
                raise
        await self._session.peer.aclose(hurry=True)
        self.stderr.clear()
        if first is None:
            session = await self._connect(self._session.other, refused)
            await self._live(session, LEGACY_GREETING)
            return
        _logger.info(
            "The server %s failed after server/discover; a second connection starts with "
            "initialize.",
            self._server,
        )
        try:
            await self._live(await self._connect(), LEGACY_GREETING)
        except Exception as error:
            if self._ready.done() or not self._session.timed_out(error):
                raise
            # A slow server has no time for two starts: the next one begins with `initialize`.
            self._host.eras.note_failure(self.spec.launch_hash, greeted_in_vain=True)
            raise first from None  # the error of the complete attempt says more

    async def _connect(
        self, other: Connect | None = None, refused: Fault | None = None
    ) -> McpSession:
        (session_type, context_type), connect = await asyncio.to_thread(self._import)
        if not self._deadline:
            self._deadline = asyncio.get_running_loop().time() + self.spec.startup_timeout
        if self.resolved_values is None:
            self.resolved_values = await self._read_values(
                self.spec, self._host.environment, self._host.vault, self.spec.startup_timeout
            )
        self.stderr.hide(self.resolved_values.secrets)
        if self._outgoing is None:
            self._outgoing = Outgoing(
                self.resolved_values.proxies,
                authorization=self._host.tokens.authorization(
                    self.spec,
                    self.resolved_values,
                    InstanceProblems(self._listener, self),
                ),
            )
        context = context_type(
            self.spec,
            self.resolved_values.for_lease(self._names),
            self.stderr,
            self._tools_changed,
            self._outgoing,
        )
        # From here on `_run` closes the peer, also if opening it fails.
        session = self._session = await session_type.connect(context, other or connect, refused)
        peer = self._peer = session.peer
        peer.leased = not self.spec.truely_stateless
        peer.client = self._greeting.client
        peer.asks_alone = self._greeting.is_legacy
        peer.logged = self._host.logged.of(self.spec.launch_hash)
        peer.ask_waiting(partial(self._listener.find_caller, self))
        peer.outside.connect(partial(self._listener.on_notification, self))
        peer.warned.connect(partial(self._listener.on_warning, self))
        peer.warning_cleared.connect(partial(self._listener.on_warning_cleared, self))
        self.pid, self.warnings = session.pid, session.warnings
        return session

    def _import(self) -> tuple[tuple[type[McpSession], type[ServerContext]], Connect]:
        return _import_mcp(), self._load_connect()

    async def _live(self, session: McpSession, known_version: str) -> None:
        async with session.opened(self._deadline, known_version, listed=self._listed) as tools:
            self.protocol_version, self.tools = session.protocol_version, tools
            self.introduction = session.introduction
            if not self._greeting.is_legacy:  # otherwise the server may have a newer one, too
                self._host.eras.note_success(self.spec.launch_hash, session.protocol_version)
            self._set_ready()
            await self._wait_until_ended(session)

    def _set_ready(self) -> None:
        if self.state == "starting":
            self._enter("ready")
        self._ready.set_result(None)
        if self._changed_early:
            self._tools_changed()

    async def _wait_until_ended(self, session: McpSession) -> None:
        peer = session.peer
        ends = [asyncio.ensure_future(end.wait()) for end in (self._stop, peer.closed)]
        watches = [
            asyncio.ensure_future(session.until_unresponsive(self._patience)),
            asyncio.ensure_future(session.until_refusing(self._patience)),
        ]
        try:
            await asyncio.wait((*ends, *watches), return_when=asyncio.FIRST_COMPLETED)
            for watch in watches:
                if watch.done() and not self._stop.is_set:
                    self._disconnect(peer, watch.result())
        finally:
            if self.state == "ready":
                self._enter("closing")
            for task in (*ends, *watches):
                task.cancel()
            await asyncio.gather(*ends, *watches, return_exceptions=True)

    def _disconnect(self, peer: Peer, fault: Fault) -> None:
        if self.state == "ready":
            self._enter("disconnected")
            self._listener.on_disconnected(self)
        peer.end(fault)

    def _tools_changed(self) -> None:
        if self.state == "ready":
            self._listener.on_tools_changed(self)
        else:
            self._changed_early = True

    def _break(self, error: Exception) -> None:
        """Record that the instance ends because of our own error, not the server's."""
        _logger.error("Instance %s of %s failed.", self.id, self._server, exc_info=error)
        self._broken = Fault(
            Reason.SERVER_LOST,
            f"The connection to the server {self._server} failed inside the worker; see the"
            " worker's log.",
            metadata={"server": self._server},
        )

    def _fail(self, error: BaseException) -> None:
        self._enter("failed")
        self._ready.set_exception(self._start_fault(error))
        self._ready.exception()  # `start` may have been cancelled

    def _start_fault(self, error: BaseException) -> Fault:
        if self._session is not None:
            return self._session.start_fault(error, self.stderr)
        if isinstance(error, Fault):
            return error
        cancelled = isinstance(error, asyncio.CancelledError)
        cause = "the start was cancelled" if cancelled else f"the worker failed ({error!r:.300})"
        return Fault(
            Reason.SERVER_NOT_READY,
            f"The server {self._server} did not open a connection: {cause}.",
            metadata={"server": self._server, "problem": "START_FAILED"},
        )

    def _finish(self) -> None:
        if self.state != "failed":
            self._enter("closed")
            lost = self._peer.fault if self._peer is not None else None
            self._listener.on_closed(self, lost or self._broken)

    def _closed_fault(self) -> Fault:
        if self._peer is not None and self._peer.fault is not None:
            return dataclasses.replace(self._peer.fault, started="no")
        state = "is starting" if self.state == "starting" else "has ended"
        return Fault(
            Reason.SERVER_LOST,
            f"This instance of the server {self._server} {state}; it accepts no calls.",
            metadata={"server": self._server},
        )
