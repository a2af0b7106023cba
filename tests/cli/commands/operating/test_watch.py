"""`leaseway leases --watch` and `problems --watch`: the changes between polls, and the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from tests.cli import memory
from tests.cli.fakes import FakeClient, install_client

from leaseway.cli.commands.operating import watch as watching
from leaseway.cli.commands.operating.watch import lease_changes, problem_changes
from leaseway.sdk import ControlPlaneUnavailable, LeaseInfo, ProblemInfo

Run = Callable[..., Result]

LEASE = LeaseInfo(
    id="run-1",
    server_id="desk",
    worker="w1",
    tenant="default",
    session="job",
    agent="billing",
    ttl=60.0,
    age=5.0,
    instance_id="i1",
    launch_hash="h1",
)
OLDER = replace(LEASE, age=9.0)
OTHER_LEASE = replace(LEASE, id="run-2", session="another", age=1.0)
LATER = memory.NOW + timedelta(seconds=9)
PROBLEM = replace(memory.PROBLEM, count=1)
SEEN_AGAIN = replace(PROBLEM, count=2, last_seen=LATER)
OTHER_PROBLEM = replace(PROBLEM, server_id="git", first_seen=LATER)
UNREACHABLE = ControlPlaneUnavailable("No response.")


def changed_leases(
    before: list[LeaseInfo], after: list[LeaseInfo], **ends: str
) -> list[tuple[str, LeaseInfo]]:
    by_id = {name.replace("_", "-"): end for name, end in ends.items()}
    return [(change.event, change.lease) for change in lease_changes(before, after, by_id)]


def changed_problems(
    before: list[ProblemInfo], after: list[ProblemInfo]
) -> list[tuple[str, ProblemInfo]]:
    return [(change.event, change.problem) for change in problem_changes(before, after)]


def test_a_lease_that_only_grew_older_has_not_changed() -> None:
    assert changed_leases([LEASE], [OLDER]) == []


def test_lost_leases_come_first_then_gained_leases_by_age() -> None:
    lost = replace(LEASE, id="run-0")
    assert changed_leases([lost], [OTHER_LEASE, LEASE]) == [
        ("lost", lost),
        ("gained", LEASE),
        ("gained", OTHER_LEASE),
    ]


@pytest.mark.parametrize("end", ["released", "revoked", "expired", "lost"])
def test_an_ended_lease_has_the_event_of_its_end(end: str) -> None:
    changes = changed_leases([LEASE, OTHER_LEASE], [OTHER_LEASE], run_1=end, run_2="expired")
    assert changes == [(end, LEASE)]


@pytest.mark.parametrize("newer", [replace(OLDER, ttl=90.0), replace(OLDER, instance_id="i2")])
def test_another_time_to_live_or_instance_is_a_change(newer: LeaseInfo) -> None:
    assert changed_leases([LEASE], [newer]) == [("changed", newer)]


def test_equal_problems_in_another_order_have_not_changed() -> None:
    assert changed_problems([PROBLEM, OTHER_PROBLEM], [OTHER_PROBLEM, PROBLEM]) == []


def test_cleared_problems_come_first_then_opened_problems_by_age() -> None:
    cleared = replace(PROBLEM, reason="GONE")
    assert changed_problems([cleared], [OTHER_PROBLEM, PROBLEM]) == [
        ("cleared", cleared),
        ("opened", PROBLEM),
        ("opened", OTHER_PROBLEM),
    ]


@pytest.mark.parametrize(
    "newer",
    [SEEN_AGAIN, replace(PROBLEM, message="It ended again."), replace(PROBLEM, severity="warning")],
)
def test_a_problem_with_another_count_message_or_severity_has_changed(newer: ProblemInfo) -> None:
    assert changed_problems([PROBLEM], [newer]) == [("changed", newer)]


def test_a_problem_that_was_cleared_and_opened_again_is_both() -> None:
    again = replace(PROBLEM, first_seen=LATER)
    assert changed_problems([PROBLEM], [again]) == [("cleared", PROBLEM), ("opened", again)]


def test_problems_with_different_subjects_are_different_problems() -> None:
    first, second = (replace(PROBLEM, subject=name, message="A clash.") for name in "ab")
    assert changed_problems([first, second], [second]) == [("cleared", first)]
    assert changed_problems([second], [first, second]) == [("opened", first)]
    reworded = replace(second, message="Still a clash.")
    assert changed_problems([first, second], [reworded]) == [
        ("cleared", first),
        ("changed", reworded),
    ]


class _Client(FakeClient):
    """Returns one poll after another; after the last, the user interrupts.

    A poll is a list, an error, or None for no leases of a control plane that is still settling.
    """

    def __init__(self, *polls: Any) -> None:
        self._polls = list(polls)
        self._settling = False

    async def _poll(self) -> list[Any]:
        if not self._polls:
            raise KeyboardInterrupt
        poll = self._polls.pop(0)
        if isinstance(poll, ControlPlaneUnavailable):
            raise poll
        self._settling = poll is None
        return poll or []

    leases = problems = _poll

    async def lease_ends(self) -> dict[str, str]:
        return {"run-1": "released"}

    async def status(self) -> SimpleNamespace:
        return SimpleNamespace(settling=self._settling)


@pytest.fixture
def watch(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Watch these polls: `watch("leases", "--json", polls=[...])`."""

    def invoke(command: str, *options: str, polls: list[Any]) -> Result:
        monkeypatch.setattr(watching, "_POLL", 0.0)
        monkeypatch.setattr(watching, "_SETTLING_POLL", 0.0)
        install_client(monkeypatch, _Client(*polls))
        return run(command, "--watch", *options)

    return invoke


