"""Reservations and reported leases."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.control_plane.core.builders import Able, table_of

from leaseway.control_plane.core.placement.caller import PlacementCaller
from leaseway.control_plane.core.placement.table import HeldLease, Placement
from leaseway.wire import bounds
from leaseway.wire.names import LeaseKey

WORKERS = Able(("w1", "w2"))
ONLY = Able(("w1",))
BESIDE_W2 = PlacementCaller("w2")


def key(session: str, server_id: str = "a") -> LeaseKey:
    return LeaseKey("default", session, server_id)


def held(lease_id: str, worker_id: str, session: str, granted_at: float = 0.0) -> HeldLease:
    return HeldLease(lease_id, key(session), worker_id, granted_at)


def test_the_least_loaded_worker_with_room_is_chosen() -> None:
    table = table_of(w1=2, w2=2)
    chosen = [table.place(key(f"s{n}"), WORKERS, (), 0.0) for n in range(4)]
    assert sorted(lease.worker_id for lease in chosen if lease) == ["w1", "w1", "w2", "w2"]
    assert table.place(key("s5"), WORKERS, (), 0.0) is None


def test_a_worker_at_the_servers_limit_is_not_chosen() -> None:
    table, one_each = table_of(w1=8, w2=8), Able(("w1", "w2"), max_leases=1)
    table.add_lease(held("L1", "w1", "s1"))
    assert table.place(key("s2"), one_each, (), 0.0) == Placement("w2")
    assert table.place(key("s3"), one_each, (), 0.0) is None
    assert table.place(key("s3", "b"), one_each, (), 0.0) == Placement("w1"), "another server"
    table.remove_lease("L1")
    assert table.place(key("s4"), one_each, (), 0.0) == Placement("w1")


def test_a_reservation_holds_its_unit_for_ten_seconds() -> None:
    table, only = table_of(w1=1), ONLY
    assert table.place(key("s1"), only, (), 0.0)
    assert table.place(key("s2"), only, (), 9.9) is None
    assert table.place(key("s2"), only, (), 10.0)


def test_one_key_is_placed_on_one_worker_however_often_it_is_asked() -> None:
    table = table_of(w1=2, w2=2)
    first = table.place(key("s1"), WORKERS, (), 0.0)
    assert table.place(key("s1"), WORKERS, (), 1.0) == first
    assert table.load("w1") + table.load("w2") == 1


def test_a_renewed_reservation_ends_later() -> None:
    table, only = table_of(w1=1), ONLY
    table.place(key("s1"), only, (), 0.0)
    table.place(key("s1"), only, (), 8.0)
    assert table.place(key("s2"), only, (), 12.0) is None


def test_a_tenant_at_its_limit_gets_no_lease_and_others_do() -> None:
    table, roomy = table_of(w1=5000), Able(("w1",), max_leases=5000)
    for number in range(bounds.MAX_TENANT_LEASES - 1):
        table.add_lease(held(f"L{number}", "w1", f"s{number}"))
    assert table.place(key("last"), roomy, (), 0.0)  # a reservation counts like a lease
    assert table.is_tenant_full("default")
    assert table.place(key("one more"), roomy, (), 0.0) is None
    assert table.place(key("s0"), roomy, (), 0.0)  # what is held is found
    assert table.place(LeaseKey("other", "s", "a"), roomy, (), 0.0)
    table.remove_lease("L0")
    assert table.place(key("one more"), roomy, (), 0.0)


def test_reservations_of_one_tenant_do_not_block_another() -> None:
    table = table_of(w1=4)
    for number in range(4):
        assert table.place(key(f"s{number}"), ONLY, (), 0.0)
    assert table.place(key("s4"), ONLY, (), 0.0) is None
    theirs = [LeaseKey("other", f"s{number}", "a") for number in range(3)]
    assert [table.place(lease, ONLY, (), 0.0) for lease in theirs] == [Placement("w1")] * 2 + [None]
    assert table.load("w1") == 4
    assert table.place(key("s4"), ONLY, (), 0.0) is None, "both have equally many reservations"


def test_a_held_lease_is_not_displaced() -> None:
    table = table_of(w1=3)
    for number in range(3):
        assert table.place(key(f"s{number}"), ONLY, (), 0.0)
        table.add_lease(held(f"L{number}", "w1", f"s{number}"))
    assert table.place(LeaseKey("other", "s", "a"), ONLY, (), 0.0) is None


def test_a_refusal_moves_the_reservation() -> None:
    table = table_of(w1=2, w2=2)
    first = table.place(key("s1"), WORKERS, (), 0.0)
    assert first is not None
    second = table.place(key("s1"), WORKERS, {first.worker_id}, 0.0)
    assert second is not None
    assert second.worker_id != first.worker_id
    assert table.load(first.worker_id) == 0


def test_a_session_prefers_its_worker() -> None:
    table, roomy = table_of(w1=10, w2=10), WORKERS
    table.add_lease(held("L1", "w2", "mine"))
    table.add_lease(held("L2", "w2", "other"))
    chosen = table.place(key("mine", "b"), roomy, (), 0.0)
    assert chosen is not None
    assert chosen.worker_id == "w2"


def test_the_callers_worker_is_chosen_if_it_has_little_more_load() -> None:
    table = table_of(w1=100, w2=100)
    for number in range(3):
        table.add_lease(held(f"L{number}", "w2", f"s{number}"))
    assert table.place(key("a"), WORKERS, (), 0.0, caller=BESIDE_W2) == Placement("w2")
    assert table.place(key("b"), WORKERS, (), 0.0, caller=BESIDE_W2) == Placement("w2")
    assert table.place(key("c"), WORKERS, (), 0.0, caller=BESIDE_W2) == Placement("w1"), "5 above"
    for number in range(80):
        table.add_lease(held(f"M{number}", ("w1", "w2")[number % 2], f"t{number}"))
    assert (table.load("w1"), table.load("w2")) == (41, 45)
    assert table.place(key("d"), WORKERS, (), 0.0, caller=BESIDE_W2) == Placement("w2")
    assert table.place(key("e"), WORKERS, (), 0.0, caller=BESIDE_W2) == Placement("w2"), "41 // 8"
    assert table.place(key("f"), WORKERS, (), 0.0, caller=BESIDE_W2) == Placement("w1")


def test_a_callers_worker_that_cannot_hold_the_lease_is_not_chosen() -> None:
    def placed(eligible: Able, *excluded: str, session: str = "s", room: int = 10) -> str:
        table = table_of(w1=10, w2=room)
        table.add_lease(held("L1", "w1", "mine"))
        lease = table.place(key(session, "b"), eligible, excluded, 0.0, caller=BESIDE_W2)
        assert lease is not None
        return lease.worker_id

    assert placed(WORKERS) == "w2"
    assert placed(WORKERS, session="mine") == "w1", "the session's worker comes first"
    assert placed(WORKERS, "w2") == "w1"
    assert placed(ONLY) == "w1"
    assert placed(WORKERS, room=0) == "w1"


def test_a_spare_comes_before_the_callers_worker() -> None:
    table = table_of(w1=10, w2=10)
    spare = Able(("w1", "w2"), spares=("w1",))
    assert table.place(key("a"), spare, (), 0.0, caller=BESIDE_W2) == Placement("w1")
    both = Able(("w1", "w2"), spares=("w1", "w2"))
    assert table.place(key("b"), both, (), 0.0, caller=BESIDE_W2) == Placement("w2")


def test_a_worker_may_have_been_lost_with_leases_that_it_has_not_reported() -> None:
    table = table_of(w1=9, w2=9)
    for session in ("held", "refused", "doubtful"):
        table.place(key(session), ONLY, (), 0.0, caller=PlacementCaller(client="one"))
    table.place(key("doubtful"), ONLY, (), 1.0, caller=PlacementCaller(client="two"))
    table.place(key("elsewhere"), Able(("w2",)), (), 1.0)
    table.add_lease(held("L1", "w1", "held"))
    table.drop_reservation(key("refused"), "w1")
    table.keep_reservations("w1", 12.5)
    table.expire(12.4)
    assert table.workers_of(key("doubtful")) == ["w1"], "beyond the time of a reservation"
    table.remove_worker("w1", "run-7")
    (lost,) = table.pop_unreported()
    assert (lost.key, lost.worker_id) == (key("doubtful"), "w1")
    assert lost.clients == {"one", "two"}
    assert lost.id.startswith("run-7-")
    assert [lease.id for lease in table.pop_lost()] == ["L1"]
    table.remove_worker("w2")
    assert table.pop_unreported() == []


def test_a_held_lease_is_found_again_even_on_a_full_worker() -> None:
    table = table_of(w1=2, w2=2)
    table.add_lease(held("L1", "w1", "s1"))
    chosen = table.place(key("s1"), ONLY, (), 0.0)
    assert chosen is not None
    assert (chosen.worker_id, chosen.lease_id) == ("w1", "L1")


def test_a_duplicate_is_returned_and_the_older_lease_is_found() -> None:
    table = table_of(w1=2, w2=2)
    assert table.add_lease(held("young", "w2", "s1", granted_at=5.0)) == ()
    duplicates = table.add_lease(held("old", "w1", "s1", granted_at=1.0))
    assert [duplicate.id for duplicate in duplicates] == ["old", "young"]
    table.remove_lease("young")
    chosen = table.place(key("s1"), WORKERS, (), 0.0)
    assert chosen is not None
    assert chosen.lease_id == "old"


def test_a_placed_lease_is_older_than_any_unplaced_duplicate() -> None:
    table = table_of(w1=2, w2=2)
    assert table.place(key("s1"), ONLY, (), 0.0)
    assert table.add_lease(held("placed", "w1", "s1", granted_at=5.0)) == ()
    for granted_at in (1.0, 5.0, 1.0):
        duplicates = table.add_lease(held("a-claim", "w2", "s1", granted_at=granted_at))
        assert [duplicate.id for duplicate in duplicates] == ["placed", "a-claim"]
    duplicates = table.add_lease(
        held("placed", "w1", "s1", granted_at=6.0)
    )  # a slow report of its own
    chosen = table.place(key("s1"), WORKERS, (), 0.0)
    assert chosen is not None
    assert chosen.worker_id in ("w1", "w2")
    table.remove_lease("placed")
    table.remove_lease("a-claim")
    assert not table.leases


def test_a_worker_cannot_change_leases_of_other_workers() -> None:
    table = table_of(w1=2, w2=2)
    table.add_lease(held("L1", "w1", "s1"))
    assert table.add_lease(held("L1", "w2", "s2")) == ()
    assert (table.leases["L1"].worker_id, table.held_count("w2")) == ("w1", 0)
    table.remove_lease("L1", "w2")
    assert table.held_count("w1") == 1
    table.remove_lease("L1", "w1")
    assert not table.leases


def test_a_holder_that_is_behind_with_the_registry_still_holds() -> None:
    table = table_of(w1=2, w2=2)
    table.add_lease(held("L1", "behind", "s1"))
    workers = Able(("w1", "w2"), holding=("behind",))
    chosen = table.place(key("s1"), workers, (), 0.0)
    assert chosen is not None
    assert chosen.lease_id == "L1"
    elsewhere = table.place(key("s1"), workers, {"behind"}, 0.0)
    assert elsewhere is not None
    assert elsewhere.worker_id != "behind"


class Placements(RuleBasedStateMachine):
    """Workers report late, twice, or not at all; counts must stay correct."""

    def __init__(self) -> None:
        super().__init__()
        self.table = table_of(w1=2, w2=2)
        self.now = 0.0
        self.reported: dict[str, HeldLease] = {}
        self.counter = 0

    sessions = st.sampled_from(["s1", "s2", "s3"])
    workers = st.sampled_from(["w1", "w2"])

    @rule(session=sessions, excluded=st.sets(workers))
    def place(self, session: str, excluded: set[str]) -> None:
        placed = self.table.place(key(session), WORKERS, excluded, self.now)
        assert placed is None or placed.worker_id not in excluded

    @rule(session=sessions, worker=workers)
    def gained(self, session: str, worker: str) -> None:
        self.counter += 1
        lease = held(f"L{self.counter}", worker, session, self.now)
        self.reported[lease.id] = lease
        duplicates = self.table.add_lease(lease)
        assert {duplicate.key for duplicate in duplicates} <= {lease.key}

    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from([*self.reported, "unknown"]))
        self.reported.pop(lease_id, None)
        self.table.remove_lease(lease_id)

    @rule(worker=workers)
    def gone(self, worker: str) -> None:
        self.table.remove_worker(worker)
        self.reported = {i: o for i, o in self.reported.items() if o.worker_id != worker}
        assert self.table.load(worker) == 0
        self.table.add_worker(worker, 2)

    @rule(worker=workers)
    def resynced(self, worker: str) -> None:
        mine = [lease for lease in self.reported.values() if lease.worker_id == worker]
        self.table.replace_leases(worker, mine[1:])
        for lease in mine[:1]:
            del self.reported[lease.id]

    @rule(seconds=st.sampled_from([0.1, 5.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.table.expire(self.now)

    @invariant()
    def counts_are_what_was_reported(self) -> None:
        assert set(self.table.leases) == set(self.reported)
        for worker in ("w1", "w2"):
            mine = [
                each_lease
                for each_lease in self.reported.values()
                if each_lease.worker_id == worker
            ]
            assert self.table.held_count(worker) == len(mine)
            assert self.table.load(worker) >= len(mine)
        for lease in self.reported.values():
            assert self.table.has_lease(lease.key)


def test_counts_are_correct_after_any_reports() -> None:
    chosen = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(Placements, settings=chosen)
