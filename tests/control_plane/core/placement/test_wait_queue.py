"""The queue of lease requests that wait for capacity (design.md#leases)."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.control_plane.core.builders import Able, table_of

from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import HeldLease, Placement
from leaseway.control_plane.core.placement.wait_queue import (
    AVOIDED_FOR,
    PlacementQueue,
    Waiter,
)
from leaseway.wire import bounds
from leaseway.wire.names import LeaseKey

W1 = Placement("w1")


def key(session: str, server_id: str = "a") -> LeaseKey:
    return LeaseKey("default", session, server_id)


def join(
    line: PlacementQueue, *sessions: str, avoided: Iterable[str] = (), now: float = 0.0
) -> None:
    for session in sessions:
        assert line.join(key(session), avoided, now) is not None


class Room:
    """A limited number of places; records attempts and placements."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.tried: list[str] = []
        self.let_in: list[str] = []

    def __call__(self, waiter: Waiter) -> Placement | None:
        self.tried.append(waiter.key.session)
        if len(self.let_in) >= self.places or "w1" in waiter.avoided:
            return None
        self.let_in.append(waiter.key.session)
        return W1


def test_capacity_goes_to_the_oldest_request() -> None:
    line = PlacementQueue()
    join(line, "s1", "s2", "s3")
    room = Room(2)
    line.serve(room, 0.0)
    assert room.let_in == ["s1", "s2"]
    assert [answer for _, answer in line.pop_answers()] == [W1, W1]
    assert (len(line), line.pop_answers()) == (1, [])


def test_if_the_first_request_fails_equal_ones_are_not_tried() -> None:
    line = PlacementQueue()
    join(line, "s1", "s2", "s3")
    other = line.join(key("s4", "b"), (), 0.0)
    room = Room(0)
    line.serve(room, 0.0)
    assert other is not None
    assert room.tried == ["s1", "s4"], "one of each server"


def test_requests_with_the_same_key_are_placed_together() -> None:
    line, table = PlacementQueue(), table_of(w1=1)
    join(line, "mine", "theirs", "mine")
    workers = Able(("w1",))
    line.serve(lambda waiter: table.place(waiter.key, workers, waiter.avoided, 0.0), 0.0)
    assert [waiter_id for waiter_id, _ in line.pop_answers()] == [1, 3]
    assert len(line) == 1


def test_a_request_for_a_held_lease_needs_no_capacity() -> None:
    line, table = PlacementQueue(), table_of(w1=1)
    join(line, "theirs", "mine")
    table.add_lease(HeldLease("L1", key("mine"), "w1", 0.0))
    workers = Able(("w1",))
    line.serve(
        lambda waiter: table.place(waiter.key, workers, waiter.avoided, 0.0), 0.0, table.has_lease
    )
    assert line.pop_answers() == [(2, Placement("w1", "L1"))]


def test_a_removed_request_gives_its_turn_to_the_next() -> None:
    line = PlacementQueue()
    first = line.join(key("s1"), (), 0.0)
    join(line, "s2")
    assert first is not None
    line.remove(first.id)
    line.remove(first.id)
    room = Room(1)
    line.serve(room, 0.0)
    assert room.let_in == ["s2"]


def test_a_worker_that_refused_is_avoided_for_a_second() -> None:
    line = PlacementQueue()
    join(line, "s1", avoided=["w1"])
    room = Room(1)
    line.serve(room, AVOIDED_FOR / 2)
    assert (room.let_in, line.next_retry()) == ([], AVOIDED_FOR)
    line.serve(room, AVOIDED_FOR)
    assert (room.let_in, line.next_retry()) == (["s1"], None)


def test_a_retry_time_of_a_skipped_request_is_cleared() -> None:
    line = PlacementQueue()
    join(line, "s1")
    join(line, "s2", avoided=["w1"])
    line.serve(Room(0), AVOIDED_FOR)
    assert line.next_retry() is None


def test_a_request_that_avoids_a_worker_does_not_block_others() -> None:
    line = PlacementQueue()
    join(line, "s1", avoided=["w1"])
    join(line, "s2")
    room = Room(1)
    line.serve(room, 0.0)
    assert room.let_in == ["s2"]


def test_a_refused_request_gets_its_old_position_back() -> None:
    line = PlacementQueue()
    join(line, "s1", "s2", "s3")
    line.serve(Room(1), 0.0)
    join(line, "s1", now=5.0)
    room = Room(1)
    line.serve(room, 5.0)
    assert room.let_in == ["s1"]


