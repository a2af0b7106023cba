from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.sdk.leases.book import ClientLease, LeaseBook, SessionLeaseKey
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.bounds import RESERVATION
from leaseway.wire.errors import Fault, Reason

W1 = WorkerRun("w1", "a", "127.0.0.1:1")
W2 = WorkerRun("w2", "b", "127.0.0.1:2")
KEY = SessionLeaseKey("dialog", "desk")


def grant(book: LeaseBook, at: float = 0.0, ttl: float = 60.0, lease: str = "l1") -> ClientLease:
    return book.grant(KEY, lease, W1, ttl=ttl, at=at, wall=1000.0 + at, owned=True)


def test_an_unknown_key_has_no_lease() -> None:
    book = LeaseBook()
    assert book.find(KEY, 0.0) is None
    assert not book.tracks(*KEY)


def test_a_granted_lease_is_found_until_its_time_is_over() -> None:
    book = LeaseBook()
    lease = grant(book, at=10.0)
    assert book.find(KEY, 69.9) is lease
    assert lease.expires_wall == 1070.0
    with pytest.raises(Fault) as caught:
        book.find(KEY, 70.0)
    assert caught.value.reason is Reason.LEASE_EXPIRED
    assert caught.value.metadata["lease"] == "l1"


def test_an_ended_lease_fails_until_it_is_forgotten() -> None:
    book = LeaseBook()
    grant(book)
    book.end("l1", Fault(Reason.LEASE_REVOKED, "Revoked."))
    for _ in range(2):
        with pytest.raises(Fault) as caught:
            book.find(KEY, 1.0)
        assert caught.value.reason is Reason.LEASE_REVOKED
    assert book.forget(KEY) is None
    assert book.find(KEY, 1.0) is None


def test_a_new_grant_replaces_an_ended_lease() -> None:
    book = LeaseBook()
    grant(book)
    book.end("l1", Fault(Reason.LEASE_LOST, "Lost."))
    assert grant(book, at=5.0, lease="l2").lease_id == "l2"
    found = book.find(KEY, 6.0)
    assert found is not None
    assert found.lease_id == "l2"


def test_the_end_of_another_lease_changes_nothing() -> None:
    book = LeaseBook()
    lease = grant(book)
    book.end("other", Fault(Reason.LEASE_LOST, "Lost."))
    assert book.find(KEY, 1.0) is lease


@pytest.mark.parametrize(
    ("ttl", "at", "expires_at"),
    [(60.0, 5.0, 70.0), (5.0, 20.0, 25.0)],
    ids=["an_earlier_renewal_never_shortens_a_lease", "a_shorter_time_to_live_does"],
)
def test_a_renewal_counts_from_when_it_was_sent(ttl: float, at: float, expires_at: float) -> None:
    lease = grant(LeaseBook(), at=10.0)
    lease.renew(ttl, at, 1000.0 + at)
    assert (lease.ttl, lease.expires_at) == (ttl, expires_at)


def test_a_lease_is_owned_if_one_of_its_grants_created_it() -> None:
    book = LeaseBook()
    book.grant(KEY, "l1", W1, ttl=60, at=0, wall=0, owned=False, reminder="")
    lease = book.grant(KEY, "l1", W1, ttl=60, at=0, wall=0, owned=True, reminder="Release it.")
    assert lease.owned
    assert lease.reminder == "Release it."


def test_renewals_are_due_at_a_third_of_the_shortest_time_to_live() -> None:
    book = LeaseBook()
    grant(book, at=0.0, ttl=60.0)
    book.grant(SessionLeaseKey("other", "desk"), "l2", W1, ttl=9.0, at=10.0, wall=0.0, owned=True)
    book.grant(SessionLeaseKey("third", "desk"), "l3", W2, ttl=1.0, at=0.0, wall=0.0, owned=True)
    assert book.next_renewal(W1) == 13.0
    assert book.next_renewal(WorkerRun("w3", "c", "")) is None


def test_leases_past_their_time_are_not_renewed() -> None:
    book = LeaseBook()
    grant(book, ttl=5.0)
    assert book.leases_on(W1, 5.0) == []
    assert book.tracks(*KEY)
    assert book.held_leases() == []


def test_a_placement_is_valid_as_long_as_its_reservation() -> None:
    book = LeaseBook()
    book.add_placement(KEY, W1, 0.0)
    assert book.find_placement(KEY, RESERVATION - 0.1) == W1
    assert book.find_placement(KEY, RESERVATION) is None


def test_only_the_rejecting_worker_loses_the_placement() -> None:
    book = LeaseBook()
    book.add_placement(KEY, W1, 0.0)
    book.remove_placement(KEY, W2)
    assert book.find_placement(KEY, 1.0) == W1
    book.remove_placement(KEY, W1)
    assert book.find_placement(KEY, 1.0) is None


def test_forgetting_a_session_keeps_ended_leases_and_placements_of_others() -> None:
    book = LeaseBook()
    other = SessionLeaseKey("other", "desk")
    for key in (KEY, other):
        book.grant(key, key.session, W1, ttl=60, at=0, wall=0, owned=True)
        book.end(key.session, Fault(Reason.LEASE_LOST, "Lost."))
        book.add_placement(key, W1, 0.0)
    book.forget_session(KEY.session)
    assert (book.tracks(*KEY), book.tracks(*other)) == (False, True)
    assert (book.find_placement(KEY, 1.0), book.find_placement(other, 1.0)) == (None, W1)


def test_expired_placements_are_removed() -> None:
    book = LeaseBook()
    for number in range(100):
        book.add_placement(SessionLeaseKey(f"s{number}", "desk"), W1, float(number))
    book.add_placement(SessionLeaseKey("s99", "desk"), W2, 99.0)
    assert len(book._placements) <= RESERVATION + 1
    assert book.find_placement(SessionLeaseKey("s99", "desk"), 99.0) == W2


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 60)), min_size=1))
def test_a_lease_ends_when_the_latest_of_equal_renewals_does(
    renewals: list[tuple[float, float]],
) -> None:
    book = LeaseBook()
    ttl = renewals[0][1]
    lease = grant(book, at=renewals[0][0], ttl=ttl)
    for at, _ in renewals[1:]:
        lease.renew(ttl, at, at)
    assert lease.expires_at == max(at for at, _ in renewals) + ttl
