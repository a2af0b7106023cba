"""Records of the audit that are no calls: refused RPCs, and what the control plane reports."""

from __future__ import annotations

from leaseway.data_plane.audit.record import Recorder
from leaseway.identity.refusals import RpcRefusal
from leaseway.v1 import sync_pb2

AuditMessage = sync_pb2.ApprovalDecision | sync_pb2.OperatorAction | sync_pb2.RefusedRpc


class PlaneRecords:
    """Records decisions about calls, operators' actions and refused RPCs.

    Args:
        recorder: Writes the records, or None if there is no audit.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def record_refused_rpc(self, refusal: RpcRefusal, times: int) -> None:
        """Record RPCs that this worker refused because of their caller's identity."""
        if self._recorder is not None:
            self._recorder.record_refusal(refusal, times, "worker")

    def record(self, message: AuditMessage) -> None:
        """Record what the control plane reports."""
        if self._recorder is None:
            return
        if isinstance(message, sync_pb2.RefusedRpc):
            refusal = RpcRefusal(message.rpc, message.by, message.peer, message.outcome)
            self._recorder.record_refusal(refusal, message.times, "control-plane")
        elif isinstance(message, sync_pb2.OperatorAction):
            self._recorder.record_operator(message)
        else:
            self._recorder.record_approval(message)
