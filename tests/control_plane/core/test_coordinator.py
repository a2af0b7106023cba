"""The coordinator: events in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import (
    START,
    at,
    coordinator,
    hello,
    lease,
    listing,
    load,
    spec,
)
from tests.control_plane.core.fake_worker import FAILED, FakeWorker, answer, exposed, run, started
from tests.specs import part

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.queries.place import not_served
from leaseway.control_plane.core.workers.actions import (
    PushDelta,
    RevokeLease,
    StartProbe,
)
from leaseway.control_plane.core.workers.records import WorkerIdentity, WorkerRefused, WorkerReport
from leaseway.control_plane.core.workers.subscription import VariantRefusal
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Reason


def test_a_server_is_listed_once_a_worker_has_acknowledged_it() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    assert state.pending.servers == ["a"]
    assert not state.ready
    state.handle_probe_result(worker.probes.pop().id, listing("echo"), START)
    assert exposed(state) == {}
    run(state, [worker])
    assert exposed(state) == {"a_echo": "a"}
    assert state.ready


def test_a_listed_server_is_pending_until_its_commit_is_served() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("fast"), spec("slow"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    fast = next(probe for probe in worker.probes if probe.spec.key.server_id == "fast")
    state.handle_probe_result(fast.id, listing("echo"), START)
    run(state, [worker])
    assert state.pending.servers == ["fast", "slow"]  # its result waits for those of the next 50 ms
    state.tick(at(0.06))
    run(state, [worker], at(0.06))
    assert state.pending.servers == ["slow"]
    assert exposed(state) == {"fast_echo": "fast"}


def test_each_new_server_is_probed_by_exactly_one_worker() -> None:
    state = coordinator(expected_workers=2)
    workers = [FakeWorker("w1"), FakeWorker("w2")]
    load(state, *(spec(f"s{n}") for n in range(10)))
    for worker in workers:
        state.handle_worker_joined(hello(worker.id), START)
    run(state, workers)
    probed = [probe.spec.key.server_id for worker in workers for probe in worker.probes]
    assert sorted(probed) == sorted(f"s{n}" for n in range(10))


def test_an_equal_configuration_probes_nothing_and_sends_nothing() -> None:
    state, worker = started(spec("a"), spec("b"))
    version, upserts = state.visible.version, worker.upserts
    load(state, spec("b"), spec("a"))
    run(state, [worker])
    assert (state.visible.version, worker.upserts, worker.probes) == (version, upserts, [])


def test_a_new_exposure_touches_no_process() -> None:
    state, worker = started(spec("a"))
    load(state, spec("a", prefix="other_"))
    run(state, [worker])
    assert worker.probes == []
    assert exposed(state) == {"other_echo": "a"}


def test_a_failed_change_keeps_the_last_known_good_with_a_problem() -> None:
    state, worker = started(spec("a"))
    load(state, spec("a", command="broken"))
    run(state, [worker])
    answer(state, worker, FAILED)
    assert exposed(state) == {"a_echo": "a"}
    assert [problem.problem.reason for problem in state.problems.open()] == ["START_FAILED"]
    load(state, spec("a"))  # undone
    run(state, [worker])
    assert state.problems.open() == []


def test_an_entry_that_fails_to_start_changes_no_name_and_no_rule() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    answer(state, worker, listing("danger", "echo"))
    served, before = state.visible.served[VariantKey("a")], exposed(state)
    broken = replace(spec("a", command="broken", prefix="b_"), call_timeout=5.0)
    load(state, replace(broken, tools=NameFilter((), ("danger",))))
    run(state, [worker])
    state.tick(at(bounds.COMMIT_WINDOW))
    run(state, [worker], at(bounds.COMMIT_WINDOW))
    assert exposed(state) == before, "while it is tried"
    answer(state, worker, FAILED, at(1))
    state.tick(at(2))
    run(state, [worker], at(2))
    assert exposed(state) == before, "after it has failed"
    assert worker.held[VariantKey("a")] == served
    assert "START_FAILED" in [problem.problem.reason for problem in state.problems.open()]
    load(state, replace(spec("a"), tools=NameFilter((), ("danger",))), now=at(3))  # what works
    state.tick(at(4))
    run(state, [worker], at(4))
    assert exposed(state) == {"a_echo": "a"}


def test_restored_content_stays_until_its_successor_is_up() -> None:
    first, worker = started(spec("a"))
    state = coordinator()
    load(state, replace(spec("a", command="broken"), tools=NameFilter((), ("echo",))))
    state.handle_worker_joined(
        hello(held=worker.hashes(), highest_version=first.visible.version), START
    )
    run(state, [worker])
    assert exposed(state) == {"a_echo": "a"}


def test_a_failed_probe_is_retried_after_a_backoff() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    answer(state, worker, FAILED)
    due = state.next_deadline()
    assert due is not None
    assert worker.probes == []
    later = Moment(max(due, START.mono) + 1e-6, START.unix + 60)
    state.tick(later)
    run(state, [worker], later)
    answer(state, worker, listing("echo"), later)
    assert exposed(state) == {"a_echo": "a"}
    assert state.problems.open() == []


def test_the_probe_of_an_outdated_spec_is_cancelled() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    old = worker.probes.pop()
    load(state, spec("a", command="newer"))
    run(state, [worker])
    assert worker.cancelled == [old.id]
    state.handle_probe_result(old.id, listing("stale"), START)
    run(state, [worker])
    assert exposed(state) == {}
    answer(state, worker, listing("fresh"))
    assert exposed(state) == {"a_fresh": "a"}


def test_one_servers_failure_does_not_delay_another() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"), spec("b"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    by_server = {probe.spec.key.server_id: probe for probe in worker.probes}
    state.handle_probe_result(by_server["a"].id, FAILED, START)
    state.handle_probe_result(by_server["b"].id, listing("echo"), START)
    run(state, [worker])
    assert exposed(state) == {"b_echo": "b"}
    assert state.ready


def test_results_close_together_share_a_registry_version() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"), spec("b"), spec("c"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    version = state.committed.version
    for probe in worker.probes:
        state.handle_probe_result(probe.id, listing("echo"), START)
    run(state, [worker])
    assert state.committed.version == version + 1
    assert len(exposed(state)) == 3


def test_a_rejected_entry_keeps_what_its_server_had() -> None:
    state, worker = started(spec("a"), spec("b"))
    state.apply_config({VariantKey("b"): spec("b")}, frozenset({"a"}), (), START)
    run(state, [worker])
    assert exposed(state) == {"a_echo": "a", "b_echo": "b"}


def test_a_removed_server_is_removed_from_workers() -> None:
    state, worker = started(spec("a"), spec("b"))
    load(state, spec("b"))
    run(state, [worker])
    assert exposed(state) == {"b_echo": "b"}
    assert list(worker.held) == [VariantKey("b")]


def test_a_relisting_commits_and_a_failed_one_changes_nothing() -> None:
    state, worker = started(spec("a"))
    launch = spec("a").launch_hash
    state.handle_relisting("w1", VariantKey("a"), launch, listing("echo", "more"), START)
    run(state, [worker])
    assert exposed(state) == {"a_echo": "a", "a_more": "a"}
    state.handle_relisting("w1", VariantKey("a"), launch, FAILED, START)
    run(state, [worker])
    assert exposed(state) == {"a_echo": "a", "a_more": "a"}
    state.handle_relisting("w1", VariantKey("a"), "another launch", listing(), START)
    run(state, [worker])
    assert len(exposed(state)) == 2


def test_many_silent_workers_delay_a_new_server_only_once() -> None:
    first, holder = started(spec("a"))
    state, worker = started(spec("b"))
    mute = hello("mute", held=holder.hashes(), highest_version=first.visible.version)

    def join(number: int, now: Moment) -> None:
        address = replace(mute.address, id=f"mute{number}")
        state.handle_worker_joined(replace(mute, address=address), now)
        go_on(now)

    def go_on(now: Moment) -> None:
        state.tick(now)
        mine = [action for name, action in state.pop_actions() if name == worker.id]
        for action in mine:
            if isinstance(action, PushDelta):
                state.handle_ack(worker.id, action.push.nonce, now)
            elif isinstance(action, StartProbe):
                state.handle_probe_result(action.id, listing("echo"), now)
        if mine:
            go_on(now)

    join(0, at(5))
    load(state, spec("b"), spec("c"), now=at(6))
    for number in range(1, 600):
        join(number, at(6 + number / 60))  # all within ten seconds
    go_on(at(16))
    assert "c" not in exposed(state).values()
    go_on(at(20.1))  # 15 s after the first of them
    go_on(at(21))
    assert "c" in exposed(state).values()
    join(600, at(30))
    load(state, spec("b"), spec("c"), spec("d"), now=at(31))
    go_on(at(32))
    assert "d" in exposed(state).values()


def test_a_worker_that_never_sends_content_does_not_block_reloads() -> None:
    first, holder = started(spec("a"))
    state, worker = started(spec("b"))
    mute = hello("w2", held=holder.hashes(), highest_version=first.visible.version)
    state.handle_worker_joined(mute, at(5))
    load(state, spec("b", prefix="new_"), now=at(6))
    mine = [
        action for action in state.pop_actions() if action[0] == "w1"
    ]  # what w2 is asked is lost
    state.tick(at(10))
    assert (mine, exposed(state)) == ([], {"b_echo": "b"})
    due = state.next_deadline()
    assert due == at(20).mono
    state.tick(at(20))
    assert "CONTENT_OVERDUE" in [problem.problem.reason for problem in state.problems.open()]
    state.tick(at(21))
    run(state, [worker, FakeWorker("w2")], at(21))
    assert exposed(state) == {"new_echo": "b"}


def test_a_second_run_of_an_id_waits_until_the_first_has_been_gone() -> None:
    state, _ = started(spec("a"))
    second_run = hello(address=hello().address.__class__("w1", "another-run", "127.0.0.1:2"))
    with pytest.raises(WorkerRefused, match="uses the id 'w1'"):
        state.handle_worker_joined(second_run, at(1))
    state.handle_worker_disconnected("w1", at(2))
    with pytest.raises(WorkerRefused):
        state.handle_worker_joined(second_run, at(11))
    state.handle_worker_joined(second_run, at(12.1))
    assert state.workers["w1"].hello.address.incarnation == "another-run"


def test_a_run_that_is_known_to_have_ended_is_replaced_and_its_leases_are_lost() -> None:
    state, _ = started(spec("a"))
    first = hello().address
    held = lease("l1", "w1")
    state.handle_report("w1", WorkerReport(gained=(held,)), at(1))
    state.handle_run_ended(first, at(1))  # it is connected
    state.handle_worker_disconnected("w1", at(2))
    second_run = hello(address=WorkerIdentity("w1", "another-run", "127.0.0.1:2"))
    assert state.roster.doubtful_run(second_run.address) == first
    state.handle_run_ended(replace(first, incarnation="an-older-run"), at(2))
    with pytest.raises(WorkerRefused, match="may still run"):
        state.handle_worker_joined(second_run, at(2))
    state.handle_run_ended(first, at(2))
    assert state.placements.pop_lost() == [held]
    state.handle_worker_joined(second_run, at(2))
    assert state.workers["w1"].hello.address.incarnation == "another-run"
    assert not state.problems.open()


def test_the_probes_of_a_disconnected_worker_move_to_another() -> None:
    state = coordinator(expected_workers=2)
    workers = [FakeWorker("w1"), FakeWorker("w2")]
    load(state, spec("a"))
    for worker in workers:
        state.handle_worker_joined(hello(worker.id), START)
    run(state, workers)
    first = next(worker for worker in workers if worker.probes)
    other = next(worker for worker in workers if not worker.probes)
    state.handle_worker_disconnected(first.id, at(1))
    run(state, workers, at(1))
    assert [probe.spec.key.server_id for probe in other.probes] == ["a"]


def test_a_refused_variant_is_a_problem_and_is_not_sent_again_until_it_changes() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"), spec("b"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    for probe in worker.probes:
        state.handle_probe_result(probe.id, listing("echo"), START)
    ((worker_id, action),) = state.pop_actions()
    assert isinstance(action, PushDelta)
    refusal = VariantRefusal(VariantKey("a"), "BAD_SPEC", "cannot run this here")
    state.handle_nack(worker_id, action.push.nonce, [refusal], START)
    state.handle_ack(worker_id, action.push.nonce, START)
    assert exposed(state) == {"b_echo": "b"}
    assert [problem.problem.worker_id for problem in state.problems.open()] == ["w1"]
    load(state, spec("a"), spec("b"), spec("c"))
    sent = [action for _, action in state.pop_actions()]
    assert not any(
        isinstance(each_action, PushDelta) and each_action.push.upserts for each_action in sent
    )


def two_workers_and_the_older_lease() -> tuple[Coordinator, list[FakeWorker]]:
    """Return w1 with a session's older lease and w2, which will report another."""
    state = coordinator(expected_workers=2)
    workers = [FakeWorker("w1"), FakeWorker("w2")]
    load(state, spec("a", shared=False))
    for worker in workers:
        state.handle_worker_joined(hello(worker.id), START)
    state.handle_report("w1", WorkerReport(gained=(lease("old", "w1"),)), START)
    return state, workers


