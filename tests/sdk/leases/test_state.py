from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.state import Granted, Purpose, SessionLeases, Terms
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.bounds import LEASE_IDLE, RESERVATION
from leaseway.wire.errors import Fault, Reason

W1 = WorkerRun("w1", "a", "127.0.0.1:1")
W2 = WorkerRun("w2", "b", "127.0.0.1:2")
REVOKED = Fault(Reason.LEASE_REVOKED, "Revoked.")


def grant(
    session: SessionLeases,
    at: float = 0.0,
    ttl: float = 60.0,
    lease: str = "l1",
    *,
    worker: WorkerRun = W1,
    owned: bool = True,
    reminder: str = "",
    now: float | None = None,
) -> ClientLease:
    """Grant a lease of `desk` in answer to a request that was sent at a time, at once."""
    granted = Granted(lease_id=lease, worker=worker, ttl=ttl, owned=owned, reminder=reminder)
    now = at if now is None else now
    return session.grant("desk", granted, sent_at=at, now=now, wall=1000.0 + now)


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook("")


@pytest.fixture
def session(book: LeaseBook) -> SessionLeases:
    return book.session("dialog")


def test_an_unknown_server_has_no_lease(book: LeaseBook) -> None:
    assert book.find("dialog", "desk", 0.0) is None
    assert not book.tracks("dialog", "desk")


def test_a_granted_lease_is_found_until_its_time_is_over(session: SessionLeases) -> None:
    lease = grant(session, at=10.0)
    assert session.find("desk", 69.9) is lease
    assert lease.expires_wall == 1070.0
    with pytest.raises(Fault) as caught:
        session.find("desk", 70.0)
    assert caught.value.reason is Reason.LEASE_EXPIRED
    assert caught.value.metadata["lease"] == "l1"


def test_an_ended_lease_fails_until_it_is_released(session: SessionLeases) -> None:
    grant(session)
    session.end("desk", REVOKED, 1.0)
    for _ in range(2):
        with pytest.raises(Fault) as caught:
            session.find("desk", 1.0)
        assert caught.value.reason is Reason.LEASE_REVOKED
    assert session.release("desk", 1.0) is None
    assert session.find("desk", 1.0) is None
    assert session.known_ends("desk") == ("l1",)


def test_a_new_grant_replaces_an_ended_lease(session: SessionLeases) -> None:
    grant(session)
    session.end("desk", REVOKED, 1.0)
    lease = grant(session, at=5.0, lease="l2")
    assert session.find("desk", 6.0) is lease


def test_the_end_of_another_lease_changes_nothing(book: LeaseBook, session: SessionLeases) -> None:
    lease = grant(session)
    book.end("other", REVOKED, 1.0)
    assert session.find("desk", 1.0) is lease


@pytest.mark.parametrize("by", ["release", "end"])
def test_a_slow_call_does_not_bring_back_a_lease_that_is_gone(
    book: LeaseBook, session: SessionLeases, by: str
) -> None:
    grant(session)
    if by == "release":
        session.release("desk", 10.0)
    else:
        session.end("desk", REVOKED, 10.0)
    assert grant(session, at=9.0, now=12.0).lease_id == "l1"
    assert book.held_leases() == []
    assert session.tracks("desk") == (by == "end")
    # A request that was sent later shows that the worker still holds it.
    lease = grant(session, at=11.0, now=12.0)
    assert book.held_leases() == [lease]


@pytest.mark.parametrize(
    ("ttl", "at", "expires_at"),
    [(60.0, 5.0, 70.0), (5.0, 20.0, 25.0)],
    ids=["an_earlier_renewal_never_shortens_a_lease", "a_shorter_time_to_live_does"],
)
def test_a_renewal_counts_from_when_it_was_sent(
    session: SessionLeases, ttl: float, at: float, expires_at: float
) -> None:
    lease = grant(session, at=10.0)
    lease.renew(ttl, at, 1000.0 + at)
    assert (lease.ttl, lease.expires_at) == (ttl, expires_at)


def test_a_slow_grant_counts_from_a_third_of_its_time_ago(session: SessionLeases) -> None:
    lease = grant(session, at=0.0, now=100.0)
    assert (lease.expires_at, lease.expires_wall) == (140.0, 1140.0)


def test_a_lease_is_owned_if_one_of_its_grants_created_it(session: SessionLeases) -> None:
    grant(session, owned=False)
    lease = grant(session, owned=True, reminder="Release it.")
    assert grant(session, owned=False) is lease
    assert lease.owned
    assert lease.reminder == "Release it."


def test_renewals_are_due_at_a_third_of_the_shortest_time_to_live(book: LeaseBook) -> None:
    grant(book.session("a"), at=0.0, ttl=60.0)
    grant(book.session("b"), at=10.0, ttl=9.0, lease="l2")
    grant(book.session("c"), at=0.0, ttl=1.0, lease="l3", worker=W2)
    assert book.next_renewal(W1) == 13.0
    assert book.next_renewal(WorkerRun("w3", "c", "")) is None


