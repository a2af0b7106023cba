"""Leases end at their time, not before, and their ends are recorded."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leaseway.data_plane.core.leases.table import (
    EndedLease,
    LeaseLimitReached,
    LeaseTable,
    WorkerLease,
)
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.names import LeaseKey


def take(
    table: LeaseTable,
    now: float,
    session: str = "s",
    server: str = "srv",
    ttl: float = 60.0,
    limit: int = 256,
    tenant: str = "default",
) -> WorkerLease:
    lease, _ = table.acquire(
        LeaseKey(tenant, session, server),
        now,
        variant=VariantKey(server),
        launch_hash="l",
        ttl=ttl,
        server_limit=limit,
    )
    return lease


def run_to(table: LeaseTable, now: float, end: float) -> list[tuple[str, str]]:
    """Tick as the worker does until a time; return (lease id, how it ended)."""
    ended: list[tuple[str, str]] = []
    while (at := table.next_tick(now)) is not None and at <= end:
        now = at
        ended += [(lease.id, end.outcome) for lease, end in table.tick(now)]
    return ended


def test_one_key_has_one_lease() -> None:
    table = LeaseTable("inc")
    first = take(table, 0)
    assert take(table, 5) is first
    assert first.id == "inc-1"
    assert first.expires_at == 65
    assert take(table, 5, session="other").id == "inc-2"


def test_a_second_caller_never_shortens_the_first_ones_lease() -> None:
    table = LeaseTable("inc")
    take(table, 0, ttl=600)
    assert take(table, 0, ttl=10).ttl == 600
    assert take(table, 0, ttl=900).ttl == 900


def test_a_lease_expires_at_its_time_and_not_before() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=10)
    assert run_to(table, 0, 9.99) == []
    assert run_to(table, 9.99, 10) == [(lease.id, "expired")]
    assert table.get(lease.id) is None
    assert table.find_ended(lease.id, 10) == EndedLease("expired", "", 10, lease.key.tenant)
    assert table.next_tick(10) is None


def test_a_renewal_grants_the_whole_time_again() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=10)
    assert table.renew(lease.id, 8) is lease
    assert run_to(table, 8, 17.9) == []
    assert run_to(table, 17.9, 18) == [(lease.id, "expired")]
    assert table.renew(lease.id, 18) is None


def test_a_lease_with_a_call_in_flight_does_not_expire_and_the_call_renews_it() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=10)
    table.start_call(lease, 1)
    assert run_to(table, 1, 100) == []
    assert not table.end_call(lease, 100)
    assert run_to(table, 100, 109.9) == []
    assert run_to(table, 109.9, 110) == [(lease.id, "expired")]


def test_after_a_stall_nothing_expires_for_a_third_of_its_time() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=30)
    soon = take(table, 0, session="soon", ttl=31)
    assert table.next_tick(0) == 0.5
    assert table.tick(32) == []
    assert lease.expires_at == 42
    assert soon.expires_at == pytest.approx(32 + 31 / 3)
    table.renew(soon.id, 33)
    assert run_to(table, 32, 42) == [(lease.id, "expired")]


def test_a_stall_is_noticed_by_next_tick_too() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=30)
    table.next_tick(0)
    take(table, 32, session="new", ttl=30)  # whoever takes it has the next tick set anew
    table.next_tick(32)
    assert table.tick(32) == []
    assert lease.expires_at == 42


def test_a_tick_that_is_a_little_late_is_no_stall() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=1)
    table.tick(0.5)
    table.next_tick(0.5)
    assert [(each_lease.id, end.outcome) for each_lease, end in table.tick(1.9)] == [
        (lease.id, "expired")
    ]


def test_a_worker_is_full_at_its_capacity_and_a_server_at_its_own_limit() -> None:
    table = LeaseTable("inc", capacity=3)
    take(table, 0, session="a", limit=1)
    with pytest.raises(LeaseLimitReached, match="max_instances"):
        take(table, 0, session="b", limit=1)
    take(table, 0, session="b", server="other")
    third = take(table, 0, session="c", server="other")
    with pytest.raises(LeaseLimitReached, match="this worker holds 3"):
        take(table, 0, session="d", server="third")
    table.end(third.id, "released", 1)
    assert take(table, 1, session="d", server="third").id == "inc-4"


def test_a_tenant_has_a_limit_of_leases_of_its_own() -> None:
    table = LeaseTable("inc", capacity=2 * bounds.MAX_TENANT_LEASES)
    for number in range(bounds.MAX_TENANT_LEASES):
        last = take(table, 0, session=f"s{number}", server=f"srv{number % 9}")
    with pytest.raises(LeaseLimitReached, match="tenant default holds 1024") as full:
        take(table, 0, session="one more")
    assert full.value.tenant_full
    take(table, 0, session="one more", tenant="other")
    table.end(last.id, "released", 1)
    take(table, 1, session="one more")


def test_a_lease_with_a_scheduled_end_is_revoked_after_its_calls() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=600)
    table.schedule_end(lease, 20, "the configuration changed")
    table.schedule_end(lease, 30, "later does not count")
    table.start_call(lease, 19)
    assert run_to(table, 19, 40) == []
    assert table.end_call(lease, 40)
    ((ended, end),) = table.tick(40)
    assert ended is lease
    assert (end.outcome, end.cause) == ("revoked", "the configuration changed")


def test_a_cancelled_end_keeps_the_lease() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0, ttl=600)
    table.schedule_end(lease, 20, "changed")
    table.cancel_scheduled_end(lease)
    assert run_to(table, 0, 500) == []


def test_how_leases_ended_is_remembered_for_ten_minutes_and_ten_thousand_leases() -> None:
    table = LeaseTable("inc", capacity=20_000)
    first = take(table, 0, limit=20_000)
    table.end(first.id, "revoked", 0, "because")
    assert table.find_ended(first.id, 599) == EndedLease("revoked", "because", 0, first.key.tenant)
    assert table.find_ended(first.id, bounds.LEASE_MEMORY) is None
    for number in range(10_000):
        lease = take(table, 1, session=str(number), limit=20_000)
        table.end(lease.id, "released", 1)
    assert table.find_ended(first.id, 1) is None
    assert table.find_ended("inc-2", 1) is not None
    assert table.find_ended("never-granted", 1) is None


class Leases(RuleBasedStateMachine):
    """The table against a model that knows only keys, times and calls."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.model: dict[str, dict[str, float]] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.gone: dict[str, tuple[str, float]] = {}
        self.leases: dict[str, WorkerLease] = {}

    @initialize(capacity=st.integers(1, 4))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.table = LeaseTable("inc", capacity)

    @rule(session=st.sampled_from("abc"), server=st.sampled_from("xy"), ttl=st.integers(1, 30))
    def acquire(self, session: str, server: str, ttl: int) -> None:
        known = self.keys.get((session, server))
        full = known is None and len(self.model) >= self.capacity
        crowded = known is None and sum(s == server for _, s in self.keys) >= 2
        try:
            lease = take(self.table, self.now, session, server, ttl, limit=2)
        except LeaseLimitReached:
            assert full or crowded
            return
        assert not full
        assert not crowded
        if known is not None:
            assert lease.id == known
            granted = max(self.model[known]["ttl"], ttl)
        else:
            assert lease.id not in self.gone
            granted = ttl
            self.keys[session, server] = lease.id
            self.leases[lease.id] = lease
            self.model[lease.id] = {"calls": 0}
        self.model[lease.id] |= {"ttl": granted, "until": self.now + granted}

    @precondition(lambda self: self.model)
    @rule(data=st.data(), what=st.sampled_from(["renew", "begin", "end", "drain", "keep"]))
    def use(self, data: st.DataObject, what: str) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.model)))
        lease, known = self.leases[lease_id], self.model[lease_id]
        if what == "renew":
            assert self.table.renew(lease_id, self.now) is lease
        elif what == "begin":
            self.table.start_call(lease, self.now)
            known["calls"] += 1
        elif what == "end" and known["calls"]:
            self.table.end_call(lease, self.now)
            known["calls"] -= 1
        elif what == "drain":
            self.table.schedule_end(lease, self.now + 5, "drained")
            known["drain"] = min(known.get("drain", self.now + 5), self.now + 5)
            return
        elif what == "keep":
            self.table.cancel_scheduled_end(lease)
            known.pop("drain", None)
            return
        else:
            return
        known["until"] = self.now + known["ttl"]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), how=st.sampled_from(["released", "revoked", "lost"]))
    def end(self, data: st.DataObject, how: str) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.model)))
        assert self.table.end(lease_id, how, self.now) is not None  # type: ignore[arg-type]
        self.forget(lease_id, how)

    @rule(seconds=st.floats(0.01, 20))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := self.table.next_tick(self.now)) is not None and at <= end:
            self.now = max(self.now, at)
            for lease, ended in self.table.tick(self.now):
                known = self.model[lease.id]
                assert not known["calls"]
                due = known["until"] if ended.outcome == "expired" else known["drain"]
                assert due - 1e-6 <= self.now < due + 0.5 + 1e-6 or known.get("kept_by_call")
                self.forget(lease.id, ended.outcome)
        self.now = end
        for known in self.model.values():
            known["kept_by_call"] = known.get("kept_by_call", 0) or known["calls"]

    @rule(seconds=st.floats(2, 40))
    def stall(self, seconds: float) -> None:
        """The whole process stands still: what renewals could have saved gets a third more."""
        if self.table.next_tick(self.now) is None:
            return
        self.now += seconds
        for lease, ended in self.table.tick(self.now):
            assert ended.outcome == "revoked"
            assert self.model[lease.id]["drain"] <= self.now
            self.forget(lease.id, ended.outcome)
        for lease_id, known in self.model.items():
            known["until"] = max(known["until"], self.now + known["ttl"] / 3)
            assert self.leases[lease_id].expires_at == pytest.approx(known["until"])

    @rule()
    def pass_the_time_that_ends_are_remembered(self) -> None:
        self.pass_time(bounds.LEASE_MEMORY)

    def forget(self, lease_id: str, how: str) -> None:
        del self.model[lease_id]
        self.keys = {key: value for key, value in self.keys.items() if value != lease_id}
        self.gone[lease_id] = (how, self.now)
        assert self.table.end(lease_id, "lost", self.now) is None

    @invariant()
    def nothing_is_lost_or_kept_too_long(self) -> None:
        if not hasattr(self, "table"):
            return
        assert {lease.id for lease in self.table.leases} == set(self.model)
        assert len(self.table) <= self.capacity
        for known in self.model.values():
            if not known["calls"]:
                assert known["until"] + 0.5 + 1e-6 > self.now
        for lease_id, (how, when) in self.gone.items():
            ended = self.table.find_ended(lease_id, self.now)
            remembered = self.now - when < bounds.LEASE_MEMORY
            assert (ended.outcome if ended is not None else None) == (how if remembered else None)


