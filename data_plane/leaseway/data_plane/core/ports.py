"""What calls ask of MCP instances: the seam between serving and connections (DESIGN §9).

`leaseway.data_plane.mcp.instance` has the real ones; tests have an in-memory twin.

What a server lists besides tools, as it sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault


@dataclass(frozen=True)
class ListedPromptsResources:
    """What a server offers besides tools: definitions as it sent them, in its order.

    Attributes:
        prompts: Its prompts, one of each name.
        resources: Its resources, one of each URI.
        templates: Its templates of resources, one of each template.
        gaps: Which lists could not be read and why, a sentence each; such a list is the one
            read before, or empty.
        skipped: What of any list, that of its tools included, is left out, a sentence each.
    """

    prompts: tuple[bytes, ...] = ()
    resources: tuple[bytes, ...] = ()
    templates: tuple[bytes, ...] = ()
    gaps: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


NO_PROMPTS_RESOURCES: Final = ListedPromptsResources()


class StderrPort(Protocol):
    """The last lines that a server wrote to stderr."""

    def lines(self) -> list[str]:
        """Return them, the oldest first."""

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Notify of each line, as it is kept, from now on; must not block."""


class InstancePort(Protocol):
    """One live MCP client: a process or a connection."""

    @property
    def id(self) -> str:
        """Its id, unique in the worker's run."""

    @property
    def state(self) -> str:
        """`starting`, `ready`, `disconnected`, `closing`, `closed` or `failed`."""

    @property
    def pid(self) -> int | None:
        """The process, where it has one."""

    @property
    def protocol_version(self) -> str:
        """The MCP protocol version agreed on; empty before."""

    @property
    def mcp_session(self) -> str:
        """The id of the session that a server over HTTP has opened for it; empty without one."""

    @property
    def tools(self) -> Mapping[str, bytes]:
        """What it listed last: definitions by original name, in the server's order."""

    @property
    def prompts_resources(self) -> ListedPromptsResources | None:
        """What else it listed last; None where it was not asked yet."""

    @property
    def resolved_values(self) -> ResolvedValues | None:
        """What its references stood for when it started; None before."""

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(reason, sentence) about what does not hold on this worker as configured."""

    @property
    def late_replies(self) -> int:
        """How many answers came that nobody waited for any more."""

    @property
    def stderr(self) -> StderrPort:
        """What it wrote to stderr."""

    async def start(self) -> None:
        """Connect and list the tools.

        Raises:
            Fault: It could not, and why.
        """

    def prepare(self, tool_name: str) -> bytes:
        """Return what of a tool's request can be made once for all calls."""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Send a call; `done` gets its outcome once, unless it is cancelled before."""

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Notify of a resource's changes until cancelled; `done` says why there will be no more.

        Args:
            uri: The resource.
            on_update: Told an empty text once the server has agreed, then the URI of what changed.
            done: Gets the end, where nobody asked for it.
        """

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources
    ) -> ListedPromptsResources:
        """List prompts, resources and templates; what cannot be listed is said in `gaps`.

        Args:
            timeout: Seconds for all lists together.
            recorded: What another instance of the same server listed: a list that fails stays as
                it was, here or there.

        Raises:
            Fault: The client has ended.
        """

    async def relist(self) -> Mapping[str, bytes]:
        """List the tools again.

        Raises:
            Fault: It could not, and why; the tools known before stay.
        """

    async def close(self, grace: float = 0) -> None:
        """End the client and its process; may be called from any task, more than once."""


class InstanceListener(Protocol):
    """Whoever has an instance opened; told on the loop what becomes of it, and must not block."""

    def on_closed(self, instance: Any, fault: Fault | None) -> None:
        """Hear, once, that an instance that was ready has ended and nothing of it is left.

        Args:
            instance: Which one.
            fault: What ended it, or None where `close` did.
        """

    def on_tools_changed(self, instance: Any) -> None:
        """Called when the server says that its tools changed."""

    def on_disconnected(self, instance: Any) -> None:
        """Called when it gave no sign of life, before it is ended."""

    def on_warning(self, instance: Any, reason: str, text: str) -> None:
        """Called with sentences: what its server can't do as it is configured, and what to do."""

    def on_warning_cleared(self, instance: Any, reason: str) -> None:
        """Called when what it was warned of is over."""


class OpenInstance(Protocol):
    """Makes instances that are not started yet."""

    def __call__(
        self,
        spec: ServerSpec,
        listener: InstanceListener,
        *,
        known_version: str = "",
        resolved_values: ResolvedValues | None = None,
    ) -> InstancePort:
        """Make one.

        Args:
            spec: What to start or connect to.
            listener: Told what becomes of it.
            known_version: What another instance of the same server agreed on, or empty.
            resolved_values: The server's resolved references, or None to resolve them at its start.
        """