def test_a_lease_on_a_disconnected_or_draining_worker_does_not_revoke_its_successor() -> None:
    for drains in (False, True):
        state, workers = two_workers_and_the_older_lease()
        if drains:
            state.drain_worker("w1", at(1))
        else:
            state.handle_worker_disconnected("w1", at(1))
        young = lease("young", "w2")._replace(granted_at=START.mono + 2)
        state.handle_report("w2", WorkerReport(gained=(young,)), at(2))
        state.tick(at(5))
        told = [action for _, action in state.pop_actions()]
        assert not any(isinstance(action, RevokeLease) for action in told)
        assert workers


def test_the_probes_of_a_rejoining_worker_are_retried_at_once() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    worker.probes.clear()
    state.handle_worker_joined(hello(), at(1))  # its older stream was not seen to end
    run(state, [worker], at(1))
    assert [probe.spec.key.server_id for probe in worker.probes] == ["a"]


def test_a_refusals_problem_closes_when_the_variant_is_acknowledged() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    state.handle_probe_result(worker.probes.pop().id, listing("echo"), START)
    ((_, action),) = state.pop_actions()
    assert isinstance(action, PushDelta)
    refusal = VariantRefusal(VariantKey("a"), "BAD_SPEC", "cannot run this here")
    state.handle_nack("w1", action.push.nonce, [refusal], START)
    state.handle_ack("w1", action.push.nonce, START)
    assert [problem.problem.reason for problem in state.problems.open()] == ["BAD_SPEC"]
    load(state, spec("a", prefix="new_"))
    run(state, [worker])
    assert state.problems.open() == []


