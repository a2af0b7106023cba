"""One MCP instance in use: who owns it, which calls it runs, which of its tools differ."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from leaseway.data_plane.core.calls.turns import CallTurns
from leaseway.data_plane.core.instances.instance_policy import Times
from leaseway.data_plane.core.ports import InstancePort, OpenInstance
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.core.tools.toolset import CompiledToolset, differing_tools, has_other_tools
from leaseway.data_plane.metrics.instruments import WorkerMeters, measure_start
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason


class InstanceOwner(Protocol):
    """Hears what happens to an instance."""

    def on_instance_ended(self, live: LiveInstance, fault: Fault | None) -> None:
        """The instance has ended; the fault says why where nobody asked it to."""

    def on_instance_idle(self, live: LiveInstance) -> None:
        """The last call of an instance that is to end has ended."""

    def on_instance_tools_changed(self, live: LiveInstance) -> None:
        """The server says that its tools changed."""

    def on_instance_disconnected(self, live: LiveInstance) -> None:
        """The server gave no sign of life; its instance is being ended."""

    def on_instance_warning(self, live: LiveInstance, reason: str, text: str) -> None:
        """The server can't do something as it is configured."""

    def on_instance_warning_cleared(self, live: LiveInstance, reason: str) -> None:
        """What was warned of is over."""


