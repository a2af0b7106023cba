"""Converts the core's values to the protobuf messages of callers and operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from google.protobuf.timestamp_pb2 import Timestamp

from leaseway.control_plane.core.approvals import ApprovalRecord
from leaseway.control_plane.core.catalog.kinds import TOOLS
from leaseway.control_plane.core.catalog.snapshot import NamedTarget, ResourceTarget
from leaseway.control_plane.core.catalog.tenant_hiding import hides_temporarily
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import OpenProblem
from leaseway.control_plane.core.queries.limits import LimitStatus
from leaseway.control_plane.core.queries.status import VariantStatus, variant_status
from leaseway.control_plane.core.workers.instances import ReportedInstance
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.spec.codec import key_to_proto
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.errors import Fault
from leaseway.wire.listing.definitions import call_hints
from leaseway.wire.listing.listed import listed_prompt, listed_resource, listed_tool
from leaseway.wire.messages.enums import server_state_to_proto
from leaseway.wire.messages.mcp import Introduction
from leaseway.wire.messages.states import ServerState
from leaseway.wire.status import status_from_fault
from leaseway.wire.text.visible_text import unmistakable
from leaseway.wire.timing import durations
from leaseway.wire.timing.durations import duration


def denial(denied: Denial) -> Fault:
    """Return the fault for a denial of the core."""
    return Fault(
        denied.reason,
        denied.message,
        metadata={key: value for key, value in denied.metadata.items() if value},
        retry_delay=denied.retry_delay,
    )


def timestamp(unix: float | None) -> Timestamp | None:
    return None if unix is None else durations.timestamp(unix)


def worker_ref(record: WorkerRecord) -> catalog_pb2.WorkerRef:
    address = record.hello.address
    return catalog_pb2.WorkerRef(
        id=address.id,
        incarnation=address.incarnation,
        address=address.address,
        unix_socket=address.unix_socket,
    )


def worker(state: Coordinator, record: WorkerRecord) -> admin_pb2.WorkerStatus:
    subscription = record.subscription
    return admin_pb2.WorkerStatus(
        worker=worker_ref(record),
        state=record.state,
        capacity=record.hello.capacity,
        leases=state.placements.held_count(record.id),
        instances=record.instances.live,
        sent_version=subscription.sent_version,
        acked_version=subscription.acked_version,
        last_error=subscription.last_error,
        package_version=record.hello.package_version,
        labels=record.hello.labels,
        servers=record.hello.servers,
    )


def lease(held: HeldLease, now: float) -> leases_pb2.Lease:
    return leases_pb2.Lease(
        id=held.id,
        server_id=held.key.server_id,
        worker_id=held.worker_id,
        tenant=held.key.tenant,
        session=held.key.session,
        agent=held.agent,
        ttl=duration(held.ttl),
        launch_hash=held.launch_hash,
        instance_id=held.instance_id,
        age=duration(max(0.0, now - held.granted_at)),
        user=held.user,
        holder=held.holder,
    )


def limit(status: LimitStatus) -> admin_pb2.LimitStatus:
    """Return what is left of a limit."""
    return admin_pb2.LimitStatus(
        scope=status.scope,
        quota=status.quota,
        tenant=status.tenant,
        server_id=status.server_id,
        agent=status.agent,
        tool=status.tool,
        limit=status.limit,
        period=duration(status.period) if status.period else None,
        remaining=status.remaining,
        renews_in=duration(status.renews_in) if status.renews_in else None,
    )


def problem(open_problem: OpenProblem) -> admin_pb2.Problem:
    detail = open_problem.problem
    return admin_pb2.Problem(
        scope=detail.scope,
        server_id=detail.server_id,
        tenant=detail.tenant,
        worker_id=detail.worker_id,
        reason=detail.reason,
        message=detail.text,
        first_seen=timestamp(open_problem.first_seen),
        last_seen=timestamp(open_problem.last_seen),
        count=open_problem.count,
        severity=detail.severity,
        subject=detail.subject,
    )


def approval(record: ApprovalRecord) -> admin_pb2.Approval:
    request = record.question
    return admin_pb2.Approval(
        id=record.id,
        state=record.state,
        tenant=request.tenant,
        agent=unmistakable(request.agent),
        session=unmistakable(request.session),
        server_id=request.server_id,
        tool=request.tool,
        arguments=request.arguments,
        extra=request.extra,
        asked_by=unmistakable(request.asked_by),
        asked_at=timestamp(record.asked),
        expires_at=timestamp(record.until),
        decided_by=record.decided_by,
        note=record.note,
        digest=request.digest,
    )


def introduction(entry: tuple[str, Introduction]) -> catalog_pb2.Introduction:
    """Return what a server, named by its id, says about itself."""
    server_id, said = entry
    return catalog_pb2.Introduction(
        server_id=server_id,
        instructions=said.instructions,
        extensions=said.extensions,
        capabilities=said.capabilities,
    )


def instances_by_variant(state: Coordinator) -> Mapping[VariantKey, Sequence[ReportedInstance]]:
    """Return the reported instances of all workers, by variant."""
    instances: dict[VariantKey, list[ReportedInstance]] = {}
    for record in state.workers.values():
        for instance in record.instances.all:
            instances.setdefault(instance.key, []).append(instance)
    return instances


def errors_by_server(state: Coordinator) -> Mapping[str, str]:
    """Return the texts of open errors by server, but of none that a caller reports."""
    errors: dict[str, str] = {}
    for problem in state.problems.found():
        if problem.severity == "error":
            errors.setdefault(problem.server_id, problem.text)
    return errors


def server(
    state: Coordinator,
    key: VariantKey,
    now: Moment,
    instances: Iterable[ReportedInstance],
    errors: Mapping[str, str],
) -> catalog_pb2.ServerStatus:
    """Return the status of one configured server.

    Args:
        now: The time.
        instances: The instances to include.
        errors: Messages of servers' open errors, by id.
    """
    served, desired = state.visible.served.get(key), state.servers.desired or {}
    variant = variant_status(state, key)
    if hides_temporarily(served, desired):
        served = None
    spec = served.spec if served else desired.get(key)
    good = state.servers.last_known_good.get(key)
    failure = state.servers.failures.get(key)
    problem = failure.text if failure else ""
    if not problem and _may_have_problem(variant.state):
        problem = errors.get(key.server_id, "")
    if _is_partial(variant):
        problem = f"{problem} Up on {variant.up} of {variant.workers} workers.".strip()
    status = catalog_pb2.ServerStatus(
        server_id=key.server_id,
        tenant=key.tenant,
        state=server_state_to_proto(variant.state),
        problem=problem,
        instances=[instance(reported) for reported in instances],
    )
    outlook = state.servers.probes.retry_outlook(key, now.mono)
    if outlook is not None:
        status.failures = outlook.failures
        if outlook.wait is not None:
            status.next_try_at.CopyFrom(durations.timestamp(now.unix + outlook.wait))
    if spec is not None:
        status.transport, status.shared = spec.transport, spec.truely_stateless
        status.description = spec.description
        status.worker_labels.update(spec.worker_labels)
    if good is not None:
        status.launch_hash, status.exposure_hash = good.launch_hash, good.exposure_hash
        status.protocol_version = good.listing.protocol_version
        wanted = desired.get(key)
        if wanted is not None and wanted.launch_hash != good.launch_hash:
            status.wanted_launch_hash = wanted.launch_hash
    elif spec is not None:
        status.launch_hash, status.exposure_hash = spec.launch_hash, spec.exposure_hash
    if served is not None:
        status.tool_count = len(served.callable_tools)
        status.prompt_count = len(served.callable_prompts)
        status.resource_count = len(served.readable.resources) + len(served.readable.templates)
        status.workers.extend(record.id for record in state.workers_serving(served))
    return status


def _may_have_problem(state: ServerState) -> bool:
    """Return whether an open error of a server explains its state."""
    match state:
        case ServerState.READY | ServerState.PENDING | ServerState.UNKNOWN:
            return False
        case ServerState.FAILED | ServerState.FAILING | ServerState.DEGRADED | ServerState.STARTING:
            return True
        case ServerState.NEEDS_LOGIN:
            return True
    assert_never(state)


def _is_partial(variant: VariantStatus) -> bool:
    """Return whether to count the workers on which a server is up."""
    works_partly = variant.state in (ServerState.DEGRADED, ServerState.FAILING)
    return works_partly and variant.up < variant.workers


def instance(info: ReportedInstance) -> catalog_pb2.InstanceStatus:

    return catalog_pb2.InstanceStatus(
        worker_id=info.worker_id,
        id=info.id,
        state=info.state,
        lease_id=info.lease_id,
        pid=info.pid,
        variant=key_to_proto(info.key),
        starts=info.starts,
        launch_hash=info.launch_hash,
        role=info.role,
        failures=info.failures,
        circuit=info.circuit,
        next_start_at=timestamp(info.next_start_at),
    )


def tool(name: str, target: NamedTarget) -> catalog_pb2.Tool:
    served, original = target.served, target.item.original
    return listed_tool(
        name,
        original,
        served.key.server_id,
        served.listing.by_name[original].definition,
        shared=served.spec.truely_stateless,
        sessions_from=served.spec.sessions_from,
    )


def prompt(name: str, target: NamedTarget) -> catalog_pb2.Prompt:
    served, original = target.served, target.item.original
    return listed_prompt(
        name,
        original,
        served.key.server_id,
        served.listing.prompts_by_name[original].definition,
        shared=served.spec.truely_stateless,
    )


def resource(target: ResourceTarget) -> catalog_pb2.Resource:
    assert target.recorded is not None, "only listed resources have a definition"
    return listed_resource(
        target.uri,
        target.served.key.server_id,
        target.recorded.definition,
        is_template=target.is_template,
        shared=target.served.spec.truely_stateless,
    )


def resolved(
    name: str,
    outcome: NamedTarget | ResourceTarget | Denial,
    workers: Iterable[catalog_pb2.WorkerRef] = (),
    worker_set: int = 0,
) -> catalog_pb2.ResolvedTool:
    """Return the target of a name with its workers, or with the id of their set, or the error."""
    if isinstance(outcome, Denial):
        return catalog_pb2.ResolvedTool(name=name, error=status_from_fault(denial(outcome)))
    served = outcome.served
    answer = catalog_pb2.ResolvedTool(
        name=name,
        server_id=served.key.server_id,
        original_name=(outcome.item.original if isinstance(outcome, NamedTarget) else outcome.uri),
        shared=served.spec.truely_stateless,
        workers=workers,
        worker_set=worker_set,
        call_timeout=duration(served.spec.call_timeout),
    )
    if isinstance(outcome, NamedTarget) and outcome.kind is TOOLS:
        recorded = served.listing.by_name.get(outcome.item.original)
        if recorded is not None:  # None before a login without which nothing is listed
            hints = call_hints(recorded.definition)
            answer.idempotent, answer.read_only = hints.idempotent, hints.read_only
    else:
        answer.read_only = True  # getting a prompt or reading a resource changes nothing
    return answer
