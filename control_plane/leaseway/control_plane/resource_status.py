"""Writes the status and events of Kubernetes custom resources (docs/kubernetes.md).

One task compares the state at most once a second and writes what has changed, a few resources at
a time. A failed write is retried; it delays neither serving nor, unless the API asks to wait, other
writes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, assert_never

from leaseway.control_plane.config.kubernetes.resources import KINDS, CustomResource
from leaseway.control_plane.config.kubernetes.status import (
    LEFT_OUT,
    Condition,
    Facts,
    ResourceEvent,
    accepted_condition,
    is_due,
    next_status,
    sentences,
)
from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config.loading import FileContent, LeftOut
from leaseway.control_plane.config.schema.issues import (
    ConfigIssue,
    IssueReason,
    ParsedConfig,
)
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.leadership import Elector
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages
from leaseway.spec.model import VariantKey
from leaseway.v1 import catalog_pb2
from leaseway.wire.messages.enums import server_state_from_proto
from leaseway.wire.messages.states import ServerState

_logger = logging.getLogger(__name__)
_INTERVAL: Final = 1.0
"""Minimum seconds between two comparisons."""
_MAX_INTERVAL: Final = 30.0
_READ_INTERVAL: Final = 300.0
"""Seconds until the statuses are read again."""
_MAX_WRITES: Final = 8
"""Resources whose status is written at once: a write takes 5 to 20 ms, and there may be 2,000."""
_MAX_TRIES: Final = 5
"""Of one write while the API has too many requests and says when to send it again."""
_ISSUE_REASONS: Final = frozenset(IssueReason)
"""Reasons of what the condition *Accepted* tells."""
_NOT_DEGRADED: Final = Condition(False, "AsConfigured")


@dataclass(frozen=True)
class LoadedResource:
    """A resource with the condition *Accepted*, and whether it is not disabled."""

    resource: CustomResource
    accepted: Condition
    enabled: bool


@dataclass(frozen=True)
class _Write:
    """A status that differs from the written one, and the events of the difference."""

    resource: CustomResource
    status: Mapping[str, Any]
    events: list[ResourceEvent]


@dataclass
class _Round:
    """What the API answered to the writes of one comparison, by kind of object."""

    all_written: bool = True
    accepted: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)


class ResourceStatus:
    """Writes the status of all resources.

    Args:
        elector: The candidate of this process; only the leader writes. None without an election.
    """

    def __init__(self, plane: Plane, elector: Elector | None) -> None:
        self._plane = plane
        self._elector = elector
        self._loaded: tuple[LoadedResource, ...] = ()
        self._written: dict[str, Mapping[str, Any]] = {}
        self._written_at: dict[str, float] = {}
        self._read_at = -math.inf
        self._failing = False
        self._refused: set[str] = set()

    @property
    def _may_write(self) -> bool:
        """Whether this process leads and knows its workers.

        Until then all servers look as if no worker had ever started them.
        """
        state, elector = self._plane.state, self._elector
        if (elector is not None and not elector.leading) or not state.settled:
            return False
        is_served = state.visible.version > 0 or not state.roster.connected
        return is_served and not state.content.is_waiting

    def loaded(self, found: Mapping[Source, FileContent], parsed: ParsedConfig) -> None:
        """Remember the resources of a parsed configuration and their issues."""
        issues: dict[str, list[ConfigIssue]] = {}
        for issue in parsed.issues:
            issues.setdefault(issue.file, []).append(issue)
        self._loaded = tuple(
            LoadedResource(
                source.resource,
                LEFT_OUT
                if isinstance(content, LeftOut)
                else accepted_condition(issues.get(str(source.path), ())),
                source.resource.spec.get("enabled", True) is not False,
            )
            for source, content in found.items()
            if source.resource is not None
        )
        known = {loaded.resource.uid for loaded in self._loaded}
        self._written = {uid: status for uid, status in self._written.items() if uid in known}
        self._written_at = {uid: at for uid, at in self._written_at.items() if uid in known}

    async def run(self, namespace: str) -> None:
        """Write changes until cancelled."""
        from leaseway.control_plane.config.kubernetes.api import KubernetesFailure, open_api

        while True:
            try:
                async with open_api(namespace) as api:
                    while True:
                        # Starts before the comparison, so that no later change is missed.
                        changed = asyncio.ensure_future(self._plane.wait_for_change(_MAX_INTERVAL))
                        try:
                            all_written = not self._may_write or await self._write(api)
                            await asyncio.sleep(_INTERVAL if all_written else _INTERVAL * 5)
                            if all_written:
                                await changed
                        finally:
                            changed.cancel()
            except KubernetesFailure as failure:
                level = logging.DEBUG if self._failing else logging.WARNING
                _logger.log(level, "%s The status is written again later.", failure)
                self._failing = True
                await asyncio.sleep(max(_INTERVAL * 5, failure.retry_after or 0.0))

    async def _write(self, api: Any) -> bool:
        """Write changes; return whether the API accepted every status."""
        await self._read_statuses(api)
        writes, outcome = self._due(StateView(self._plane)), _Round()
        writers = (self._write_each(api, writes, outcome) for _ in range(_MAX_WRITES))
        # Each ends by itself: a write that is cut may have succeeded, but its events are lost.
        for error in await asyncio.gather(*writers, return_exceptions=True):
            if error is not None:
                raise error
        self._refused -= outcome.accepted - outcome.refused
        self._failing = False
        return outcome.all_written

    def _due(self, view: StateView) -> Iterator[_Write]:
        for loaded in self._loaded:
            resource = loaded.resource
            before = self._written.get(resource.uid, resource.status)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            change = next_status(resource, before, view.facts(loaded), now)
            if change is None:
                continue
            status, events = change
            mono = self._plane.clock().mono
            if is_due(before, status, mono - self._written_at.get(resource.uid, -math.inf)):
                yield _Write(resource, status, events)
            # Another one is compared again within `_MAX_INTERVAL`.

    async def _write_each(self, api: Any, writes: Iterator[_Write], outcome: _Round) -> None:
        """Write what no other writer has taken: of each resource first the status, then events.

        Raises:
            KubernetesFailure: The API is unreachable.
        """
        for write in writes:
            resource = write.resource
            writing = partial(api.write_status, resource, write.status)
            if not await self._try(resource.kind, writing, outcome):
                outcome.all_written = False
                continue
            self._written[resource.uid] = write.status
            self._written_at[resource.uid] = self._plane.clock().mono
            for event in write.events:
                recording = partial(
                    api.record_event, resource, event.kind, event.reason, event.note
                )
                await self._try("events", recording, outcome)

    async def _read_statuses(self, api: Any) -> None:
        """Read what others have written: an earlier leader, or anyone who may edit statuses."""
        mono = self._plane.clock().mono
        if mono - self._read_at < _READ_INTERVAL:
            return
        for kind in KINDS:
            for resource in (await api.list(kind)).resources:
                self._written[resource.uid] = resource.status
        self._read_at = mono

    async def _try(self, kind: str, write: Callable[[], Awaitable[None]], outcome: _Round) -> bool:
        """Write; return whether the API accepted it. Only the first refusal per kind is a warning.

        Raises:
            KubernetesFailure: The API is unreachable.
        """
        from leaseway.control_plane.config.kubernetes.api import (
            KubernetesFailure,
            KubernetesRefusal,
        )

        for left in reversed(range(_MAX_TRIES)):
            try:
                await write()
            except KubernetesRefusal as refusal:
                level = logging.DEBUG if kind in self._refused else logging.WARNING
                note = (
                    "The status still shows the change" if kind == "events" else "It is tried again"
                )
                _logger.log(level, "%s %s.", refusal, note)
                outcome.refused.add(kind)
                self._refused.add(kind)
                return False
            except KubernetesFailure as failure:
                if failure.retry_after is None or not left:
                    raise
                await asyncio.sleep(failure.retry_after)
            else:
                break
        outcome.accepted.add(kind)
        return True


class StateView:
    """The state at one moment, indexed once for all resources."""

    def __init__(self, plane: Plane) -> None:
        self._state = plane.state
        self._now = plane.clock()
        self._instances = messages.instances_by_variant(self._state)
        self._live = Counter(
            key.server_id
            for key, instances in self._instances.items()
            for instance in instances
            if instance.is_live
        )
        leases = self._state.placements.leases.values()
        self._leases = Counter(lease.key.server_id for lease in leases)
        self._tenants = Counter(lease.key.tenant for lease in leases)
        self._problems: dict[str, Problem] = {}
        self._tenant_problems: dict[str, Problem] = {}
        self._warnings: dict[str, list[str]] = {}
        for problem in self._state.problems.found():
            if problem.severity != "error":
                if _concerns_tools(problem):
                    self._warnings.setdefault(problem.server_id, []).append(problem.text)
                continue
            if problem.tenant:
                self._tenant_problems.setdefault(problem.tenant, problem)
            elif problem.server_id:
                self._problems.setdefault(problem.server_id, problem)
        self._errors = messages.errors_by_server(self._state)

    def facts(self, loaded: LoadedResource) -> Facts:
        """Return the facts for a resource's status."""
        if loaded.resource.kind == "MCPTenant":
            return self._tenant(loaded)
        name = loaded.resource.name
        key = VariantKey(name)
        status = messages.server(self._state, key, self._now, (), self._errors)
        problem = self._problems.get(name)
        counts = {
            "tools": status.tool_count,
            "leases": self._leases[name],
            "instances": self._live[name],
        }
        ready = ready_condition(status, loaded)
        if ready.holds and (warnings := self._warnings.get(name)):
            ready = replace(ready, message=sentences([ready.message, *sorted(warnings)]))
        return Facts(loaded.accepted, ready, _degraded(problem), counts)

    def _tenant(self, loaded: LoadedResource) -> Facts:
        name = loaded.resource.name
        servers = loaded.resource.spec.get("servers")
        counts = {
            "servers": len(servers) if isinstance(servers, Mapping) else 0,
            "leases": self._tenants[name],
        }
        degraded = _degraded(self._tenant_problems.get(name))
        ready = Condition(True, "Applied", "Its overrides apply.")
        if not loaded.accepted.holds:
            ready = Condition(False, "NotAccepted", "The condition Accepted says what to fix.")
        return Facts(loaded.accepted, ready, degraded, counts)


