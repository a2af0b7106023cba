"""Converts Sync messages to and from the core's values (design.md#sync)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast, get_args

from leaseway.control_plane.core.approvals import ApprovalRequest
from leaseway.control_plane.core.catalog.variants import Hashes
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.lease_ends import ReportedLeaseEnd
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.actions import (
    AskInstances,
    CancelProbe,
    DrainWorker,
    ListForSubject,
    RevokeLease,
    StartProbe,
    WantContent,
)
from leaseway.control_plane.core.workers.instances import InstanceChanges, ReportedInstance
from leaseway.control_plane.core.workers.records import (
    WorkerHello,
    WorkerIdentity,
    WorkerReport,
)
from leaseway.control_plane.core.workers.subscription import VariantRefusal
from leaseway.control_plane.sync.toolsets import MalformedMessage
from leaseway.spec.codec import encode_spec, key_from_proto, key_to_proto
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.clients.greeting import ANYONE, MAX_NAME, MAX_SERVED
from leaseway.wire.messages.states import ProblemScope
from leaseway.wire.names import DEFAULT_TENANT, MAX_KEY_LENGTH, LeaseKey
from leaseway.wire.timing.durations import seconds

_MAX_AHEAD: Final = 10 * 366 * 24 * 3600.0
"""Seconds by which a version or epoch (microseconds since 1970) may be ahead of the clock. Epochs
of a Lease are some years ahead. The limit grows faster than versions do, so that versions derived
from an accepted one remain valid when workers reconnect."""

_MAX_TEXT = 256
_MAX_MESSAGE = 1024
"""Limit of characters of ids, reasons and subjects."""


def hello_from_proto(
    message: sync_pb2.Hello, now: Moment, held: Mapping[VariantKey, Hashes]
) -> WorkerHello:
    """Convert a worker's hello.

    Args:
        now: The time.
        held: The hashes of what it holds.

    Raises:
        MalformedMessage: The id, incarnation or address is missing, or a version is invalid.
    """
    worker = message.worker
    if not worker.id or not worker.incarnation or not worker.address:
        raise MalformedMessage("A worker must name its id, its incarnation and its address.")
    latest = (now.unix + _MAX_AHEAD) * 1e6
    if max(message.highest_registry_version, message.highest_epoch) > latest:
        raise MalformedMessage(
            "A worker reports a registry version or an epoch of the far future; restart it."
        )
    return WorkerHello(
        address=WorkerIdentity(worker.id, worker.incarnation, worker.address, worker.unix_socket),
        capacity=message.capacity,
        package_version=message.package_version,
        labels=dict(message.labels),
        highest_version=message.highest_registry_version,
        highest_epoch=message.highest_epoch,
        held=held,
        leases=tuple(_lease_from_proto(lease, worker.id, now.mono) for lease in message.leases),
        instances=_instances_from_proto(message.instances, worker.id),
        servers=tuple(message.servers),
        lists_subjects=message.lists_subjects,
    )


def report_from_proto(message: sync_pb2.Report, worker_id: str, now: float) -> WorkerReport:
    return WorkerReport(
        gained=tuple(_lease_from_proto(lease, worker_id, now) for lease in message.leases_gained),
        lost=tuple(message.leases_lost),
        instances=_instances_from_proto(message.instances, worker_id)
        if message.instances_changed
        else None,
        instance_changes=_changes_from_proto(message, worker_id),
        problems=tuple(problem_from_proto(problem) for problem in message.problems),
        cleared=tuple(problem_from_proto(problem) for problem in message.cleared),
        calls_in_flight=message.calls_in_flight,
        draining=message.draining,
        unused=tuple(
            LeaseKey(unused.tenant, unused.session, unused.server_id)
            for unused in message.unused_placements
        ),
        probes={probe.id: probe.begun for probe in message.probes},
    )


def lease_ends_from_proto(message: sync_pb2.Report) -> list[ReportedLeaseEnd]:
    return [
        ReportedLeaseEnd(
            lease_id=end.lease_id[:_MAX_TEXT],
            tenant=end.tenant[:_MAX_TEXT] or DEFAULT_TENANT,
            how=end.how[:32],
            session=end.session[:MAX_KEY_LENGTH],
            server_id=end.server_id[:MAX_KEY_LENGTH],
            unasked=end.unasked,
            message=end.message[:_MAX_MESSAGE],
        )
        for end in message.lease_ends
    ]


def refusal_from_proto(message: sync_pb2.Refusal) -> VariantRefusal:
    problem = problem_from_proto(message.problem)
    return VariantRefusal(key_from_proto(message.key), problem.reason, problem.message)


def problem_from_proto(message: admin_pb2.Problem) -> Problem:
    """Convert a problem; the control plane sets its times and count."""
    known = get_args(ProblemScope)
    return Problem(
        scope=cast("ProblemScope", message.scope if message.scope in known else "client"),
        reason=message.reason[:_MAX_TEXT] or "UNSPECIFIED",
        message=message.message,
        server_id=message.server_id[:_MAX_TEXT],
        tenant=message.tenant[:_MAX_TEXT],
        worker_id=message.worker_id[:_MAX_TEXT],
        severity="warning" if message.severity == "warning" else "error",
        subject=message.subject[:_MAX_TEXT],
        advice=message.advice[:_MAX_MESSAGE],
    )


def action_to_proto(
    action: WantContent
    | StartProbe
    | CancelProbe
    | RevokeLease
    | DrainWorker
    | ListForSubject
    | AskInstances,
) -> sync_pb2.SyncResponse:
    """Return the message for an action; `DeltaWriter` converts deltas."""
    match action:
        case WantContent(keys):
            want = sync_pb2.Want(keys=[key_to_proto(key) for key in keys])
            return sync_pb2.SyncResponse(want=want)
        case StartProbe():
            probe = sync_pb2.Probe(
                id=action.id,
                key=key_to_proto(action.spec.key),
                spec=encode_spec(action.spec),
                launch_hash=action.spec.launch_hash,
                traceparent=action.trace,
                relist=action.relist,
            )
            return sync_pb2.SyncResponse(probe=probe)
        case ListForSubject(key, launch_hash, tenant, user):
            asked = sync_pb2.ListSubject(
                key=key_to_proto(key), launch_hash=launch_hash, tenant=tenant, user=user
            )
            return sync_pb2.SyncResponse(list_subject=asked)
        case CancelProbe(probe_id):
            return sync_pb2.SyncResponse(cancel_probe=sync_pb2.CancelProbe(id=probe_id))
        case RevokeLease(lease_id, reason):
            return sync_pb2.SyncResponse(revoke=sync_pb2.Revoke(lease_id=lease_id, reason=reason))
        case DrainWorker(reason):
            return sync_pb2.SyncResponse(drain=sync_pb2.Drain(reason=reason))
        case AskInstances():
            return sync_pb2.SyncResponse(ask_instances=sync_pb2.AskInstances())


def question_from_proto(message: sync_pb2.ApprovalQuestion, worker_id: str) -> ApprovalRequest:
    return ApprovalRequest(
        tenant=message.tenant or DEFAULT_TENANT,
        agent=message.agent,
        session=message.session,
        of_session=message.of_session,
        server_id=message.server_id,
        tool=message.tool,
        digest=message.digest,
        arguments=message.arguments,
        extra=message.extra,
        asked_by=message.asked_by[:_MAX_TEXT],
        worker_id=worker_id,
    )


def _lease_from_proto(message: leases_pb2.Lease, worker_id: str, now: float) -> HeldLease:
    return HeldLease(
        id=message.id,
        key=LeaseKey(message.tenant, message.session, message.server_id),
        worker_id=worker_id,
        granted_at=now - seconds(message.age),
        agent=message.agent,
        ttl=seconds(message.ttl),
        launch_hash=message.launch_hash,
        instance_id=message.instance_id,
        user=message.user,
        holder=message.holder,
    )


def _instances_from_proto(
    messages: Iterable[catalog_pb2.InstanceStatus], worker_id: str
) -> tuple[ReportedInstance, ...]:
    return tuple(_instance_from_proto(message, worker_id) for message in messages)


def _changes_from_proto(message: sync_pb2.Report, worker_id: str) -> InstanceChanges | None:
    if not message.instances_version:
        return None
    changes = (
        (
            change.key[:_MAX_MESSAGE],
            _instance_from_proto(change.status, worker_id) if change.HasField("status") else None,
        )
        for change in message.instance_changes
    )
    return InstanceChanges(message.instances_version, tuple(changes))


def _instance_from_proto(message: catalog_pb2.InstanceStatus, worker_id: str) -> ReportedInstance:
    ahead = seconds(message.next_start_at) if message.HasField("next_start_at") else None
    serves = tuple(name for name in message.serves[:MAX_SERVED] if len(name) <= MAX_NAME)
    return ReportedInstance(
        id=message.id,
        worker_id=worker_id,
        key=key_from_proto(message.variant),
        state=message.state,
        lease_id=message.lease_id,
        pid=message.pid,
        starts=message.starts,
        launch_hash=message.launch_hash,
        role=message.role,
        failures=message.failures,
        circuit=message.circuit,
        next_start_at=ahead,
        serves=serves if message.serves else (ANYONE,),
    )
