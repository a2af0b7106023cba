"""A worker process: chooses the concrete classes, opens the one task group, and ends in order.

The end (DESIGN §6, leaving): not serving, `going_away` on every exchange, calls in flight
finish, leases are revoked, instances are closed, the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import grpc

from leaseway.data_plane.core.artifact_index import Retention
from leaseway.data_plane.core.lease_table import LeaseTable
from leaseway.data_plane.core.ports import Opener, OpenInstance
from leaseway.data_plane.core.reading import Resolved
from leaseway.data_plane.edge.artifact_http import serve_artifacts
from leaseway.data_plane.edge.artifact_storage import (
    ArtifactStorage,
    DirectoryStorage,
    MemoryStorage,
)
from leaseway.data_plane.edge.artifacts import ArtifactStore
from leaseway.data_plane.edge.convert import LeaseMessages
from leaseway.data_plane.edge.ended_logs import EndedLogs
from leaseway.data_plane.edge.exchanges import Exchanges
from leaseway.data_plane.edge.execution import ExecutionService, add_execution_service
from leaseway.data_plane.edge.executor import Executor
from leaseway.data_plane.edge.lease_keeper import LeaseKeeper
from leaseway.data_plane.edge.lease_service import LeaseService
from leaseway.data_plane.edge.meters import WorkerMeters
from leaseway.data_plane.edge.parked import Parking
from leaseway.data_plane.edge.pool import Pool
from leaseway.data_plane.edge.reference_watch import ReferenceWatch
from leaseway.data_plane.edge.reports import Reports
from leaseway.data_plane.edge.state_meters import StateMeters
from leaseway.data_plane.edge.sync_client import Introduction, SyncClient
from leaseway.data_plane.edge.tasks import Background
from leaseway.data_plane.edge.worker_context import WorkerContext
from leaseway.data_plane.mcp.disk_threads import DiskThreads
from leaseway.data_plane.mcp.health import patience_of
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.http import http_client
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.reaper import Reaper
from leaseway.data_plane.mcp.resolve import resolve
from leaseway.data_plane.mcp.vault import WorkerVault
from leaseway.data_plane.options import WorkerOptions
from leaseway.v1 import catalog_pb2, leases_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.auth import check_listen
from leaseway.wire.census import census_on_signal
from leaseway.wire.endpoint import Endpoint
from leaseway.wire.http_listener import ARTIFACTS_LABEL
from leaseway.wire.measuring import measuring
from leaseway.wire.metrics import Meter
from leaseway.wire.serving import HealthService, bind, enable_reflection, make_server
from leaseway.wire.spec import ServerSpec

__all__ = ["Retention", "Stop", "Worker", "WorkerOptions", "run", "serve"]

_logger = logging.getLogger(__name__)
_SERVICES: Final = ("leaseway.v1.ExecutionService", "leaseway.v1.LeaseService")
_STOP_GRACE: Final = 5.0
"""Seconds that callers are given to read the ends of their streams."""
_STORAGE_GRACE: Final = 5.0
"""Seconds that the end of a worker waits for its artifacts to be removed."""


class Stop:
    """Whether the worker is to end, and whether it is to hurry."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()
        self.reason = ""

        self._insisted = False

    def ask(self, reason: str) -> None:
        """End; asked a second time, without waiting for calls."""
        if self._insisted:
            self.hurry.set()
        self._insisted = True
        self.drain(reason)

    def drain(self, reason: str) -> None:
        """End without a hurry, however often this is asked, and whatever is asked once later."""
        if not self.asked.is_set():
            self.reason = reason
            self.asked.set()


