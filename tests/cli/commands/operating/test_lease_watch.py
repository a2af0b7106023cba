"""`leaseway leases --watch`: what two looks tell, and how the watch ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import Result
from tests.cli.fakes import FakeClient, stand_in

from leaseway.cli.commands.operating import lease_watch
from leaseway.cli.commands.operating import watch as watching
from leaseway.cli.commands.operating.lease_watch import lease_changes
from leaseway.sdk import ControlPlaneUnavailable, LeaseInfo

Run = Callable[..., Result]
Look = list[LeaseInfo] | ControlPlaneUnavailable | None

LEASE = LeaseInfo("run-1", "desk", "w1", "default", "job", "billing", 60.0, 5.0, "i1", "h1")
OLDER = replace(LEASE, age=9.0)
OTHER = replace(LEASE, id="run-2", session="another", age=1.0)


def told(
    before: list[LeaseInfo], after: list[LeaseInfo], **ends: str
) -> list[tuple[str, LeaseInfo]]:
    by_id = {name.replace("_", "-"): how for name, how in ends.items()}
    return [(change.event, change.lease) for change in lease_changes(before, after, by_id)]


def test_a_lease_that_only_grew_older_has_not_changed() -> None:
    assert told([LEASE], [OLDER]) == []


def test_the_lost_come_first_and_the_gained_by_age() -> None:
    gone = replace(LEASE, id="run-0")
    assert told([gone], [OTHER, LEASE]) == [("lost", gone), ("gained", LEASE), ("gained", OTHER)]


@pytest.mark.parametrize("how", ["released", "revoked", "expired", "lost"])
def test_a_lease_that_ended_is_told_with_how(how: str) -> None:
    assert told([LEASE, OTHER], [OTHER], run_1=how, run_2="expired") == [(how, LEASE)]


@pytest.mark.parametrize("newer", [replace(OLDER, ttl=90.0), replace(OLDER, instance_id="i2")])
def test_another_time_to_live_or_instance_is_a_change(newer: LeaseInfo) -> None:
    assert told([LEASE], [newer]) == [("changed", newer)]


class _Client(FakeClient):
    """Answers with one look after another; the user interrupts behind the last."""

    def __init__(self, *looks: Look) -> None:
        self._looks = list(looks)
        self._settling = False

    async def leases(self) -> list[LeaseInfo]:
        if not self._looks:
            raise KeyboardInterrupt
        look = self._looks.pop(0)
        if isinstance(look, ControlPlaneUnavailable):
            raise look
        self._settling = look is None
        return look or []

    async def lease_ends(self) -> dict[str, str]:
        return {"run-1": "released"}

    async def status(self) -> SimpleNamespace:
        return SimpleNamespace(settling=self._settling)


@pytest.fixture
def watch(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Watch these looks: `watch("--json", looks=[...])`; None is one while it settles."""

    def invoke(*options: str, looks: list[Look]) -> Result:
        monkeypatch.setattr(watching, "_EVERY", 0.0)
        monkeypatch.setattr(lease_watch, "_SETTLES", 0.0)
        stand_in(monkeypatch, _Client(*looks))
        return run("leases", "--watch", *options)

    return invoke


def test_a_watch_tells_what_is_held_and_what_becomes_of_it(watch: Run) -> None:
    acme = replace(LEASE, tenant="acme", agent="", ttl=90.0)
    done = watch(looks=[[LEASE], [OLDER], [acme], []])
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    what = "run-1 server desk, session job, worker w1"
    assert lines == [
        f"gained {what}, agent billing (ttl 60 s, age 5 s)",
        f"changed {what}, tenant acme (ttl 90 s, age 5 s)",
        f"released {what}, tenant acme (ttl 90 s, age 5 s)",
    ]


def test_a_watch_for_programs_is_one_object_a_line(watch: Run) -> None:
    done = watch("--json", looks=[[LEASE], []])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["gained", "released"]
    assert (lines[0]["id"], lines[0]["session"]) == ("run-1", "job")
    assert lines[0]["seen"].endswith("+00:00")


def test_a_restarted_control_plane_is_waited_for_and_nothing_counts_as_lost(watch: Run) -> None:
    away = ControlPlaneUnavailable("Nobody answers.")
    done = watch(looks=[[LEASE], away, away, None, None, [OLDER, OTHER]])
    assert done.exit_code == 0
    assert [line.split(" ")[1] for line in done.stdout.splitlines()] == ["gained", "gained"]
    assert done.stderr.count("unreachable") == 1


def test_a_watch_of_nobody_fails_like_every_command(watch: Run) -> None:
    assert watch(looks=[ControlPlaneUnavailable("Nobody answers.")]).exit_code == 3
