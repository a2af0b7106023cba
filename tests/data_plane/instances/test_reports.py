"""Leases that are granted and end between two reports."""

from __future__ import annotations

from leaseway.data_plane.core.leases.table import LeaseTable, WorkerLease
from leaseway.data_plane.instances.reports import LeaseEnd, Reports
from leaseway.spec.model import VariantKey
from leaseway.wire.names import LeaseKey


def granted(session: str) -> WorkerLease:
    table = LeaseTable("run", 10)
    key = LeaseKey("default", session, "a")
    lease, _ = table.acquire(
        key, 0.0, variant=VariantKey("a"), launch_hash="h", agent="", server_limit=10
    )
    return lease


async def test_a_lease_that_ends_before_it_was_reported_is_reported_as_granted_and_ended() -> None:
    reports, brief = Reports(), granted("brief")
    reports.add_lease(brief)
    reports.add_lease_end(LeaseEnd(brief, "released"))
    leases, ends, _ = reports.pop_changes()
    assert (list(leases), list(ends)) == ([brief], [LeaseEnd(brief, "released")])


async def test_a_granted_lease_is_reported_once() -> None:
    reports, held = Reports(), granted("held")
    reports.add_lease(held)
    reports.pop_changes()
    reports.add_lease_end(LeaseEnd(held, "expired"))
    leases, ends, _ = reports.pop_changes()
    assert (list(leases), list(ends)) == ([], [LeaseEnd(held, "expired")])


async def test_leases_that_ended_without_a_stream_are_reported_on_the_next_one() -> None:
    reports, held, gone = Reports(), granted("held"), granted("gone")
    reports.add_lease(held)
    reports.add_lease_end(LeaseEnd(gone, "expired"))
    reports.reset_for_new_stream()
    leases, ends, _ = reports.pop_changes()
    assert (list(leases), list(ends)) == ([], [LeaseEnd(gone, "expired")])
    reports.reset_for_new_stream()
    assert list(reports.pop_changes()[1]) == []


async def test_an_unasked_end_is_reported_on_every_new_stream_until_its_key_has_a_lease() -> None:
    reports, gone = Reports(), granted("gone")
    end = LeaseEnd(gone, "expired", "It has expired.", unasked=True)
    reports.add_lease_end(end)
    for _ in range(2):
        reports.reset_for_new_stream()
        assert list(reports.pop_changes()[1]) == [end]
    reports.add_lease(granted("gone"))
    reports.reset_for_new_stream()
    assert list(reports.pop_changes()[1]) == []
