"""Operators' commands: executed, recorded in the history and in a worker's audit.

The audit record is sent to the worker that the command concerns, or else to another worker, before
the command itself.
"""

from __future__ import annotations

import logging
from typing import Final

from leaseway.control_plane.plane import Plane
from leaseway.identity.refusals import RpcRefusal
from leaseway.v1 import sync_pb2
from leaseway.wire import bounds
from leaseway.wire.advice import for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.events import EventRecord

_logger = logging.getLogger(__name__)
CONFIRM_TIMEOUT: Final = 5.0
"""Seconds that a worker may take to confirm the end of a lease."""
_OK: Final = "ok"
_SHOWN: Final = 128
_LISTED: Final = 20
_MAX_REASON: Final = 512


class OperatorCommands:
    """Drains workers and revokes leases for operators, and records rejected requests."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def drain(self, worker_id: str, by: str) -> None:
        """Drain a worker.

        Args:
            by: The operator's credential.

        Raises:
            Fault: INVALID_REQUEST: the worker is not connected.
        """
        action = sync_pb2.OperatorAction(action="drain", worker_id=worker_id[:_SHOWN], by=by)
        record = self._plane.state.workers.get(worker_id)
        if record is None or not record.connected:
            raise self._refused(action, Fault(Reason.INVALID_REQUEST, self._no_worker(worker_id)))
        self._record(action, worker_id)
        message = f"Worker {worker_id} was drained by {by}."
        at = self._plane.clock().unix
        self._plane.events.record(
            EventRecord("operator", "drained", message, at, worker_id=worker_id)
        )
        with self._plane.transition() as (state, now):
            state.drain_worker(worker_id, now)

    def revoke(self, lease_id: str, by: str, reason: str = "") -> None:
        """Revoke a lease.

        Args:
            by: The operator's credential.
            reason: The reason that its holder gets.

        Raises:
            Fault: LEASE_LOST: no worker holds it; WORKER_LOST: its worker is not connected.
        """
        shown = lease_id[:_SHOWN]
        reason = reason[:_MAX_REASON] or "an operator revoked it"
        action = sync_pb2.OperatorAction(action="revoke", lease_id=shown, by=by, reason=reason)
        held = self._plane.state.placements.leases.get(lease_id)
        metadata = {"lease": shown}
        if held is None:
            message = f"No worker holds lease '{shown}'."
            metadata |= for_operators("Look at `leaseway leases`.")
            raise self._refused(action, Fault(Reason.LEASE_LOST, message, metadata=metadata))
        key = held.key
        action.tenant, action.session, action.server_id = key.tenant, key.session, key.server_id
        if held.worker_id not in self._plane.streams:
            message = (
                f"Worker '{held.worker_id}', which holds lease '{lease_id}', is not connected. Its"
                f" leases are removed if it does not reconnect within {bounds.WORKER_LOST_AFTER:g}"
                " s."
            )
            raise self._refused(action, Fault(Reason.WORKER_LOST, message, metadata=metadata))
        self._record(action, held.worker_id)
        self._plane.events.record(
            EventRecord(
                "operator",
                "revoked",
                f"Lease {lease_id} of {key.server_id} was revoked by {by}: {reason}",
                self._plane.clock().unix,
                server_id=key.server_id,
                tenant=key.tenant,
                worker_id=held.worker_id,
                lease_id=lease_id,
                session=key.session,
            )
        )
        with self._plane.transition() as (state, _):
            state.revoke_lease(lease_id, reason)

    async def wait_for_end(self, lease_id: str, timeout: float) -> bool:
        """Wait until a lease has ended; return False after `timeout` seconds."""
        until = self._plane.clock().mono + timeout
        while lease_id in self._plane.state.placements.leases:
            remaining = until - self._plane.clock().mono
            if remaining <= 0.0:
                return False
            await self._plane.wait_for_change(remaining)
        return True

    def record_try(self, server_id: str, tool: str, tenant: str, worker_id: str, by: str) -> None:
        """Record that an operator calls a tool for a tenant on a worker."""
        action = sync_pb2.OperatorAction(
            action="try", server_id=server_id, tool=tool, tenant=tenant, by=by
        )
        self._record(action, worker_id)
        message = f"{server_id}:{tool} was called in the console for {tenant}, by {by}."
        at = self._plane.clock().unix
        self._plane.events.record(
            EventRecord("operator", "tried", message, at, server_id=server_id)
        )

    def record_refusals(self, refusal: RpcRefusal, times: int) -> None:
        """Record RPCs that were rejected for their credential."""
        _logger.warning(
            "RPCs were rejected",
            extra={
                "rpc": refusal.rpc or "unknown",
                "by": refusal.by or "unknown",
                "peer": refusal.peer,
                "outcome": refusal.outcome,
                "times": times,
            },
        )
        stream = next(iter(self._plane.streams.values()), None)
        if stream is not None:
            refused = sync_pb2.RefusedRpc(
                rpc=refusal.rpc[:_SHOWN],
                by=refusal.by,
                peer=refusal.peer,
                outcome=refusal.outcome,
                times=times,
            )
            stream.send(sync_pb2.SyncResponse(refused_rpc=refused))

    def _refused(self, action: sync_pb2.OperatorAction, fault: Fault) -> Fault:
        self._record(action, action.worker_id, fault.reason.value)
        return fault

    def _record(self, action: sync_pb2.OperatorAction, worker_id: str, outcome: str = _OK) -> None:
        action.outcome = outcome
        streams = self._plane.streams
        stream = streams.get(worker_id) or next(iter(streams.values()), None)
        if stream is not None:
            stream.send(sync_pb2.SyncResponse(operator_action=action))

    def _no_worker(self, worker_id: str) -> str:
        state = self._plane.state
        known = [record.id for _, record in sorted(state.workers.items()) if record.connected]
        if not known:
            return "No worker is connected."
        listed = ", ".join(known[:_LISTED]) + (" and more" if len(known) > _LISTED else "")
        return f"No worker '{worker_id[:_SHOWN]}' is connected. Connected are: {listed}."
