"""The state of a running system as plain values: servers, workers, leases, problems, approvals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.messages.enums import server_state_from_proto
from leaseway.wire.messages.states import ServerState
from leaseway.wire.timing.durations import seconds

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ViewT = TypeVar("ViewT", bound="DataclassInstance")


@dataclass(frozen=True)
class InstanceInfo:
    """One instance of a server (an MCP client and its process), as its worker last reported it.

    If a worker has no instance of a server, it reports one in the state `backoff` (starts failed)
    or `idle` (the server was not called for its `idle_timeout`).

    Attributes:
        worker: The id of the instance's worker.
        id: The instance's id, unique until the worker restarts.
        state: `queued`, `starting`, `ready`, `draining`, `backoff`, `idle`, `disconnected` or
            `closed`.
        lease_id: The lease that the instance belongs to; empty if it is shared or spare.
        pid: The id of the process on the worker, or None if the server is not a process.
        starts: The number of starts, including the first one.
        launch_hash: A hash of the configuration that the instance was started with.
        role: `shared`, `leased` or `spare`.
        failures: The number of consecutive failures of the server on this worker.
        circuit: `closed`, `open` (after five consecutive failures, no start is tried before
            `next_start_at`) or `half_open` (one start is being tried).
        next_start_at: The earliest time of the next start; None if the last start succeeded.
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
        id: The server's key in the configuration.
        tenant: The tenant of an override, or empty for the common configuration.
        state: `failed`, `failing`, `needs login`, `degraded`, `pending`, `starting` or `ready`;
            `unknown` if the control plane is newer than this package. `state.is_up` tells whether
            callers can use the server on some worker, `state.meaning` what the state means.
        transport: The transport, such as `stdio`.
        shared: Whether all callers share an instance; if not, the server is leased.
        tool_count: The number of exposed tools.
        description: The operator's description of the server.
        problem: The newest open problem in a sentence, or empty.
        protocol_version: The negotiated MCP version, or empty.
        launch_hash: A hash of the settings whose change needs a new process.
        exposure_hash: A hash of the other settings.
        workers: The ids of the workers that run the server.
        instances: The instances on all workers.
        failures: How many times in a row the newest configuration failed to start.
        next_try_at: When it is tried next; None if no try is scheduled.
        prompt_count: The number of exposed prompts.
        resource_count: The number of exposed resources and resource templates.
        wanted_launch_hash: The hash of the newest configuration if it has not started yet, or
            empty; `launch_hash` is that of the running one.
        worker_labels: The labels that a worker must have to run the server.
        in_flight: The number of calls without a result on all workers; None if not requested, or
            not visible to this client.
        waiting: How many of them were not sent: they wait for a turn, an instance, a lease or an
            approval.
        oldest_wait: Seconds that the oldest of these has waited; None if none waits.
    """

    id: str
    tenant: str
    state: ServerState
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
    in_flight: int | None = None
    waiting: int | None = None
    oldest_wait: float | None = None


@dataclass(frozen=True)
class ProblemInfo:
    """A problem that operators should know or fix.

    Attributes:
        scope: `workspace`, `server`, `worker` or `client`.
        server_id: The server, or empty.
        tenant: The tenant of the server's override, or empty.
        worker: The worker, or empty.
        reason: A constant for programs; docs/runbook.md explains it.
        message: What happened, where, and what to do.
        severity: `error` or `warning`.
        count: How many times it occurred since it was last cleared.
        first_seen: The time of the first of these, or None if unknown.
        last_seen: The time of the last one, or None if unknown.
        subject: Distinguishes problems of the same place and reason, for example by a tool's
            name; may be empty.
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
class LimitInfo:
    """What is left of a limit that holds over all workers.

    Attributes:
        scope: Whose it is: `tenant`, `agent`, `server` or `tool`; the last two are of all callers
            together.
        quota: What it counts: `calls`, `concurrent` calls, calls of `external` tools, or `leases`.
        tenant: The tenant, of its limits and those of its agents; empty for others.
        server_id: The server, of its limits, its tools' and external tools'; empty for others.
        agent: The agent, of its limits; empty for others.
        tool: The tool's original name, of its limits; empty for others.
        limit: How many there may be in a period, or at once.
        period: Seconds; 0 for those at once.
        remaining: How many are left. What a worker has leased and not used does not count.
        renews_in: Seconds until all are left again; 0 if no period is open, and for those at once.
    """

    scope: str
    quota: str
    tenant: str
    server_id: str
    agent: str
    tool: str
    limit: int
    period: float
    remaining: int
    renews_in: float


