"""Who may use a lease, and what others are told. Reads the table, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from leaseway.data_plane.core.leases.errors import lease_ended, other_user, wrong_holder
from leaseway.data_plane.core.leases.table import LeaseTable, WorkerLease
from leaseway.data_plane.core.subjects import user_of_subject
from leaseway.identity.principal import Principal
from leaseway.wire.errors import Fault
from leaseway.wire.names import LeaseKey


class LeaseHolders:
    """Answers who may use a lease.

    Args:
        table: The held leases, and those that have ended.
        clock: Seconds, monotonic.
    """

    def __init__(self, table: LeaseTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock

    def get_held(self, lease_id: str, key: LeaseKey) -> WorkerLease:
        """Return the lease with an id, which must be held for the key.

        Raises:
            Fault: LEASE_EXPIRED, LEASE_REVOKED, LEASE_RELEASED or LEASE_LOST.
        """
        lease = self._table.get(lease_id)
        # Lease ids can be guessed: another tenant's lease looks like one that never existed.
        if lease is None or lease.key.tenant != key.tenant:
            raise self.ended_fault(lease_id, key.tenant)
        if lease.key != key:
            raise wrong_holder(lease_id, key.server_id)
        return lease

    def check_user(self, lease: WorkerLease | None, user: str) -> None:
        """Check that a lease of a server that acts for users was acquired for this one.

        Raises:
            Fault: PERMISSION_DENIED.
        """
        if lease is not None and lease.user and lease.user != user:
            raise other_user(lease.key.server_id)

    def check_holder(self, lease_id: str, tenant: str, session: str, principal: Principal) -> None:
        """Check that a lease, if it is held, is held by a session of a tenant, and by its user.

        Raises:
            Fault: LEASE_LOST, PERMISSION_DENIED.
        """
        self.check_tenant(lease_id, tenant)
        lease = self._table.get(lease_id)
        if lease is not None and lease.key.session != session:
            raise wrong_holder(lease_id)
        self.check_principal(lease_id, principal)

    def check_principal(self, lease_id: str, principal: Principal) -> None:
        """Check that a lease, if it is held, is of a user for whom a principal speaks.

        Raises:
            Fault: PERMISSION_DENIED.
        """
        lease = self._table.get(lease_id)
        if lease is not None and not may_use(lease, principal):
            raise other_user(lease.key.server_id)

    def check_tenant(self, lease_id: str, tenant: str) -> None:
        """Check that a lease, held or on record, belongs to a tenant; empty is any tenant.

        Raises:
            Fault: LEASE_LOST.
        """
        lease = self._table.get(lease_id)
        if lease is not None:
            owner = lease.key.tenant
        else:
            record = self._table.find_ended(lease_id, self._clock())
            owner = record.tenant if record is not None else tenant
        if tenant not in ("", owner):
            raise self.ended_fault(lease_id, tenant)

    def ended_fault(self, lease_id: str, tenant: str = "") -> Fault:
        """Return why a lease is not held; leases of other tenants count as unknown."""
        return lease_ended(lease_id, self._table.find_ended(lease_id, self._clock(), tenant))


def may_use(lease: WorkerLease, principal: Principal) -> bool:
    """Return whether a lease acts for nobody, or for somebody for whom a principal speaks."""
    return not lease.user or principal.speaks_for(user_of_subject(lease.user))


def may_list(lease: WorkerLease, principal: Principal) -> bool:
    """Return whether a principal sees a lease: it may use it, and no other one holds its token."""
    is_own = lease.holder in ("", principal.name) or principal.names_users
    return is_own and may_use(lease, principal)
