"""The metrics of a control plane: reloads, probes, placements, workers, problems.

Actions are recorded when they are sent; the coordinator's state is read at each collection.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import nsmallest
from typing import Final, get_args

from leaseway.control_plane.core.budgets import Budgets
from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.queries.limits import LimitStatus, limits, named_tenants
from leaseway.control_plane.core.workers.actions import (
    CancelProbe,
    PushDelta,
    StartProbe,
    WorkerAction,
)
from leaseway.identity.limit_counter import LimitCounter
from leaseway.spec.policy import OTHER_TENANTS
from leaseway.telemetry.metrics import Meter, Reading, Retention
from leaseway.wire.messages.states import WORKER_STATES, ProblemScope, Severity
from leaseway.wire.sharing.newest import Newest
from leaseway.wire.span_attributes import Attr

_OK: Final = "ok"
_TAKEN_BACK: Final = "CANCELLED"
_REFUSED: Final = "refused"
_EXISTING: Final = "existing"
_MAX_PROBES: Final = 4096
_MAX_LIMITS: Final = 1_000

_LimitLabels = tuple[str, str, str, str, str, str]
"""Scope, quota, tenant, agent, server and tool."""
_LimitSeries = Iterator[tuple[_LimitLabels, float]]


class PlaneMeters:
    """The instruments of a control plane.

    Attributes:
        limits: Counts requests that were rejected for a limit.

    Args:
        meter: Registers the instruments.
        state: The coordinator to read.
        budgets: What workers have of limits.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        meter: Meter,
        state: Coordinator,
        budgets: Budgets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter = meter
        self._state = state
        self._budgets = budgets
        self._clock = clock
        self._retention = Retention()
        # Some are never answered.
        self._probes: Newest[int, tuple[str, float]] = Newest(_MAX_PROBES)
        self._pushed: dict[str, float] = {}
        self._collected_limits: Mapping[_LimitLabels, LimitStatus] = {}
        self.limits = LimitCounter(meter)
        self._reloads = meter.counter(
            "leaseway.config.reloads",
            "{reload}",
            "Reloads of the configuration, by outcome: ok or refused.",
            Attr.OUTCOME,
        )
        self._durations = meter.histogram(
            "leaseway.probe.duration",
            "s",
            "Duration of probes, from the request to the worker's answer, by outcome.",
            Attr.SERVER,
            Attr.OUTCOME,
        )
        self._placements = meter.counter(
            "leaseway.placements",
            "{placement}",
            "Lease placements by outcome: ok, existing, or the reason of the denial.",
            Attr.OUTCOME,
        )
        meter.observe(
            "leaseway.placements.waiting",
            "{request}",
            "Lease requests that wait for capacity.",
            self._waiting,
        )
        meter.before_collecting(self._before)
        meter.observe(
            "leaseway.sync.lag",
            "s",
            "How long a worker has not acknowledged a delta; 0 if none is pending.",
            self._lags,
            Attr.WORKER,
        )
        meter.observe(
            "leaseway.workers", "{worker}", "Workers, by state.", self._workers, Attr.STATE
        )
        meter.observe(
            "leaseway.problems",
            "{problem}",
            "Open problems, by scope, severity, reason and server.",
            self._problems,
            Attr.SCOPE,
            Attr.SEVERITY,
            Attr.REASON,
            Attr.SERVER,
        )
        meter.observe(
            "leaseway.registry.version",
            "{version}",
            "The committed registry version.",
            self._version,
        )

        meter.observe(
            "leaseway.limit.remaining",
            "1",
            "What is left of a limit that holds over all workers.",
            self._remaining,
            Attr.SCOPE,
            Attr.QUOTA,
            Attr.TENANT,
            Attr.AGENT,
            Attr.SERVER,
            Attr.GEN_AI_TOOL_NAME,
        )
        meter.observe(
            "leaseway.limit.renewal",
            "s",
            "How long until all of a limit is left again; 0 if none is used.",
            self._renewals,
            Attr.SCOPE,
            Attr.QUOTA,
            Attr.TENANT,
            Attr.AGENT,
            Attr.SERVER,
            Attr.GEN_AI_TOOL_NAME,
        )

    def set_state(self, state: Coordinator, budgets: Budgets) -> None:
        """Read another coordinator and its budgets."""
        self._state = state
        self._budgets = budgets

    def record_reload(self, *, taken: bool) -> None:
        """Count a reload of the configuration."""
        self._reloads.cell(_OK if taken else _REFUSED).add()

    def record_placement(self, outcome: Placement | Denial) -> None:
        """Count a placement by its outcome."""
        if isinstance(outcome, Denial):
            self._placements.cell(outcome.reason.value).add()
            self.limits.record(outcome.metadata)
        else:
            self._placements.cell(_EXISTING if outcome.lease_id else _OK).add()

    def record_action(self, worker_id: str, action: WorkerAction) -> None:
        """Record an action that is sent to a worker."""
        match action:
            case StartProbe(probe_id, spec):
                self._probes[probe_id] = (spec.key.server_id, self._clock())
            case CancelProbe(probe_id):
                self._end_probe(probe_id, _TAKEN_BACK)
            case PushDelta():
                self._pushed[worker_id] = self._clock()
            case _:
                pass

    def record_probe(self, probe_id: int, outcome: ServerListing | Problem) -> None:
        self._end_probe(probe_id, outcome.reason if isinstance(outcome, Problem) else _OK)

    def _end_probe(self, probe_id: int, outcome: str) -> None:
        server_id, began = self._probes.pop(probe_id, ("", 0.0))
        if server_id:
            self._durations.cell(server_id, outcome).record(self._clock() - began)

    def _before(self) -> None:
        state = self._state
        self._collected_limits = self._limits()
        known = {*(state.servers.desired or {}), *state.servers.last_known_good}
        present = {key.server_id for key in known}
        wanted = self._retention.retained(present, self._clock())
        self._meter.remove_unless(Attr.SERVER, wanted)
        self._pushed = {
            worker_id: at for worker_id, at in self._pushed.items() if worker_id in state.workers
        }

    def _waiting(self) -> Reading:
        return [((), float(len(self._state.wait_queue)))]

    def _version(self) -> Reading:
        return [((), float(self._state.committed.version))]

    def _limits(self) -> Mapping[_LimitLabels, LimitStatus]:
        """Return limits by their labels: of all tenants that no configuration names, the least.

        If there are too many, those are missing of which most is left.
        """
        state = self._state
        found: dict[_LimitLabels, LimitStatus] = {}
        named = named_tenants(state)
        for limit in limits(state, self._budgets, self._clock()):
            tenant = limit.tenant if limit.tenant in named or not limit.tenant else OTHER_TENANTS
            labels = (limit.scope, limit.quota, tenant, limit.agent, limit.server_id, limit.tool)
            known = found.get(labels)
            if known is None or limit.remaining < known.remaining:
                found[labels] = limit
        if len(found) > _MAX_LIMITS:
            scarce = nsmallest(_MAX_LIMITS, found.items(), key=_part_left)
            found = dict(scarce)
        return found

    def _remaining(self) -> _LimitSeries:
        for labels, collected_limit in self._collected_limits.items():
            yield labels, float(collected_limit.remaining)

    def _renewals(self) -> _LimitSeries:
        for labels, collected_limit in self._collected_limits.items():
            if collected_limit.period:
                yield labels, collected_limit.renews_in

    def _lags(self) -> Iterator[tuple[tuple[str], float]]:
        now = self._clock()
        for worker_id, record in self._state.workers.items():
            behind = record.subscription.pending is not None
            yield (worker_id,), now - self._pushed.get(worker_id, now) if behind else 0.0

    def _workers(self) -> Reading:
        counts = Counter(record.state for record in self._state.workers.values())
        return (((name,), float(counts[name])) for name in WORKER_STATES)

    def _problems(self) -> Iterator[tuple[tuple[str, str, str, str], float]]:
        found = Counter(
            (problem.scope, problem.severity, str(problem.reason), problem.server_id)
            for problem in (entry.problem for entry in self._state.problems.open())
        )
        for scope in get_args(ProblemScope):
            for severity in get_args(Severity):
                yield (scope, severity, "", ""), 0.0  # the series exists before the first problem
        for labels, count in found.items():
            yield labels, float(count)


def _part_left(item: tuple[_LimitLabels, LimitStatus]) -> float:
    return item[1].remaining / item[1].limit