def test_any_sequence_of_events_keeps_the_table_true_to_its_model() -> None:
    run_state_machine_as_test(
        Leases, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


def test_a_lease_is_released_when_its_last_client_leaves() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0)
    for client in ("one", "two"):
        table.add_client(lease, client)
    assert not table.leave(lease, "one", 1, keep=0, idle=0)
    assert not table.leave(lease, "stranger", 1, keep=0, idle=0)
    assert table.leave(lease, "two", 1, keep=0, idle=0)


def test_a_lease_with_unknown_users_is_never_released_by_a_client_that_leaves() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0)
    for number in range(65):
        table.add_client(lease, f"client-{number}")
    assert not any(
        table.leave(lease, f"client-{number}", 1, keep=0, idle=0) for number in range(65)
    )


def test_a_left_lease_is_kept_without_renewals_until_it_is_idle() -> None:
    table = LeaseTable("inc")
    lease = take(table, 0)
    table.set_started(lease)
    table.add_client(lease, "one")
    assert not table.leave(lease, "one", 10, keep=600, idle=10)
    table.start_call(lease, 500)
    table.end_call(lease, 510)
    assert run_to(table, 510, 1109) == []
    assert run_to(table, 1109, 1111) == [(lease.id, "released")]
    ended = table.find_ended(lease.id, 1111)
    assert ended is not None
    assert ended.unasked
    assert ended.cause == "no call had run on it for 600 s, its idle limit"


def test_only_ends_of_started_leases_that_nobody_asked_for_are_unasked() -> None:
    table = LeaseTable("inc")
    for number, (outcome, cause, started) in enumerate(
        [("released", "", True), ("lost", "it did not start", False), ("expired", "", True)]
    ):
        lease = take(table, 0, session=f"s{number}")
        if started:
            table.set_started(lease)
        table.end(lease.id, outcome, 1, cause)  # type: ignore[arg-type]
    records = [table.find_ended(f"inc-{number}", 1) for number in (1, 2, 3)]
    assert [record is not None and record.unasked for record in records] == [False, False, True]
