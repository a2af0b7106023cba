"""One MCP instance in use: its owner, its calls in flight, its tools that differ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Final, Protocol

import msgspec
from msgspec import structs

from leaseway.data_plane.background import LightEvent
from leaseway.data_plane.core.calls.call import Callbacks
from leaseway.data_plane.core.calls.turns import Turns
from leaseway.data_plane.core.instances.lifetimes import InstanceTimes
from leaseway.data_plane.core.ports import (
    InstancePort,
    InstanceRequest,
    OpenInstance,
)
from leaseway.data_plane.core.tools.own_items import OwnLists
from leaseway.data_plane.core.tools.prompts_resources import Absent, bounded_names
from leaseway.data_plane.core.tools.toolset import (
    CompiledToolset,
    differing_tools,
    has_other_tools,
    serves_other_tools,
)
from leaseway.data_plane.instances.start_queue import StartQueue, StartTurn
from leaseway.data_plane.metrics.instruments import WorkerMeters, measure_start
from leaseway.spec.model import ServerSpec
from leaseway.wire.bounds import RELIST_WAIT
from leaseway.wire.clients.greeting import COMMON, is_modern
from leaseway.wire.clients.mcp_client import ListedToClient, McpClient
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import TOOLS_CHANGED

_logger = logging.getLogger(__name__)
_LISTED_CAPABILITIES: Final = frozenset({"prompts", "resources"})


class InstanceOwner:
    """Base class of owners of instances, which override the events that they handle."""

    def on_instance_ended(self, live: LiveInstance, fault: Fault | None) -> None:
        """Handle the end of an instance that its owner did not close; the fault, if known."""

    def on_instance_idle(self, live: LiveInstance) -> None:
        """Handle the end of the last call of an instance that is draining or overdue."""

    def on_instance_tools_changed(self, live: LiveInstance) -> None:
        """Handle the server's notification that its tools changed."""

    def on_instance_lists_needed(self, live: LiveInstance) -> None:
        """List prompts and resources with a leased instance, and tell its client's gateway."""

    def on_instance_disconnected(self, live: LiveInstance) -> None:
        """Handle an unresponsive server, whose instance is about to end."""

    def on_instance_warning(self, live: LiveInstance, reason: str, text: str) -> None:
        """Handle a limitation of the server as it is configured."""

    def on_instance_warning_cleared(self, live: LiveInstance, reason: str) -> None:
        """Handle the end of such a limitation."""

    def find_caller(self, live: LiveInstance, method: str) -> Callbacks | None:
        """Return what answers a method for a call that waits for the start of the instance."""
        return None


class NotificationSink(Protocol):
    """Where notifications of a leased instance go that belong to no call."""

    def notify(self, session: str, server_id: str, method: str, params: bytes) -> None:
        """Pass a notification on to a session; must not block."""

    def tell_lease_end(self, lease_id: str, ended: Fault) -> None:
        """Tell the caller that a lease has ended; must not block."""


