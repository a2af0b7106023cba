"""Prompts and resources in the coordinator: committed, kept and moved like tools."""

from __future__ import annotations

from dataclasses import replace

from tests.control_plane.core.builders import (
    START,
    at,
    coordinator,
    hello,
    load,
    offering,
    recorded,
    spec,
)
from tests.control_plane.core.fake_worker import FakeWorker, answer, run

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec, VariantKey

FOUND = offering(
    "echo",
    prompts=("ask", "secret_ask"),
    resources=("file:///a", "file:///secret"),
    templates=("file:///{name}",),
)
LIMITED = replace(
    spec("a"),
    prompts=NameFilter((), ("secret_*",)),
    resources=NameFilter((), ("*secret",)),
)


def serving(listing: ServerListing, *specs: ServerSpec) -> tuple[Coordinator, FakeWorker]:
    """Return a coordinator and a worker whose servers all list the same."""
    state, worker = coordinator(), FakeWorker()
    load(state, *specs)
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        answer(state, worker, listing)
    return state, worker


def prompts(state: Coordinator) -> dict[str, str]:
    return {
        name: target.served.key.server_id
        for name, target in state.visible.view("default").prompts.items()
    }


def uris(state: Coordinator) -> list[tuple[str, str]]:
    view = state.visible.view("default")
    return [*view.resources, *view.templates]


def test_a_probe_that_lists_them_exposes_prompts_and_resources() -> None:
    state, worker = serving(FOUND, LIMITED)
    assert prompts(state) == {"a_ask": "a"}
    assert uris(state) == [("a", "file:///a"), ("a", "file:///{name}")]
    (held,) = worker.held.values()
    assert held.listing == FOUND
    assert held.resource_filter == LIMITED.resources
    assert state.problems.open() == []


def test_resources_are_ordered_by_server_and_uri() -> None:
    found = offering(resources=("z:1", "a:1"))
    state, _ = serving(found, spec("b"), spec("a"))
    assert uris(state) == [("a", "a:1"), ("a", "z:1"), ("b", "a:1"), ("b", "z:1")]


def test_new_filters_need_no_probe() -> None:
    state, worker = serving(FOUND, spec("a"))
    assert list(prompts(state)) == ["a_ask", "a_secret_ask"]
    load(state, LIMITED, now=at(1))
    run(state, [worker], at(1))
    assert worker.probes == []
    assert list(prompts(state)) == ["a_ask"]
    assert uris(state) == [("a", "file:///a"), ("a", "file:///{name}")]
    load(state, spec("a"), now=at(2))
    run(state, [worker], at(2))
    assert len(uris(state)) == 3
    assert state.problems.open() == []


def test_content_of_workers_is_the_last_known_good_of_a_new_control_plane() -> None:
    _, worker = serving(FOUND, LIMITED)
    state = coordinator()
    state.record_config_problems([], at(1))
    state.handle_worker_joined(hello(held=worker.hashes()), at(1))
    before = worker.upserts
    run(state, [worker], at(1))
    assert list(prompts(state)) == ["a_ask"]
    assert uris(state) == [("a", "file:///a"), ("a", "file:///{name}")], "its filter is known"
    assert worker.upserts == before, "nothing that it has is sent again"


def test_a_relisting_while_the_rules_are_unknown_exposes_no_new_prompt() -> None:
    _, worker = serving(FOUND, LIMITED)
    state = coordinator()
    state.record_config_problems([], at(1))
    state.handle_worker_joined(hello(held=worker.hashes()), at(1))
    run(state, [worker], at(1))
    more = replace(
        FOUND,
        prompts=recorded("ask", "new"),
        resources=recorded("file:///new", "file:///secret", member="uri"),
    )
    state.handle_relisting("w1", VariantKey("a"), LIMITED.launch_hash, more, at(2))
    run(state, [worker], at(2))
    answer(state, worker, more, at(2))
    assert list(prompts(state)) == ["a_ask"]
    assert uris(state) == [("a", "file:///new"), ("a", "file:///{name}")]


def test_a_prompt_that_moves_to_another_server_is_a_problem() -> None:
    state, worker = serving(offering(prompts=("ask",)), spec("b", prefix=""))
    load(state, spec("a", prefix=""), spec("b", prefix=""), now=at(1))
    run(state, [worker], at(1))
    answer(state, worker, offering(prompts=("ask",)), at(1))
    assert prompts(state) == {"ask": "a"}
    moved = [p.problem for p in state.problems.open() if p.problem.reason == "PROMPT_OWNER_CHANGED"]
    assert [problem.subject for problem in moved] == ["ask"]
    assert "The prompt name 'ask' moved from server 'b' to server 'a'" in moved[0].message


def test_the_hash_of_a_variant_covers_all_that_is_served_of_it() -> None:
    def toolset(listing: ServerListing, one: ServerSpec) -> str:
        _, worker = serving(listing, one)
        (held,) = worker.held.values()
        return held.hashes.toolset

    plain = spec("a")
    hashes = {
        toolset(offering("echo"), plain),
        toolset(FOUND, plain),
        toolset(FOUND, replace(plain, prompts=NameFilter(("ask",)))),
        toolset(FOUND, replace(plain, resources=NameFilter(("file:*",)))),
        toolset(FOUND, spec("a", prefix="other_")),
        toolset(replace(FOUND, templates=()), plain),
    }
    assert len(hashes) == 6
    assert toolset(FOUND, plain) == toolset(FOUND, plain)


def test_a_tenant_sees_the_prompts_and_resources_of_its_own_variant() -> None:
    own = replace(LIMITED, key=VariantKey("a", "acme"))
    state, _ = serving(FOUND, spec("a"), own)
    view = state.visible.view("acme")
    assert list(view.prompts) == ["a_ask"]
    assert [uri for _, uri in view.resources] == ["file:///a"]
    assert len(prompts(state)) == 2