def ready_condition(status: catalog_pb2.ServerStatus, loaded: LoadedResource) -> Condition:
    state = server_state_from_proto(status.state)
    message = status.problem or state.meaning
    match state:
        case ServerState.READY:
            return Condition(True, "Serving", "Callers can use its tools.")
        case ServerState.DEGRADED:
            return Condition(True, "ServingLastGood", "Callers get its last working state.")
        case ServerState.FAILED:
            return Condition(False, "Failed", message)
        case ServerState.FAILING:
            return Condition(False, "Failing", message)
        case ServerState.NEEDS_LOGIN:
            return Condition(False, "NeedsLogin", message)
        case ServerState.STARTING:
            return Condition(False, "Starting", message)
        case ServerState.UNKNOWN:
            return Condition(False, "Unknown", message)
        case ServerState.PENDING:
            if not loaded.accepted.holds:
                text = "It is not accepted, so it is not served."
                return Condition(False, "NotAccepted", text)
            if not loaded.enabled:
                return Condition(False, "Disabled", "It has `enabled: false`.")
            return Condition(False, "Pending", message)
    assert_never(state)


def _concerns_tools(problem: Problem) -> bool:
    """Return whether a warning says what callers do not get of a server, such as for a name clash.

    Those of workers may change all the time, and each change is a write to the cluster's store.
    """
    is_own = bool(problem.server_id) and not problem.tenant and not problem.worker_id
    return is_own and problem.reason not in _ISSUE_REASONS


def _degraded(problem: Problem | None) -> Condition:
    if problem is None:
        return _NOT_DEGRADED
    reason = "".join(part.capitalize() for part in problem.reason.split("_"))
    return Condition(True, reason, problem.text)