@dataclass(frozen=True)
class WorkerInfo:
    """One worker.

    Attributes:
        id: The worker's id, the same after restarts.
        incarnation: The id of the current run, new after each restart.
        address: The HOST:PORT that callers connect to.
        state: `connected`, `draining` or `lost`.
        capacity: The limit of held leases.
        leases: The number of held leases.
        instances: The number of instances.
        sent_version: The newest registry version sent to the worker.
        acked_version: The newest registry version that the worker has acknowledged.
        last_error: The last update that the worker rejected, in a sentence, or empty.
        package_version: The worker's package and version.
        labels: The worker's labels, which `worker_labels` of a server selects.
        servers: Patterns of the ids of servers that the worker accepts; empty accepts all.
        in_flight: The number of calls without a result; None if not requested, or if the worker did
            not answer.
        waiting: How many of them were not sent: they wait for a turn, an instance, a lease or an
            approval.
        oldest_wait: Seconds that the oldest of these has waited; None if none waits.
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
    in_flight: int | None = None
    waiting: int | None = None
    oldest_wait: float | None = None


@dataclass(frozen=True)
class LeaseInfo:
    """A lease of any client, as its worker reported it.

    Attributes:
        id: The lease's id, which is never reused.
        server_id: The leased server.
        worker: The worker that holds the lease.
        tenant: The tenant of the session.
        session: The key of the session that holds the lease.
        agent: The agent that acquired the lease, or empty.
        ttl: Seconds that the last renewal granted.
        age: Seconds since the lease was acquired.
        instance_id: The instance of the server that belongs to the lease.
        launch_hash: A hash of the configuration that the instance was started with.
        idle: Seconds since the last call on the lease; None if not requested, or if the worker did
            not answer.
        user: The user for whom its server acts, or empty.
        holder: The credential that acquired it, if its server acts for the holder of a token that
            came with the calls, and for no user. Empty otherwise.
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
    user: str = ""
    holder: str = ""


@dataclass(frozen=True)
class Status:
    """The state of the control plane, with the number of servers and workers.

    Attributes:
        ready: Whether every server has been started or has failed once, and a worker is connected.
        registry_version: The current registry version.
        config_loaded_at: When the current configuration was loaded, or None.
        pending: The ids of servers that have neither started nor failed yet.
        workers: The number of connected workers.
        package_version: The version of the control plane's package.
        protocol_version: The version of the control plane's protocol.
        epoch: Rises with each start of a control plane; workers ignore lower ones.
        settling: Whether the control plane, after its start, still waits for workers to report
            their leases.
        servers_up: The number of servers that run on at least one worker.
        servers: The number of configured servers.
        store: Where approvals are kept: `memory` (they end with the control plane), `sqlite` or
            `postgresql`; empty from an older control plane.
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
    store: str = ""


@dataclass(frozen=True)
class InstanceLog:
    """The last stderr lines of one instance.

    Attributes:
        worker: The id of the instance's worker.
        instance_id: The instance's id; empty if the worker is unreachable.
        state: `running`, how the instance ended, or `unreachable` if the worker is.
        pid: The id of the process on the worker, or None.
        lines: The last lines, the oldest first, with secrets redacted; the reason if the worker is
            unreachable.
    """

    worker: str
    instance_id: str
    state: str
    pid: int | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Approval:
    """A call that needs a person's approval.

    An approval is valid for one call, with the same tenant, agent, tool and arguments, and on a
    leased server the same session.

    Attributes:
        id: The approval's id.
        state: `waiting`, `approved`, `denied`, `used` or `expired`.
        tenant: The tenant that calls.
        agent: The tenant's agent that calls, or empty.
        session: The key of the caller's session, or empty.
        server_id: The tool's server.
        tool: The server's name of the tool, without a prefix.
        arguments: All arguments as JSON for people to read: invisible characters are escaped.
        asked_by: The credential of the caller.
        asked_at: When the call was made first.
        expires_at: When the approval expires.
        decided_by: The credential of the person who decided, or empty.
        note: That person's note, or empty.
        digest: The SHA-256 of the exact arguments and extra members, in hexadecimal.
        extra: What else of the caller's reaches the server, in the same form: a JSON object with
            `_meta`, `inputResponses` and `requestState`; empty if there is nothing.
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
    extra: str = ""