async def run(options: WorkerOptions, *, ready: Callable[[str], None]) -> int:
    """Run a worker until SIGTERM, SIGINT or its control plane ends it; return the exit status.

    Args:
        options: How.
        ready: Called with the bound HOST:PORT once the worker listens.

    Raises:
        ValueError: It would listen beyond this machine without a key.
        OSError: The address cannot be used.

    """
    check_listen(options.listen, options.key)
    # Outside of the group, so that a taken port is an OSError and not a group of one.
    server = make_server(key=options.key)
    bound = bind(server, options.listen)
    stop = Stop()
    worker: Worker | None = None
    # Before there is anything to count, and after, an unhandled SIGUSR1 would end the process.
    with census_on_signal(lambda: worker.counts() if worker is not None else {}):
        vault = WorkerVault(options.vault)
        await asyncio.to_thread(vault.refresh)
        async with (
            measuring(options.metrics, "leaseway-worker", instance=options.id) as meter,
            _connections(options.id, vault) as open_instance,
            _storage(options.artifacts) as storage,
            asyncio.TaskGroup() as group,
        ):
            background = Background(group)
            try:
                with _signals(stop):
                    worker = Worker(
                        options, bound, open_instance, background, stop, vault, meter, storage
                    )
                    await serve(server, worker, background, stop, lambda: ready(str(bound)))
            finally:
                background.cancel_all()
    return 0


async def serve(
    server: grpc.aio.Server,
    worker: Worker,
    background: Background,
    stop: Stop,
    ready: Callable[[], None],
) -> None:
    """Serve until asked to stop, then leave in order.

    Args:
        server: Bound, not started.
        worker: What is served.
        background: Runs what nobody waits for.
        stop: Says when.
        ready: Called once the server listens.

    """
    add_execution_service(worker.execution, server)
    leases_pb2_grpc.add_LeaseServiceServicer_to_server(worker.lease_service, server)
    health = HealthService(server)
    await health.set_not_serving("", *_SERVICES)
    enable_reflection(server, _SERVICES)
    await server.start()
    try:
        async with serve_artifacts(worker.artifacts_http, worker.artifacts):
            ready()
            background.keep(worker.sync.run, "keep joined to the control plane")
            background.keep(worker.references.run, "follow changes of secrets and files")
            background.spawn(_say_when_serving(worker.sync, health), "health")
            await stop.asked.wait()
            _logger.info("Worker %s ends: %s.", worker.id, stop.reason)
            await health.shut_down()
            await worker.leave(stop)
    finally:
        await server.stop(_STOP_GRACE)


async def _say_when_serving(sync: SyncClient, health: HealthService) -> None:
    await sync.joined.wait()
    await health.set_serving("", *_SERVICES)


