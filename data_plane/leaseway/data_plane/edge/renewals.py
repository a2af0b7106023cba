"""Keep-alive, the same on an exchange and as an RPC of its own."""

from __future__ import annotations

from typing import Final

from leaseway.data_plane.edge.lease_keeper import LeaseKeeper
from leaseway.v1 import leases_pb2
from leaseway.wire.durations import duration
from leaseway.wire.fault import Fault, status_from_fault
from leaseway.wire.reasons import Reason

__all__ = ["renew_all"]

_MOST: Final = 1024


def renew_all(
    leases: LeaseKeeper, request: leases_pb2.KeepAliveRequest
) -> leases_pb2.KeepAliveResponse:
    """Renew the leases that a caller names, and say what became of each."""
    response = leases_pb2.KeepAliveResponse()
    for index, lease_id in enumerate(request.lease_ids):
        renewal = response.renewals.add(lease_id=lease_id)
        try:
            if index >= _MOST:
                raise Fault(
                    Reason.INVALID_REQUEST, f"One keep-alive renews at most {_MOST} leases."
                )
            renewal.ttl.CopyFrom(duration(leases.renew(lease_id).ttl))
        except Fault as fault:
            renewal.error.CopyFrom(status_from_fault(fault))
    return response
