"""Which worker gets a probe, among many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control_plane.core.builders import at, coordinator, hello, listing, load, spec

from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.control_plane.core.servers.probe_workers import ProbeWorkers
from leaseway.control_plane.core.servers.timers import Timers
from leaseway.control_plane.core.workers.actions import PushDelta, StartProbe
from leaseway.control_plane.core.workers.subscription import Push
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds

NAMES = ("w0", "w1", "w2", "w3")
SCOPES = (
    WorkerScope(),
    WorkerScope.of({"gpu": "yes"}),
    WorkerScope.of({"gpu": "yes", "zone": "a"}, ["a*"]),
    WorkerScope.of({}, ["b"]),
)
SPECS = tuple(
    replace(spec(server), worker_labels=labels)
    for server in ("a", "b")
    for labels in ({}, {"gpu": "yes"})
)
workers = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("set"), workers, st.sampled_from(SCOPES), st.booleans()),
    st.tuples(st.just("remove"), workers),
    st.tuples(st.just("end"), workers),
    st.tuples(
        st.just("choose"),
        st.sampled_from(SPECS),
        st.sampled_from(["", *NAMES]),
        st.sampled_from(["", *NAMES]),
        st.sets(workers, max_size=2),
    ),
)


class Scan:
    """The same by a look at every worker."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[WorkerScope, bool]] = {}
        self.running: dict[str, list[int]] = {name: [] for name in NAMES}

    def choose(self, server: ServerSpec, last: str, never: str, having: set[str]) -> str | None:
        able = [
            (silent, name == last, name not in having, len(self.running[name]), name)
            for name, (scope, silent) in self.known.items()
            if name != never
            and len(self.running[name]) < bounds.MAX_PROBES
            and scope.accepts(server)
        ]
        return min(able)[-1] if able else None


@given(st.lists(steps, max_size=60))
def test_the_heaps_choose_like_a_scan_of_all_workers(
    sequence: list[tuple[object, ...]],
) -> None:
    pool, scan = ProbeWorkers(), Scan()
    for number, step in enumerate(sequence):
        match step:
            case ("set", str(name), WorkerScope() as scope, bool(silent)):
                pool.set(name, scope, silent=silent)
                scan.known[name] = scope, silent
            case ("remove", str(name)):
                pool.remove(name)
                scan.known.pop(name, None)
            case ("end", str(name)) if scan.running[name]:
                pool.end(name, scan.running[name].pop())
            case ("choose", ServerSpec() as server, str(last), str(never), set() as having):
                chosen = pool.choose(server, last=last, never=never, listing=having)
                assert chosen == scan.choose(server, last, never, having)
                if chosen is not None:
                    pool.begin(chosen, number)
                    scan.running[chosen].append(number)


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 9)))))
def test_a_timer_is_due_at_its_last_time_only(sequence: list[tuple[int, int | None]]) -> None:
    timers, times = Timers[int](), dict[int, float]()
    for key, time in sequence:
        if time is None:
            timers.discard(key)
            times.pop(key, None)
        else:
            timers.set(key, time)
            times[key] = time
        assert timers.next() == min(times.values(), default=None)
    assert sorted(timers.pop_due(4)) == sorted(key for key, time in times.items() if time <= 4)


def test_an_event_looks_at_few_of_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scan, a hundred servers and workers would take ten thousand looks for one tick."""
    many = 100
    state = coordinator(many)
    for number in range(many):
        state.handle_worker_joined(hello(f"w{number}"), at(0))
    looks: list[None] = []
    accepts = WorkerScope.accepts

    def counting(self: WorkerScope, server: ServerSpec) -> bool:
        looks.append(None)
        return accepts(self, server)

    monkeypatch.setattr(WorkerScope, "accepts", counting)
    monkeypatch.setattr(state.servers, "update_unplaced", lambda *_: None)
    load(state, *(spec(f"s{number}") for number in range(many)))
    started = [action for _, action in state.pop_actions() if isinstance(action, StartProbe)]
    assert len(started) == many
    for probe in started:
        state.handle_probe_result(probe.id, listing("echo"), at(0))
    assert len(looks) <= 4 * many


def test_an_acknowledgement_of_all_servers_looks_at_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the first start of a fleet takes workers x servers looks."""
    names, many = [f"s{number}" for number in range(10)], 20
    state = coordinator(many)
    load(state, *map(spec, names))
    for number in range(many):
        state.handle_worker_joined(hello(f"w{number}"), at(0))
    pushes: list[tuple[str, Push]] = []
    while actions := state.pop_actions():
        for name, action in actions:
            if isinstance(action, StartProbe):
                state.handle_probe_result(action.id, listing("echo"), at(0))
            elif isinstance(action, PushDelta) and len(action.push.upserts) == len(names):
                pushes.append((name, action.push))
            elif isinstance(action, PushDelta):
                state.handle_ack(name, action.push.nonce, at(0))
    assert len(pushes) == many
    looks: list[None] = []
    key = Served.key

    def counting(self: Served) -> VariantKey:
        looks.append(None)
        return key.__get__(self)  # type: ignore[no-any-return]

    (first, push), *others = pushes
    state.handle_ack(first, push.nonce, at(1))  # makes it visible
    monkeypatch.setattr(Served, "key", property(counting))
    for name, push in others:
        state.handle_ack(name, push.nonce, at(1))
    assert looks == []
    assert all(record.subscription.acked_version for record in state.workers.values())


def test_servers_that_only_busy_or_no_workers_accept_cost_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    choose = ProbeWorkers.choose

    def counting(self: ProbeWorkers, server: ServerSpec, **more: object) -> str | None:
        asked.append(server.key.server_id)
        return choose(self, server, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ProbeWorkers, "choose", counting)
    state = coordinator(2)
    many = [spec(f"{name}{number:02}") for name in "abz" for number in range(30)]
    load(state, *many)
    state.handle_worker_joined(hello("w1", servers=("a*",)), at(0))
    state.handle_worker_joined(hello("w2", servers=("none",)), at(0))
    assert sorted(asked) == [f"a{number:02}" for number in range(bounds.MAX_PROBES)]
    asked.clear()
    state.tick(at(1))
    assert asked == []
    state.handle_worker_joined(hello("w3", servers=("b*", "z00")), at(2))
    assert len(asked) == bounds.MAX_PROBES, "the patterns of a new worker count"
    assert {name[0] for name in asked} <= {"b", "z"}
