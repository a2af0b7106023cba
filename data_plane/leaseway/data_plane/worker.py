"""One worker: its options, its parts, and how it serves and shuts down (design.md#calls, leaving).

Shutdown: reject new work, announce `going_away` on every exchange, finish calls in flight, revoke
leases, close instances, stop the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import grpc

from leaseway.data_plane.artifacts.http import serve_artifacts
from leaseway.data_plane.artifacts.storage import ArtifactStorage, MemoryStorage
from leaseway.data_plane.artifacts.store import ArtifactStore, ignore
from leaseway.data_plane.audit.backlog import Policy
from leaseway.data_plane.audit.heads import RunHeads
from leaseway.data_plane.audit.log import AuditLog
from leaseway.data_plane.audit.planes import PlaneRecords
from leaseway.data_plane.audit.record import Recorder
from leaseway.data_plane.audit.shipping import Shipper
from leaseway.data_plane.background import Background
from leaseway.data_plane.calls.confirmation import Confirmation
from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.calls.recent import RECENT_CALLS, RecentCalls
from leaseway.data_plane.core.artifacts.index import ArtifactLimits
from leaseway.data_plane.core.leases.table import LeaseTable
from leaseway.data_plane.core.ports import OpenInstance
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.login_watcher import LoginWatcher
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.instances.problems import WorkerProblems
from leaseway.data_plane.instances.reference_watcher import ReferenceWatcher, WatchTiming
from leaseway.data_plane.instances.reports import Reports
from leaseway.data_plane.instances.start_queue import StartQueue
from leaseway.data_plane.kinds.process.cgroups import default_concurrent_starts
from leaseway.data_plane.kinds.values import resolve
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.data_plane.oauth.caller_tokens import CallerTokens
from leaseway.data_plane.oauth.logins.links import LoginLinks
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.data_plane.references.vault import WorkerVault
from leaseway.data_plane.services.continuations import Continuations
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.services.execution import ExecutionService, add_execution_service
from leaseway.data_plane.services.inspection import Inspection
from leaseway.data_plane.services.leases import LeaseService
from leaseway.data_plane.services.local import LocalCalls
from leaseway.data_plane.state import AuditMeters, QuotaMeters, StateMeters, WorkerState
from leaseway.data_plane.sync.approvals import ApprovalQuestions
from leaseway.data_plane.sync.audit import AuditSync
from leaseway.data_plane.sync.budgets import Permits
from leaseway.data_plane.sync.client import SyncClient
from leaseway.data_plane.sync.convert import LeaseMessages
from leaseway.data_plane.sync.logins import LoginSteps
from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.data_plane.sync.status import Registration, WorkerStatus
from leaseway.identity.authenticator import Authenticator
from leaseway.telemetry.http_listener import ARTIFACTS_LABEL, ArtifactsListener
from leaseway.telemetry.metrics import Meter
from leaseway.telemetry.prometheus_http import MetricsListener
from leaseway.v1 import catalog_pb2, leases_pb2_grpc
from leaseway.vault.key import VaultPlace
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint, Endpoints
from leaseway.wire.channels.health import LIVE, HealthService, enable_reflection
from leaseway.wire.channels.local import LocalWorker

_logger = logging.getLogger(__name__)
_SERVICES: Final = ("leaseway.v1.ExecutionService", "leaseway.v1.LeaseService")
_STOP_GRACE: Final = 5.0
"""Seconds that callers get to read the ends of their streams."""


class Front(Protocol):
    """What serves callers in the worker's process, and ends before it."""

    def serving(
        self, worker: LocalWorker
    ) -> AbstractAsyncContextManager[Callable[[asyncio.Event], Awaitable[None]]]:
        """Serve while the block runs; yield what finishes its requests, at once with the event."""


