"""How long a lease may live between two renewals (DESIGN §5)."""

from __future__ import annotations

from leaseway.wire.bounds import MAX_LEASE_TTL, MIN_LEASE_TTL
from leaseway.wire.errors import Fault, Reason


def check_lease_ttl(ttl: float) -> None:
    """Check a time to live in seconds.

    Raises:
        Fault: INVALID_REQUEST: it is out of bounds.
    """
    if not MIN_LEASE_TTL <= ttl <= MAX_LEASE_TTL:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"A lease lives {MIN_LEASE_TTL:g} s to {MAX_LEASE_TTL:g} s; ttl={ttl:g} is not "
            "within that.",
        )
