"""The choice of a worker, compared with a scan of all workers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.control_plane.core.builders import Able, table_of

from leaseway.control_plane.core.placement.load_order import LoadOrder
from leaseway.control_plane.core.placement.table import HeldLease, Placement
from leaseway.wire import bounds
from leaseway.wire.names import LeaseKey

NAMES = tuple(f"w{n}" for n in range(6))
names = st.sampled_from(NAMES)
some = st.frozensets(names, max_size=4)


@dataclass
class Booking:
    worker_id: str
    until: float


class Choices(RuleBasedStateMachine):
    """Counts leases and reservations without an index."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.counter = 0
        self.capacity = dict.fromkeys(NAMES[:3], 2)
        self.table = table_of(**self.capacity)
        self.held: dict[str, HeldLease] = {}
        self.booked: dict[LeaseKey, Booking] = {}

    keys = st.builds(
        LeaseKey, st.just("t"), st.sampled_from(["s1", "s2", "s3"]), st.sampled_from(["a", "b"])
    )

    def units(self) -> list[tuple[LeaseKey, str]]:
        held = [(lease.key, lease.worker_id) for lease in self.held.values()]
        return held + [(key, lease.worker_id) for key, lease in self.booked.items()]

    def load(self, worker_id: str) -> int:
        return sum(where == worker_id for _, where in self.units())

    def best(self, key: LeaseKey, able: Able, excluded: frozenset[str]) -> str | None:
        """Scan all workers as in design.md#leases."""
        units = self.units()
        roomy = [
            lease
            for lease, capacity in self.capacity.items()
            if lease not in excluded
            and able.accepts(lease)
            and self.load(lease) < capacity
            and sum(w == lease and k.server_id == key.server_id for k, w in units) < able.max_leases
        ]
        mine = {where for lease, where in units if lease.session == key.session}
        return min(
            roomy,
            key=lambda one: (
                able.is_suspect(one),
                one not in mine,
                self.load(one),
                one not in mine and not able.is_suspect(one) and one not in able.spares,
                one,
            ),
            default=None,
        )

    @rule(
        key=keys, ids=some, excluded=some, suspect=some, spares=some, max_leases=st.integers(1, 3)
    )
    def place(
        self,
        key: LeaseKey,
        ids: frozenset[str],
        excluded: frozenset[str],
        suspect: frozenset[str],
        spares: frozenset[str],
        max_leases: int,
    ) -> None:
        able = Able(ids or NAMES, max_leases, suspect=suspect, spares=spares)
        placed = self.table.place(key, able, excluded, self.now)
        if placed is not None and placed.lease_id is not None:
            assert self.held[placed.lease_id].key == key
            return
        booked = self.booked.get(key)
        if booked and booked.worker_id in able.ids and booked.worker_id not in excluded:
            assert placed == Placement(booked.worker_id)
        else:
            self.booked.pop(key, None)
            best = self.best(key, able, excluded)
            assert placed == (None if best is None else Placement(best))
        if placed is not None:
            # The dict is in the order of ends, like the table's.
            self.booked.pop(key, None)
            self.booked[key] = Booking(placed.worker_id, self.now + bounds.RESERVATION)

    @rule(key=keys, worker_id=names)
    def gain(self, key: LeaseKey, worker_id: str) -> None:
        self.counter += 1
        lease = HeldLease(f"L{self.counter}", key, worker_id, self.now)
        self.held[lease.id] = lease
        booked = self.booked.get(key)
        if booked is not None and booked.worker_id == worker_id:
            del self.booked[key]
        self.table.add_lease(lease)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from([*self.held, "unknown"]))
        self.held.pop(lease_id, None)
        self.table.remove_lease(lease_id)

    @rule(worker_id=names, capacity=st.integers(0, 3))
    def join(self, worker_id: str, capacity: int) -> None:
        self.capacity[worker_id] = capacity
        self.table.add_worker(worker_id, capacity)

    @rule(worker_id=names)
    def go(self, worker_id: str) -> None:
        self.capacity.pop(worker_id, None)
        self.held = {i: lease for i, lease in self.held.items() if lease.worker_id != worker_id}
        self.booked = {k: lease for k, lease in self.booked.items() if lease.worker_id != worker_id}
        self.table.remove_worker(worker_id)

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.booked = {k: lease for k, lease in self.booked.items() if lease.until > self.now}
        self.table.expire(self.now)

    @invariant()
    def loads_are_counted_alike(self) -> None:
        for worker_id in NAMES:
            assert self.table.load(worker_id) == self.load(worker_id)


def test_the_load_order_chooses_like_a_scan_of_all_workers() -> None:
    chosen = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(Choices, settings=chosen)


def test_choosing_among_thousands_checks_one_worker() -> None:
    table = table_of(**{f"w{n:04}": 2 for n in range(5000)})
    asked: list[str] = []

    class Counting(Able):
        def accepts(self, worker_id: str) -> bool:
            asked.append(worker_id)
            return True

    for number in range(100):
        placed = table.place(LeaseKey("t", f"s{number}", "a"), Counting(()), (), 0.0)
        assert placed == Placement(f"w{number:04}")
    assert len(asked) == 100


def test_a_full_fleet_is_not_scanned() -> None:
    table = table_of(**{f"w{n}": 1 for n in range(50)})
    for number in range(50):
        assert table.place(LeaseKey("t", f"s{number}", "a"), Able([f"w{number}"]), (), 0.0)

    class Untouchable(Able):
        def accepts(self, worker_id: str) -> bool:
            raise AssertionError(worker_id)

    assert table.place(LeaseKey("t", "one more", "a"), Untouchable(()), (), 0.0) is None


def test_the_load_order_contains_joined_workers_with_capacity() -> None:
    order = LoadOrder()
    order.set_load("w1", 0)
    assert list(order) == []
    order.set_capacity("w1", 2, 1)
    order.set_capacity("w2", 2, 0)
    assert list(order) == ["w2", "w1"]
    order.set_load("w2", 2)
    assert list(order) == ["w1"]
    assert "w2" not in order
    order.set_capacity("w2", 3, 2)
    order.remove("w1")
    order.remove("never seen")
    assert list(order) == ["w2"]