@dataclass(frozen=True)
class AuditSink:
    """Where a worker's audit is shipped to.

    Attributes:
        address: The sink, such as s3://BUCKET/FOLDER.
        policy: What happens while the sink does not acknowledge records.
        space: Bytes of files that may wait for the sink.
    """

    address: str
    policy: Policy
    space: int


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker runs.

    Attributes:
        control_planes: The control planes, of which one leads: the one to join.
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
        concurrent_starts: How many processes of servers may start at the same time, or None for as
            many as the processors of this machine allow (`default_concurrent_starts`).
        audit: The folder of the audit, or None.
        audit_sink: Where the audit is shipped to, or None.
        front: Serves MCP clients in the worker's process, or None.
        own_paths: Further files and folders of Leaseway, which no sandboxed server may see.
        starter: The id of the `up` that has started it, or None.
    """

    control_planes: Endpoints
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
    concurrent_starts: int | None = None
    audit: Path | None = None
    audit_sink: AuditSink | None = None
    own_paths: tuple[Path, ...] = ()
    starter: int | None = None
    front: Front | None = field(default=None, compare=False)


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

    def drain_for(self, reason: str) -> None:
        """Shut down and wait for calls, as the control plane asks, with its reason."""
        self.drain(f"drained: {reason.rstrip('.')}")

    def drain(self, reason: str) -> None:
        """Shut down and wait for calls, unless `request` is called twice."""
        if not self.requested.is_set():
            self.reason = reason
            self.requested.set()


@dataclass(frozen=True)
class Surroundings:
    """What a worker gets from its process.

    Attributes:
        open_instance: Opens the instances of servers.
        background: Owns the worker's tasks.
        shutdown: Requests the end of the worker.
        authenticator: Authenticates callers, as the worker's server does.
        logins: People's logins to remote servers, or None if there are none.
        login_links: The logins that begin at a link, or None if there are none.
        vault: Resolves secrets, or None for the vault of the options.
        meter: Measures the worker, or None if metrics are off.
        storage: Stores artifacts.
        audit: Gets the records of calls, or None if there is no audit.
        shipper: Ships them to a sink, or None if there is none.
        callers: The tokens that callers bring; `open_instance` uses them.
        watch_timing: The intervals at which references are checked.
        clock: Returns seconds for the times to live of leases, or None for the loop's clock.
    """

    open_instance: OpenInstance
    background: Background
    shutdown: Shutdown
    authenticator: Authenticator
    logins: Tokens | None = None
    login_links: LoginLinks | None = None
    vault: WorkerVault | None = None
    meter: Meter | None = None
    storage: ArtifactStorage = field(default_factory=MemoryStorage)
    audit: AuditLog | None = None
    shipper: Shipper | None = None
    callers: CallerTokens = field(default_factory=CallerTokens)
    watch_timing: WatchTiming = field(default_factory=WatchTiming)
    clock: Callable[[], float] | None = None


class Worker:
    """The parts of one worker, connected bottom-up: each part gets those that it uses.

    What a lower part has to tell an upper one, it announces (`InstanceEvents`, `AuditLog.problem`).

    Attributes:
        pool: The served generations.
        leases: The held leases.
        executor: The calls in flight.
        references: Follows changes of the vault and of files.
        artifacts: Images and sounds of results.
        sync: Keeps the worker joined to its control plane.
        local: The worker for callers in its process.
        records: Records what happens besides calls in the audit.
        state: The state of the worker in numbers.
    """

    def __init__(self, options: WorkerOptions, bound: Endpoint, given: Surroundings) -> None:
        self.id = options.id
        clock = given.clock or asyncio.get_running_loop().time
        self._background = given.background
        self._front = options.front
        self._artifacts_http = options.artifacts_http
        address = _advertised(options, bound)
        me = catalog_pb2.WorkerRef(
            id=options.id, incarnation=secrets.token_hex(8), address=str(address)
        )

        # What all parts report to.
        reports = Reports()
        problems = WorkerProblems(options.id, reports)
        meters = None
        if given.meter is not None:
            meters = WorkerMeters(given.meter, clock)
            given.authenticator.limit_reached.connect(meters.limits.record)
        recorder = None
        if given.audit is not None:
            given.audit.problem.connect(problems.on_audit)
            recorder = Recorder(given.audit, given.shipper)
        if given.shipper is not None:
            given.shipper.problem.connect(problems.on_audit_sink)
            given.background.supervise(given.shipper.run, "ship the audit")
            given.background.supervise(given.shipper.recover, "ship what killed workers left")
        self.records = PlaneRecords(recorder)
        heads = None
        if given.audit is not None:
            sink = options.audit_sink.address if options.audit_sink is not None else ""
            heads = RunHeads(given.audit, given.shipper, sink)

        # Instances, and what keeps them.
        context = WorkerContext(
            worker_id=options.id,
            open_instance=given.open_instance,
            background=given.background,
            reports=reports,
            meters=meters,
            callers=given.callers,
            starts=StartQueue(options.concurrent_starts or default_concurrent_starts()),
        )
        if meters is not None:
            context.events.started.connect(meters.instance_started)
            context.events.ended.connect(meters.instance_ended)
        self.pool = Pool(context)
        table = LeaseTable(me.incarnation, options.capacity)
        self.leases = WorkerLeaseManager(self.pool, table, clock)
        vault = given.vault or WorkerVault(options.vault)
        self.references = ReferenceWatcher(
            self.pool,
            self.leases.reconcile,
            vault,
            partial(resolve, environment=os.environ, vault=vault),
            given.watch_timing,
        )
        self.logins = LoginWatcher(
            self.pool,
            options.vault.logins if options.vault is not None else None,
            given.logins,
        )

        # Calls.
        self.artifacts = ArtifactStore(
            given.storage,
            me.incarnation,
            given.background,
            options.retention,
            tenant_limit=self.pool.artifact_limit,
            on_disk=problems.on_artifact_storage,
            on_rejected=meters.record_rejected_read if meters is not None else ignore,
        )
        outgoing = Outgoing(str(options.control_planes.first))
        approvals = ApprovalQuestions(outgoing)
        permits = Permits(outgoing)
        recent = RecentCalls(options.recent_calls) if options.recent_calls else None
        self.executor = Executor(
            self.pool,
            self.leases,
            self.logins,
            artifacts=self.artifacts,
            confirmation=Confirmation(approvals.ask),
            recorder=recorder,
            recent=recent,
            permits=permits,
        )

        # The services for callers.
        describe = LeaseMessages(options.id, self.leases, clock)
        self._exchanges = Exchanges(self.executor, self.leases, describe, me)
        self.execution = ExecutionService(
            self._exchanges,
            self.executor,
            self.pool,
            self.artifacts,
            Continuations(options.id, me.incarnation),
            describe,
        )
        self.lease_service = LeaseService(self.pool, self.leases, self.executor, describe)
        self.local = LocalCalls(self._exchanges, given.authenticator, str(bound.reachable))

        # The stream to the control plane.
        registration = Registration(
            worker=me,
            capacity=options.capacity,
            control_planes=options.control_planes,
            key=options.worker_key or options.key,
            labels=_labels(options, address.host),
            servers=options.servers,
        )
        self.sync = SyncClient(
            WorkerStatus(
                registration=registration,
                pool=self.pool,
                leases=self.leases,
                calls=self.executor,
                lease_message=describe,
            ),
            outgoing,
            approvals,
            permits,
            given.shutdown.drain_for,
            Inspection(me, recent, self.executor, self.leases).answer,
            AuditSync(self.records, heads, outgoing),
            LoginSteps(given.login_links, outgoing, given.background, self.logins.follow_now),
        )

        # What reads all of them.
        self.state = WorkerState(
            pool=self.pool,
            leases=self.leases,
            executor=self.executor,
            exchanges=self._exchanges,
            artifacts=self.artifacts,
        )
        if meters is not None:
            StateMeters(meters, self.state)
            QuotaMeters(meters.meter, self.state)
            if given.shipper is not None:
                AuditMeters(meters.meter, given.shipper.backlog)

    def server_folders(self) -> Iterator[str]:
        """Yield the folders that servers name as their own, which are hidden from others."""
        for variant in self.pool.desired_state.variants.values():
            yield from variant.spec.named_folders
        yield from self.sync.server_folders

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
            async with (
                serve_artifacts(self._artifacts_http, self.artifacts),
                AsyncExitStack() as fronts,
            ):
                finish = None
                if self._front is not None:
                    finish = await fronts.enter_async_context(self._front.serving(self.local))
                on_ready()
                self._background.supervise(self.sync.run, "keep joined to the control plane")
                self._background.supervise(self.references.run, "follow changed references")
                self._background.supervise(self.logins.run, "follow logins")
                self._background.spawn(self._set_serving_when_caught_up(health), "health")
                await shutdown.requested.wait()
                _logger.info("Worker %s shuts down: %s.", self.id, shutdown.reason)
                await health.shut_down()
                await self.sync.report_leaving()
                if finish is not None:  # its requests may still make calls
                    await finish(shutdown.hurry)
                await fronts.aclose()
                await self._shut_down(shutdown)
        finally:
            await server.stop(_STOP_GRACE)

    async def _set_serving_when_caught_up(self, health: HealthService) -> None:
        await self.sync.caught_up.wait()
        await health.set_serving("", *_SERVICES)

    async def _shut_down(self, shutdown: Shutdown) -> None:
        """Finish calls in flight, within a bound, and end everything else."""
        self.references.stop()
        self.executor.reject_new_calls()
        self.execution.continuations.start_draining()
        self.leases.reject_new(self.executor.draining_fault())
        self._exchanges.go_away(f"The worker shuts down: {shutdown.reason}.")
        await self._finish_calls(shutdown)
        if shutdown.hurry.is_set():
            self._exchanges.skip_goodbyes()
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