class LiveInstance:
    """One instance, started at most once.

    Attributes:
        instance: The MCP client.
        owner: Hears what happens; None while nobody has taken it.
        calls: Calls in flight.
        turns: Orders its calls where it may run so many at once only; None before that is asked.
        followers: Subscriptions to its resources, which let it end but not rest.
        lease_id: The lease that it serves; empty for shared and spare ones.
        draining: Whether it is to end when its last call has.
        overdue: Why its lease is to end when its last call has; empty where it is not.
        suspect: Whether its tools differ since the contract changed, and are being listed again.
        up_since: When it came up, on the loop's clock, or None before.
        idle_since: When its last call ended, or it was taken into use.
        closed: Done when it has ended.
        fault: Why it ended by itself, where that is known.
    """

    __slots__ = (
        "_heads",
        "_loop",
        "_meters",
        "_toolset",
        "calls",
        "closed",
        "differing",
        "draining",
        "fault",
        "followers",
        "idle_since",
        "instance",
        "lease_id",
        "overdue",
        "owner",
        "spec",
        "suspect",
        "turns",
        "up_since",
    )

    def __init__(
        self,
        open_instance: OpenInstance,
        spec: ServerSpec,
        owner: InstanceOwner | None,
        known_version: str = "",
        resolved_values: ResolvedValues | None = None,
        meters: WorkerMeters | None = None,
    ) -> None:
        self.spec = spec
        self.owner = owner
        self.calls = 0
        self.turns: CallTurns | None = None
        self.followers = 0
        self.lease_id = ""
        self.draining = False
        self.overdue = ""
        self.suspect = False
        self.up_since: float | None = None
        self.idle_since = 0.0
        self.fault: Fault | None = None
        self.differing: frozenset[str] = frozenset()
        self.closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._meters = meters
        self._heads: dict[str, bytes] = {}
        self._toolset: CompiledToolset | None = None
        self.instance: InstancePort = open_instance(
            spec, self, known_version=known_version, resolved_values=resolved_values
        )

    @property
    def is_ready(self) -> bool:
        return self.instance.state == "ready"

    @property
    def times(self) -> Times:
        """What of its past decides about its end."""
        return Times(self.up_since or 0.0, self.idle_since, self.calls + self.followers)

    @property
    def idle_for(self) -> float:
        """For how long no call has run on it, in seconds; since it was taken into use at most."""
        return self._loop.time() - self.idle_since

    def taken(self, lease_id: str) -> None:
        self.lease_id = lease_id
        self.idle_since = self._loop.time()

    async def start(self) -> None:
        """Start the instance, which bounds its start itself; one that fails is closed.

        Raises:
            Fault: It did not come up, and why.
        """
        with measure_start(self._meters, self.spec):
            try:
                await self.instance.start()
            except BaseException:
                await asyncio.shield(self.close())
                raise
        if self.closed.is_set():  # before anybody could use it
            raise self.fault or ended_by_itself(self.spec)
        self.up_since = self.idle_since = self._loop.time()

    def compare(self, toolset: CompiledToolset) -> None:
        """Compare the instance's own tools with the contract (DESIGN §3)."""
        self._toolset = toolset
        self._heads.clear()
        self.differing = differing_tools(toolset, self.instance.tools)

    def lists_other(self, toolset: CompiledToolset) -> bool:
        """Return whether it lists anything else than what was recorded, exposed or not."""
        prompts_resources = self.instance.prompts_resources
        return has_other_tools(toolset, self.instance.tools) or (
            prompts_resources is not None
            and toolset.prompts_resources.lists_other(
                prompts_resources.prompts, prompts_resources.resources, prompts_resources.templates
            )
        )

    def has(self, toolset: CompiledToolset, tool: str) -> bool:
        """Return whether its own tool of that name is as a contract has it; empty is any."""
        if self._toolset is not toolset:
            self.compare(toolset)
        return tool not in self.differing

    def head(self, toolset: CompiledToolset, tool: str) -> bytes:
        """Return the prepared part of a tool's request.

        Raises:
            Fault: TOOL_DIFFERS: the instance lacks the tool or defines it differently.
        """
        if self._toolset is not toolset:
            self.compare(toolset)
        head = self._heads.get(tool)
        if head is None:
            if tool in self.differing:
                raise self._tool_differs(tool)
            head = self._heads[tool] = self.instance.prepare(tool)
        return head

    def _tool_differs(self, tool: str) -> Fault:
        return Fault(
            Reason.TOOL_DIFFERS,
            f"Tool {tool} of server {self.spec.key} is missing in this instance, or defined "
            "differently than where it was listed. If the session's lease is from before a change "
            "of the server's configuration, release it and acquire a new one; otherwise make the "
            "workers' installations of the server equal.",
            metadata={"server": self.spec.key.server_id, "instance": self.instance.id},
        )

    def end_call(self) -> None:
        """Note that a call ended; its owner hears of the last one of an instance that is to end."""
        self.calls -= 1
        if self.calls:
            return
        self.idle_since = self._loop.time()
        if (self.draining or self.overdue) and self.owner is not None:
            self.owner.on_instance_idle(self)

    def remove_follower(self) -> None:
        """Note that a subscription ended; the instance may rest after its idle time from now on."""
        self.followers -= 1
        if not self.calls:
            self.idle_since = self._loop.time()

    async def relist(self) -> Mapping[str, bytes]:
        """List the tools again, and allow those that no longer differ.

        A tool that has come to differ is still allowed: the server answers for it until the
        control plane has committed the new list.

        Raises:
            Fault: It could not.
        """
        tools = await self.instance.relist()
        if self.differing and self._toolset is not None:
            self.differing &= differing_tools(self._toolset, tools)
        return tools

    async def close(self, grace: float = 0) -> None:
        """End the instance; its calls in flight fail."""
        self.owner = None
        await self.instance.close(grace)
        self.closed.set()

    # What the instance tells who opened it.

    def on_closed(self, instance: object, fault: Fault | None) -> None:
        """Wake those who wait for its end, and tell the owner."""
        self.fault = fault
        self.closed.set()
        if self.owner is not None:
            self.owner.on_instance_ended(self, fault)

    def on_tools_changed(self, instance: object) -> None:
        if self.owner is not None:
            self.owner.on_instance_tools_changed(self)

    def on_disconnected(self, instance: object) -> None:
        if self.owner is not None:
            self.owner.on_instance_disconnected(self)

    def on_warning(self, instance: object, reason: str, text: str) -> None:
        if self.owner is not None:
            self.owner.on_instance_warning(self, reason, text)

    def on_warning_cleared(self, instance: object, reason: str) -> None:
        if self.owner is not None:
            self.owner.on_instance_warning_cleared(self, reason)


def ended_by_itself(spec: ServerSpec) -> Fault:
    return Fault(Reason.SERVER_LOST, f"Server {spec.key} ended without saying why.")
