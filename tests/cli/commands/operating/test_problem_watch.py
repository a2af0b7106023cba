"""`leaseway problems --watch`: what two looks tell, and how the watch ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import Result
from tests.cli.fakes import FakeClient, stand_in

from leaseway.cli.commands.operating import watch as watching
from leaseway.cli.commands.operating.problem_watch import changes
from leaseway.sdk import ControlPlaneUnavailable, ProblemInfo

Run = Callable[..., Result]

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(seconds=9)
PROBLEM = ProblemInfo("server", "time", "", "w1", "EXITED", "It ended.", "error", 1, NOW, NOW)
AGAIN = replace(PROBLEM, count=2, last_seen=LATER)
OTHER = replace(PROBLEM, server_id="git", first_seen=LATER)


def told(before: list[ProblemInfo], after: list[ProblemInfo]) -> list[tuple[str, ProblemInfo]]:
    return [(change.event, change.problem) for change in changes(before, after)]


def test_equal_looks_tell_nothing_in_whatever_order() -> None:
    assert told([PROBLEM, OTHER], [OTHER, PROBLEM]) == []


def test_the_cleared_come_before_the_opened_and_those_by_age() -> None:
    gone = replace(PROBLEM, reason="GONE")
    assert told([gone], [OTHER, PROBLEM]) == [
        ("cleared", gone),
        ("opened", PROBLEM),
        ("opened", OTHER),
    ]


@pytest.mark.parametrize(
    "newer",
    [AGAIN, replace(PROBLEM, message="It ended again."), replace(PROBLEM, severity="warning")],
)
def test_a_problem_that_was_seen_again_or_put_otherwise_has_changed(newer: ProblemInfo) -> None:
    assert told([PROBLEM], [newer]) == [("changed", newer)]


def test_a_problem_that_was_cleared_and_is_back_is_told_as_both() -> None:
    back = replace(PROBLEM, first_seen=LATER)
    assert told([PROBLEM], [back]) == [("cleared", PROBLEM), ("opened", back)]


def test_problems_of_two_tools_are_kept_apart_however_they_are_worded() -> None:
    first, second = (replace(PROBLEM, subject=name, message="A clash.") for name in "ab")
    assert told([first, second], [second]) == [("cleared", first)]
    assert told([second], [first, second]) == [("opened", first)]
    reworded = replace(second, message="Still a clash.")
    assert told([first, second], [reworded]) == [("cleared", first), ("changed", reworded)]


class _Client(FakeClient):
    """Answers with one look after another; the user interrupts behind the last."""

    def __init__(self, *looks: list[ProblemInfo] | ControlPlaneUnavailable) -> None:
        self._looks = list(looks)

    async def problems(self) -> list[ProblemInfo]:
        if not self._looks:
            raise KeyboardInterrupt
        look = self._looks.pop(0)
        if isinstance(look, ControlPlaneUnavailable):
            raise look
        return look


@pytest.fixture
def watch(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Watch these looks: `watch("--json", looks=[...])`."""

    def invoke(*options: str, looks: list[list[ProblemInfo] | ControlPlaneUnavailable]) -> Result:
        monkeypatch.setattr(watching, "_EVERY", 0.0)
        stand_in(monkeypatch, _Client(*looks))
        return run("problems", "--watch", *options)

    return invoke


def test_a_watch_tells_what_is_open_and_what_becomes_of_it(watch: Run) -> None:
    done = watch(looks=[[PROBLEM], [PROBLEM], [AGAIN], []])
    assert (done.exit_code, done.stderr) == (0, "")
    where = "server time, worker w1: It ended."
    assert done.stdout.splitlines() == [
        f"2026-01-02T03:04:05+00:00 opened error EXITED {where}",
        f"2026-01-02T03:04:14+00:00 changed error EXITED (2 times) {where}",
        f"2026-01-02T03:04:14+00:00 cleared error EXITED (2 times) {where}",
    ]


def test_a_watch_for_programs_is_one_object_a_line(watch: Run) -> None:
    done = watch("--json", looks=[[PROBLEM], []])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["opened", "cleared"]
    assert lines[0]["reason"] == "EXITED"
    assert lines[0]["first_seen"] == NOW.isoformat()


def test_a_watch_waits_for_a_control_plane_that_went_away(watch: Run) -> None:
    away = ControlPlaneUnavailable("Nobody answers.")
    done = watch(looks=[[PROBLEM], away, away, [PROBLEM, OTHER]])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.count("unreachable") == 1


def test_a_watch_of_nobody_fails_like_every_command(watch: Run) -> None:
    assert watch(looks=[ControlPlaneUnavailable("Nobody answers.")]).exit_code == 3
