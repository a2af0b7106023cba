"""Open problems are reported once per change, and all again on a new stream."""

from leaseway.data_plane.core.problems import ProblemBook, WorkerProblem
from leaseway.spec.model import VariantKey

KEY = VariantKey("time")


def lost(message: str = "gone") -> WorkerProblem:
    return WorkerProblem("server", "SERVER_LOST", message, KEY)


def test_the_same_problem_is_reported_once_with_its_newest_message() -> None:
    book = ProblemBook()
    book.add(lost("first"))
    book.add(lost("second"))
    added, cleared = book.pop_changes()
    assert [problem.message for problem in added] == ["second"]
    assert cleared == ()
    assert book.pop_changes() == ((), ())


def test_a_cleared_problem_is_not_open() -> None:
    book = ProblemBook()
    book.add(lost())
    assert book.clear(lost("other text"))
    assert not book.clear(lost("other text"))
    assert book.pop_changes() == ((), (lost(),))
    assert book.open == ()


def test_a_problem_that_is_reported_again_is_not_cleared() -> None:
    book = ProblemBook()
    book.add(lost())
    book.pop_changes()
    book.clear(lost())
    book.add(lost())
    assert book.pop_changes() == ((lost(),), ())


def test_all_open_problems_can_be_reported_again() -> None:
    book = ProblemBook()
    book.add(lost())
    book.pop_changes()
    book.report_all_again()
    assert book.pop_changes() == ((lost(),), ())


def test_problems_are_bounded_in_number_and_length() -> None:
    book = ProblemBook()
    for number in range(5000):
        book.add(WorkerProblem("server", "X", "m" * 10_000, VariantKey(f"s{number}")))
    assert len(book.open) == 4096
    assert book.open[-1].key == VariantKey("s4999")
    assert all(len(problem.message) <= 4096 for problem in book.open)
