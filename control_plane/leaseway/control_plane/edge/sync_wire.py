"""Sync messages to and from what the core knows: converted once, here (DESIGN §8)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal, cast

from leaseway.control_plane.core.actions import (
    Action,
    CancelProbe,
    DrainWorker,
    PushDelta,
    RevokeLease,
    StartProbe,
    WantContent,
)
from leaseway.control_plane.core.fleet import InstanceInfo, WorkerAddress, WorkerHello, WorkerReport
from leaseway.control_plane.core.placement import HeldLease, LeaseKey
from leaseway.control_plane.core.problems import Problem, Scope
from leaseway.control_plane.core.subscription import Refusal
from leaseway.control_plane.core.variants import Exposed, Hashes, Listing, RecordedTool, Served
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire import bounds
from leaseway.wire.spec_wire import (
    key_from_wire,
    key_to_wire,
    seconds,
    spec_from_wire,
    spec_to_wire,
)

__all__ = [
    "MalformedMessage",
    "action_to_wire",
    "hello_from_wire",
    "listing_from_wire",
    "problem_from_wire",
    "refusal_from_wire",
    "report_from_wire",
    "served_from_wire",
]

_LONGEST_SUBJECT = 256


class MalformedMessage(Exception):
    """A worker said something that no worker of this protocol says; the message says what."""


def hello_from_wire(message: sync_pb2.Hello, now: float) -> WorkerHello:
    """Return how a worker introduces itself.

    Raises:
        MalformedMessage: It lacks its id, its incarnation or its address.
    """
    worker = message.worker
    if not worker.id or not worker.incarnation or not worker.address:
        raise MalformedMessage("A worker must name its id, its incarnation and its address.")
    return WorkerHello(
        address=WorkerAddress(worker.id, worker.incarnation, worker.address, worker.unix_socket),
        capacity=message.capacity or bounds.MAX_LEASES,
        package_version=message.package_version,
        labels=dict(message.labels),
        highest_version=message.highest_registry_version,
        highest_epoch=message.highest_epoch,
        held={key_from_wire(held.key): _hashes_from_wire(held) for held in message.held},
        leases=tuple(_lease_from_wire(lease, worker.id, now) for lease in message.leases),
        instances=_instances_from_wire(message.instances, worker.id),
    )


def report_from_wire(message: sync_pb2.Report, worker_id: str, now: float) -> WorkerReport:
    """Return what a worker says has changed."""
    return WorkerReport(
        gained=tuple(_lease_from_wire(one, worker_id, now) for one in message.leases_gained),
        lost=tuple(message.leases_lost),
        instances=_instances_from_wire(message.instances, worker_id)
        if message.instances_changed
        else None,
        problems=tuple(problem_from_wire(problem) for problem in message.problems),
        cleared=tuple(problem_from_wire(problem) for problem in message.cleared),
        calls_in_flight=message.calls_in_flight,
        draining=message.draining,
    )


def served_from_wire(message: sync_pb2.Upsert) -> Served:
    """Return a variant that a worker holds.

    Raises:
        MalformedMessage: A recorded tool is no JSON object with a name.
    """
    toolset = message.toolset
    return Served(
        spec=spec_from_wire(message.spec),
        hashes=_hashes_from_wire(message.hashes),
        listing=listing_from_wire(toolset.recorded, toolset.protocol_version),
        exposed=tuple(Exposed(t.original_name, t.name, t.skipped) for t in toolset.exposed),
    )


def listing_from_wire(tools: Iterable[sync_pb2.RecordedTool], protocol_version: str) -> Listing:
    """Return the tools that a server listed.

    Raises:
        MalformedMessage: One of them is no JSON object with a name.
    """
    return Listing(tuple(_recorded_from_wire(tool) for tool in tools), protocol_version)


def refusal_from_wire(message: sync_pb2.Refusal) -> Refusal:
    """Return why a worker did not apply one variant."""
    failed = message.kind == sync_pb2.Refusal.KIND_FAILED
    problem = problem_from_wire(message.problem)
    kind: Literal["rejected", "failed"] = "failed" if failed else "rejected"
    return Refusal(key_from_wire(message.key), kind, problem.reason, problem.message)


def problem_from_wire(message: admin_pb2.Problem) -> Problem:
    """Return a problem; its times and count are the control plane's own."""
    known = ("workspace", "server", "worker", "client")
    return Problem(
        scope=cast("Scope", message.scope if message.scope in known else "client"),
        reason=message.reason or "UNSPECIFIED",
        message=message.message,
        server_id=message.server_id,
        tenant=message.tenant,
        worker_id=message.worker_id,
        severity="warning" if message.severity == "warning" else "error",
        subject=message.subject[:_LONGEST_SUBJECT],
    )


