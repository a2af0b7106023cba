"""What of an instance speaks MCP: its connection, negotiated, listed, asked for signs of life.

It is apart from the instance because the official package takes longer to load than the rest of a
worker: a worker joins first, and loads this in a thread (`instance.load`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from mcp.client.session import ClientSession
from mcp_types import ServerCapabilities

from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall
from leaseway.data_plane.core.desired_state import working_folder
from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.data_plane.mcp.connect import ServerContext, connect
from leaseway.data_plane.mcp.process.stderr import StderrTail
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features import handshake
from leaseway.data_plane.mcp.protocol.features.health import Patience, patience_of, until_mute
from leaseway.data_plane.mcp.protocol.features.list_changes import listen_to_changes
from leaseway.data_plane.mcp.protocol.features.listing import (
    TOOLS,
    list_all,
    list_prompts_resources,
)
from leaseway.data_plane.mcp.protocol.features.subscriptions import Subscriptions
from leaseway.data_plane.mcp.protocol.messages.server_requests import roots_result
from leaseway.data_plane.mcp.start_errors import Phase, start_fault
from leaseway.spec.model import ServerSpec
from leaseway.spec.permissions import folders
from leaseway.wire.errors import Fault


class Session:
    """One server, connected but not opened yet; made by `Session.connect`.

    Whoever has it closes its `peer`, also if opening it fails.

    Attributes:
        peer: The connection.
        pid: The process behind it, or None where there is none.
        warnings: (reason, sentence) about what does not hold on this worker as configured.
        protocol_version: What was agreed on; empty before.
        skipped: What of the list of tools could not be used, a sentence each.
    """

    def __init__(
        self, spec: ServerSpec, peer: Peer, pid: int | None, warnings: tuple[tuple[str, str], ...]
    ) -> None:
        self.peer = peer
        self.pid = pid
        self.warnings = warnings
        self.protocol_version = ""
        self.skipped: tuple[str, ...] = ()
        self._spec = spec
        self._phase: Phase = "connect"
        self._capabilities: ServerCapabilities | None = None
        self._has_tools = True
        self._client: ClientSession | None = None
        self._subscriptions: Subscriptions | None = None

    @classmethod
    async def connect(cls, wanted: ServerContext) -> Session:
        """Return a session with what is wanted.

        Raises:
            Fault: SERVER_NOT_READY; its `problem` says why.
        """
        connected = await connect(wanted)
        spec, peer = wanted.spec, connected.peer
        permissions = spec.policy.permissions
        if permissions.allowed_paths is not None:
            peer.offer_roots(roots_result(folders(permissions, working_folder(spec))))
        return cls(spec, peer, connected.pid, connected.warnings)

    @contextlib.asynccontextmanager
    async def opened(
        self, deadline: float, known_version: str
    ) -> AsyncIterator[Mapping[str, bytes]]:
        """Open the connection, agree on a version, and yield the tools.

        Args:
            deadline: When all that must be done, on the loop's clock.
            known_version: What another instance of the same server agreed on, or empty.

        Raises:
            Exception: Whatever goes wrong; `start_fault` has words for it.
        """
        peer = self.peer
        async with asyncio.timeout_at(deadline):
            await peer.open()
        async with ClientSession(dispatcher=peer, client_info=handshake.CLIENT_INFO) as client:
            async with asyncio.timeout_at(deadline):
                tools = await self._introduce(client, known_version)
            self._client = client
            self._subscriptions = Subscriptions(
                self._spec.key.server_id, client, peer, self._spec.call_timeout
            )
            try:
                yield tools
            finally:
                await self._subscriptions.aclose()

    async def _introduce(self, client: ClientSession, known_version: str) -> Mapping[str, bytes]:
        spec = self._spec
        self._phase = "negotiate"
        await handshake.negotiate(client, spec.protocol, spec.startup_timeout, known_version)
        self.protocol_version = client.protocol_version or ""
        self.peer.era = handshake.era_of(
            self.protocol_version, has_roots=self.peer.roots is not None
        )
        self._phase = "list"
        self._capabilities = capabilities = client.server_capabilities
        self._has_tools = capabilities is not None and capabilities.tools is not None
        return await self.list_tools()

    async def list_tools(self) -> Mapping[str, bytes]:
        """List the tools, and let the connection call them.

        Raises:
            Exception: See `opened`.
        """
        listed = await list_all(self.peer, TOOLS, may_be_unknown=not self._has_tools)
        self.skipped = listed.skipped
        return self.peer.accept(listed.definitions)

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources
    ) -> ListedPromptsResources:
        """List the rest (see `Instance.list_prompts_resources`)."""
        found = await list_prompts_resources(self.peer, self._capabilities, timeout, recorded)
        return replace(found, skipped=(*self.skipped, *found.skipped))

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Notify of a resource's changes (see `Subscriptions.follow`); once it is open."""
        assert self._subscriptions is not None
        return self._subscriptions.follow(uri, on_update, done)

    async def until_mute(self, patience: Patience | None) -> Fault:
        """Ask an idle server for signs of life until none comes; return why it is lost then."""
        return await until_mute(self.peer, patience or patience_of(self._spec))

    async def listen_to_changes(self, on_tools_changed: Callable[[], None]) -> None:
        """Listen to what the server says of changes of its lists; until cancelled."""
        assert self._client is not None
        await listen_to_changes(self._client, self.peer, on_tools_changed)

    def start_fault(self, error: BaseException, stderr: StderrTail) -> Fault:
        """Return the fault that says why a start, or a listing, failed."""
        return start_fault(self._spec, error, self._phase, stderr, self.peer.garbage)