class LiveInstance:
    """One instance, started at most once.

    Attributes:
        instance: The MCP client.
        owner: Handles its events; None before it has an owner, and after it was closed.
        calls: Calls in flight.
        turns: Orders its calls if their number is limited; None before the first such call.
        followers: Subscriptions to its resources. They do not keep it alive, but keep it from
            being idle.
        lease_id: The lease that it belongs to; empty for shared instances and spares.
        sink: Where its notifications go that belong to no call: to the gateway that made the
            newest call on its lease; None without one.
        draining: Whether it is closed after its last call.
        overdue: Why its lease must end after its last call; empty if it need not.
        suspect: Whether its tools differ from a new contract and are being listed again.
        own: In what it differs, for the lease that it belongs to; None if it does not. Calls of
            these tools are no difference from the contract.
        changes: The changes of its lists that its server has reported.
        up_since: When it was ready, on the loop's clock; None before.
        idle_since: When its last call ended, or it was assigned to a lease.
        closed: Set when it has ended.
        fault: Why it ended by itself, if known.
        greeting: How it introduces itself to its server.
        turn: Its turn to start.
        is_modern: Whether its server needs no handshake; False before it is ready.
        knows_caller: Whether a call that waited for its start has been asked by its server: it
            serves the lease of that call only.
    """

    __slots__ = (
        "_heads",
        "_lacked",
        "_loop",
        "_meters",
        "_needs_lists",
        "_session",
        "_starts",
        "_told",
        "_toolset",
        "_unseen",
        "calls",
        "changes",
        "closed",
        "differing",
        "draining",
        "fault",
        "followers",
        "greeting",
        "idle_since",
        "instance",
        "is_modern",
        "knows_caller",
        "lease_id",
        "overdue",
        "own",
        "owner",
        "sink",
        "spec",
        "suspect",
        "turn",
        "turns",
        "up_since",
    )

    def __init__(
        self,
        open_instance: OpenInstance,
        spec: ServerSpec,
        owner: InstanceOwner | None,
        request: InstanceRequest,
        starts: StartQueue,
        turn: StartTurn,
        meters: WorkerMeters | None = None,
    ) -> None:
        self.greeting = request.greeting
        self.is_modern = False
        self.knows_caller = False
        self.spec = spec
        self.owner = owner
        self.calls = 0
        self.turns: Turns | None = None
        self.followers = 0
        self.lease_id = ""
        self.sink: NotificationSink | None = None
        self._session = ""
        self._needs_lists = True
        self._told = False
        self._lacked: frozenset[str] = frozenset()
        """Tools that its client has never seen."""
        self._unseen: Absent | None = None
        """Prompts and resources that its client does not see."""
        self.draining = False
        self.overdue = ""
        self.suspect = False
        self.own: OwnLists | None = None
        self.changes = ReportedChanges()
        self.up_since: float | None = None
        self.idle_since = 0.0
        self.fault: Fault | None = None
        self.differing: frozenset[str] = frozenset()
        self.closed = LightEvent()
        self._loop = asyncio.get_running_loop()
        self._meters = meters
        self._starts = starts
        self.turn = turn
        self._heads: dict[str, bytes] = {}
        self._toolset: CompiledToolset | None = None
        self.instance: InstancePort = open_instance(spec, self, request)

    @property
    def is_ready(self) -> bool:
        return self.instance.state == "ready"

    @property
    def is_typical(self) -> bool:
        """Whether it should list what the registry records, and not what one client may see."""
        return self.greeting is COMMON

    @property
    def serves(self) -> tuple[str, ...]:
        """Whom it serves while it is ready and unused (`Greeting.serves`)."""
        return self.greeting.serves(self.instance.protocol_version)

    @property
    def unexplained(self) -> frozenset[str]:
        """The differing tools that its greeting does not explain: a client may see fewer."""
        if self.is_typical or not self.differing:
            return self.differing
        return self.differing.intersection(self.instance.tools)

    @property
    def times(self) -> InstanceTimes:
        """The times that decide when it ends; a subscription counts as a call."""
        return InstanceTimes(self.up_since or 0.0, self.idle_since, self.calls + self.followers)

    @property
    def idle_for(self) -> float:
        """Seconds since its last call ended, or since it was assigned to a lease."""
        return self._loop.time() - self.idle_since

    def assign_lease(self, lease_id: str) -> None:
        self.lease_id = lease_id
        self.idle_since = self._loop.time()

    def notify_through(
        self, sink: NotificationSink, session: str, toolset: CompiledToolset
    ) -> None:
        """Send notifications that belong to no call to the session that has its lease.

        The first one says what of the exposed tools it does not list to the client that leases
        it; prompts and resources follow once it has listed them. A spare that greeted its server
        before it had a client lists what is recorded, so that only own tools are told.
        """
        self.sink, self._session = sink, session
        client = self.greeting.client
        if client is None:
            if self.own is not None:
                self.tell_lists(toolset)
            return
        self._tell_lists(client, toolset)
        if self._needs_lists and self.owner is not None:
            self._needs_lists = False
            if toolset.prompts_resources.has_any and self.instance.prompts_resources is None:
                self.owner.on_instance_lists_needed(self)

    def tell_lists(self, toolset: CompiledToolset) -> None:
        """Tell the session that has its lease what of the exposed its client does not see."""
        client = self.greeting.client
        if client is not None:
            self._tell_lists(client, toolset)
        else:
            self._tell(ListedToClient("", []))

    def _tell(self, listed: ListedToClient) -> None:
        own = self.own
        if own is not None:
            listed = structs.replace(
                listed,
                own=own.tools_digest,
                own_prompts=own.others.prompts.digest if own.others is not None else "",
                own_resources=own.others.resources_digest if own.others is not None else "",
            )
        self.on_notification(self.instance, TOOLS_CHANGED, msgspec.json.encode(listed))

    def _tell_lists(self, client: McpClient, toolset: CompiledToolset) -> None:
        lacked = [name for name in toolset.tools if name not in self.instance.tools]
        if self.may_have_own_tools(toolset):
            # What it takes away later is the state of its session, too.
            self._lacked = self._lacked & frozenset(lacked) if self._told else frozenset(lacked)
            lacked = [name for name in lacked if name in self._lacked]
        self._told = True
        unseen = self._update_unseen(toolset)
        listed = ListedToClient(
            client.encoded.decode(),
            list(bounded_names(lacked)),
            unseen.prompts if unseen is not None else None,
            unseen.resources if unseen is not None else None,
            unseen.templates if unseen is not None else None,
        )
        self._tell(listed)

    def _update_unseen(self, toolset: CompiledToolset) -> Absent | None:
        # What an instance lacks at first is what its client's capabilities do not get. What it
        # takes away later is the state of its session, and other sessions of the client have it.
        listed = self.instance.prompts_resources
        if listed is not None:
            unseen = toolset.prompts_resources.absent(
                listed.prompts, listed.resources, listed.templates
            )
            self._unseen = unseen if self._unseen is None else self._unseen.still_in(unseen)
        return self._unseen

    @property
    def is_queued(self) -> bool:
        """Whether its start waits for a place (`StartQueue`)."""
        return self._starts.is_waiting(self.turn)

    def place(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place, if its start needs one, and hold it while the block runs."""
        if self.instance.starts_process:
            return self._starts.place(self.turn)
        return nullcontext()

    def wait_for(self, tenant: str) -> None:
        """Let its start come before those that nobody waits for: a tenant does from now on."""
        self._starts.promote(self.turn, tenant)

    async def start(self) -> None:
        """Start the instance when it is its turn.

        Raises:
            Fault: It did not start.
        """
        async with self.place():
            await self.start_now()

    async def start_now(self) -> None:
        """Start the instance, which bounds its own start; close it if it fails.

        Raises:
            Fault: It did not start.
        """
        with measure_start(self._meters, self.spec):
            try:
                await self.instance.start()
            except BaseException as error:
                await asyncio.shield(self.close())
                if isinstance(error, Fault) or not isinstance(error, Exception):
                    raise
                # An instance of a package's kind raises what it likes.
                _logger.exception("The start of an instance of server %s failed.", self.spec.key)
                raise raised_at_start(self.spec, error) from None
        if self.closed.is_set:  # it ended before this task ran again
            raise self.fault or ended_by_itself(self.spec)
        self.up_since = self.idle_since = self._loop.time()
        self.is_modern = is_modern(self.instance.protocol_version)

    def compare(self, toolset: CompiledToolset) -> None:
        """Compare the instance's tools with the contract (design.md#reload)."""
        self._toolset = toolset
        self._heads.clear()
        self.differing = differing_tools(toolset, self.instance.tools)
        if self.own is not None and self.own.tools is not None:
            self.differing = self.differing.difference(self.own.tools.changed)

    def may_have_own_tools(self, toolset: CompiledToolset) -> bool:
        """Return whether its lease has the tools that it lists, also if they are not recorded."""
        return bool(self.lease_id) and toolset.lease_rules is not None

    def has_own_prompts(self, toolset: CompiledToolset) -> bool:
        """Return whether its lease has the prompts and resources that it lists, likewise."""
        rules = toolset.lease_rules
        return bool(self.lease_id) and rules is not None and rules.prompts is not None

    def use_own(self, own: OwnLists | None, toolset: CompiledToolset) -> None:
        """Let its lease use in what it differs from a toolset."""
        if own is not self.own or self._toolset is not toolset:
            self.own = own
            self.compare(toolset)

    def lists_other(self, toolset: CompiledToolset) -> bool:
        """Return whether its lists differ from the recorded ones in any text, exposed or not."""
        prompts_resources = self.instance.prompts_resources
        return has_other_tools(toolset, self.instance.tools) or (
            prompts_resources is not None
            and toolset.prompts_resources.lists_other(
                prompts_resources.prompts, prompts_resources.resources, prompts_resources.templates
            )
        )

    def serves_other(self, toolset: CompiledToolset) -> bool:
        """Return whether its lists differ from the recorded ones in what callers depend on.

        What its lease has for itself does not count.
        """
        prompts_resources = self.instance.prompts_resources
        has_own = self.may_have_own_tools(toolset)
        return (not has_own and serves_other_tools(toolset, self.instance.tools)) or (
            not self.has_own_prompts(toolset)
            and prompts_resources is not None
            and toolset.prompts_resources.serves_other(
                prompts_resources.prompts, prompts_resources.resources, prompts_resources.templates
            )
        )

    def has(self, toolset: CompiledToolset, tool: str) -> bool:
        """Return whether its own tool agrees with the contract; true for an empty name."""
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
        if tool not in self.unexplained:
            return Fault(
                Reason.TOOL_DIFFERS,
                f"Server {self.spec.key} does not offer its tool {tool} to an MCP client with the "
                "capabilities and the protocol version that this one has declared.",
                metadata={
                    "server": self.spec.key.server_id,
                    "instance": self.instance.id,
                    "offered": "no",
                },
            )
        return Fault(
            Reason.TOOL_DIFFERS,
            f"Tool {tool} of server {self.spec.key} is missing in this instance, or its definition "
            "differs from the listed one. If the session's lease is older than a change of the "
            "server's configuration, release it and acquire a new one; otherwise install the same "
            "server on all workers.",
            metadata={"server": self.spec.key.server_id, "instance": self.instance.id},
        )

    def limit_calls(self, max_running: int, weight_of: Callable[[str], float]) -> Turns:
        """Return the turns of calls, by the limit that the newest configuration sets."""
        if self.turns is None:
            self.turns = Turns(max_running, weight_of)
        self.turns.max_running, self.turns.weight_of = max_running, weight_of
        return self.turns

    def give_to(self, owner: InstanceOwner | None) -> None:
        """Notify another owner, or none, of what happens from now on."""
        self.owner = owner

    def end_call(self) -> None:
        """Count an ended call; notify the owner after the last call of a draining instance."""
        self.calls -= 1
        if self.calls:
            return
        self.idle_since = self._loop.time()
        if (self.draining or self.overdue) and self.owner is not None:
            self.owner.on_instance_idle(self)

    def remove_follower(self) -> None:
        """Count an ended subscription; the idle time starts again."""
        self.followers -= 1
        if not self.calls:
            self.idle_since = self._loop.time()

    async def relist(self) -> Mapping[str, bytes]:
        """List the tools again, and allow those that no longer differ.

        A tool that has begun to differ stays allowed until the control plane has committed the
        new list: until then the server answers for it.

        Raises:
            Fault: The listing failed.
        """
        tools = await self.instance.relist()
        if self.differing and self._toolset is not None:
            self.differing &= differing_tools(self._toolset, tools)
        return tools

    async def close(self) -> None:
        """End the instance; its calls in flight fail."""
        self.owner = None
        await self.instance.close()
        self.closed.set()
        self.changes.settle()

    # Events of the MCP client (`InstanceListener`).

    def on_closed(self, instance: object, fault: Fault | None) -> None:
        self.fault = fault
        self.closed.set()
        self.changes.settle()
        if self.owner is not None:
            self.owner.on_instance_ended(self, fault)

    @property
    def lists_prompts(self) -> bool:
        """Whether its server has prompts or resources, by what it declares."""
        return not _LISTED_CAPABILITIES.isdisjoint(self.instance.introduction.capabilities)

    def on_tools_changed(self, instance: object) -> None:
        self.changes.reported += 1
        if self.owner is not None:
            self.owner.on_instance_tools_changed(self)

    def on_notification(self, instance: object, method: str, params: bytes) -> None:
        if self.sink is not None:  # those of a shared server are nobody's
            self.sink.notify(self._session, self.spec.key.server_id, method, params)

    def tell_lease_end(self, ended: Fault) -> None:
        """Tell the MCP client that made the newest call on its lease that this has ended."""
        if self.sink is not None:
            self.sink.tell_lease_end(self.lease_id, ended)

    def find_caller(self, instance: object, method: str) -> Callbacks | None:
        found = self.owner.find_caller(self, method) if self.owner is not None else None
        self.knows_caller = self.knows_caller or found is not None
        return found

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
    return Fault(Reason.SERVER_LOST, f"Server {spec.key} ended without giving a reason.")


def raised_at_start(spec: ServerSpec, error: Exception) -> Fault:
    """Return the fault of a start that ended with an error inside the worker."""
    return Fault(
        Reason.SERVER_NOT_READY,
        f"Server {spec.key} did not start: the worker failed with {type(error).__name__}; see its"
        " log.",
        metadata={"server": spec.key.server_id, "problem": "START_FAILED"},
    )


class ReportedChanges:
    """Counts the changes that a server reports; lets callers wait until they are read.

    Tools are read first, so that calls of new ones need not wait for the other lists.

    Attributes:
        reported: How often the server has reported a change of any list.
    """

    def __init__(self) -> None:
        self.reported = 0
        self._tools_read = 0
        self._all_read = 0
        self._was_read: asyncio.Event | None = None

    def has_unread(self, *, of_all: bool = False) -> bool:
        """Return whether a change has not been read yet.

        Args:
            of_all: Whether prompts and resources count, too, and not only tools.
        """
        return self.reported > (self._all_read if of_all else self._tools_read)

    def settle_tools(self, reported: int) -> None:
        """Let those go on that wait for the tools as of so many reported changes."""
        self._tools_read = max(self._tools_read, reported)
        self._wake()

    def settle(self, reported: int | None = None) -> None:
        """Let those go on that wait for any list as of so many reported changes; None means all."""
        read = self.reported if reported is None else reported
        self._all_read = max(self._all_read, read)
        self.settle_tools(read)

    async def wait(self, *, of_all: bool = False) -> None:
        """Wait until the changes that are reported by now have been read, for at most 2 s.

        Args:
            of_all: As for `has_unread`.
        """
        reported = self.reported
        with suppress(TimeoutError):
            async with asyncio.timeout(RELIST_WAIT):
                while (self._all_read if of_all else self._tools_read) < reported:
                    if self._was_read is None:
                        self._was_read = asyncio.Event()
                    await self._was_read.wait()

    def _wake(self) -> None:
        if self._was_read is not None:
            self._was_read.set()
            self._was_read = None
