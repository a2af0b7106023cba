"""One worker: its options, its parts, and how it serves and shuts down (DESIGN §6, leaving).

Shutdown: reject new work, announce `going_away` on every exchange, finish calls in flight, revoke
leases, close instances, stop the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from leaseway.data_plane.artifacts.http import serve_artifacts
from leaseway.data_plane.artifacts.storage import ArtifactStorage, MemoryStorage
from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.audit.log import AuditLog
from leaseway.data_plane.audit.record import Recorder
from leaseway.data_plane.background import Background
from leaseway.data_plane.calls.confirmation import Confirmation
from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.calls.recent import RECENT_CALLS, RecentCalls
from leaseway.data_plane.core.artifacts.index import ArtifactLimits
from leaseway.data_plane.core.leases.table import LeaseTable
from leaseway.data_plane.core.ports import OpenInstance
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.login_watcher import LoginWatcher
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.instances.reference_watcher import ReferenceWatcher, WatchTiming
from leaseway.data_plane.instances.reports import Reports
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.gauges import (
    Quota,
    QuotaMeters,
    QuotaReaders,
    StateMeters,
    StateReaders,
)
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.data_plane.references.resolve import resolve
from leaseway.data_plane.references.vault import WorkerVault
from leaseway.data_plane.services.continuations import Continuations
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.services.execution import ExecutionService, add_execution_service
from leaseway.data_plane.services.inspection import Inspection
from leaseway.data_plane.services.leases import LeaseService
from leaseway.data_plane.sync.client import AuditMessage, SyncClient
from leaseway.data_plane.sync.convert import LeaseMessages, instances_to_proto
from leaseway.data_plane.sync.status import Registration, WorkerStatus
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.refusals import RpcRefusal
from leaseway.telemetry.http_listener import ARTIFACTS_LABEL, ArtifactsListener
from leaseway.telemetry.metrics import Meter
from leaseway.telemetry.prometheus_http import MetricsListener
from leaseway.v1 import catalog_pb2, leases_pb2_grpc, sync_pb2
from leaseway.vault.key import VaultPlace
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.health import LIVE, HealthService, enable_reflection
from leaseway.wire.errors import Fault

_logger = logging.getLogger(__name__)
_SERVICES: Final = ("leaseway.v1.ExecutionService", "leaseway.v1.LeaseService")
_STOP_GRACE: Final = 5.0
"""Seconds that callers get to read the ends of their streams."""


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker runs.

    Attributes:
        control_plane: The control plane to join.
        listen: The address to listen on; port 0 lets the system choose.
        advertise: The address for callers, or None for the bound one; port 0 is the bound port.
        id: The worker's name, stable over restarts.
        capacity: The limit of leases.
        key: The key to join the control plane with, and for callers; None allows any caller on
            this machine.
        worker_key: The key to join the control plane with, or None for the shared key.
        authenticator: Authenticates callers; None accepts the shared key only.
        labels: For placement.
        servers: Patterns of the server ids that it serves; empty means all.
        vault: The vault with secrets that the environment does not have, or None.
        metrics: The address for Prometheus, or None.
        artifacts: The folder for images and sounds of results; None is the system's folder for
            temporary files.
        retention: How long and how many artifacts are kept.
        artifacts_http: The address at which pages read artifacts, or None.
        recent_calls: How many calls are kept for operators; 0 for none.
        audit: The folder of the audit, or None.
        standbys: Control planes of which one may lead instead of the first one.
        own_paths: Further files and folders of Leaseway, which no sandboxed server may see.
    """

    control_plane: Endpoint
    listen: Endpoint
    advertise: Endpoint | None = None
    id: str = field(default_factory=socket.gethostname)
    capacity: int = bounds.MAX_LEASES
    key: str | None = None
    worker_key: str | None = None
    authenticator: Authenticator | None = field(default=None, compare=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    vault: VaultPlace | None = None
    metrics: MetricsListener | None = None
    artifacts: Path | None = None
    retention: ArtifactLimits = field(default_factory=ArtifactLimits)
    artifacts_http: ArtifactsListener | None = None
    recent_calls: int = RECENT_CALLS
    audit: Path | None = None
    standbys: tuple[Endpoint, ...] = ()
    own_paths: tuple[Path, ...] = ()


class Shutdown:
    """The request to shut a worker down.

    Attributes:
        requested: Set when the worker must shut down.
        hurry: Set when it must not wait for calls.
        reason: Why, in words.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.hurry = asyncio.Event()
        self.reason = ""
        self._requested_once = False

    def request(self, reason: str) -> None:
        """Shut down; a second request does not wait for calls."""
        if self._requested_once:
            self.hurry.set()
        self._requested_once = True
        self.drain(reason)

    def drain(self, reason: str) -> None:
        """Shut down and wait for calls, unless `request` is called twice."""
        if not self.requested.is_set():
            self.reason = reason
            self.requested.set()


class Worker:
    """The parts of one worker, connected.

    Attributes:
        pool: The served generations.
        leases: The held leases.
        executor: The calls in flight.
        references: Follows changes of the vault and of files.
        artifacts: Images and sounds of results.
        sync: Keeps the worker joined to its control plane.
    """

    def __init__(
        self,
        options: WorkerOptions,
        bound: Endpoint,
        open_instance: OpenInstance,
        background: Background,
        shutdown: Shutdown,
        vault: WorkerVault | None = None,
        meter: Meter | None = None,
        storage: ArtifactStorage | None = None,
        watch_timing: WatchTiming = WatchTiming(),  # noqa: B008 - frozen
        audit: AuditLog | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        clock = clock or asyncio.get_running_loop().time
        self.id = options.id
        self._background = background
        self._artifacts_http = options.artifacts_http
        me = catalog_pb2.WorkerRef(
            id=options.id,
            incarnation=secrets.token_hex(8),
            address=str(_advertised(options, bound)),
        )
        self._reports = Reports()
        meters = WorkerMeters(meter, clock) if meter is not None else None
        context = WorkerContext(options.id, open_instance, background, self._reports, meters)
        if meters is not None:
            context.hooks.on_instance_started = meters.instance_started
            context.hooks.on_instance_ended = meters.instance_ended
        self.pool = Pool(context)
        table = LeaseTable(me.incarnation, options.capacity)
        self.leases = WorkerLeaseManager(self.pool, table, clock)
        known = vault or WorkerVault(options.vault)
        self.references = ReferenceWatcher(
            self.pool,
            self.leases.reconcile,
            known,
            lambda spec: resolve(spec, os.environ, known),
            watch_timing,
        )
        self.logins = LoginWatcher(
            self.pool, options.vault.logins if options.vault is not None else None
        )
        self.artifacts = ArtifactStore(
            storage or MemoryStorage(), me.incarnation, background, options.retention
        )
        self.artifacts.tenant_limit = self._artifact_space
        self.artifacts.on_disk = self._report_artifact_storage
        self._recorder: Recorder | None = None
        if audit is not None:
            audit.on_problem = self._report_audit
            self._recorder = Recorder(audit)
        self.executor = Executor(
            self.pool,
            self.leases,
            options.id,
            artifacts=self.artifacts,
            confirmation=Confirmation(lambda question: self.sync.ask_approval(question)),
            recorder=self._recorder,
            recent=RecentCalls(options.recent_calls) if options.recent_calls else None,
        )
        describe = LeaseMessages(options.id, self.leases, clock)
        self._exchanges = Exchanges(self.executor, self.leases, describe, me)
        if meters is not None:
            self.artifacts.on_rejected = lambda fault: meters.limits.record(fault.metadata)
            StateMeters(meters, self._state_readers())
            QuotaMeters(meters.meter, self._quota_readers())
        self.execution = ExecutionService(
            self._exchanges,
            self.executor,
            self.pool,
            self.artifacts,
            Continuations(options.id, me.incarnation),
            describe,
        )
        self.lease_service = LeaseService(self.pool, self.leases, self.executor, describe)
        labels = _labels(options, _advertised(options, bound).host)
        registration = Registration(
            me,
            options.capacity,
            options.control_plane,
            options.worker_key or options.key,
            labels,
            options.servers,
            options.standbys,
        )
        status = WorkerStatus(
            registration,
            self.pool,
            self.leases,
            lambda: self.executor.in_flight,
            lambda: self.executor.draining,
            describe,
        )
        self.sync = SyncClient(
            status,
            lambda reason: shutdown.drain(f"drained: {reason.rstrip('.')}"),
            Inspection(me, self.executor.recent, self.executor, self.leases).answer,
            self._record,
        )

    def record_refused_rpc(self, refusal: RpcRefusal, times: int) -> None:
        """Record RPCs that were refused because of their caller's identity."""
        if self._recorder is not None:
            self._recorder.record_refusal(refusal, times, "worker")

    def _record(self, record: AuditMessage) -> None:
        if self._recorder is None:
            return
        if isinstance(record, sync_pb2.RefusedRpc):
            refusal = RpcRefusal(record.rpc, record.by, record.peer, record.outcome)
            self._recorder.record_refusal(refusal, record.times, "control-plane")
        elif isinstance(record, sync_pb2.OperatorAction):
            self._recorder.record_operator(record)
        else:
            self._recorder.record_approval(record)

    def _state_readers(self) -> StateReaders:
        pool, leases = self.pool, self.leases
        return StateReaders(
            artifacts_failed=lambda: self.artifacts.failed,
            served=lambda: (each.key.server_id for each in pool.generations),
            ready=lambda: (
                live for each in pool.generations for live in each.instances if live.is_ready
            ),
            instance_states=lambda: (
                (status.variant.server_id, status.state)
                for status in instances_to_proto(list(pool.generations), "")
            ),
            loads=self.executor.loads,
            leases=lambda: (lease.key.server_id for lease in leases.leases),
            totals={
                "leaseway.exchange.streams": lambda: self._exchanges.open_streams,
                "leaseway.exchange.queue.size": lambda: self._exchanges.queued_bytes,
                "leaseway.artifacts": lambda: len(self.artifacts),
                "leaseway.artifacts.size": lambda: self.artifacts.total_bytes,
                "leaseway.registry.version": lambda: pool.registry_version,
            },
        )

    def _quota_readers(self) -> QuotaReaders:
        usage, leases = self.executor.usage, self.leases

        def refused() -> Iterator[tuple[str, Quota, int]]:
            for (tenant, quota), count in usage.refused.items():
                yield tenant, quota, count
            for tenant, count in leases.refusals.items():
                yield tenant, "leases", count

        return QuotaReaders(
            limits=lambda: (each.variant.spec.policy.limits for each in self.pool.generations),
            used={
                "concurrent": lambda: usage.in_flight,
                "leases": lambda: leases.held_by_tenants,
                "artifact_bytes": lambda: self.artifacts.bytes_by_tenant,
            },
            refused=refused,
        )

    def _artifact_space(self, server_id: str, tenant: str) -> int | None:
        """Return a tenant's limit of bytes of artifacts, or None if there is none."""
        try:
            limits = self.pool.resolve(server_id, tenant).variant.spec.policy.limits_of(tenant)
        except Fault:  # the server was removed
            return None
        return limits.artifact_bytes if limits is not None else None

    def _report_artifact_storage(self, failure: str) -> None:
        message = (
            f"Worker '{self.id}' cannot keep images and sounds of results: {failure}. They stay in"
            " their results. Make room on its disk, or name another folder with --artifacts."
        )
        self._reports.set_problem(
            WorkerProblem("worker", "ARTIFACTS_NOT_KEPT", message, severity="warning"),
            bool(failure),
        )

    def _report_audit(self, failure: str) -> None:
        problem = WorkerProblem("worker", "AUDIT_NOT_WRITTEN", failure)
        self._reports.set_problem(problem, bool(failure))

    def counts(self) -> dict[str, int]:
        """Return the numbers of leases, instances and calls, for diagnostics."""
        return {
            "leases": len(tuple(self.leases.leases)),
            "instances": sum(len(each.instances) for each in self.pool.generations),
            "calls": self.executor.in_flight,
        }

    async def serve(
        self, server: grpc.aio.Server, shutdown: Shutdown, on_ready: Callable[[], None]
    ) -> None:
        """Serve until a shutdown is requested, then shut down in order.

        Args:
            server: Bound, not started.
            shutdown: Requests the shutdown.
            on_ready: Called once the server listens.
        """
        add_execution_service(self.execution, server)
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(self.lease_service, server)
        health = HealthService(server)
        await health.set_not_serving("", *_SERVICES)
        await health.set_serving(LIVE)
        enable_reflection(server, _SERVICES)
        await server.start()
        try:
            async with serve_artifacts(self._artifacts_http, self.artifacts):
                on_ready()
                self._background.supervise(self.sync.run, "keep joined to the control plane")
                self._background.supervise(self.references.run, "follow changed references")
                self._background.supervise(self.logins.run, "follow logins")
                self._background.spawn(self._set_serving_when_caught_up(health), "health")
                await shutdown.requested.wait()
                _logger.info("Worker %s shuts down: %s.", self.id, shutdown.reason)
                await health.shut_down()
                await self._shut_down(shutdown)
        finally:
            await server.stop(_STOP_GRACE)

    async def _set_serving_when_caught_up(self, health: HealthService) -> None:
        await self.sync.caught_up.wait()
        await health.set_serving("", *_SERVICES)

    async def _shut_down(self, shutdown: Shutdown) -> None:
        """Finish calls in flight, within a bound, and end everything else."""
        await self.sync.report_leaving()
        self.references.stop()
        self.executor.reject_new_calls()
        self.execution.continuations.start_draining()
        self.leases.reject_new(self.executor.draining_fault())
        self._exchanges.go_away(f"The worker shuts down: {shutdown.reason}.")
        await self._finish_calls(shutdown)
        self.leases.revoke_all("its worker shut down")
        self.leases.stop()
        self.artifacts.stop()
        await self.pool.close()
        await self.sync.flush()  # the control plane keeps leases that it does not see ended

    async def _drain(self) -> None:
        await self.executor.drain()
        # Callers may still fetch the results of suspended calls.
        await self.execution.continuations.wait_until_empty()

    async def _finish_calls(self, shutdown: Shutdown) -> None:
        waits = [
            asyncio.ensure_future(self._drain()),
            asyncio.ensure_future(shutdown.hurry.wait()),
        ]
        await asyncio.wait(
            waits, timeout=bounds.SHUTDOWN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        if self.executor.in_flight:
            _logger.warning("%d calls in flight are cut off.", self.executor.in_flight)


def _labels(options: WorkerOptions, host: str) -> Mapping[str, str]:
    """Return the labels for placement, with the address at which pages read artifacts."""
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
