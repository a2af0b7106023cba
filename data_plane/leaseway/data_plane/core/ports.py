"""The interface of instances: one MCP client, or one set of HTTP tools.

Implemented by `mcp.instance`, `kinds.http_api.instance` and, in memory, doubles of tests.

See design.md#one-mcp-connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from leaseway.data_plane.core.calls.call import (
    Callbacks,
    OnUpdate,
    Outcome,
    PendingCall,
    ToolRequest,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.clients.greeting import COMMON, Greeting
from leaseway.wire.errors import Fault
from leaseway.wire.messages.mcp import Introduction


@dataclass(frozen=True)
class ListedPromptsResources:
    """A server's lists of prompts and resources: definitions as it sent them, in its order.

    Attributes:
        prompts: Prompts with unique names.
        resources: Resources with unique URIs.
        templates: Resource templates, unique.
        gaps: A sentence for each list that could not be read; such a list is the previous one, or
            empty.
        skipped: Sentences about definitions that were skipped, also in the list of tools.
        changed: Sentences about definitions that were corrected, likewise.
    """

    prompts: tuple[bytes, ...] = ()
    resources: tuple[bytes, ...] = ()
    templates: tuple[bytes, ...] = ()
    gaps: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


NO_PROMPTS_RESOURCES: Final = ListedPromptsResources()


class StderrPort(Protocol):
    """The last stderr lines of a server."""

    def lines(self) -> list[str]:
        """Return the lines, oldest first."""

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Call `on_line`, which must not block, with each new line."""


class NoStderr:
    """The stderr of an instance without a process: it has no lines."""

    def lines(self) -> list[str]:
        return []

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Never call `on_line`."""


ClientState = Literal["starting", "ready", "disconnected", "closing", "closed", "failed"]
"""The state of a client: `disconnected` is unresponsive and being closed, `failed` never ready."""


class InstancePort(Protocol):
    """One live client of a server, with its process or connection."""

    @property
    def id(self) -> str:
        """Unique in the worker's run."""

    @property
    def state(self) -> ClientState:
        """Its state."""

    @property
    def starts_process(self) -> bool:
        """Whether its start runs a process on this machine. Such starts wait for their turn."""

    @property
    def pid(self) -> int | None:
        """The process id, or None if there is no process."""

    @property
    def protocol_version(self) -> str:
        """The negotiated MCP protocol version; empty before that."""

    @property
    def introduction(self) -> Introduction:
        """What the server said about itself at the handshake; empty before that."""

    @property
    def mcp_session(self) -> str:
        """The id of the MCP session over HTTP; empty without one."""

    @property
    def tools(self) -> Mapping[str, bytes]:
        """The last list of tools: definitions by original name, in the server's order."""

    @property
    def prompts_resources(self) -> ListedPromptsResources | None:
        """The last lists of prompts and resources; None if not listed yet."""

    @property
    def resolved_values(self) -> ResolvedValues | None:
        """The resolved configuration it was started with; None before the start."""

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(reason, sentence) for each setting that this worker cannot apply."""

    @property
    def late_replies(self) -> int:
        """Number of replies that arrived after their call had ended."""

    @property
    def stderr(self) -> StderrPort:
        """The server's stderr."""

    async def start(self) -> None:
        """Connect and list the tools.

        Raises:
            Fault: The start failed.
        """

    def prepare(self, tool_name: str) -> bytes:
        """Return the start of a tool's requests, which is the same for all calls."""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Send a call. `done` is called once with its outcome, unless it is cancelled before."""

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Subscribe to a resource until cancelled.

        Args:
            uri: The resource.
            on_update: Called with "" once the server has confirmed, then with each changed URI.
            done: Called when the subscription ends without being cancelled.
        """

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources
    ) -> ListedPromptsResources:
        """List prompts, resources and templates.

        Args:
            timeout: Seconds for all lists together.
            recorded: The lists of another instance of the same server, used for lists that fail.

        Raises:
            Fault: The client has ended.
        """

    async def relist(self) -> Mapping[str, bytes]:
        """List the tools again.

        Raises:
            Fault: Listing failed; `tools` has not changed.
        """

    async def close(self) -> None:
        """Close the client and stop its process. Idempotent; any task may call it."""


class InstanceListener(Protocol):
    """The owner of an instance; called on the event loop, must not block."""

    def on_closed(self, instance: Any, fault: Fault | None) -> None:
        """Called once after a ready instance has ended and is cleaned up.

        Args:
            instance: The instance.
            fault: Why it ended, or None after `close`.
        """

    def on_tools_changed(self, instance: Any) -> None:
        """Called when the server reports that its tools changed."""

    def on_notification(self, instance: Any, method: str, params: bytes) -> None:
        """Called with a notification for the server's client that belongs to no call."""

    def find_caller(self, instance: Any, method: str) -> Callbacks | None:
        """Return what answers a method for a call that waits for the instance's start, if any."""

    def on_disconnected(self, instance: Any) -> None:
        """Called when an instance does not respond, before it is closed."""

    def on_warning(self, instance: Any, reason: str, text: str) -> None:
        """Called when the server cannot work as configured; the text says what to do."""

    def on_warning_cleared(self, instance: Any, reason: str) -> None:
        """Called when a warning no longer applies."""


@dataclass(frozen=True)
class LoginSubject:
    """Whose login to which server; without a user it is the tenant's own."""

    server: str
    tenant: str
    user: str = ""


@dataclass(frozen=True)
class ChangedLogins:
    """Whose logins have changed; a variant that stands for all subjects has no tenant, or no user.

    Attributes:
        ended: Whose login has ended.
        replaced: Who has logged in again: as somebody else, or with other permissions.
    """

    ended: Collection[VariantKey] = ()
    replaced: Collection[VariantKey] = ()


@dataclass(frozen=True)
class InstanceRequest:
    """What whoever needs an instance says of it, beside its server.

    Attributes:
        known_version: The protocol version of another instance of the same server, or empty.
        resolved_values: The resolved configuration, or None to resolve it at the start.
        names: The names of its lease, or None if it is for no lease yet.
        greeting: How it introduces itself to its server.
        listed: The tools that another instance of the same server listed, as definitions by
            original name; None if unknown.
    """

    known_version: str = ""
    resolved_values: ResolvedValues | None = None
    names: LeaseNames | None = None
    greeting: Greeting = COMMON
    listed: Mapping[str, bytes] | None = None


ANY_INSTANCE: Final = InstanceRequest()


class OpenInstance(Protocol):
    """Creates instances that are not started yet."""

    def __call__(
        self, spec: ServerSpec, listener: InstanceListener, request: InstanceRequest
    ) -> InstancePort:
        """Create an instance.

        Args:
            spec: The server to start or connect to.
            listener: Notified of events.
            request: What it is needed for.
        """
