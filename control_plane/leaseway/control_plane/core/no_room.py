"""Why there is no room for a lease: the limit that was hit, and what helps (DESIGN §5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from leaseway.control_plane.core.placement import Candidate, LeaseKey, PlacementTable
from leaseway.control_plane.core.refusal import Denied
from leaseway.control_plane.core.room_line import MAX_WAITING
from leaseway.wire import bounds
from leaseway.wire.reasons import Reason

__all__ = ["no_room", "too_many"]

_RETRY: Final = 1.0
_RELEASE: Final = "Release leases that are not needed"
_OF_SERVER: Final = "(max_instances)"
_WAIT: Final = "or let the request wait for room (wait=)"


def no_room(
    table: PlacementTable, key: LeaseKey, able: Sequence[Candidate], excluded: Collection[str]
) -> Denied:
    """Return the refusal for a lease that no worker has room for.

    Args:
        table: What the workers hold.
        key: The lease.
        able: The workers that could hold it, at least one.
        excluded: Those that refused it or could not be reached.
    """
    if table.has_all(key.tenant):
        return _has_all(key.tenant)
    limits = Counter(_limit(table, key.server_id, one, excluded) for one in able)
    found = ", ".join(_workers(count, limit) for limit, count in sorted(limits.items()))
    instances = " raise its 'max_instances'," if any(map(_is_of_server, limits)) else ""
    message = (
        f"There is no room for another lease of server '{key.server_id}': {found}. {_RELEASE},"
        f"{instances} add workers, {_WAIT}."
    )
    return Denied(Reason.CAPACITY, message, _RETRY, {"server": key.server_id})


def too_many(server_id: str) -> Denied:
    """Return the refusal for a lease that may not even wait."""
    message = (
        f"{MAX_WAITING} requests wait for room already; none is taken in for server"
        f" '{server_id}'. Try again later, or add workers."
    )
    return Denied(Reason.CAPACITY, message, _RETRY, {"server": server_id})


def _has_all(tenant: str) -> Denied:
    message = (
        f"Tenant '{tenant}' holds {bounds.MAX_TENANT_LEASES} leases, as many as it may."
        f" {_RELEASE}, {_WAIT}."
    )
    return Denied(Reason.CAPACITY, message, _RETRY, {"tenant": tenant})


def _limit(
    table: PlacementTable, server_id: str, worker: Candidate, excluded: Collection[str]
) -> str:
    """Return what keeps a worker from taking the lease, as the end of "1 worker ..."."""
    if table.load_of(worker.worker_id, server_id) >= worker.most:
        return f"with {worker.most} of {worker.most} leases of it {_OF_SERVER}"
    if table.load(worker.worker_id) >= worker.capacity:
        return f"with {worker.capacity} of {worker.capacity} leases of any server (capacity)"
    return "that just refused it or could not be reached"


def _is_of_server(limit: str) -> bool:
    return limit.endswith(_OF_SERVER)


def _workers(count: int, limit: str) -> str:
    return f"{count} worker{'' if count == 1 else 's'} {limit}"
