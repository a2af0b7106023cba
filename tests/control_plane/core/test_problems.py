"""The table of open problems."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.control_plane.core.problems import (
    MAX_MESSAGE,
    MAX_PROBLEMS,
    PROBLEMS_DROPPED,
    OpenProblem,
    Problem,
    ProblemTable,
)

BROKEN = Problem("workspace", "BROKEN_FILE", "mcp.yaml is not YAML.")
DOWN = Problem("server", "SERVER_LOST", "It ended.", server_id="time", worker_id="w1")
CLASH = Problem("server", "TOOL_NAME_CLASH", "Taken.", server_id="time", subject="now")


def test_a_problem_seen_again_counts_up_and_keeps_when_it_was_first_seen() -> None:
    table = ProblemTable()
    table.report(DOWN, 10.0)
    newer = replace(DOWN, message="It ended again.")
    table.report(newer, 12.0)
    assert table.open() == [OpenProblem(newer, 10.0, 12.0, 2)]


def test_problems_that_differ_in_any_part_of_their_identity_are_listed_apart() -> None:
    table = ProblemTable()
    others = [
        replace(DOWN, scope="worker"),
        replace(DOWN, server_id="git"),
        replace(DOWN, tenant="acme"),
        replace(DOWN, worker_id="w2"),
        replace(DOWN, reason="OTHER"),
        replace(DOWN, subject="now"),
    ]
    for problem in [DOWN, *others]:
        table.report(problem, 1.0)
    assert len(table.open()) == 7


def test_severity_and_message_are_not_part_of_the_key() -> None:
    assert replace(DOWN, severity="warning", message="x").key == DOWN.key


def test_the_last_seen_problem_is_listed_first() -> None:
    table = ProblemTable()
    for now, problem in enumerate([BROKEN, DOWN, CLASH, BROKEN]):
        table.report(problem, float(now))
    assert [each_problem.problem for each_problem in table.open()] == [BROKEN, CLASH, DOWN]


def test_clearing_closes_problems_that_match_all_arguments() -> None:
    table = ProblemTable()
    for problem in (BROKEN, DOWN, CLASH):
        table.report(problem, 1.0)
    assert table.clear(server_id="time", reason="SERVER_LOST", worker_id="w2") == 0
    assert table.clear(server_id="time", reason="SERVER_LOST") == 1
    assert table.clear(scope="server") == 1
    assert [each_problem.problem for each_problem in table.open()] == [BROKEN]


def test_clearing_the_common_variant_leaves_a_tenants_problem() -> None:
    table = ProblemTable()
    theirs = replace(DOWN, tenant="acme")
    table.report(DOWN, 1.0)
    table.report(theirs, 1.0)
    assert table.clear(server_id="time", tenant="") == 1
    assert [problem.problem for problem in table.open()] == [theirs]


def test_a_problem_that_recurs_after_clearing_is_new() -> None:
    table = ProblemTable()
    table.report(DOWN, 1.0)
    table.clear(server_id="time")
    table.report(DOWN, 9.0)
    assert table.open() == [OpenProblem(DOWN, 9.0, 9.0, 1)]


def test_replacing_reports_the_new_clears_the_vanished_and_leaves_the_unchanged() -> None:
    table = ProblemTable()
    table.replace("config", [BROKEN, CLASH], 1.0)
    table.replace("config", [CLASH, DOWN], 2.0)
    assert table.open() == [OpenProblem(DOWN, 2.0, 2.0, 1), OpenProblem(CLASH, 1.0, 1.0, 1)]


def test_replacing_counts_unchanged_problems_only_with_seen_again() -> None:
    table = ProblemTable()
    table.replace("probe:time", [DOWN], 1.0)
    table.replace("probe:time", [DOWN], 2.0)
    table.replace("probe:time", [DOWN], 3.0, seen_again=True)
    assert table.open() == [OpenProblem(DOWN, 1.0, 3.0, 2)]


def test_replacing_updates_changed_messages() -> None:
    table = ProblemTable()
    table.replace("config", [DOWN], 1.0)
    moved = replace(DOWN, message="It ended with status 3.")
    table.replace("config", [moved], 2.0)
    assert table.open() == [OpenProblem(moved, 1.0, 2.0, 1)]


def test_a_source_never_clears_what_another_source_has() -> None:
    table = ProblemTable()
    table.replace("config", [CLASH], 1.0)
    table.replace("exposure:time", [CLASH], 1.0)
    table.report(DOWN, 1.0)
    table.replace("config", [], 2.0)
    assert {problem.problem for problem in table.open()} == {CLASH, DOWN}
    table.replace("exposure:time", [], 3.0)
    assert {problem.problem for problem in table.open()} == {DOWN}


def test_a_full_table_drops_the_oldest_problem_and_reports_it() -> None:
    table = ProblemTable()
    problems = [replace(DOWN, server_id=f"s{n}") for n in range(MAX_PROBLEMS)]
    for now, problem in enumerate(problems):
        table.report(problem, float(now))
    assert len(table.open()) == MAX_PROBLEMS
    table.report(BROKEN, 5_000.0)
    found = table.open()
    assert len(found) == MAX_PROBLEMS
    note = next(opened for opened in found if opened.problem.reason == PROBLEMS_DROPPED)
    # One made room for the new problem, one for the note itself.
    assert note.count == 2
    assert "2 with the oldest last occurrence were dropped" in note.problem.message
    assert {problems[0], problems[1]}.isdisjoint(opened.problem for opened in found)
    assert {problems[2], BROKEN} <= {opened.problem for opened in found}


def test_the_problem_about_dropped_ones_closes_when_half_the_table_is_free() -> None:
    table = ProblemTable()
    many = [replace(DOWN, server_id=f"s{n}") for n in range(MAX_PROBLEMS + 1)]
    table.replace("config", many, 1.0)
    assert any(problem.problem.reason == PROBLEMS_DROPPED for problem in table.open())
    table.replace("config", many[-MAX_PROBLEMS // 2 :], 2.0)
    assert any(problem.problem.reason == PROBLEMS_DROPPED for problem in table.open())
    table.replace("config", many[-100:], 3.0)
    assert {problem.problem for problem in table.open()} == set(many[-100:])


def test_a_message_is_truncated_at_its_limit() -> None:
    table = ProblemTable()
    table.report(replace(DOWN, message="x" * MAX_MESSAGE), 1.0)
    table.report(replace(CLASH, message="x" * (MAX_MESSAGE + 1)), 2.0)
    cut, whole = (problem.problem.message for problem in table.open())
    assert whole == "x" * MAX_MESSAGE
    assert len(cut) == MAX_MESSAGE
    assert cut.endswith("…")


_PROBLEMS = st.lists(st.sampled_from([BROKEN, DOWN, CLASH, replace(CLASH, tenant="acme")]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["config", "probe:time"]), _PROBLEMS)))
def test_the_table_is_the_union_of_its_sources(steps: list[tuple[str, list[Problem]]]) -> None:
    table = ProblemTable()
    last: dict[str, set[Problem]] = {}
    for now, (owner, problems) in enumerate(steps):
        table.replace(owner, problems, float(now))
        last[owner] = set(problems)
    assert {problem.problem for problem in table.open()} == set().union(*last.values())
