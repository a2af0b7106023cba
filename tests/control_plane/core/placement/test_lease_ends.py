"""Recently ended leases."""

from __future__ import annotations

from leaseway.control_plane.core.placement.lease_ends import LeaseEnds, ReportedLeaseEnd


def end(number: int, how: str = "released") -> ReportedLeaseEnd:
    return ReportedLeaseEnd(f"run-{number}", "default", how)


def test_ends_are_known_for_a_minute_the_oldest_first() -> None:
    ends = LeaseEnds()
    ends.record([end(1)], 0.0)
    ends.record([end(2), end(3)], 30.0)
    assert ends.recent(59.9) == [end(1), end(2), end(3)]
    assert ends.recent(60.0) == [end(2), end(3)]
    assert ends.recent(90.0) == []


def test_the_last_report_of_a_lease_counts() -> None:
    ends = LeaseEnds()
    ends.record([end(1), end(2)], 0.0)
    ends.record([end(1, "revoked")], 1.0)
    assert ends.recent(2.0) == [end(2), end(1, "revoked")]


def test_the_oldest_ends_over_the_limit_are_dropped() -> None:
    ends = LeaseEnds()
    ends.record([end(number) for number in range(5000)], 0.0)
    recent = ends.recent(1.0)
    assert len(recent) == 4096
    assert recent[-1] == end(4999)