def test_leases_are_printed_then_their_changes(watch: Run) -> None:
    acme = replace(LEASE, tenant="acme", agent="", user="ada", ttl=90.0)
    done = watch("leases", polls=[[LEASE], [OLDER], [acme], []])
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    lease = "run-1 server desk, session job, worker w1"
    assert lines == [
        f"gained {lease}, agent billing (ttl 60 s, age 5 s)",
        f"changed {lease}, tenant acme, user ada (ttl 90 s, age 5 s)",
        f"released {lease}, tenant acme, user ada (ttl 90 s, age 5 s)",
    ]


def test_problems_are_printed_then_their_changes(watch: Run) -> None:
    done = watch("problems", polls=[[PROBLEM], [PROBLEM], [SEEN_AGAIN], []])
    assert (done.exit_code, done.stderr) == (0, "")
    problem = "server time, worker w1: It ended."
    assert done.stdout.splitlines() == [
        f"2026-01-02T03:04:05+00:00 opened error EXITED {problem}",
        f"2026-01-02T03:04:14+00:00 changed error EXITED (2 times) {problem}",
        f"2026-01-02T03:04:14+00:00 cleared error EXITED (2 times) {problem}",
    ]


def test_json_is_one_object_per_line(watch: Run) -> None:
    done = watch("leases", "--json", polls=[[LEASE], []])
    first, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["event"], last["event"]) == ("gained", "released")
    assert (first["id"], first["session"]) == ("run-1", "job")
    assert first["seen"].endswith("+00:00")
    done = watch("problems", "--json", polls=[[PROBLEM], []])
    first, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["event"], last["event"]) == ("opened", "cleared")
    assert (first["reason"], first["first_seen"]) == ("EXITED", memory.NOW.isoformat())


def test_after_a_restart_of_the_control_plane_no_lease_counts_as_lost(watch: Run) -> None:
    polls = [[LEASE], UNREACHABLE, UNREACHABLE, None, None, [OLDER, OTHER_LEASE]]
    done = watch("leases", polls=polls)
    assert done.exit_code == 0
    assert [line.split(" ")[1] for line in done.stdout.splitlines()] == ["gained", "gained"]
    assert done.stderr.count("unreachable") == 1


def test_a_control_plane_that_is_unreachable_at_first_is_an_error(watch: Run) -> None:
    assert watch("leases", polls=[UNREACHABLE]).exit_code == 3
