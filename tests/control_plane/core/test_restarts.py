"""A restarted control plane restores its state from workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
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
from tests.control_plane.core.fake_worker import FakeWorker, answer, exposed, run, started

from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.registry import Registry
from leaseway.spec.model import VariantKey


def test_a_restarted_control_plane_restores_its_state_without_a_probe() -> None:
    before, worker = started(spec("a"), spec("b"))
    state = coordinator()
    load(state, spec("a"), spec("b"))
    joined = hello(
        held=worker.hashes(),
        highest_version=before.visible.version,
        leases=(lease("L1", "w1"),),
    )
    upserts = worker.upserts
    state.handle_worker_joined(joined, at(1))
    run(state, [worker], at(1))
    assert worker.probes == []
    assert worker.upserts == upserts
    assert exposed(state) == {"a_echo": "a", "b_echo": "b"}
    assert list(state.placements.leases) == ["L1"]
    assert state.visible.version > before.visible.version


def test_a_reconnecting_up_to_date_worker_causes_no_new_version() -> None:
    state, worker = started(spec("a"))
    before = state.committed
    state.handle_worker_disconnected("w1", at(1))
    up_to_date = hello(held=worker.hashes(), highest_version=before.version)
    state.handle_worker_joined(replace(up_to_date, highest_epoch=state.epoch), at(2))
    run(state, [worker], at(2))
    load(state, spec("a"), now=at(3))
    run(state, [worker], at(3))
    assert state.committed is before
    assert exposed(state) == {"a_echo": "a"}
    state.handle_worker_disconnected("w1", at(4))
    state.handle_worker_joined(replace(up_to_date, highest_epoch=state.epoch + 1), at(5))
    assert state.committed.version > before.version


def test_the_version_never_falls_even_when_the_clock_does() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    ahead = 2**62
    state.handle_worker_joined(hello(highest_version=ahead), START)
    run(state, [worker])
    assert state.visible.version > ahead


def test_a_restart_with_a_broken_file_serves_what_workers_hold() -> None:
    _, worker = started(spec("a"))
    state = coordinator()
    state.record_config_problems([Problem("workspace", "BAD_YAML", "mcp.yaml:1:1: no")], at(1))
    state.handle_worker_joined(hello(held=worker.hashes()), at(1))
    run(state, [worker], at(1))
    assert exposed(state) == {"a_echo": "a"}
    load(state, spec("a", prefix="p_"), now=at(2))
    run(state, [worker], at(2))
    assert worker.probes == []
    assert exposed(state) == {"p_echo": "a"}


def test_a_relisting_while_the_rules_are_unknown_exposes_nothing_new() -> None:
    _, worker = started(spec("a"))
    state = coordinator()
    state.record_config_problems([], at(1))
    state.handle_worker_joined(hello(held=worker.hashes()), at(1))
    run(state, [worker], at(1))
    state.handle_relisting(
        "w1", VariantKey("a"), spec("a").launch_hash, listing("echo", "secret"), at(2)
    )
    run(state, [worker], at(2))
    answer(state, worker, listing("echo", "secret"), at(2))
    assert exposed(state) == {"a_echo": "a"}


def test_nothing_is_removed_before_settling() -> None:
    _, worker = started(spec("a"))
    state = coordinator(expected_workers=0)
    load(state)
    joined = hello(held=worker.hashes(), highest_version=worker.version)
    state.handle_worker_joined(joined, at(0))
    run(state, [worker], at(0))
    assert list(worker.held) == [VariantKey("a")]
    state.tick(at(3.1))
    run(state, [worker], at(3.1))
    assert worker.held == {}


def test_content_that_comes_late_is_committed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [spec(name) for name in "abc"]
    _, worker = started(*servers)
    state = coordinator(expected_workers=0)
    load(state, *servers)
    state.handle_worker_joined(hello(held=worker.hashes()), at(0))
    state.tick(at(100))
    assert not state.content.is_waiting
    commits: list[None] = []
    commit = Registry.commit

    def counting(self: Registry, *args: object) -> None:
        commits.append(None)
        commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Registry, "commit", counting)
    for seconds, served in enumerate(worker.held.values()):
        state.handle_content("w1", [served], at(100 + seconds / 10))
    assert commits == []
    due = state.next_deadline()
    assert due == at(101).mono
    state.tick(at(101))
    assert len(commits) == 1
    assert {key.server_id for key in state.committed.served} == set("abc")
    assert not state.servers.probes.busy, "what has come needs no probe"


def test_workers_that_were_lost_with_all_others_get_three_seconds_to_come_back() -> None:
    state = coordinator()
    for worker_id in ("w1", "w2"):
        state.handle_worker_joined(hello(worker_id), at(0))
    assert not state.may_regain_workers(at(1))
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(12))
    assert not state.may_regain_workers(at(12)), "the other one is connected"
    state.handle_worker_disconnected("w2", at(13))
    assert state.may_regain_workers(at(13))
    state.handle_worker_joined(hello("w2"), at(20))
    assert state.may_regain_workers(at(22.9))
    assert not state.may_regain_workers(at(23))
    state.handle_worker_joined(hello("w1"), at(24))
    assert not state.may_regain_workers(at(24))
