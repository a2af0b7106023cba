"""The visible part of a commit, and values that are computed once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

import pytest
from tests.control_plane.core.builders import at, hello, listing, spec

from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.variants import LastKnownGood, build_good
from leaseway.control_plane.core.problems import ProblemTable
from leaseway.control_plane.core.registry import Registry
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.control_plane.core.workers.subscription import Subscription, VariantRefusal
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds


def last_known_good(*names: str) -> dict[VariantKey, LastKnownGood]:
    return {VariantKey(name): build_good(spec(name), listing(f"{name}_t"))[0] for name in names}


def registry(*names: str) -> Registry:
    made = Registry(ProblemTable(), 1)
    made.commit(last_known_good(*names), at(0))
    return made


def take(worker: WorkerRecord, served: Registry, *, refused: Iterable[str] = ()) -> None:
    """Let a worker acknowledge a delta and refuse some variants."""
    push = worker.subscription.push(served.committed, removals=True)
    assert push is not None
    refusals = [VariantRefusal(VariantKey(name), "BAD", "no") for name in refused]
    worker.subscription.nack(push.nonce, refusals)
    assert worker.subscription.ack(push.nonce)


def worker(worker_id: str) -> WorkerRecord:
    return WorkerRecord(hello(worker_id), Subscription())


def records(*workers: WorkerRecord) -> dict[str, WorkerRecord]:
    return {record.id: record for record in workers}


def listed(served: Registry) -> list[str]:
    return [key.server_id for key in served.visible.served]


def test_an_ack_of_visible_content_changes_nothing() -> None:
    served, first, second = registry("a", "b"), worker("w1"), worker("w2")
    take(first, served)
    served.reveal(records(first, second))
    before = served.visible
    take(second, served)
    served.reveal(records(first, second))
    assert served.visible is before
    assert listed(served) == ["a", "b"]


class UnlistedFleet(dict[str, WorkerRecord]):
    """Workers that can be looked up but not walked."""

    def values(self) -> NoReturn:
        raise AssertionError("All workers were walked.")


def test_an_ack_of_what_one_worker_holds_whole_walks_no_workers() -> None:
    served, first, second = registry("a", "b"), worker("w1"), worker("w2")
    take(first, served)
    served.reveal(records(first))
    take(second, served)
    served.reveal(UnlistedFleet(records(first, second)))
    assert listed(served) == ["a", "b"]


def test_an_ack_matters_beside_content_that_no_worker_holds_only_if_it_is_that() -> None:
    served = registry("a", "b")
    first, second, third = worker("w1"), worker("w2"), worker("w3")
    take(first, served, refused="b")
    assert served.may_reveal(first.subscription.acked)
    served.reveal(records(first, second, third))
    take(second, served, refused="b")
    assert not served.may_reveal(second.subscription.acked)
    take(third, served)
    assert served.may_reveal(third.subscription.acked)
    served.reveal(records(first, second, third))
    assert listed(served) == ["a", "b"]


def test_an_ack_matters_as_long_as_older_content_is_visible() -> None:
    served, first, second = registry("a", "b"), worker("w1"), worker("w2")
    take(first, served)
    take(second, served)
    served.reveal(records(first, second))
    changed = build_good(spec("b", command="other"), listing("b_t"))[0]
    served.commit(last_known_good("a") | {VariantKey("b"): changed}, at(1))
    take(first, served, refused="b")
    served.reveal(records(first, second))
    assert listed(served) == ["a", "b"], "the other worker has the older one"
    take(second, served, refused="b")
    assert served.may_reveal(second.subscription.acked), "it may have been the last that has it"


def test_content_that_one_worker_refuses_is_visible_once_another_holds_it() -> None:
    served, first, second = registry("a", "b"), worker("w1"), worker("w2")
    take(first, served, refused=["a"])
    served.reveal(records(first, second))
    assert listed(served) == ["b"]
    take(second, served)
    served.reveal(records(first, second))
    assert listed(served) == ["a", "b"]


def test_content_that_no_worker_holds_is_not_visible() -> None:
    served, first, second = registry("a", "b"), worker("w1"), worker("w2")
    take(first, served)
    take(second, served, refused=["a"])
    served.reveal(records(first, second))
    assert listed(served) == ["a", "b"]
    served.reveal(records(second))
    assert listed(served) == ["b"]


def test_a_new_commit_is_visible_once_a_worker_holds_it() -> None:
    served, only = registry("a"), worker("w1")
    take(only, served)
    served.reveal(records(only))
    served.commit(last_known_good("a", "b"), at(1))
    served.reveal(records(only))
    assert listed(served) == ["a"]
    take(only, served)
    served.reveal(records(only))
    assert listed(served) == ["a", "b"]


def test_unchanged_variants_are_the_same_object_in_the_next_commit() -> None:
    made = last_known_good("a", "b")
    served = Registry(ProblemTable(), 1)
    served.commit(made, at(0))
    before = served.committed
    served.commit(made | last_known_good("b", "c"), at(1))
    assert served.committed.served[VariantKey("a")] is before.served[VariantKey("a")]
    assert served.committed.served.keys() - before.served.keys() == {VariantKey("c")}


def test_a_worker_with_the_committed_version_causes_no_new_commit() -> None:
    served = registry("a")
    before = served.committed
    assert not served.outrun(before.version, foreign=False)
    assert not served.outrun(before.version - 1, foreign=True)
    served.commit(last_known_good("a"), at(1))
    assert served.committed is before


def test_foreign_and_higher_versions_are_outrun() -> None:
    served = registry("a")
    assert served.outrun(served.committed.version, foreign=True)
    served.commit(last_known_good("a"), at(1))
    assert served.committed.version == 2
    assert served.outrun(7, foreign=False)
    served.commit(last_known_good("a"), at(2))
    assert served.committed.version == 8


def revealed(served: Registry, holder: WorkerRecord, *tools: tuple[str, str]) -> Snapshot:
    """Commit servers with these tools and make them visible; return what is visible."""
    good = {VariantKey(name): build_good(spec(name), listing(tool))[0] for name, tool in tools}
    served.commit(good, at(0))
    take(holder, served)
    served.reveal(records(holder))
    return served.visible


def test_watchers_are_told_which_servers_have_changed() -> None:
    served, holder = Registry(ProblemTable(), 1), worker("w1")
    first = revealed(served, holder, ("a", "x"), ("b", "x"), ("c", "x"))
    assert served.changed_since(first, "t") == frozenset()
    assert served.changed_since(None, "t") is None, "a first message names none"
    second = revealed(served, holder, ("a", "x"), ("b", "y"), ("c", "x"))
    assert served.changed_since(first, "t") == frozenset({"b"})
    revealed(served, holder, ("a", "z"), ("b", "y"))
    assert served.changed_since(first, "t") == frozenset({"a", "b", "c"})
    assert served.changed_since(second, "t") == frozenset({"a", "c"})


def test_watchers_are_told_what_a_later_ack_of_the_same_version_makes_visible() -> None:
    served, first, second = registry("a", "b"), worker("w1"), worker("w2")
    take(first, served)
    take(second, served)
    served.reveal(records(first, second))
    before = served.visible
    good = {VariantKey(name): build_good(spec(name), listing(f"{name}_u"))[0] for name in "ab"}
    served.commit(good, at(0))
    take(first, served, refused=["b"])
    served.reveal(records(first, second))
    partly = served.visible
    assert served.changed_since(before, "t") == frozenset({"a"})
    take(second, served)
    served.reveal(records(first, second))
    assert served.visible.version == partly.version
    assert served.changed_since(partly, "t") == frozenset({"b"})
    assert served.changed_since(before, "t") == frozenset({"a", "b"})
    assert served.changed_since(served.visible, "t") == frozenset()


def test_the_built_in_toolset_changes_with_the_first_and_the_last_leased_server() -> None:
    served, holder = Registry(ProblemTable(), 1), worker("w1")

    def reveal(*servers: ServerSpec) -> Snapshot:
        served.commit(
            {server.key: build_good(server, listing("x"))[0] for server in servers}, at(0)
        )
        take(holder, served)
        served.reveal(records(holder))
        return served.visible

    first = reveal(spec("a"), spec("desk", shared=False))
    second = reveal(spec("a"))
    assert served.changed_since(first, "t") == frozenset({"desk", "mcp_admin"})
    reveal(spec("b"))
    assert served.changed_since(second, "t") == frozenset({"a", "b"})


def test_changes_long_ago_are_not_known() -> None:
    served, holder = Registry(ProblemTable(), 1), worker("w1")
    first = revealed(served, holder, ("a", "x"))
    for number in range(10):
        revealed(served, holder, ("a", f"y{number}"))
    assert served.changed_since(first, "t") is None


def test_no_server_is_named_to_a_tenant_whose_names_are_shared_out_anew() -> None:
    served, holder = Registry(ProblemTable(), 1), worker("w1")
    first = revealed(served, holder, ("a", "x"))
    own = replace(spec("a", prefix="own_"), key=VariantKey("a", "t"))
    common = build_good(spec("a"), listing("x"))[0]
    served.commit({VariantKey("a"): common, own.key: build_good(own, listing("x"))[0]}, at(0))
    take(holder, served)
    served.reveal(records(holder))
    assert served.changed_since(first, "t") is None
    assert served.changed_since(first, "another") == frozenset({"a"})


def test_commits_are_rarer_the_more_they_cost() -> None:
    served = registry("a")
    served.commit_soon(at(0), workers=10)
    assert served.commit_at == at(bounds.COMMIT_WINDOW).mono
    served.commit_at = None
    served.commit_soon(at(0), workers=1_000)
    assert served.commit_at == pytest.approx(at(1.0).mono, abs=0.01)