def test_an_old_position_is_kept_as_long_as_a_reservation() -> None:
    line = PlacementQueue()
    join(line, "s1", "s2")
    line.serve(Room(1), 0.0)
    join(line, "s1", now=bounds.RESERVATION)
    room = Room(1)
    line.serve(room, bounds.RESERVATION)
    assert room.let_in == ["s2"]


def test_the_queue_is_bounded() -> None:
    line = PlacementQueue()
    join(line, *(f"s{n}" for n in range(bounds.MAX_WAITING)))
    assert line.join(key("one more"), (), 0.0) is None


def test_a_tenant_that_fills_the_queue_loses_its_newest_request_to_another() -> None:
    line = PlacementQueue()
    join(line, *(f"s{n}" for n in range(bounds.MAX_WAITING)))
    assert line.join(LeaseKey("other", "s", "a"), (), 0.0) is not None
    assert len(line) == bounds.MAX_WAITING
    [(waiter_id, answer)] = line.pop_answers()
    assert waiter_id == bounds.MAX_WAITING
    assert isinstance(answer, Denial)
    assert "already wait for capacity" in answer.message
    assert line.join(key("one more"), (), 0.0) is None, "the greedy one gets no place by it"


CAPACITY = {"w1": 2, "w2": 3}
MOST = 2


class Lines(RuleBasedStateMachine):
    """The queue with a placement table that workers, callers and time change."""

    def __init__(self) -> None:
        super().__init__()
        self.wait_queue = PlacementQueue()
        self.table = table_of(**CAPACITY)
        self.here: set[str] = {"w1", "w2"}
        self.now = 0.0
        self.counter = 0
        self.waiting: dict[int, Waiter] = {}

    sessions = st.sampled_from([f"s{n}" for n in range(6)])
    servers = st.sampled_from(["a", "b"])
    workers = st.sampled_from(["w1", "w2"])

    @property
    def able(self) -> Able:
        return Able(self.here, max_leases=MOST)

    def attempt(self, waiter: Waiter) -> Placement | None:
        return self.table.place(waiter.key, self.able, waiter.avoided, self.now)

    def served(self) -> None:
        """Serve the queue, as after each event, and check the placements."""
        before = dict(self.waiting)
        self.table.expire(self.now)
        self.wait_queue.serve(self.attempt, self.now, self.table.has_lease)
        answered = [waiter_id for waiter_id, _ in self.wait_queue.pop_answers()]
        turns = [before[waiter] for waiter in answered]
        assert [turn.turn for turn in turns] == sorted(turn.turn for turn in turns)
        for waiter in answered:
            del self.waiting[waiter]

    @rule(session=sessions, server=servers, avoided=st.sets(workers))
    def ask(self, session: str, server: str, avoided: set[str]) -> None:
        wanted = key(session, server)
        if any(each_waiter.key == wanted for each_waiter in self.waiting.values()):
            return
        self.served()
        if self.table.place(wanted, self.able, avoided, self.now) is None:
            waiter = self.wait_queue.join(wanted, avoided, self.now)
            assert waiter is not None
            self.waiting[waiter.id] = waiter
        self.served()  # placing elsewhere cancels the reservation

    @rule(session=sessions, server=servers, worker=workers)
    def gained(self, session: str, server: str, worker: str) -> None:
        self.counter += 1
        lease = HeldLease(f"L{self.counter}", key(session, server), worker, self.now)
        self.table.add_lease(lease)
        self.served()

    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        self.table.remove_lease(data.draw(st.sampled_from([*self.table.leases, "unknown"])))
        self.served()

    @rule(worker=workers)
    def gone_or_back(self, worker: str) -> None:
        self.here ^= {worker}
        if worker in self.here:
            self.table.add_worker(worker, CAPACITY[worker])
        else:
            self.table.remove_worker(worker)
        self.served()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter_id = data.draw(st.sampled_from([*self.waiting, 0]))
        self.waiting.pop(waiter_id, None)
        self.wait_queue.remove(waiter_id)

    @rule(seconds=st.sampled_from([0.1, AVOIDED_FOR, 5.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.served()

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for waiter in self.waiting.values():
            table = copy.deepcopy(self.table)
            assert table.place(waiter.key, self.able, waiter.at(self.now).avoided, self.now) is None

    @invariant()
    def nothing_that_is_due_is_left(self) -> None:
        lapse = self.wait_queue.next_retry()
        assert lapse is None or lapse > self.now

    @invariant()
    def whoever_waits_stands_in_line(self) -> None:
        assert len(self.wait_queue) == len(self.waiting)


def test_no_turn_is_missed() -> None:
    chosen = settings(max_examples=100, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(Lines, settings=chosen)
