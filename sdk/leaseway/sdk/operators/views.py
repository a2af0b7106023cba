"""What operators see of a running system, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.timing.durations import seconds


@dataclass(frozen=True)
class InstanceInfo:
    """One live MCP client, as its worker last reported it.

    A server of which a worker has none now has one in the state `backoff` where starts failed,
    or `idle` where nobody called for its `idle_timeout`.

    Attributes:
        worker: The worker that holds it.
        id: Its id, unique in that worker's run.
        state: `starting`, `ready`, `draining`, `backoff`, `idle`, `disconnected` or `closed`.
        lease_id: The lease that it is bound to; empty means shared or spare.
        pid: Its process on the worker, or None where there is none.
        starts: Starts so far, the first one included.
        launch_hash: What it was started from.
        role: What it is for: `shared`, `leased` or `spare`.
        failures: Failures in a row of its server on that worker.
        circuit: `closed`, `open` (after five failures in a row nothing is started before
            `next_start_at`) or `half_open` (the one try that this allows is under way).
        next_start_at: From when on the server may be started again; None where nothing failed.
    """

    worker: str
    id: str
    state: str
    lease_id: str
    pid: int | None
    starts: int
    launch_hash: str
    role: str
    failures: int
    circuit: str
    next_start_at: datetime | None


@dataclass(frozen=True)
class ServerInfo:
    """One configured server.

    Attributes:
        id: Its key in the configuration.
        tenant: The tenant of its variant, or empty for the common one.
        state: `pending`, `ready`, `degraded`, `failing`, `starting` or `failed`.
        transport: How it is reached.
        shared: Whether calls share an instance.
        tool_count: How many of its tools are exposed.
        description: What it is for, in the operator's words.
        problem: Its newest open problem in a sentence, or empty.
        protocol_version: The MCP version that was negotiated, or empty.
        launch_hash: Of what needs a new process when it changes.
        exposure_hash: Of what does not.
        workers: Ids of the workers that have it.
        instances: Its live instances on all workers.
        failures: How often in a row its newest configuration was tried and did not come up.
        next_try_at: When it is tried again; None where that is not awaited or is under way.
        prompt_count: How many of its prompts are exposed.
        resource_count: How many of its resources are, and templates of them.
        wanted_launch_hash: What the newest configuration wants where that has not come up, or
            empty; `launch_hash` is what serves meanwhile.
        worker_labels: Labels that its workers must have.
    """

    id: str
    tenant: str
    state: str
    transport: str
    shared: bool
    tool_count: int
    description: str
    problem: str
    protocol_version: str
    launch_hash: str
    exposure_hash: str
    workers: tuple[str, ...]
    instances: tuple[InstanceInfo, ...]
    failures: int = 0
    next_try_at: datetime | None = None
    prompt_count: int = 0
    resource_count: int = 0
    wanted_launch_hash: str = ""
    worker_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProblemInfo:
    """Something for an operator to know or to mend.

    Attributes:
        scope: `workspace`, `server`, `worker` or `client`.
        server_id: The server, or empty.
        tenant: The tenant of the variant, or empty.
        worker: The worker, or empty.
        reason: A constant that programs can compare.
        message: What happened, where, and what to do.
        severity: `error` or `warning`.
        count: How often it was seen.
        first_seen: Since it was last cleared; None where the control plane does not say.
        last_seen: When it was last seen, likewise.
        subject: Tells several problems of one place and reason apart, such as a tool's name; or
            empty.
    """

    scope: str
    server_id: str
    tenant: str
    worker: str
    reason: str
    message: str
    severity: str
    count: int
    first_seen: datetime | None
    last_seen: datetime | None
    subject: str = ""


@dataclass(frozen=True)
class WorkerInfo:
    """One worker.

    Attributes:
        id: Its id, stable over restarts.
        incarnation: One run of it.
        address: Where callers reach it, as HOST:PORT.
        state: `connected`, `draining` or `lost`.
        capacity: The most leases that it takes.
        leases: The leases that it holds.
        instances: Its live instances.
        sent_version: The newest registry version sent to it.
        acked_version: The newest one that it acknowledged.
        last_error: Its last refusal in a sentence, or empty.
        package_version: Its package and version.
        labels: What it says of itself; servers ask for them with `worker_labels`.
        servers: Patterns over the ids of the servers that it takes; none: any.
    """

    id: str
    incarnation: str
    address: str
    state: str
    capacity: int
    leases: int
    instances: int
    sent_version: int
    acked_version: int
    last_error: str
    package_version: str
    labels: Mapping[str, str]
    servers: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeaseInfo:
    """A lease of any client, as its worker reported it.

    Attributes:
        id: Names it for good.
        server_id: The server that the leased client is connected to.
        worker: The worker that holds it.
        tenant: Whose it is.
        session: The session that holds it.
        agent: The agent that took it, or empty.
        ttl: Seconds that were granted at its last renewal.
        age: Seconds that it has been held.
        instance_id: The instance behind it.
        launch_hash: What that instance was started from.
        idle: Seconds for which no call has run on it, or None where that was not asked for or its
            worker did not answer.
    """

    id: str
    server_id: str
    worker: str
    tenant: str
    session: str
    agent: str
    ttl: float
    age: float
    instance_id: str
    launch_hash: str
    idle: float | None = None


@dataclass(frozen=True)
class Status:
    """How far the system is.

    Attributes:
        ready: Whether every server has a first result and a worker is connected.
        registry_version: The version in force.
        config_loaded_at: When the configuration in force was loaded, or None.
        pending: Servers without a first result.
        workers: Connected workers.
        package_version: The control plane's.
        protocol_version: The control plane's.
        epoch: Fences control planes of the past.
        settling: Whether it still waits for workers to say what they hold.
        servers_up: How many configured servers are up on some worker.
        servers: How many are configured.
    """

    ready: bool
    registry_version: int
    config_loaded_at: datetime | None
    pending: tuple[str, ...]
    workers: int
    package_version: str
    protocol_version: int
    epoch: int
    settling: bool
    servers_up: int = 0
    servers: int = 0


@dataclass(frozen=True)
class InstanceLog:
    """What one instance wrote to stderr.

    Attributes:
        worker: The worker that holds it.
        instance_id: Its id; empty where the worker could not be asked.
        state: `running`, how it ended, or `unreachable` where the worker could not be asked.
        pid: Its process on the worker, or None.
        lines: The last lines, the oldest first, secrets redacted; why the worker could not be
            asked where it is unreachable.
    """

    worker: str
    instance_id: str
    state: str
    pid: int | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Approval:
    """A call that needs a person's agreement.

    It is bound to its tenant, agent, tool and exact arguments, and to its session where the
    server keeps state for that. It counts for one call.

    Attributes:
        id: Names it.
        state: `waiting`, `approved`, `denied`, `used` or `expired`.
        tenant: Whose call it is.
        agent: Which of the tenant's agents calls, or empty.
        session: The session that it was asked in, or empty.
        server_id: The server.
        tool: The tool by the server's own name for it.
        arguments: The arguments as JSON, secrets redacted and long texts cut.
        asked_by: The credential that asked.
        asked_at: When it was asked first.
        expires_at: When it ends.
        decided_by: The credential that has decided, or empty.
        note: What that one has to say, or empty.
        digest: SHA-256 over the exact arguments, in hexadecimal digits.
    """

    id: str
    state: str
    tenant: str
    agent: str
    session: str
    server_id: str
    tool: str
    arguments: str
    asked_by: str
    asked_at: datetime | None
    expires_at: datetime | None
    decided_by: str = ""
    note: str = ""
    digest: str = ""


def server_from_wire(message: catalog_pb2.ServerStatus) -> ServerInfo:
    """Return a server of the catalog."""
    state = catalog_pb2.ServerState.Name(message.state)
    return ServerInfo(
        id=message.server_id,
        tenant=message.tenant,
        state=state.removeprefix("SERVER_STATE_").lower(),
        transport=message.transport,
        shared=message.shared,
        tool_count=message.tool_count,
        description=message.description,
        problem=message.problem,
        protocol_version=message.protocol_version,
        launch_hash=message.launch_hash,
        exposure_hash=message.exposure_hash,
        workers=tuple(message.workers),
        instances=tuple(_instance(instance) for instance in message.instances),
        failures=message.failures,
        next_try_at=_time(message, "next_try_at"),
        prompt_count=message.prompt_count,
        resource_count=message.resource_count,
        wanted_launch_hash=message.wanted_launch_hash,
        worker_labels=dict(message.worker_labels),
    )


def _instance(message: catalog_pb2.InstanceStatus) -> InstanceInfo:
    return InstanceInfo(
        worker=message.worker_id,
        id=message.id,
        state=message.state,
        lease_id=message.lease_id,
        pid=message.pid or None,
        starts=message.starts,
        launch_hash=message.launch_hash,
        role=message.role,
        failures=message.failures,
        circuit=message.circuit,
        next_start_at=_time(message, "next_start_at"),
    )


def problem_from_wire(message: admin_pb2.Problem) -> ProblemInfo:
    """Return a problem of the control plane."""
    return ProblemInfo(
        scope=message.scope,
        server_id=message.server_id,
        tenant=message.tenant,
        worker=message.worker_id,
        reason=message.reason,
        message=message.message,
        severity=message.severity,
        count=message.count,
        first_seen=_time(message, "first_seen"),
        last_seen=_time(message, "last_seen"),
        subject=message.subject,
    )


def worker_info_from_wire(message: admin_pb2.WorkerStatus) -> WorkerInfo:
    """Return a worker of the control plane."""
    return WorkerInfo(
        id=message.worker.id,
        incarnation=message.worker.incarnation,
        address=message.worker.address,
        state=message.state,
        capacity=message.capacity,
        leases=message.leases,
        instances=message.instances,
        sent_version=message.sent_version,
        acked_version=message.acked_version,
        last_error=message.last_error,
        package_version=message.package_version,
        labels=dict(message.labels),
        servers=tuple(message.servers),
    )


def lease_from_wire(message: leases_pb2.Lease) -> LeaseInfo:
    """Return a lease that a worker reported."""
    return LeaseInfo(
        id=message.id,
        server_id=message.server_id,
        worker=message.worker_id,
        tenant=message.tenant,
        session=message.session,
        agent=message.agent,
        ttl=seconds(message.ttl),
        age=seconds(message.age),
        instance_id=message.instance_id,
        launch_hash=message.launch_hash,
        idle=seconds(message.idle) if message.HasField("idle") else None,
    )


def status_from_wire(message: admin_pb2.GetStatusResponse) -> Status:
    """Return how far the control plane says that the system is."""
    return Status(
        ready=message.ready,
        registry_version=message.registry_version,
        config_loaded_at=_time(message, "config_loaded_at"),
        pending=tuple(message.pending),
        workers=message.workers,
        package_version=message.package_version,
        protocol_version=message.protocol_version,
        epoch=message.epoch,
        settling=message.settling,
        servers_up=message.servers_up,
        servers=message.servers,
    )


def _time(message: Any, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    stamp: Timestamp = getattr(message, field)
    return stamp.ToDatetime(tzinfo=UTC)


def approval_from_wire(message: admin_pb2.Approval) -> Approval:
    """Return an approval of the control plane."""
    return Approval(
        id=message.id,
        state=message.state,
        tenant=message.tenant,
        agent=message.agent,
        session=message.session,
        server_id=message.server_id,
        tool=message.tool,
        arguments=message.arguments,
        asked_by=message.asked_by,
        asked_at=_time(message, "asked_at"),
        expires_at=_time(message, "expires_at"),
        decided_by=message.decided_by,
        note=message.note,
        digest=message.digest,
    )
