"""Why there is no lease, in sentences (DESIGN §7). Pure."""

from __future__ import annotations

from typing import Final

from leaseway.data_plane.core.leases.table import EndedLease, LeaseLimitReached, LeaseOutcome
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.limits import limit_metadata

_REASONS: Final[dict[LeaseOutcome, Reason]] = {
    "expired": Reason.LEASE_EXPIRED,
    "revoked": Reason.LEASE_REVOKED,
    "released": Reason.LEASE_RELEASED,
    "lost": Reason.LEASE_LOST,
}
_UNKNOWN: Final = EndedLease("lost", "this worker does not know it; it was restarted, perhaps", 0.0)


def lease_ended(lease_id: str, ended: EndedLease | None) -> Fault:
    """Return that a lease is not held any more.

    Args:
        lease_id: The lease.
        ended: How it ended, or None where nobody remembers.
    """
    ended = ended or _UNKNOWN
    why = f": {ended.why.rstrip('.')}" if ended.why else ""
    word = "was" if ended.how in ("revoked", "released", "lost") else "has"
    return Fault(
        _REASONS[ended.how],
        f"Lease {lease_id[:64]} {word} {ended.how}{why}. Acquire a new one to go on; what the "
        "old one's server kept is gone.",
        metadata={"lease": lease_id[:64]},
    )


def not_theirs(lease_id: str, which: str) -> Fault:
    """Return that a lease is somebody else's; `which` says whose it would be, as `of`."""
    return Fault(
        Reason.LEASE_LOST,
        f"Lease {lease_id[:64]} is not one {which} this tenant and session; acquire one.",
        metadata={"lease": lease_id[:64]},
    )


def capacity_error(server_id: str, full: LeaseLimitReached) -> Fault:
    metadata: dict[str, str] = {}
    if full.of_tenant:
        metadata = limit_metadata("leases", "tenant")
    elif full.of_line:
        metadata = limit_metadata("lease_waits", "tenant")
    return Fault(
        Reason.CAPACITY,
        f"There is no room for a lease of server {server_id}: {full}. Wait, release a lease, or "
        "add workers.",
        metadata=metadata,
        retry_delay=1.0,
    )


def not_leasable(server_id: str) -> Fault:
    return Fault(
        Reason.NOT_LEASABLE,
        f"Server {server_id} is shared (truely-stateless: true): call it without a lease.",
    )