def action_to_wire(action: Action, epoch: int) -> sync_pb2.SyncResponse:
    """Return the message that carries out an action."""
    match action:
        case PushDelta():
            return sync_pb2.SyncResponse(delta=_delta_to_wire(action, epoch))
        case WantContent(keys):
            want = sync_pb2.Want(keys=[key_to_wire(key) for key in keys])
            return sync_pb2.SyncResponse(want=want)
        case StartProbe():
            probe = sync_pb2.Probe(
                id=action.id,
                spec=spec_to_wire(action.spec),
                launch_hash=action.spec.launch_hash,
                traceparent=action.trace,
            )
            return sync_pb2.SyncResponse(probe=probe)
        case CancelProbe(probe_id):
            return sync_pb2.SyncResponse(cancel_probe=sync_pb2.CancelProbe(id=probe_id))
        case RevokeLease(lease_id, reason):
            return sync_pb2.SyncResponse(revoke=sync_pb2.Revoke(lease_id=lease_id, reason=reason))
        case DrainWorker(reason):
            return sync_pb2.SyncResponse(drain=sync_pb2.Drain(reason=reason))


def _delta_to_wire(action: PushDelta, epoch: int) -> sync_pb2.Delta:
    push = action.push
    return sync_pb2.Delta(
        nonce=push.nonce,
        epoch=epoch,
        registry_version=push.version,
        upserts=[_served_to_wire(served) for served in push.upserts],
        removals=[key_to_wire(key) for key in push.removals],
        traceparent=action.trace,
    )


def _served_to_wire(served: Served) -> sync_pb2.Upsert:
    key = key_to_wire(served.key)
    return sync_pb2.Upsert(
        spec=spec_to_wire(served.spec),
        hashes=sync_pb2.HeldHashes(
            key=key,
            launch_hash=served.hashes.launch,
            exposure_hash=served.hashes.exposure,
            toolset_hash=served.hashes.toolset,
        ),
        toolset=sync_pb2.Toolset(
            recorded=[sync_pb2.RecordedTool(definition=t.definition) for t in served.listing.tools],
            exposed=[
                sync_pb2.ExposedTool(original_name=t.original, name=t.name, skipped=t.skipped)
                for t in served.exposed
            ],
            protocol_version=served.listing.protocol_version,
        ),
    )


def _recorded_from_wire(tool: sync_pb2.RecordedTool) -> RecordedTool:
    try:
        name = json.loads(tool.definition)["name"]
    except (ValueError, TypeError, KeyError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise MalformedMessage("A recorded tool is not a JSON object with a name.")
    return RecordedTool(name, tool.definition)


def _hashes_from_wire(message: sync_pb2.HeldHashes) -> Hashes:
    return Hashes(message.launch_hash, message.exposure_hash, message.toolset_hash)


def _lease_from_wire(message: leases_pb2.Lease, worker_id: str, now: float) -> HeldLease:
    return HeldLease(
        id=message.id,
        key=LeaseKey(message.tenant, message.session, message.server_id),
        worker_id=worker_id,
        granted_at=now - seconds(message.age),
        agent=message.agent,
        ttl=seconds(message.ttl),
        launch_hash=message.launch_hash,
        instance_id=message.instance_id,
    )


def _instances_from_wire(
    messages: Iterable[catalog_pb2.InstanceStatus], worker_id: str
) -> tuple[InstanceInfo, ...]:
    return tuple(
        InstanceInfo(
            id=message.id,
            worker_id=worker_id,
            key=key_from_wire(message.variant),
            state=message.state,
            lease_id=message.lease_id,
            pid=message.pid,
            starts=message.starts,
            launch_hash=message.launch_hash,
            role=message.role,
            failures=message.failures,
            circuit=message.circuit,
            next_start_at=message.next_start_at.ToNanoseconds() / 1e9
            if message.HasField("next_start_at")
            else None,
        )
        for message in messages
    )