def test_leases_past_their_time_are_not_renewed(book: LeaseBook, session: SessionLeases) -> None:
    grant(session, ttl=5.0)
    assert book.leases_on(W1, 5.0) == []
    assert book.tracks("dialog", "desk")
    assert book.held_leases() == []


def test_a_placement_is_valid_as_long_as_its_reservation(session: SessionLeases) -> None:
    session.place("desk", W1, 0.0)
    assert session.placed_on("desk", RESERVATION - 0.1) == W1
    assert session.placed_on("desk", RESERVATION) is None


def test_only_the_rejecting_worker_loses_the_placement(session: SessionLeases) -> None:
    full = Fault(Reason.CAPACITY, "Full.")
    session.place("desk", W1, 0.0)
    session.fail("desk", W2, full)
    assert session.placed_on("desk", 1.0) == W1
    session.fail("desk", W1, full)
    assert session.placed_on("desk", 1.0) is None


def test_a_lost_lease_is_reported_once(session: SessionLeases) -> None:
    grant(session)
    session.end("desk", Fault(Reason.LEASE_LOST, "Lost."), 1.0, is_lost=True)
    session.release("desk", 2.0)
    assert session.lost_lease("desk") == "l1"
    session.place("desk", W2, 3.0)
    assert session.lost_lease("desk") == ""


def test_leaving_a_session_keeps_ended_leases_and_placements_of_others(book: LeaseBook) -> None:
    for key in ("dialog", "other"):
        grant(book.session(key), lease=key)
        book.end(key, REVOKED, 0.0)
        book.session(key).place("desk", W1, 0.0)
    book.leave("dialog", 0.0)
    assert [book.tracks(key, "desk") for key in ("dialog", "other")] == [False, True]
    placed = [book.session(key).placed_on("desk", 1.0) for key in ("dialog", "other")]
    assert placed == [None, W1]


def test_a_session_that_was_left_leaves_nothing_behind(
    book: LeaseBook, session: SessionLeases
) -> None:
    session.idle = 5.0
    lease = grant(session)
    assert book.leave("dialog", 1.0) == ([lease], [])
    assert book.session_keys() == []
    assert book.session("dialog").idle == LEASE_IDLE


def test_the_oldest_sessions_without_a_lease_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaseway.sdk.leases.book._MAX_QUIET", 10)
    book = LeaseBook("")
    busy = book.session("busy")
    grant(busy)
    waiting = book.session("waiting")
    waiting.ask("desk", Purpose.PLACE, Terms(), 1.0, "caller")
    for number in range(100):
        book.session(f"s{number}").place("desk", W1, 0.0)
    keys = book.session_keys()
    assert len(keys) == 10
    assert {"busy", "waiting", "s99", "s98"} <= set(keys)
    assert (book.session("busy"), book.session("waiting")) == (busy, waiting)


def test_one_request_serves_all_callers_with_its_terms(session: SessionLeases) -> None:
    terms = Terms(W1, 60.0, 0)
    flight = session.ask("desk", Purpose.ACQUIRE, terms, 1.0, "a")
    assert flight is not None
    assert session.ask("desk", Purpose.ACQUIRE, terms, 1.0, "b") is None
    assert session.ask("desk", Purpose.ACQUIRE, Terms(W1, 5.0, 0), 1.0, "c") is None
    assert session.answer(flight) == (["a", "b"], ["c"])
    assert session.ask("desk", Purpose.ACQUIRE, Terms(W1, 5.0, 0), 1.0, "c") is not None


def test_a_request_that_nobody_waits_for_is_cancelled_and_its_lease_looked_for(
    session: SessionLeases,
) -> None:
    session.place("desk", W1, 0.0)
    flight = session.ask("desk", Purpose.ACQUIRE, Terms(W1, 60.0, 0), 1.0, "a")
    session.ask("desk", Purpose.ACQUIRE, Terms(W1, 60.0, 0), 1.0, "b")
    assert session.give_up("desk", Purpose.ACQUIRE, "a") is None
    assert session.give_up("desk", Purpose.ACQUIRE, "b") is flight
    # Its cancellation takes a moment, in which nobody may join it.
    assert session.ask("desk", Purpose.ACQUIRE, Terms(W1, 60.0, 0), 1.0, "c") is not None
    _, unknown = session.leave(1.0)
    assert unknown == [(flight.key if flight else None, W1)]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 60)), min_size=1))
def test_a_lease_ends_when_the_latest_of_equal_renewals_does(
    renewals: list[tuple[float, float]],
) -> None:
    ttl = renewals[0][1]
    lease = grant(LeaseBook("").session("dialog"), at=renewals[0][0], ttl=ttl)
    for at, _ in renewals[1:]:
        lease.renew(ttl, at, at)
    assert lease.expires_at == max(at for at, _ in renewals) + ttl
