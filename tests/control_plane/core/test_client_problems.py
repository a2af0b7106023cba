"""Problems that callers report, such as a provider's refusal of a tool."""

from __future__ import annotations

from dataclasses import replace

from tests.control_plane.core.builders import at, listing, load, spec
from tests.control_plane.core.fake_worker import FakeWorker, answer, run, started

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.client_problems import MAX_CLIENT_PROBLEMS, RETENTION
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.problems import PROBLEMS_DROPPED, Problem

REFUSED = Problem(
    "client", "PROVIDER_REFUSED", "No such keyword.", server_id="a", subject="openai:a_echo"
)


def shown(state: Coordinator) -> list[str]:
    """Return the subjects of open problems."""
    return [problem.problem.subject for problem in state.problems.open()]


def relist(
    state: Coordinator, worker: FakeWorker, new: ServerListing, seconds: float = 1.0
) -> None:
    """Change the listing of server `a` and serve it."""
    key = spec("a").key
    state.handle_relisting("w1", key, spec("a").launch_hash, new, at(seconds))
    state.tick(at(seconds + 0.1))
    run(state, [worker], at(seconds + 0.1))


def test_a_client_problem_closes_when_its_tool_changes() -> None:
    state, worker = started(spec("a"))
    state.report_client_problem(REFUSED, at(0))
    mended = ListedItem("echo", b'{"name": "echo", "inputSchema": {"type": "object"}}')
    relist(state, worker, replace(listing("echo"), tools=(mended,)))
    assert shown(state) == []
    state.report_client_problem(REFUSED, at(2))
    assert shown(state) == ["openai:a_echo"], "the new one may be refused as well"


def test_a_client_problem_closes_when_its_tool_is_removed() -> None:
    state, worker = started(spec("a"))
    state.report_client_problem(REFUSED, at(0))
    relist(state, worker, listing("other"))
    assert shown(state) == []


def test_a_client_problem_closes_when_its_server_is_removed() -> None:
    state, worker = started(spec("a"))
    state.report_client_problem(REFUSED, at(0))
    load(state, now=at(1))
    run(state, [worker], at(1))
    state.tick(at(1.1))
    run(state, [worker], at(1.1))
    assert shown(state) == []


def test_a_client_problem_closes_when_its_tool_is_renamed() -> None:
    state, worker = started(spec("a"))
    state.report_client_problem(REFUSED, at(0))
    load(state, spec("a", prefix="renamed_"), now=at(1))
    run(state, [worker], at(1))
    state.tick(at(1.1))
    run(state, [worker], at(1.1))
    assert shown(state) == []


def test_changes_of_other_tools_and_servers_do_not_close_it() -> None:
    state, worker = started(spec("a"))
    state.report_client_problem(REFUSED, at(0))
    relist(state, worker, listing("echo", "more"))
    load(state, spec("a"), spec("b"), now=at(2))
    run(state, [worker], at(2))
    answer(state, worker, listing("echo"), at(2))
    state.tick(at(2.1))
    run(state, [worker], at(2.1))
    assert "b" in state.visible.view("").servers
    assert shown(state) == ["openai:a_echo"]


def test_a_client_problem_without_a_server_is_matched_by_its_tool() -> None:
    state, worker = started(spec("a"))
    state.report_client_problem(replace(REFUSED, server_id=""), at(0))
    relist(state, worker, listing("other"))
    assert shown(state) == []


def test_a_client_problem_of_a_server_closes_when_its_toolset_changes() -> None:
    state, worker = started(spec("a"))
    state.report_client_problem(Problem("client", "ODD", "Odd.", server_id="a"), at(0))
    state.report_client_problem(Problem("client", "ODD", "All of it.", subject="everything"), at(0))
    relist(state, worker, listing("echo", "more"))
    assert shown(state) == ["everything"]


def test_a_client_problem_of_an_unlisted_tool_stays_until_the_tool_changes() -> None:
    state, worker = started(spec("b"))
    state.report_client_problem(REFUSED, at(0))
    load(state, spec("a"), spec("b"), now=at(1))
    run(state, [worker], at(1))
    answer(state, worker, listing("echo"), at(1))
    state.tick(at(1.1))
    run(state, [worker], at(1.1))
    assert shown(state) == ["openai:a_echo"]
    relist(state, worker, listing("other"), 2)
    assert shown(state) == []


def test_a_client_problem_expires_after_a_day() -> None:
    state, _ = started(spec("a"))
    state.report_client_problem(REFUSED, at(0))
    state.report_client_problem(REFUSED, at(3600))
    assert [problem.count for problem in state.problems.open()] == [2]
    due = state.next_deadline()
    assert due == at(3600 + RETENTION).mono
    state.tick(at(RETENTION))
    assert shown(state) == ["openai:a_echo"]
    state.tick(at(3600 + RETENTION))
    assert shown(state) == []
    assert state.next_deadline() is None


def test_client_problems_have_their_own_limit() -> None:
    state, _ = started(spec("a"))
    theirs = Problem("workspace", "BROKEN_FILE", "mcp.yaml is not YAML.")
    state.problems.report(theirs, at(0).unix)
    for number in range(MAX_CLIENT_PROBLEMS + 5):
        state.report_client_problem(replace(REFUSED, subject=f"openai:{number}"), at(number / 10))
    found = {problem.problem.subject: problem.problem for problem in state.problems.open()}
    kept = {name for name in found if name}
    assert kept == {f"openai:{n}" for n in range(5, MAX_CLIENT_PROBLEMS + 5)}
    (note,) = [
        problem for problem in state.problems.open() if problem.problem.reason == PROBLEMS_DROPPED
    ]
    assert "5 with the oldest last report were dropped" in note.problem.message
    assert theirs in [problem.problem for problem in state.problems.open()]
    state.tick(at(RETENTION + 100))
    assert [problem.problem for problem in state.problems.open()] == [theirs]


def test_a_problem_that_another_source_reports_stays_open() -> None:
    state, _ = started(spec("a"))
    state.problems.report(REFUSED, at(0).unix)
    state.report_client_problem(REFUSED, at(1))
    state.tick(at(RETENTION + 2))
    assert shown(state) == ["openai:a_echo"]