class Worker:
    """The parts of one worker, wired.

    Attributes:
        pool: What is served.
        leases: What is held.
        executor: What is in flight.
        references: Follows changes of the vault and of files.
        artifacts: Images and sounds of results.
        artifacts_http: Where pages ask for them, or None for nowhere.
        sync: Keeps it joined.

    """

    def __init__(
        self,
        options: WorkerOptions,
        bound: Endpoint,
        open_instance: OpenInstance,
        background: Background,
        stop: Stop,
        vault: WorkerVault | None = None,
        meter: Meter | None = None,
        storage: ArtifactStorage | None = None,
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.id = options.id
        self.artifacts_http = options.artifacts_http
        me = catalog_pb2.WorkerRef(
            id=options.id,
            incarnation=secrets.token_hex(8),
            address=str(_advertised(options, bound)),
        )
        self._reports = Reports()
        meters = WorkerMeters(meter, clock) if meter is not None else None
        context = WorkerContext(
            options.id, open_instance, background, self._reports, EndedLogs(), meters=meters
        )
        if meters is not None:
            context.hooks.instance_started = meters.instance_started
            context.hooks.instance_ended = meters.instance_ended
        self.pool = Pool(context)
        table = LeaseTable(me.incarnation, options.capacity)
        self.leases = LeaseKeeper(self.pool, table, clock)
        known = vault or WorkerVault(options.vault)
        self.references = ReferenceWatch(
            self.pool, self.leases, known, lambda spec: resolve(spec, os.environ, known)
        )
        self.executor = Executor(self.pool, self.leases, options.id)
        describe = LeaseMessages(options.id, self.leases, clock)
        self._exchanges = Exchanges(self.executor, self.leases, describe, me)
        self.artifacts = ArtifactStore(
            storage or MemoryStorage(), me.incarnation, background, options.retention
        )
        self.executor.artifacts = self.artifacts
        if meters is not None:
            StateMeters(
                meters, self.pool, self.leases, self.executor, self._exchanges, self.artifacts
            )
        self.execution = ExecutionService(
            self._exchanges,
            self.executor,
            self.pool,
            self.artifacts,
            Parking(options.id, me.incarnation),
            describe,
        )
        self.lease_service = LeaseService(self.pool, self.leases, self.executor, describe)
        labels = _labels(options, _advertised(options, bound).host)
        self.sync = SyncClient(
            Introduction(me, options.capacity, options.control_plane, options.key, labels),
            self.pool,
            self.leases,
            self.executor,
            describe,
            lambda reason: stop.drain(f"drained: {reason.rstrip('.')}"),
        )

    def counts(self) -> dict[str, int]:
        """Count what is held and under way."""
        return {
            "leases": len(tuple(self.leases.leases)),
            "waiting": self.leases.waiting,
            "instances": sum(len(tuple(each.lives)) for each in self.pool.generations),
            "calls": self.executor.in_flight,
        }

    async def leave(self, stop: Stop) -> None:
        """Finish what is in flight, within its bound, and end everything else."""
        await self.sync.say_leaving()
        self.references.stop()
        self.executor.refuse_new()
        self.execution.parking.hurry()
        self.leases.leave(self.executor.leaving())
        self._exchanges.go_away(f"The worker ends: {stop.reason}.")
        await self._finish_calls(stop)
        self.leases.revoke_all("its worker ended")
        self.leases.stop()
        self.artifacts.stop()
        await self.pool.close()
        await self.sync.flush()  # what is left there is what the control plane takes for held

    async def _drain(self) -> None:
        await self.executor.drain()
        await self.execution.parking.empty()  # results that their callers may still come for

    async def _finish_calls(self, stop: Stop) -> None:
        waits = [
            asyncio.ensure_future(self._drain()),
            asyncio.ensure_future(stop.hurry.wait()),
        ]
        await asyncio.wait(
            waits, timeout=bounds.SHUTDOWN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        if self.executor.in_flight:
            _logger.warning("%d calls in flight are cut off.", self.executor.in_flight)


def _labels(options: WorkerOptions, host: str) -> Mapping[str, str]:
    """Return what a worker says of itself, so that a page's backend finds its artifacts."""
    listener = options.artifacts_http
    if listener is None:
        return options.labels
    endpoint = listener.endpoint
    if endpoint.is_wildcard:
        endpoint = Endpoint(host, endpoint.port)
    return {ARTIFACTS_LABEL: f"http://{endpoint}{listener.path}", **options.labels}


def _advertised(options: WorkerOptions, bound: Endpoint) -> Endpoint:
    if options.advertise is not None:
        return Endpoint(options.advertise.host, options.advertise.port or bound.port)
    host = socket.gethostname() if bound.is_wildcard else bound.host
    return Endpoint(host, bound.port)


@contextlib.asynccontextmanager
async def _storage(base: Path | None) -> AsyncIterator[ArtifactStorage]:
    """Yield where artifacts are kept; afterwards none is left, unless the disk hangs."""
    storage = await asyncio.to_thread(DirectoryStorage, base)
    try:
        yield storage
    finally:
        try:
            async with asyncio.timeout(_STORAGE_GRACE):
                await DiskThreads(1).run(storage.close)  # not behind work that hangs
        except TimeoutError:
            _logger.warning(
                "The artifacts in %s are left there: the disk has not answered for %g s. The next "
                "worker that keeps artifacts beside them removes them.",
                storage.folder,
                _STORAGE_GRACE,
            )


@contextlib.asynccontextmanager
async def _connections(worker_id: str, vault: WorkerVault) -> AsyncIterator[OpenInstance]:
    """Yield what makes instances; afterwards no process of theirs is left."""
    numbers = itertools.count(1)
    reaper = Reaper()
    try:
        async with http_client() as http:
            host = Host(os.environ, reaper, http, vault)

            def open_instance(
                spec: ServerSpec,
                opener: Opener,
                *,
                known_version: str = "",
                reading: Resolved | None = None,
            ) -> Instance:
                return Instance(
                    spec,
                    host,
                    opener,
                    instance_id=f"{worker_id}-{spec.key.server_id}-{next(numbers)}",
                    known_version=known_version,
                    reading=reading,
                    patience=patience_of(spec),
                )

            yield open_instance
    finally:
        await reaper.close()


@contextlib.contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, stop.ask, f"it received {number.name}")
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
