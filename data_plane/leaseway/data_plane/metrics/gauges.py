"""What a worker measures by looking at its own state whenever somebody asks (DESIGN §11)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import LeaseKeeper
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.sync.convert import instance_statuses
from leaseway.telemetry.metrics import Reading, Retention
from leaseway.wire.span_attributes import Attr


class StateMeters:
    """Reads a worker.

    Args:
        meters: Where the instruments are; series of servers that are gone are dropped there.
        pool: What is served.
        leases: What is held.
        executor: What is in flight.
        exchanges: What waits to be sent.
        artifacts: What is kept of results.
        clock: Seconds, monotonic.

    """

    def __init__(
        self,
        meters: WorkerMeters,
        pool: Pool,
        leases: LeaseKeeper,
        executor: Executor,
        exchanges: Exchanges,
        artifacts: ArtifactStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meters = meters
        self._pool = pool
        self._leases = leases
        self._clock = clock
        self._retention = Retention()
        meter = meters.meter
        meter.before_collecting(self._before)
        meter.observe("leaseway.leases.held", "{lease}", "Leases held.", self._held, Attr.SERVER)
        meter.observe(
            "leaseway.instances",
            "{instance}",
            "MCP clients, by state.",
            self._instances,
            Attr.SERVER,
            Attr.STATE,
        )
        single: tuple[tuple[str, str, str, Callable[[], float]], ...] = (
            (
                "leaseway.leases.waiting",
                "{caller}",
                "Callers that wait for room for a lease.",
                lambda: leases.waiting,
            ),
            (
                "leaseway.calls.in_flight",
                "{call}",
                "Calls that have not ended.",
                lambda: executor.in_flight,
            ),
            (
                "leaseway.exchange.streams",
                "{stream}",
                "Open exchange streams.",
                lambda: exchanges.open_streams,
            ),
            (
                "leaseway.exchange.queue.size",
                "By",
                "Results and other frames that wait to be sent to callers.",
                lambda: exchanges.queued_bytes,
            ),
            (
                "leaseway.artifacts",
                "{artifact}",
                "Images and sounds of results that are kept.",
                lambda: artifacts.held,
            ),
            (
                "leaseway.artifacts.size",
                "By",
                "What they have together.",
                lambda: artifacts.space,
            ),
            (
                "leaseway.registry.version",
                "{version}",
                "The registry version that this process has reached.",
                lambda: pool.registry_version,
            ),
        )
        for name, unit, description, read in single:
            meter.observe(name, unit, description, partial(_single, read))

    def _before(self) -> None:
        self._count_late_replies()
        served = {generation.key.server_id for generation in self._pool.generations}
        held = {lease.key.server_id for lease in self._leases.leases}
        present = served | held | self._meters.take_touched()
        wanted = self._retention.wanted(present, self._clock())
        self._meters.keep(wanted)

    def _count_late_replies(self) -> None:
        for generation in self._pool.generations:
            for live in generation.lives:
                if live.is_ready:
                    self._meters.count_late_replies(live)

    def _held(self) -> Reading:
        held = Counter(lease.key.server_id for lease in self._leases.leases)
        return (((server_id,), float(count)) for server_id, count in held.items())

    def _instances(self) -> Iterator[tuple[tuple[str, str], float]]:
        statuses = instance_statuses(list(self._pool.generations), "")
        counts = Counter((status.variant.server_id, status.state) for status in statuses)
        yield from counts.items()


def _single(read: Callable[[], float]) -> Reading:
    return [((), float(read()))]
