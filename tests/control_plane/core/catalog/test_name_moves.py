"""Problems about names that moved between servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.control_plane.core.builders import START, listing, spec

from leaseway.control_plane.core.catalog.name_moves import REPORTED_FOR
from leaseway.control_plane.core.catalog.variants import LastKnownGood, build_good
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import ProblemTable
from leaseway.control_plane.core.registry import Registry
from leaseway.spec.model import VariantKey


class Told:
    """A registry and its problems about moved names."""

    def __init__(self) -> None:
        self._problems = ProblemTable()
        self._registry = Registry(self._problems, 1)

    def commit(self, prefix: str = "", **servers: Iterable[str]) -> dict[str, str]:
        """Commit servers with these names; return who is told to have each name that moved.

        A prefix is that of the server `a`.
        """
        last_known_good: dict[VariantKey, LastKnownGood] = {}
        for server_id, names in servers.items():
            own = spec(server_id, prefix=prefix if server_id == "a" else "")
            good, _ = build_good(own, listing(*names))
            last_known_good[VariantKey(server_id)] = good
        self._registry.commit(last_known_good, START)
        return self.now()

    def expire(self, after: float) -> dict[str, str]:
        """Advance the time; return the reported owner of each moved name."""
        due = self._registry.next_expiry()
        assert due is not None
        self._registry.expire(Moment(START.mono + after, START.unix + after))
        return self.now()

    def now(self) -> dict[str, str]:
        """Return the reported owner of each moved name."""
        return {
            problem.problem.subject: problem.problem.server_id
            for problem in self._problems.open()
            if problem.problem.reason == "TOOL_OWNER_CHANGED"
        }


def test_a_disputed_move_is_reported_until_one_server_drops_the_name() -> None:
    told = Told()
    assert told.commit(b=["now"]) == {}
    assert told.commit(a=["now"], b=["now"]) == {"now": "a"}
    assert told.commit(a=["now"], b=["now"], c=["other"]) == {"now": "a"}
    assert told.commit(a=["now"], b=["later"], c=["other"]) == {}


def test_a_name_that_moves_back_is_no_longer_reported() -> None:
    told = Told()
    told.commit(b=["now"])
    assert told.commit(a=["now"], b=["now"]) == {"now": "a"}
    assert told.commit(a=["later"], b=["now"]) == {}


def test_removing_the_former_server_ends_the_report() -> None:
    cases: list[dict[str, Any]] = [{"a": ["now"]}, {"b": ["now"]}, {}]
    for left in cases:
        told = Told()
        told.commit(b=["now"])
        assert told.commit(a=["now"], b=["now"]) == {"now": "a"}
        assert told.commit(**left, c=["other"]) == {}


def test_a_lost_name_is_reported_while_its_former_server_exists() -> None:
    told = Told()
    told.commit(a=["now"], b=["other"])
    assert told.commit(a=["later"], b=["now"]) == {"now": "b"}
    assert told.commit(a=["later"], b=["now"], c=["third"]) == {"now": "b"}
    assert told.commit(b=["now"], c=["third"]) == {}


def test_a_lost_name_is_reported_for_an_hour_and_a_disputed_one_longer() -> None:
    told = Told()
    told.commit(a=["lost"], b=["wanted"])
    assert told.commit(a=["wanted"], b=["lost", "wanted"]) == {"lost": "b", "wanted": "a"}
    assert told.expire(REPORTED_FOR - 1) == {"lost": "b", "wanted": "a"}
    assert told.expire(REPORTED_FOR) == {"wanted": "a"}


def test_a_name_that_moves_because_of_a_new_prefix_is_not_reported() -> None:
    told = Told()
    told.commit(a=["now"], b=["now"])
    assert told.commit(prefix="a_", a=["now"], b=["now"]) == {}
    assert told.commit(a=["now"], b=["now"]) == {"now": "a"}, "the name moved back"


def test_the_name_of_a_removed_server_is_reported_until_the_next_change() -> None:
    told = Told()
    told.commit(a=["now"], b=["now"])
    assert told.commit(b=["now"]) == {"now": "b"}
    assert told.commit(b=["now"]) == {"now": "b"}, "nothing has changed"
    assert told.commit(b=["now"], c=["other"]) == {}


def test_a_name_that_moves_again_is_reported_again() -> None:
    told = Told()
    told.commit(c=["now"])
    assert told.commit(b=["now"], c=["now"]) == {"now": "b"}
    assert told.commit(a=["now"], b=["now"], c=["now"]) == {"now": "a"}
    assert told.commit(b=["now"], c=["now"]) == {}, "it moved back"
