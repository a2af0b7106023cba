"""Lease errors as callers read them (design.md#errors). Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leaseway.data_plane.core.leases.table import EndedLease, LeaseLimitReached
from leaseway.wire.advice import for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.states import LEASE_END_REASONS
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.limits import LimitEntry, limit_metadata

_UNKNOWN: Final = EndedLease("lost", "this worker has no record of it; it may have restarted", 0.0)


def lease_ended(lease_id: str, ended: EndedLease | None) -> Fault:
    """Return the fault for a lease that has ended; None is a lease without a record."""
    ended = ended or _UNKNOWN
    cause = f": {ended.cause.rstrip('.')}" if ended.cause else ""
    verb = "has" if ended.outcome == "expired" else "was"
    return Fault(
        LEASE_END_REASONS[ended.outcome],
        f"Lease {lease_id[:64]} {verb} {ended.outcome}{cause}. The state that the server kept for "
        "it is lost.",
        metadata={"lease": lease_id[:64]} | for_operators("Acquire a new lease."),
    )


def told_once(fault: Fault, key: LeaseKey) -> Fault:
    """Return the fault for a first call of a session that did not know that its lease ended."""
    return replace(
        fault,
        message=f"{fault.message} The session '{key.session}' is told this once: its next call of "
        f"server '{key.server_id}' gets a new lease.",
        metadata={**fault.metadata, "server": key.server_id},
    )


def wrong_holder(lease_id: str, server_id: str = "") -> Fault:
    """Return the fault for a lease of another session, or of another server than the named one."""
    of_server = f" of server {server_id[:64]}" if server_id else ""
    return Fault(
        Reason.LEASE_LOST,
        f"Lease {lease_id[:64]} is no lease{of_server} of this tenant and session; acquire one.",
        metadata={"lease": lease_id[:64]},
    )


def other_user(server_id: str) -> Fault:
    """Return the fault for a lease that was acquired for another user of the tenant."""
    return Fault(
        Reason.PERMISSION_DENIED,
        f"The session's lease of server {server_id} is of another user. Give each user sessions of "
        "their own.",
        metadata={"server": server_id},
    )


def capacity_error(server_id: str, limit: LeaseLimitReached, tenant_entry: str) -> Fault:
    """Return the fault for a lease that this worker has no room for.

    Args:
        server_id: The server.
        limit: What is full.
        tenant_entry: The name of the configuration's entry that limits the tenant.
    """
    metadata = (
        limit_metadata("leases", "tenant", LimitEntry(tenant_entry)) if limit.tenant_full else {}
    )
    return Fault(
        Reason.CAPACITY,
        f"There is no room for a lease of server {server_id}: {limit}. Wait, release a lease, or "
        "add workers.",
        metadata=metadata,
        retry_delay=1.0,
    )


def not_leasable(server_id: str) -> Fault:
    return Fault(
        Reason.NOT_LEASABLE,
        f"Server {server_id} is shared (truely-stateless: true): call it without a lease.",
    )
