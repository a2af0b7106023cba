"""What a worker has to tell: leases that come and go faster than it reports."""

from __future__ import annotations

from leaseway.data_plane.core.leases.table import LeaseTable, WorkerLease, WorkerLeaseKey
from leaseway.data_plane.instances.reports import Reports
from leaseway.spec.model import VariantKey


def granted(session: str) -> WorkerLease:
    table = LeaseTable("run", 10)
    key = WorkerLeaseKey("default", session, "a")
    lease, _ = table.acquire(
        key, 0.0, variant=VariantKey("a"), launch_hash="h", ttl=None, agent="", server_limit=10
    )
    return lease


async def test_a_lease_that_ends_before_it_was_reported_is_reported_as_gained_and_as_lost() -> None:
    reports, brief = Reports(), granted("brief")
    reports.add_lease(brief)
    reports.add_lease_end(brief, "released")
    gained, lost, _ = reports.pop_changes()
    assert (list(gained), list(lost)) == ([brief], [(brief.id, "default", "released")])


async def test_what_was_taken_is_not_reported_again() -> None:
    reports, held = Reports(), granted("held")
    reports.add_lease(held)
    reports.pop_changes()
    reports.add_lease_end(held, "expired")
    gained, lost, _ = reports.pop_changes()
    assert (list(gained), list(lost)) == ([], [(held.id, "default", "expired")])


async def test_how_leases_ended_without_a_control_plane_is_told_to_the_next_one() -> None:
    reports, held, gone = Reports(), granted("held"), granted("gone")
    reports.add_lease(held)
    reports.add_lease_end(gone, "expired")
    reports.reset_for_new_stream()
    gained, lost, _ = reports.pop_changes()
    assert (list(gained), list(lost)) == ([], [(gone.id, "default", "expired")])
    reports.reset_for_new_stream()
    assert list(reports.pop_changes()[1]) == []
