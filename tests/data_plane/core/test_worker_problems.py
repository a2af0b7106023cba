"""Problems are reported once a change, and again to whoever joins later."""

from leaseway.data_plane.core.problems import ProblemBook, WorkerProblem
from leaseway.spec.model import VariantKey

KEY = VariantKey("time")


def lost(message: str = "gone") -> WorkerProblem:
    return WorkerProblem("server", "SERVER_LOST", message, KEY)


def test_the_same_problem_is_one_with_the_newest_message() -> None:
    book = ProblemBook()
    book.add(lost("first"))
    book.add(lost("second"))
    seen, mended = book.pop_changes()
    assert [problem.message for problem in seen] == ["second"]
    assert mended == ()
    assert book.pop_changes() == ((), ())


def test_a_mended_problem_is_not_open_any_more() -> None:
    book = ProblemBook()
    book.add(lost())
    assert book.clear(KEY, "SERVER_LOST")
    assert not book.clear(KEY, "SERVER_LOST")
    assert book.pop_changes() == ((), (lost(),))
    assert book.open == ()


def test_a_problem_that_comes_back_is_not_reported_as_mended() -> None:
    book = ProblemBook()
    book.add(lost())
    book.pop_changes()
    book.clear(KEY)
    book.add(lost())
    assert book.pop_changes() == ((lost(),), ())


def test_a_new_listener_hears_of_all_that_is_open() -> None:
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
