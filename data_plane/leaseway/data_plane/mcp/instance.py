"""One live MCP client of a worker: started, listed, called, ended.

One owner task enters and leaves everything; calls come from any task and go straight to the
connection (DESIGN §9). What speaks MCP is in `session`, and loaded by the first instance's start,
unless it is before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    InstanceListener,
    ListedPromptsResources,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.process.stderr import StderrTail
from leaseway.data_plane.mcp.protocol.messages.era import params_head, refuse
from leaseway.data_plane.references.resolve import read_references
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason

if TYPE_CHECKING:
    from leaseway.data_plane.mcp.connect import ServerContext
    from leaseway.data_plane.mcp.protocol.connection import Peer
    from leaseway.data_plane.mcp.protocol.features.health import Patience
    from leaseway.data_plane.mcp.session import Session

_logger = logging.getLogger(__name__)
State = Literal["starting", "ready", "disconnected", "closing", "closed", "failed"]

_owners: Final[set[asyncio.Task[None]]] = set()
"""The loop holds tasks weakly; an owner must reach its end even if nobody keeps the instance."""


async def load() -> None:
    """Load what speaks MCP, in a thread: it takes a second, and the loop's calls go on.

    An instance waits for it at its start; a worker that has just joined need not wait for that.
    """
    await asyncio.to_thread(_speaking)


def _speaking() -> tuple[type[Session], type[ServerContext]]:
    import anyio._backends._asyncio  # noqa: F401  # else the first task group does, on the loop

    from leaseway.data_plane.mcp.connect import ServerContext
    from leaseway.data_plane.mcp.session import Session

    return Session, ServerContext


class Instance:
    """One live client of one server.

    Args:
        spec: The server.
        host: The worker process.
        listener: Told what becomes of the instance.
        instance_id: Names the instance on its worker.
        known_version: What another instance of the same server agreed on, or empty.
        resolved_values: What the server's references stand for, or None to read them at the start.
        patience: How long the server may be silent, or None for what DESIGN §10 gives it.

    Attributes:
        id: As given.
        spec: As given.
        state: `starting`, `ready`, `disconnected` (it gave no sign of life and is being ended),
            `closing`, `closed`, or `failed` (it never became ready).
        pid: The process, or None where there is none (yet).
        protocol_version: What was agreed on; empty before.
        resolved_values: What the references resolved to at the start; None before, or if one is
            missing.
        tools: Each tool's definition as the server sent it, by original name, in its order.
        prompts_resources: What else it has, as last listed; None before `list_prompts_resources`.
        stderr: The last lines of its standard error.
        warnings: (reason, sentence) about what does not hold on this worker as configured.
    """

    def __init__(
        self,
        spec: ServerSpec,
        host: Host,
        listener: InstanceListener,
        *,
        instance_id: str,
        known_version: str = "",
        resolved_values: ResolvedValues | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.id = instance_id
        self.spec = spec
        self.state: State = "starting"
        self.pid: int | None = None
        self.protocol_version = ""
        self.resolved_values = resolved_values
        self.tools: Mapping[str, bytes] = {}
        self.stderr = StderrTail()
        self.warnings: tuple[tuple[str, str], ...] = ()
        self._server = spec.key.server_id
        self._host = host
        self._listener = listener
        self._known_version = known_version
        self._patience = patience
        self.prompts_resources: ListedPromptsResources | None = None
        self._session: Session | None = None
        self._peer: Peer | None = None
        self._deadline = 0.0
        self._changed_early = False
        self._broken: Fault | None = None
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        return self._peer.in_flight if self._peer is not None else 0

    @property
    def mcp_session(self) -> str:
        """The id of the session that the server has opened; empty without one."""
        return self._peer.session_id if self._peer is not None else ""

    @property
    def late_replies(self) -> int:
        """Answers that came when nobody waited for them: after a cancel, twice, unasked."""
        peer = self._peer
        return peer.late_replies + peer.stray_replies if peer is not None else 0

    def prepare(self, tool_name: str) -> bytes:
        """Return a tool's `ToolRequest.params_head`, to be kept for all its calls."""
        return params_head(tool_name)

    async def start(self) -> None:
        """Start, negotiate and list. Call it once.

        Raises:
            Fault: SERVER_NOT_READY; what had been started is on its way out, `close` waits for
                it. Its `problem` is MISSING_REFERENCE, COMMAND_NOT_FOUND, SANDBOX_NOT_AVAILABLE,
                EXITED, START_TIMEOUT, LIST_FAILED or START_FAILED; `exit_status` and `stderr` are
                there if known.
        """
        assert self._owner is None, "An instance starts once."
        if self._stop.is_set():
            raise self._start_fault(asyncio.CancelledError())
        self._owner = asyncio.get_running_loop().create_task(
            self._own(), name=f"mcp instance {self.id} of {self._server}"
        )
        _owners.add(self._owner)
        self._owner.add_done_callback(_owners.discard)
        try:
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            self._stop.set()
            self._owner.cancel()
            raise

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Start a tool call (see `wire.Connection`); from any task, never blocks."""
        if self.state == "ready" and self._peer is not None:
            return self._peer.call(request, done)
        return refuse(done, self._not_open())

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Notify of a resource's changes (see `Subscriptions.follow`); from any task."""
        if self.state == "ready" and self._session is not None:
            return self._session.follow(uri, on_update, done)
        return refuse(done, self._not_open())

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources = NO_PROMPTS_RESOURCES
    ) -> ListedPromptsResources:
        """List prompts, resources and templates and keep them in `offers`.

        Args:
            timeout: Seconds for all lists together.
            recorded: What another instance of the same server listed: a list that fails stays as
                it was, here or there.

        Raises:
            Fault: SERVER_LOST: there is nobody to ask.
        """
        if self.state != "ready" or self._session is None:
            raise self._not_open()
        before = self.prompts_resources or recorded
        self.prompts_resources = await self._session.list_prompts_resources(timeout, before)
        return self.prompts_resources

    async def relist(self) -> Mapping[str, bytes]:
        """List the tools anew and keep the result in `tools`.

        Raises:
            Fault: SERVER_NOT_READY with `problem` LIST_FAILED; `tools` stays as it was.
        """
        if self.state != "ready" or self._session is None:
            raise self._not_open()
        try:
            async with asyncio.timeout(self.spec.startup_timeout):
                self.tools = await self._session.list_tools()
        except Exception as error:
            raise self._start_fault(error) from error
        return self.tools

    async def close(self, grace: float = 0) -> None:
        """End the instance and everything it started; idempotent, from any task.

        New calls are refused at once. The end is reached even if the caller is cancelled.

        Args:
            grace: Seconds that calls in flight are given to finish.
        """
        if self.state in ("starting", "ready"):
            self.state = "closing"
        try:
            if self._peer is not None and grace > 0:
                async with asyncio.timeout(grace):
                    await self._peer.drained()
        except TimeoutError:
            pass  # their callers learn that the connection was closed
        finally:
            self._stop.set()
            if self.state == "closing" and self._owner is not None and not self._ready.done():
                self._owner.cancel()
        if self._owner is not None:
            await asyncio.wait([self._owner])
        else:
            self.state = "closed"

    # The owner task.

    async def _own(self) -> None:
        try:
            session = await self._connect()
            await self._live(session)
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
                    # Who has not come up in all that time gets little more to end by itself.
                    await self._peer.aclose(hurry=self.state == "failed")
            finally:
                self._finish()

    async def _connect(self) -> Session:
        session_type, wanted_type = await asyncio.to_thread(_speaking)
        self._deadline = asyncio.get_running_loop().time() + self.spec.startup_timeout
        if self.resolved_values is None:
            self.resolved_values = await read_references(
                self.spec, self._host.environment, self._host.vault, self.spec.startup_timeout
            )
        self.stderr.hide(self.resolved_values.secrets)
        wanted = wanted_type(
            self.spec, self.resolved_values, self._host, self.stderr, self._tools_changed
        )
        # From here on the owner's end closes its peer, also if opening it fails.
        session = self._session = await session_type.connect(wanted)
        peer = self._peer = session.peer
        peer.leased = not self.spec.truely_stateless
        peer.on_warning = partial(self._listener.on_warning, self)
        peer.on_mended = partial(self._listener.on_warning_cleared, self)
        self.pid, self.warnings = session.pid, session.warnings
        return session

    async def _live(self, session: Session) -> None:
        async with session.opened(self._deadline, self._known_version) as tools:
            self.protocol_version, self.tools = session.protocol_version, tools
            self._become_ready()
            await self._until_the_end(session)

    def _become_ready(self) -> None:
        if self.state == "starting":
            self.state = "ready"
        self._ready.set_result(None)
        if self._changed_early:
            self._tools_changed()

    async def _until_the_end(self, session: Session) -> None:
        peer = session.peer
        ends = [asyncio.ensure_future(e.wait()) for e in (self._stop, peer.closed)]
        mute = asyncio.ensure_future(session.until_mute(self._patience))
        listening = asyncio.ensure_future(session.listen_to_changes(self._tools_changed))
        try:
            await asyncio.wait((*ends, mute), return_when=asyncio.FIRST_COMPLETED)
            if mute.done() and not self._stop.is_set():
                self._disconnect(peer, mute.result())
        finally:
            if self.state == "ready":
                self.state = "closing"
            for task in (*ends, mute, listening):
                task.cancel()
            await asyncio.gather(*ends, mute, listening, return_exceptions=True)

    def _disconnect(self, peer: Peer, fault: Fault) -> None:
        if self.state == "ready":
            self.state = "disconnected"
            self._listener.on_disconnected(self)
        peer.lose(fault)

    def _tools_changed(self) -> None:
        if self.state == "ready":
            self._listener.on_tools_changed(self)
        else:
            self._changed_early = True

    def _break(self, error: Exception) -> None:
        """Note that the instance ends by a fault of ours, not by its server's."""
        _logger.error("Instance %s of %s broke.", self.id, self._server, exc_info=error)
        self._broken = Fault(
            Reason.SERVER_LOST,
            f"The connection to the server {self._server} failed inside the worker; its log says "
            "more.",
            metadata={"server": self._server},
        )

    def _fail(self, error: BaseException) -> None:
        self.state = "failed"
        self._ready.set_exception(self._start_fault(error))
        self._ready.exception()  # nobody may be waiting for it any more

    def _start_fault(self, error: BaseException) -> Fault:
        if self._session is not None:
            return self._session.start_fault(error, self.stderr)
        if isinstance(error, Fault):
            return error
        called_off = isinstance(error, asyncio.CancelledError)
        why = "the start was called off" if called_off else f"the worker failed ({error!r:.300})"
        return Fault(
            Reason.SERVER_NOT_READY,
            f"The server {self._server} did not open a connection: {why}.",
            metadata={"server": self._server, "problem": "START_FAILED"},
        )

    def _finish(self) -> None:
        if self.state != "failed":
            self.state = "closed"
            lost = self._peer.fault if self._peer is not None else None
            self._listener.on_closed(self, lost or self._broken)

    def _not_open(self) -> Fault:
        if self._peer is not None and self._peer.fault is not None:
            return dataclasses.replace(self._peer.fault, started="no")
        what = "is starting" if self.state == "starting" else "has ended"
        return Fault(
            Reason.SERVER_LOST,
            f"This instance of the server {self._server} {what}; it takes no calls.",
            metadata={"server": self._server},
        )