def server_from_proto(message: catalog_pb2.ServerStatus) -> ServerInfo:
    """Return a server from its message."""
    return from_proto(
        ServerInfo,
        message,
        id=message.server_id,
        state=server_state_from_proto(message.state),
        workers=tuple(message.workers),
        instances=tuple(
            from_proto(InstanceInfo, instance, worker=instance.worker_id, pid=instance.pid or None)
            for instance in message.instances
        ),
        worker_labels=dict(message.worker_labels),
        **_load(message),
    )


def problem_from_proto(message: admin_pb2.Problem) -> ProblemInfo:
    """Return a problem from its message."""
    return from_proto(ProblemInfo, message, worker=message.worker_id)


def worker_from_proto(message: admin_pb2.WorkerStatus) -> WorkerInfo:
    """Return a worker from its message."""
    return from_proto(
        WorkerInfo,
        message,
        id=message.worker.id,
        incarnation=message.worker.incarnation,
        address=message.worker.address,
        labels=dict(message.labels),
        servers=tuple(message.servers),
        **_load(message),
    )


def limit_from_proto(message: admin_pb2.LimitStatus) -> LimitInfo:
    """Return a limit from its message."""
    return from_proto(
        LimitInfo, message, period=seconds(message.period), renews_in=seconds(message.renews_in)
    )


def _load(message: catalog_pb2.ServerStatus | admin_pb2.WorkerStatus) -> dict[str, object]:
    load = message.load if message.HasField("load") else None
    return {
        "in_flight": load.in_flight if load is not None else None,
        "waiting": load.waiting if load is not None else None,
        "oldest_wait": seconds(load.oldest_wait) if load is not None and load.waiting else None,
    }


def lease_from_proto(message: leases_pb2.Lease) -> LeaseInfo:
    """Return a lease from its message."""
    return from_proto(
        LeaseInfo,
        message,
        worker=message.worker_id,
        ttl=seconds(message.ttl),
        age=seconds(message.age),
        idle=seconds(message.idle) if message.HasField("idle") else None,
    )


def status_from_proto(message: admin_pb2.GetStatusResponse) -> Status:
    """Return a status from its message."""
    return from_proto(Status, message, pending=tuple(message.pending))


def approval_from_proto(message: admin_pb2.Approval) -> Approval:
    """Return an approval from its message."""
    return from_proto(Approval, message)


def from_proto(view: type[ViewT], message: Message, **converted: object) -> ViewT:
    """Return a view whose fields are those of the same name in a message.

    Args:
        view: A dataclass.
        message: The message.
        **converted: The values of fields that have another name or type in the message. Timestamps
            are converted here; an unset one becomes None.
    """
    values = {
        field.name: _value(message, field.name)
        for field in fields(view)
        if field.name not in converted
    }
    return view(**values, **converted)


def _value(message: Message, name: str) -> Any:
    value = getattr(message, name)
    if isinstance(value, Timestamp):
        return value.ToDatetime(tzinfo=UTC) if message.HasField(name) else None
    return value
