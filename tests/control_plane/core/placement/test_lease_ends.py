"""Recently ended leases."""

from __future__ import annotations

from leaseway.control_plane.core.placement.lease_ends import (
    EndNotices,
    LeaseEnds,
    ReportedLeaseEnd,
    end_denial,
    lost_unreported,
)
from leaseway.control_plane.core.placement.table import UnreportedLease
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey


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


def unasked(number: int, session: str = "s", *, unasked: bool = True) -> ReportedLeaseEnd:
    return ReportedLeaseEnd(
        lease_id=f"run-{number}",
        tenant="default",
        how="expired",
        session=session,
        server_id="desk",
        unasked=unasked,
        message="It has expired.",
    )


def key(session: str = "s") -> LeaseKey:
    return LeaseKey("default", session, "desk")


def test_a_session_is_told_once_that_its_lease_ended() -> None:
    notices = EndNotices()
    notices.record(unasked(1), 0.0)
    assert notices.settle(key("other"), 1.0) is None
    assert notices.last_told(key()) == ""
    assert notices.settle(key(), 1.0) == unasked(1)
    assert notices.settle(key(), 1.0) is None
    assert (notices.last_told(key()), notices.last_told(key("other"))) == ("run-1", "")
    notices.record(unasked(1), 2.0)  # its worker reports it again on a new stream
    assert notices.settle(key(), 2.0) is None


def test_an_end_that_its_session_asked_for_replaces_an_earlier_notice() -> None:
    notices = EndNotices()
    notices.record(unasked(1), 0.0)
    notices.record(unasked(2, unasked=False), 1.0)
    assert notices.settle(key(), 2.0) is None


def test_an_end_that_the_session_knew_before_it_was_reported_is_not_told() -> None:
    notices = EndNotices()
    notices.know(key(), ["run-1", "run-9"], 0.0)
    notices.record(unasked(1), 1.0)
    assert notices.settle(key(), 1.0) is None
    notices.record(unasked(9, "other"), 1.0)  # another session knows nothing
    assert notices.settle(key("other"), 1.0) is not None
    notices.record(unasked(2), 2.0)
    assert notices.settle(key(), 2.0) == unasked(2)


def test_a_client_that_did_not_get_the_answer_is_told_again() -> None:
    notices = EndNotices()
    notices.record(unasked(1), 0.0)
    assert notices.settle(key(), 1.0, "one") == unasked(1)
    assert notices.settle(key(), 2.0, "two") is None, "the session counts as told"
    assert notices.settle(key(), 3.0, "one") == unasked(1)
    notices.know(key(), ["run-1"], 4.0)
    assert notices.settle(key(), 4.0, "one") is None
    notices.record(unasked(2), 5.0)
    assert notices.settle(key(), 5.0, "one") == unasked(2)
    assert notices.settle(key(), 700.0, "one") is None


def unreported(*clients: str) -> ReportedLeaseEnd:
    return lost_unreported(UnreportedLease("run-unreported-1", key(), "w1", frozenset(clients)))


def test_a_lease_that_was_never_reported_is_told_unless_its_client_alone_could_have_it() -> None:
    for clients, told_to in ((["one"], "two"), (["one", "two"], "one"), ([""], "two")):
        notices = EndNotices()
        notices.record(unreported(*clients), 0.0)
        assert notices.settle(key(), 1.0, told_to) == unreported(*clients)
        assert notices.settle(key(), 1.0, "three") is None
    for alone in ("one", ""):  # an older client has no name
        notices = EndNotices()
        notices.record(unreported(alone), 0.0)
        assert notices.settle(key(), 1.0, alone) is None
        assert notices.settle(key(), 1.0, "two") is None, "the first has told its session"


def test_a_lease_that_was_never_reported_is_known_by_the_id_that_its_client_learned() -> None:
    notices = EndNotices()
    notices.know(key(), ["run-1", "other-2"], 0.0)
    notices.record(unreported("one", "two"), 1.0)
    notices.know(key(), ["run-1", "other-3"], 2.0)  # an older lease there, and one elsewhere
    assert notices.find(key()) is not None
    notices.know(key(), ["run-1", "run-4"], 3.0)
    assert notices.settle(key(), 3.0, "two") is None


def test_an_end_is_told_for_ten_minutes_and_notices_are_bounded() -> None:
    notices = EndNotices()
    notices.record(unasked(1), 0.0)
    assert notices.settle(key(), 600.0) is None
    for number in range(20_000):
        notices.record(unasked(number, f"s{number}"), 700.0)
    assert notices.settle(key("s0"), 701.0) is None
    assert notices.settle(key("s19999"), 701.0) is not None


def test_a_denial_names_the_lease_and_its_end() -> None:
    denied = end_denial(unasked(1))
    assert denied.reason is Reason.LEASE_EXPIRED
    assert denied.message.startswith("It has expired. The session 's' is told this once")
    assert denied.metadata == {"lease": "run-1", "server": "desk"}
