"""State that all generations of a worker share: events, all instances, stderr of ended ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from leaseway.data_plane.background import Background
from leaseway.data_plane.core.calls.call import Callbacks
from leaseway.data_plane.core.ports import (
    ANY_INSTANCE,
    InstancePort,
    InstanceRequest,
    OpenInstance,
)
from leaseway.data_plane.instances.events import InstanceEvents
from leaseway.data_plane.instances.live_instance import InstanceOwner, LiveInstance
from leaseway.data_plane.instances.reports import Reports
from leaseway.data_plane.instances.start_queue import StartQueue, StartTurn
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.data_plane.oauth.caller_tokens import CallerTokens
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.clients.mcp_clients import McpClients
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.sharing.newest import Newest

_LOGS_PER_SERVER: Final = 4
_MAX_SERVERS: Final = 1024


class SpareHolder(Protocol):
    """Holds spare instances of a server."""

    def evict(self) -> bool:
        """Close one spare; return False if there is none."""

    def reconcile(self) -> None:
        """Start or close spares after the number of instances changed."""


class WorkerInstances:
    """The instances of each server and the holders of its spares.

    Every instance is counted here, so `max_instances` holds over all variants and generations of
    a server.

    See design.md#bounds-and-defaults, bounds.
    """

    def __init__(self) -> None:
        self._instances: dict[str, dict[LiveInstance, None]] = {}
        self._holders: dict[str, dict[SpareHolder, None]] = {}
        self._changed: set[str] = set()

    def add(self, live: LiveInstance) -> None:
        server_id = live.spec.key.server_id
        self._instances.setdefault(server_id, {})[live] = None
        self._notify_holders(server_id)

    def remove(self, live: LiveInstance) -> None:
        server_id = live.spec.key.server_id
        instances = self._instances.get(server_id, {})
        if live not in instances:
            return
        del instances[live]
        if not instances:
            del self._instances[server_id]
        self._notify_holders(server_id)

    def count(self, server_id: str) -> int:
        """Return the number of instances of a server, including those that are starting."""
        return len(self._instances.get(server_id, ()))

    def is_queued(self, server_id: str, lease_id: str) -> bool:
        """Return whether the instance of a lease waits for its turn to start."""
        instances = self._instances.get(server_id, {})
        return any(live.is_queued for live in instances if live.lease_id == lease_id)

    def add_holder(self, server_id: str, holder: SpareHolder) -> None:
        self._holders.setdefault(server_id, {})[holder] = None

    def remove_holder(self, server_id: str, holder: SpareHolder) -> None:
        holders = self._holders.get(server_id, {})
        holders.pop(holder, None)
        if not holders:
            self._holders.pop(server_id, None)

    def make_room(self, server_id: str, limit: int) -> None:
        """Evict spares until the limit allows one more instance, or no spare is left."""
        for holder in tuple(self._holders.get(server_id, ())):
            while self.count(server_id) >= limit and holder.evict():
                pass

    def _notify_holders(self, server_id: str) -> None:
        # Not at once: the caller that adds or removes an instance is still changing. And once for
        # all instances that end together.
        if server_id in self._holders and server_id not in self._changed:
            self._changed.add(server_id)
            asyncio.get_running_loop().call_soon(self._reconcile, server_id)

    def _reconcile(self, server_id: str) -> None:
        self._changed.discard(server_id)
        for holder in tuple(self._holders.get(server_id, ())):
            holder.reconcile()


class WaitingCalls:
    """The calls that wait for the instances of their leases, whose servers may ask at the start."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callbacks]] = {}

    @contextmanager
    def wait(self, lease_id: str, callbacks: Callbacks | None) -> Iterator[None]:
        """Let the server of a lease ask a call while the block runs; None answers nothing."""
        if callbacks is None:
            yield
            return
        waiting = self._waiting.setdefault(lease_id, [])
        waiting.append(callbacks)
        try:
            yield
        finally:
            waiting.remove(callbacks)
            if not waiting:
                del self._waiting[lease_id]

    def find(self, lease_id: str, method: str) -> Callbacks | None:
        """Return the callbacks of the oldest call that answers a method, or None."""
        waiting = self._waiting.get(lease_id, ())
        return next((callbacks for callbacks in waiting if method in callbacks.answers), None)


@dataclass(frozen=True)
class StderrLog:
    """The last stderr lines of one instance; `state` is `running` or how it ended."""

    instance_id: str
    lines: tuple[str, ...]
    state: str
    pid: int = 0


class StderrHistory:
    """The stderr of the last four ended instances of each of at most 1,024 variants."""

    def __init__(self) -> None:
        self._logs: Newest[VariantKey, deque[StderrLog]] = Newest(_MAX_SERVERS)

    def add(self, key: VariantKey, instance: InstancePort, state: str) -> None:
        """Add the stderr of an ended instance, unless it is empty."""
        lines = tuple(instance.stderr.lines())
        if not lines:
            return
        logs = self._logs.get(key) or deque(maxlen=_LOGS_PER_SERVER)
        logs.append(StderrLog(instance.id, lines, redact(state)))
        self._logs[key] = logs

    def get(self, key: VariantKey) -> tuple[StderrLog, ...]:
        """Return the logs of a variant, the oldest first."""
        return tuple(self._logs.get(key, ()))


@dataclass(frozen=True)
class WorkerContext:
    """What all generations of a worker share.

    Attributes:
        starts: The places for starts of processes.
        meters: None if metrics are off.
    """

    worker_id: str
    open_instance: OpenInstance
    background: Background
    reports: Reports
    starts: StartQueue
    meters: WorkerMeters | None = None
    callers: CallerTokens = field(default_factory=CallerTokens)
    events: InstanceEvents = field(default_factory=InstanceEvents)
    instances: WorkerInstances = field(default_factory=WorkerInstances)
    stderr_history: StderrHistory = field(default_factory=StderrHistory)
    clients: McpClients = field(default_factory=McpClients)
    waiting: WaitingCalls = field(default_factory=WaitingCalls)

    def open(
        self,
        spec: ServerSpec,
        owner: InstanceOwner | None = None,
        request: InstanceRequest = ANY_INSTANCE,
        *,
        awaited: bool,
    ) -> LiveInstance:
        """Return an instance that is not started yet, and whose start is measured.

        Args:
            spec: Its server.
            owner: Handles its events, or None.
            request: What it is needed for.
            awaited: Whether somebody waits for its start, which then comes before others.
        """
        tenant = request.names.tenant if request.names is not None else spec.key.tenant
        turn = StartTurn(tenant, awaited)
        return LiveInstance(
            self.open_instance, spec, owner, request, self.starts, turn, self.meters
        )