def test_an_equal_relisting_makes_no_registry_version() -> None:
    state, worker = started(spec("a"))
    version = state.committed.version
    state.handle_relisting("w1", VariantKey("a"), spec("a").launch_hash, listing("echo"), START)
    run(state, [worker])
    assert state.committed.version == version


@pytest.mark.parametrize(
    ("by", "reports", "limit"),
    [
        ("w1", [], 140),  # an older worker, whose other probes may have come first
        ("w2", [(5, False)], 140),
        ("w1", [(5, False)], 660),
        ("w1", [(5, False), (200, True)], 260),
        ("w1", [(5, True)], 65),
        ("w1", [(600, False), (635, True)], 660),
    ],
)
def test_a_probe_that_is_not_answered_in_time_is_retried(
    by: str, reports: list[tuple[int, bool]], limit: int
) -> None:
    state, worker, other = coordinator(), FakeWorker(), FakeWorker("w2")
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    state.handle_worker_joined(hello(other.id), START)
    (probe,) = worker.probes
    for second, begun in reports:
        state.handle_report(by, WorkerReport(probes={probe.id: begun}), at(second))
    state.tick(at(limit - 1))
    run(state, [worker, other], at(limit - 1))
    assert worker.cancelled == []
    state.tick(at(limit + 1))
    run(state, [worker, other], at(limit + 1))
    assert worker.cancelled == [probe.id]
    assert [problem.problem.reason for problem in state.problems.open()] == ["PROBE_OVERDUE"]


