"""The leases that a client knows, over random orders of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leaseway.sdk.leases.book import LeaseBook, PendingAcquisitions, SessionLeaseKey
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.v1 import leases_pb2
from leaseway.wire.errors import Fault, Reason

TTL = 60.0
NAME = "client-1"
KEYS = st.sampled_from([SessionLeaseKey(session, "desk") for session in "ab"])
WORKERS = st.sampled_from([WorkerRun(f"w{n}", f"run-{n}", "127.0.0.1:1") for n in range(2)])


class Leases(RuleBasedStateMachine):
    """Compares the book with what the workers granted and the callers were told.

    Attributes:
        held: The key and the worker of each lease that must be renewed.
        gone: Leases that ended, were released or forgotten.
        sent: First calls whose lease nobody knows yet, and whether their caller has given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook()
        self.pending = PendingAcquisitions(NAME)
        self.now = 0.0
        self.count = 0
        self.held: dict[SessionLeaseKey, tuple[str, WorkerRun, float]] = {}
        self.ended: dict[SessionLeaseKey, str] = {}
        self.gone: set[str] = set()
        self.sent: dict[tuple[SessionLeaseKey, WorkerRun], bool] = {}

    def drop(self, key: SessionLeaseKey) -> None:
        if key in self.held:
            self.gone.add(self.held.pop(key)[0])

    @rule(key=KEYS, worker=WORKERS)
    def place(self, key: SessionLeaseKey, worker: WorkerRun) -> None:
        self.book.add_placement(key, worker, self.now)
        self.pending.add(key, worker)
        self.sent.setdefault((key, worker), False)
        assert self.book.find_placement(key, self.now) == worker

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), is_rejected=st.booleans())
    def fail_to_acquire(self, data: st.DataObject, is_rejected: bool) -> None:
        key, worker = data.draw(st.sampled_from(sorted(self.sent)))
        if is_rejected:
            self.book.remove_placement(key, worker)
            self.pending.reject(key, worker)
            if self.sent.get((key, worker)) is False:
                del self.sent[key, worker]
        else:
            self.pending.abandon(key, worker)
            if (key, worker) in self.sent:
                self.sent[key, worker] = True

    @rule(key=KEYS, worker=WORKERS, owned=st.booleans())
    def grant(self, key: SessionLeaseKey, worker: WorkerRun, owned: bool) -> None:
        self.count += 1
        lease_id = f"lease-{self.count}"
        granted = leases_pb2.Lease(
            id=lease_id,
            session=key.session,
            server_id=key.server_id,
            acquirer=NAME if owned else "another",
        )
        assert self.pending.grant(key, worker, granted) is owned
        self.sent.pop((key, worker), None)
        self.book.grant(key, lease_id, worker, ttl=TTL, at=self.now, wall=self.now, owned=owned)
        self.drop(key)
        self.ended.pop(key, None)
        self.held[key] = (lease_id, worker, self.now + TTL)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        lease_id, worker, expires = self.held[key]
        if self.now >= expires:
            return
        (lease,) = [each for each in self.book.held_leases() if each.lease_id == lease_id]
        lease.renew(TTL, self.now, self.now)
        self.held[key] = (lease_id, worker, self.now + TTL)

    @rule(number=st.integers(0, 30))
    def end(self, number: int) -> None:
        """Learn the end of a lease, which may be one that is gone already."""
        lease_id = f"lease-{number}"
        self.book.end(lease_id, Fault(Reason.LEASE_REVOKED, "It was revoked."))
        for key, (held, _, _) in list(self.held.items()):
            if held == lease_id:
                self.drop(key)
                self.ended[key] = lease_id

    @rule(key=KEYS)
    def release(self, key: SessionLeaseKey) -> None:
        forgotten = self.book.forget(key)
        assert (forgotten.lease_id if forgotten else None) == self.held.get(key, (None,))[0]
        self.drop(key)
        self.ended.pop(key, None)

    @rule(seconds=st.sampled_from([1.0, TTL / 2, TTL]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(session=st.sampled_from("ab"))
    def leave(self, session: str) -> None:
        """Leave a session: each lease that its given-up calls may hold is looked for once."""
        found = self.pending.pop(session)
        expected = [
            each for each, given_up in self.sent.items() if given_up and each[0].session == session
        ]
        assert sorted(found) == sorted(expected)
        for each in found:
            del self.sent[each]

    @rule()
    def close(self) -> None:
        """Close the client: no lease that a call may have acquired is left behind."""
        assert sorted(self.pending.pop()) == sorted(self.sent)
        self.sent.clear()
        assert self.pending.pop() == []

    @rule(key=KEYS)
    def find(self, key: SessionLeaseKey) -> None:
        """Each caller is answered: with the lease, with its end, or with nothing."""
        lease_id, _, expires = self.held.get(key, ("", None, 0.0))
        expired = bool(lease_id) and self.now >= expires
        if not expired and key not in self.ended:
            lease = self.book.find(key, self.now)
            assert (lease.lease_id if lease else "") == lease_id
            return
        if expired:
            self.drop(key)
            self.ended[key] = lease_id
        with pytest.raises(Fault) as caught:
            self.book.find(key, self.now)
        assert caught.value.metadata["lease"] == self.ended[key]

    @invariant()
    def only_held_leases_are_renewed(self) -> None:
        known = {lease.lease_id for lease in self.book.held_leases()}
        assert known == {lease_id for lease_id, _, _ in self.held.values()}
        assert not known & self.gone
        for worker in {worker for _, worker, _ in self.held.values()}:
            due = self.book.next_renewal(worker)
            mine = [until for _, on, until in self.held.values() if on == worker]
            assert due is not None
            assert due <= min(mine)

    @invariant()
    def a_key_is_tracked_as_long_as_it_is_held_or_its_end_is_unheard(self) -> None:
        for key in {*self.held, *self.ended}:
            assert self.book.tracks(*key)


def test_no_lease_is_leaked_renewed_after_its_end_or_replaced_in_silence() -> None:
    run_state_machine_as_test(
        Leases, settings=settings(max_examples=200, stateful_step_count=40, deadline=None)
    )
