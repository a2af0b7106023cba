"""Denials for lack of capacity: which limit was reached, and what helps (design.md#leases)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import PlacementTable, tenant_limit
from leaseway.spec.policy import OTHER_TENANTS
from leaseway.wire import bounds
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.limits import LimitEntry, limit_metadata

_RETRY: Final = 1.0
_RELEASE: Final = "Release leases that are not needed"
_OF_SERVER: Final = "(max_instances)"
_WAIT: Final = "or let the request wait for capacity (wait=)"


def capacity_error(
    table: PlacementTable,
    key: LeaseKey,
    able: Sequence[str],
    max_leases: int,
    of_tenant: int | None = None,
    of_server: int | None = None,
    tenant_entry: str = OTHER_TENANTS,
) -> Denial:
    """Return the denial for a lease that no worker has capacity for.

    Args:
        table: Leases and reservations.
        key: The requested lease.
        able: Workers that could hold it, at least one. One with free capacity has refused it.
        max_leases: Limit of leases of the server per worker.
        of_tenant: The tenant's limit of leases in the configuration, or None.
        of_server: The server's, or None.
        tenant_entry: The name of the configuration's entry that limits the tenant.
    """
    if table.is_tenant_full(key.tenant, of_tenant):
        metadata = limit_metadata("leases", "tenant", LimitEntry(tenant_entry))
        holder = f"Tenant '{key.tenant}' holds"
        return _full(holder, tenant_limit(of_tenant), {"tenant": key.tenant, **metadata})
    if of_server is not None and table.is_server_full(key.server_id, of_server):
        metadata = limit_metadata("leases", "server", LimitEntry(server_id=key.server_id))
        holder = f"Server '{key.server_id}' has"
        return _full(holder, of_server, {"server": key.server_id, **metadata})
    limits = Counter(_limit(table, key.server_id, worker, max_leases) for worker in able)
    found = ", ".join(_workers(count, limit) for limit, count in sorted(limits.items()))
    instances = " raise its 'max_instances'," if any(map(_is_of_server, limits)) else ""
    message = (
        f"There is no capacity for another lease of server '{key.server_id}': {found}. {_RELEASE},"
        f"{instances} add workers, {_WAIT}."
    )
    return Denial(Reason.CAPACITY, message, _RETRY, {"server": key.server_id})


def queue_full_error(server_id: str) -> Denial:
    """Return the denial for a request that finds the wait queue full."""
    message = (
        f"{bounds.MAX_WAITING} requests already wait for capacity; the request for server"
        f" '{server_id}' cannot wait. Try again later, or add workers."
    )
    metadata = {"server": server_id, **limit_metadata("lease_waits", "tenant")}
    return Denial(Reason.CAPACITY, message, _RETRY, metadata)


def _full(holder: str, limit: int, metadata: dict[str, str]) -> Denial:
    message = f"{holder} {limit} leases, which is its limit. {_RELEASE}, {_WAIT}."
    return Denial(Reason.CAPACITY, message, _RETRY, metadata)


def _limit(table: PlacementTable, server_id: str, worker_id: str, max_leases: int) -> str:
    """Return why a worker cannot take the lease, as the end of "1 worker ..."."""
    if table.server_load(worker_id, server_id) >= max_leases:
        return f"with {max_leases} of {max_leases} leases of it {_OF_SERVER}"
    capacity = table.capacity(worker_id)
    if table.load(worker_id) >= capacity:
        return f"with {capacity} of {capacity} leases of any server (capacity)"
    return "that just refused it or could not be reached"


def _is_of_server(limit: str) -> bool:
    return limit.endswith(_OF_SERVER)


def _workers(count: int, limit: str) -> str:
    return f"{count} worker{'' if count == 1 else 's'} {limit}"
