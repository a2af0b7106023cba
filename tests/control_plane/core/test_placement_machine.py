"""Placement with several workers, partitions and restarts (design.md#leases), as a simulation.

A real coordinator and the lease tables of real workers, joined by streams that are slow, end at
any time, and are seen to end late. Callers place, acquire and release while all of that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.control_plane.core.builders import at, hello, listing, load, spec

from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import HeldLease, Placement
from leaseway.control_plane.core.queries.place import place
from leaseway.control_plane.core.workers.actions import (
    PushDelta,
    RevokeLease,
    StartProbe,
    WantContent,
    WorkerAction,
)
from leaseway.control_plane.core.workers.records import WorkerIdentity, WorkerRefused, WorkerReport
from leaseway.data_plane.core.leases import table as lease_table
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Reason
from leaseway.wire.messages.states import LeaseOutcome
from leaseway.wire.names import LeaseKey

WORKERS = ("w1", "w2", "w3")
SESSIONS = ("s1", "s2")
RARELY = st.integers(0, 4)
CAPACITY = 2
Event = Callable[[Coordinator, Moment], object]


@dataclass
class Stream:
    """One Sync stream with its undelivered messages in both directions."""

    up: list[Event] = field(default_factory=list)
    down: list[WorkerAction] = field(default_factory=list)


class Worker:
    """A worker: its leases are in a real table; its stream may be down."""

    def __init__(self, worker_id: str) -> None:
        self.id = worker_id
        self.runs = 0
        self.version = 0
        self.start()

    def start(self) -> None:
        self.runs += 1
        self.table = lease_table.LeaseTable(f"{self.id}-{self.runs}", CAPACITY)
        self.variants: dict[VariantKey, Served] = {}
        self.stream: Stream | None = None

    def acquire(self, key: LeaseKey, now: float) -> lease_table.WorkerLease | None:
        what = VariantKey(key.server_id)
        try:
            lease, new = self.table.acquire(key, now, variant=what, launch_hash="", ttl=86_400)
        except lease_table.LeaseLimitReached:
            return None
        if new:
            self.say(WorkerReport(), gained=[lease], now=now)
        return lease

    def end(self, lease_id: str, how: LeaseOutcome, now: float) -> None:
        if self.table.end(lease_id, how, now) is not None:
            self.say(WorkerReport(lost=(lease_id,)), gained=[], now=now)

    def connect(self, now: float) -> None:
        """Open a stream; the control plane dates leases by the age that they have on arrival."""
        leases = [(lease, now - lease.granted_at) for lease in self.table.leases]
        held = {key: variant.hashes for key, variant in self.variants.items()}
        address = WorkerIdentity(self.id, f"run-{self.runs}", "127.0.0.1:1")

        def join(state: Coordinator, then: Moment) -> None:
            known = tuple(self._held(lease, age, then) for lease, age in leases)
            said = hello(self.id, address=address, capacity=CAPACITY, leases=known)
            state.handle_worker_joined(
                replace(said, held=held, highest_version=self.version),
                then,
            )

        self.stream = Stream(up=[join])

    def say(
        self, report: WorkerReport, *, gained: list[lease_table.WorkerLease], now: float
    ) -> None:
        ages = [(lease, now - lease.granted_at) for lease in gained]

        def tell(state: Coordinator, then: Moment) -> None:
            known = tuple(self._held(lease, age, then) for lease, age in ages)
            state.handle_report(self.id, replace(report, gained=known), then)

        if self.stream is not None:
            self.stream.up.append(tell)

    def _held(self, lease: lease_table.WorkerLease, age: float, then: Moment) -> HeldLease:
        key = LeaseKey(lease.key.tenant, lease.key.session, lease.key.server_id)
        return HeldLease(lease.id, key, self.id, then.mono - age)

    def take(self, action: WorkerAction, now: float) -> None:
        """Execute an action of the control plane."""
        assert self.stream is not None
        match action:
            case PushDelta(push):
                self.variants |= {upsert.key: upsert for upsert in push.upserts}
                for key in push.removals:
                    self.variants.pop(key, None)
                self.version = push.version
                self.stream.up.append(
                    lambda state, then: state.handle_ack(self.id, push.nonce, then)
                )
            case StartProbe(probe_id):
                found = listing("echo")
                self.stream.up.append(
                    lambda state, then: state.handle_probe_result(probe_id, found, then)
                )
            case WantContent(keys):
                found_all = [self.variants[key] for key in keys]
                self.stream.up.append(
                    lambda state, then: state.handle_content(self.id, found_all, then)
                )
            case RevokeLease(lease_id, _):
                self.end(lease_id, "revoked", now)
            case _:
                pass


class System(RuleBasedStateMachine):
    """A control plane, three workers with capacity for two leases each, and callers."""

    keys = st.builds(LeaseKey, st.just("default"), st.sampled_from(SESSIONS), st.just("a"))
    names = st.sampled_from(WORKERS)

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.epoch = 0
        self.workers = {name: Worker(name) for name in WORKERS}
        self.placed: list[tuple[LeaseKey, str]] = []
        self.favoured: dict[str, set[str]] = {}  # by session
        self.over: set[str] = set()
        self.replaced: set[LeaseKey] = set()  # revoked for a reservation, which may go unused
        self.start_plane()
        for worker in self.workers.values():
            worker.connect(self.now.mono)
        self.quiesce()

    @property
    def now(self) -> Moment:
        return at(self.time)

    # The control plane.

    def start_plane(self) -> None:
        self.epoch += 1
        self.started = self.time
        self.streams: dict[str, Stream] = {}
        self.booked: dict[LeaseKey, tuple[str, float]] = {}
        self.state = Coordinator(self.now, epoch=self.epoch)
        load(self.state, spec("a", shared=False), now=self.now)

    def send(self) -> None:
        for name, action in self.state.pop_actions():
            if isinstance(action, RevokeLease):
                self.check_is_younger_duplicate(action.lease_id)
            if name in self.streams:
                self.streams[name].down.append(action)

    def check_is_younger_duplicate(self, lease_id: str) -> None:
        lease = self.state.placements.leases[lease_id]
        others = [
            each_lease
            for each_lease in self.state.placements.leases.values()
            if each_lease.key == lease.key and each_lease.worker_id != lease.worker_id
        ]
        valid = {other.id for other in others if self.state.workers[other.worker_id].connected}
        # Another worker may have a reservation that it has not granted yet.
        reserved = set(self.state.placements.workers_of(lease.key)) - {lease.worker_id}
        assert valid or reserved
        self.favoured.setdefault(lease.key.session, set()).update(valid)
        if not valid:
            self.replaced.add(lease.key)

    def tick(self) -> None:
        self.state.tick(self.now)
        self.send()

    def hear(self, name: str, stream: Stream) -> None:
        """Deliver the first message of a stream to the control plane."""
        event = stream.up.pop(0)
        before = dict(self.streams)
        self.streams[name] = stream
        try:
            event(self.state, self.now)
        except WorkerRefused:
            self.streams = before
            self.workers[name].stream = None
        self.send()
        self.forget_bookings()

    def forget_bookings(self) -> None:
        """Reservations end with the lease's report, the worker's loss or by time."""
        held = {(lease.key, lease.worker_id) for lease in self.state.placements.leases.values()}
        self.booked = {
            key: (worker_id, until)
            for key, (worker_id, until) in self.booked.items()
            if (key, worker_id) not in held
            and worker_id in self.state.workers
            and until > self.now.mono
        }

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 5.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        end = self.time + seconds
        while (due := self.state.next_deadline()) is not None and due <= at(end).mono:
            self.time = max(self.time, self.time + due - self.now.mono) + 1e-6
            self.tick()
        self.time = max(self.time, end)
        self.tick()
        self.forget_bookings()

    @rule(rarely=RARELY)
    def restart_the_control_plane(self, rarely: int) -> None:
        if rarely:
            return
        for worker in self.workers.values():
            worker.stream = None
        self.start_plane()

    # Workers.

    @rule(name=names, rarely=RARELY)
    def restart_a_worker(self, name: str, rarely: int) -> None:
        if rarely:
            return
        self.over |= {lease.id for lease in self.workers[name].table.leases}
        self.workers[name].start()

    @rule(name=names)
    def end_a_stream(self, name: str) -> None:
        """Sent messages may still arrive; the control plane may notice the end late."""
        self.workers[name].stream = None

    @rule(name=names)
    def notice_an_ended_stream(self, name: str) -> None:
        if name in self.streams and self.streams[name] is not self.workers[name].stream:
            del self.streams[name]
            self.state.handle_worker_disconnected(name, self.now)
            self.send()
            self.forget_bookings()

    @rule(name=names)
    def connect(self, name: str) -> None:
        if self.workers[name].stream is None:
            self.workers[name].connect(self.now.mono)

    @rule(name=names, late=st.booleans())
    def hear_from_a_worker(self, name: str, late: bool) -> None:
        known, own = self.streams.get(name), self.workers[name].stream
        stream = known if late or own is None else own
        if stream is not None and stream.up:
            self.hear(name, stream)

    @rule(name=names)
    def hear_from_the_control_plane(self, name: str) -> None:
        stream = self.workers[name].stream
        if stream is not None and stream.down:
            self.workers[name].take(stream.down.pop(0), self.now.mono)

    # Callers.

    @rule(key=keys, excluded=st.sets(names, max_size=1))
    def place(self, key: LeaseKey, excluded: set[str]) -> None:
        knew = self.state.placements.has_lease(key)
        places = self.state.placements.workers_of(key)
        outcome = place(self.state, key, excluded, self.now)
        if isinstance(outcome, Denial) and outcome.reason is Reason.SYNCING:
            is_settling = self.time < self.started + bounds.SETTLING and not knew
            assert is_settling or self.awaited(places, excluded)
        elif isinstance(outcome, Denial):
            if "a" in self.state.visible.view("default").servers:
                self.booked.pop(key, None)  # the reserved worker cannot take it
            if outcome.reason is Reason.CAPACITY:
                self.is_full(excluded)
        elif isinstance(outcome, Placement):
            assert outcome.worker_id not in excluded
            if outcome.lease_id is None:
                self.book(key, outcome.worker_id)
            self.placed.append((key, outcome.worker_id))

    def awaited(self, places: list[str], excluded: set[str]) -> bool:
        """Return whether one of these workers may reconnect."""
        records = [self.state.workers[place] for place in places if place in self.state.workers]
        return not any(record.accepts_work for record in records) and any(
            not record.connected and not record.draining and record.id not in excluded
            for record in records
        )

    def book(self, key: LeaseKey, worker_id: str) -> None:
        known = self.booked.get(key)
        if known is None or known[0] != worker_id:
            assert self.state.placements.load(worker_id) <= CAPACITY
        self.booked[key] = (worker_id, self.now.mono + bounds.RESERVATION)

    def is_full(self, excluded: set[str]) -> None:
        served = self.state.visible.view("default").servers["a"]
        for record in self.state.workers_serving(served):
            if record.accepts_work and record.id not in excluded:
                assert self.state.placements.load(record.id) >= CAPACITY

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        """Acquire from a worker chosen earlier; after a refusal, place again."""
        key, name = self.placed.pop(data.draw(st.integers(0, len(self.placed) - 1)))
        if self.workers[name].acquire(key, self.now.mono) is None:
            self.place(key, {name})

    @rule(key=keys, excluded=st.sets(names, max_size=2))
    def lease(self, key: LeaseKey, excluded: set[str]) -> None:
        """Place and acquire at once, possibly excluding a holder that is unreachable."""
        before = len(self.placed)
        self.place(key, excluded)
        for each_lease, name in self.placed[before:]:
            self.workers[name].acquire(each_lease, self.now.mono)

    @rule(name=names)
    def hear_all_of_a_worker(self, name: str) -> None:
        """Deliver all messages between a worker and the control plane."""
        for _ in self.exchange(name):
            pass

    @precondition(lambda self: self.held())
    @rule(data=st.data(), how=st.sampled_from(["released", "expired"]))
    def end(self, data: st.DataObject, how: LeaseOutcome) -> None:
        worker, lease = data.draw(st.sampled_from(self.held()))
        worker.end(lease.id, how, self.now.mono)
        self.over.add(lease.id)

    def held(self) -> list[tuple[Worker, lease_table.WorkerLease]]:
        return [
            (worker, lease) for worker in self.workers.values() for lease in worker.table.leases
        ]

    # What must hold.

    @invariant()
    def reservations_count_until_they_are_used_or_over(self) -> None:
        table = self.state.placements
        table.expire(self.now.mono)
        self.forget_bookings()
        for name in WORKERS:
            mine = [key for key, (worker_id, _) in self.booked.items() if worker_id == name]
            assert table.load(name) - table.held_count(name) == len(mine)

    @invariant()
    def leases_are_those_of_workers_that_are_not_lost(self) -> None:
        for record in self.state.workers.values():
            assert record.disconnected_at is None or (
                self.now.mono < record.disconnected_at + bounds.WORKER_LOST_AFTER
            )
        for lease in self.state.placements.leases.values():
            assert lease.worker_id in self.state.workers

    def teardown(self) -> None:
        wanted = {lease.key for _, lease in self.held()}
        self.quiesce()
        for key in wanted:
            left = [each_lease for _, each_lease in self.held() if each_lease.key == key]
            # A duplicate may be revoked for an older lease that has just ended, too.
            favoured_is_over = self.favoured.get(key.session, set()) & self.over
            assert len(left) == 1 or (not left and (favoured_is_over or key in self.replaced))
        known = set(self.state.placements.leases)
        assert known == {lease.id for _, lease in self.held()}
        self.pass_time(bounds.RESERVATION)
        self.state.placements.expire(self.now.mono)
        for name, worker in self.workers.items():
            assert self.state.placements.load(name) == len(worker.table)

    def quiesce(self) -> None:
        """Connect all workers and deliver all messages."""
        for _ in range(3):  # another run of a worker is let in when the first is lost
            for name in WORKERS:
                self.notice_an_ended_stream(name)
                self.connect(name)
            self.hear_all()
            self.pass_time(bounds.WORKER_LOST_AFTER + 0.5)
        self.hear_all()

    def hear_all(self) -> None:
        while any(happened for name in WORKERS for happened in self.exchange(name)):
            pass

    def exchange(self, name: str) -> Iterator[bool]:
        worker = self.workers[name]
        while worker.stream is not None and (worker.stream.up or worker.stream.down):
            if worker.stream.up:
                self.hear(name, worker.stream)
            else:
                worker.take(worker.stream.down.pop(0), self.now.mono)
            yield True


def test_one_lease_of_a_key_remains_after_any_disconnects_and_restarts() -> None:
    chosen = settings(max_examples=30, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(System, settings=chosen)