IDS = st.sampled_from(["a", "b", "c", "d"])
CONFIGS = st.lists(
    st.dictionaries(
        IDS, st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["", "p_", "q_"])), max_size=4
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(CONFIGS, st.sets(st.tuples(IDS, st.sampled_from(["x", "y"]))), st.booleans())
def test_any_sequence_of_configurations_has_the_result_of_the_last_one(
    configs: list[dict[str, tuple[str, str]]], broken: set[tuple[str, str]], restart: bool
) -> None:
    """All deltas together give the last configuration; failures affect no other server."""

    def settle(state: Coordinator, worker: FakeWorker) -> None:
        run(state, [worker])
        while worker.probes:
            probe = worker.probes[0]
            bad = (probe.spec.key.server_id, part(probe.spec).command) in broken
            answer(state, worker, FAILED if bad else listing("echo", "list"))

    def specs(config: dict[str, tuple[str, str]]) -> list[ServerSpec]:
        return [spec(name, command=c, prefix=p + name) for name, (c, p) in config.items()]

    state, worker = coordinator(), FakeWorker()
    state.handle_worker_joined(hello(), START)
    for config in configs:
        load(state, *specs(config))
        settle(state, worker)
        if restart:
            held = worker.hashes()
            state = coordinator()
            load(state, *specs(config))
            state.handle_worker_joined(hello(held=held, highest_version=worker.version), START)
            settle(state, worker)
    fresh, blank = coordinator(), FakeWorker()
    load(fresh, *specs(configs[-1]))
    fresh.handle_worker_joined(hello(), START)
    settle(fresh, blank)
    healthy = {name for name, (command, _) in configs[-1].items() if (name, command) not in broken}
    seen = {name: owner for name, owner in exposed(state).items() if owner in healthy}
    assert seen == exposed(fresh)
    assert set(worker.held) <= {VariantKey(name) for name in configs[-1]}


def test_a_server_is_on_its_way_to_a_worker_that_has_joined_until_it_has_it_or_refuses_it() -> None:
    state, _ = started(spec("a"))
    key = VariantKey("a")
    state.handle_worker_disconnected("w1", at(2))
    state.handle_run_ended(hello().address, at(2))
    assert not_served(state, key).reason is Reason.SERVER_NOT_READY
    state.handle_worker_joined(hello("w2"), at(2))
    [push] = [action for _, action in state.pop_actions() if isinstance(action, PushDelta)]
    assert not_served(state, key).reason is Reason.SYNCING
    assert not_served(state, VariantKey("b")).reason is Reason.SERVER_NOT_READY
    refusal = VariantRefusal(key, "BAD_SPEC", "cannot run this here")
    state.handle_nack("w2", push.push.nonce, [refusal], at(2))
    assert not_served(state, key).reason is Reason.SERVER_NOT_READY
