"""Resolving names of tools and prompts, and URIs of resources."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.core.builders import (
    START,
    at,
    coordinator,
    hello,
    load,
    offering,
    spec,
)
from tests.control_plane.core.fake_worker import (
    FAILED,
    FakeWorker,
    answer,
    never_up,
    offered,
    run,
    started,
)

from leaseway.control_plane.core.catalog.kinds import PROMPTS
from leaseway.control_plane.core.catalog.snapshot import NamedTarget, ResourceTarget
from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.queries.place import place
from leaseway.control_plane.core.queries.resolve import find_name, find_resource, unknown_server
from leaseway.spec.filters.names import NameFilter
from leaseway.wire.advice import LISTED_BY
from leaseway.wire.bounds import MAX_URI
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey

READER = Reader("default")


def owner(outcome: NamedTarget | ResourceTarget | PendingServers | Denial) -> str:
    assert isinstance(outcome, NamedTarget | ResourceTarget), outcome
    return outcome.served.key.server_id


def test_exposed_and_qualified_names_resolve_to_the_same_tool() -> None:
    state, _ = started(spec("a"))
    for name in ("a_echo", "a:echo"):
        target = find_name(state, READER, name, START)
        assert isinstance(target, NamedTarget)
        assert (target.served.key.server_id, target.item.original) == ("a", "echo")


def test_an_unknown_tool_names_the_nearest() -> None:
    state, _ = started(spec("a"))
    for name, near in (("a_ecco", "a_echo"), ("a:ecco", "a:echo")):
        denied = find_name(state, READER, name, START)
        assert isinstance(denied, Denial)
        assert denied.reason is Reason.TOOL_NOT_FOUND
        assert denied.message == f"There is no tool '{name}'. Did you mean '{near}'?"


def test_an_unknown_server_is_not_found_with_the_nearest() -> None:
    state, _ = started(spec("everything"))
    denied = find_name(state, READER, "everythin:echo", START)
    assert isinstance(denied, Denial)
    assert denied.message == "There is no server 'everythin'. Did you mean 'everything'?"


def test_a_name_without_similar_ones_is_denied_with_what_lists_the_known_ones() -> None:
    state, _ = started(spec("a"))
    for name, said, listed_by in (
        ("nosuch:zzz", "There is no server 'nosuch'.", "servers"),
        ("nosuch", "There is no tool 'nosuch'.", "tools"),
    ):
        denied = find_name(state, READER, name, START)
        assert isinstance(denied, Denial)
        assert (denied.message, denied.metadata) == (said, {LISTED_BY: listed_by})


def test_a_tool_that_lost_its_name_is_found_by_its_qualified_name() -> None:
    state, _ = started(spec("a", prefix=""), spec("b", prefix=""))
    target = find_name(state, READER, "echo", START)
    assert isinstance(target, NamedTarget)
    assert target.served.key.server_id == "a"
    assert owner(find_name(state, READER, "b:echo", START)) == "b"


def test_a_name_waits_while_a_server_starts_for_the_first_time() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    assert find_name(state, READER, "a_echo", START) == PendingServers(("a",))
    assert find_name(state, READER, "a:echo", START) == PendingServers(("a",))
    answer(state, worker, FAILED)
    denied = find_name(state, READER, "a:echo", START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.SERVER_NOT_READY
    assert "exited at once" in denied.message


def test_the_denial_of_a_failed_server_contains_the_time_of_the_next_try() -> None:
    state, worker = never_up()
    denied = find_name(state, READER, "a:echo", at(1))
    assert isinstance(denied, Denial)
    assert (denied.reason, denied.retry_delay) == (Reason.SERVER_NOT_READY, 3.0)
    assert "has not started. The next try is in 3.0 s. The last probe" in denied.message
    state.tick(at(4.5))
    run(state, [worker])
    denied = find_name(state, READER, "a:echo", at(4.5))
    assert isinstance(denied, Denial)
    assert "The next try is running." in denied.message
    assert denied.retry_delay == 0.5


def test_prompts_have_names_of_their_own() -> None:
    state = offered(a=(spec("a"), offering("ask", prompts=("ask", "greet"))))
    for name in ("a_ask", "a:ask"):
        target = find_name(state, READER, name, START, PROMPTS)
        assert isinstance(target, NamedTarget)
        assert (target.kind, target.item.original) == (PROMPTS, "ask")
    assert isinstance(find_name(state, READER, "a_greet", START), Denial), "it is no tool"
    denied = find_name(state, READER, "a_gret", START, PROMPTS)
    assert isinstance(denied, Denial)
    assert denied.message == "There is no prompt 'a_gret'. Did you mean 'a_greet'?"


def test_a_prompt_that_lost_its_name_is_found_by_its_qualified_name() -> None:
    state = offered(
        a=(spec("a", prefix=""), offering("one", prompts=("ask",))),
        b=(spec("b", prefix=""), offering("two", prompts=("ask",))),
    )
    assert owner(find_name(state, READER, "ask", START, PROMPTS)) == "a"
    assert owner(find_name(state, READER, "two", START)) == "b"
    assert owner(find_name(state, READER, "b:ask", START, PROMPTS)) == "b"
    assert [p.problem.reason for p in state.problems.open()] == ["PROMPT_NAME_CLASH"]


def test_with_a_server_given_only_its_items_are_found() -> None:
    state = offered(
        a=(spec("a"), offering(prompts=("ask",))),
        b=(spec("b"), offering(prompts=("ask", "b_other"))),
    )
    for name in ("b_ask", "b:ask", "ask"):
        assert owner(find_name(state, READER, name, START, PROMPTS, "b")) == "b"
    for name in ("a_ask", "a:ask", "other"):
        denied = find_name(state, READER, name, START, PROMPTS, "b")
        assert isinstance(denied, Denial)
        assert denied.reason is Reason.TOOL_NOT_FOUND
    denied = find_name(state, READER, "a:ask", START, PROMPTS, "bb")
    assert isinstance(denied, Denial)
    assert denied.message == "There is no server 'bb'. Did you mean 'b'?"


def test_a_server_may_be_given_with_a_name_of_its_own_that_has_a_colon() -> None:
    state = offered(
        a=(spec("a"), offering("b:echo", "a:x", "x", "查询")), b=(spec("b"), offering("echo"))
    )
    found = {
        name: find_name(state, READER, name, START, server_id="a")
        for name in ("b:echo", "a:b:echo", "a_b_echo", "a:x", "a:a:x", "查询")
    }
    assert {name: t.item.original for name, t in found.items() if isinstance(t, NamedTarget)} == {
        **dict.fromkeys(("b:echo", "a:b:echo", "a_b_echo"), "b:echo"),
        "a:x": "x",
        "a:a:x": "a:x",
        "查询": "查询",
    }
    assert owner(find_name(state, READER, "b:echo", START)) == "b"


def test_a_resource_is_the_smallest_servers_that_lists_it() -> None:
    state = offered(
        b=(spec("b"), offering(resources=("file:///x", "file:///y"))),
        c=(spec("c"), offering(resources=("file:///x", "file:///z"))),
        a=(spec("a"), offering(templates=("file:///{name}",))),
    )
    assert owner(find_resource(state, READER, "file:///x", START)) == "b"
    assert owner(find_resource(state, READER, "file:///z", START)) == "c", "listed goes first"
    assert owner(find_resource(state, READER, "file:///new", START)) == "a"
    assert owner(find_resource(state, READER, "file:///x", START, "c")) == "c"


def test_a_templates_own_text_is_found_as_a_template() -> None:
    state = offered(a=(spec("a"), offering(templates=("note://{id}",))))
    target = find_resource(state, READER, "note://{id}", START)
    assert isinstance(target, ResourceTarget)
    assert (target.is_template, target.uri) == (True, "note://{id}")
    filled = find_resource(state, READER, "note://7", START)
    assert filled == ResourceTarget(target.served, "note://7")


def test_an_unlisted_uri_resolves_to_the_given_server() -> None:
    state = offered(a=(spec("a"), offering("tool")))
    assert owner(find_resource(state, READER, "any://thing", START, "a")) == "a"
    denied = find_resource(state, READER, "any://thing", START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.TOOL_NOT_FOUND
    assert denied.message == (
        "There is no resource 'any://thing'. To read a URI that no server lists, name the server."
    )
    assert denied.metadata == {LISTED_BY: "resources"}


def test_a_filter_applies_to_listed_and_unlisted_uris() -> None:
    limited = replace(spec("a"), resources=NameFilter((), ("file:///secret/*",)))
    found = offering(
        resources=("file:///secret/k", "file:///open"),
        templates=("file:///{+path}", "file:///secret/{name}"),
    )
    state = offered(a=(limited, found))
    for uri in ("file:///secret/k", "file:///secret/new", "file:///secret/{name}"):
        for server_id in ("", "a"):
            denied = find_resource(state, READER, uri, START, server_id)
            assert isinstance(denied, Denial), uri
            assert "secret" not in denied.metadata["nearest"]
    assert owner(find_resource(state, READER, "file:///other/x", START)) == "a"
    denied = find_resource(state, READER, "file:///secret/x", START, "a")
    assert isinstance(denied, Denial)
    assert denied.message.startswith("Server 'a' has no resource 'file:///secret/x'.")


def test_a_whitelist_applies_to_uris_that_match_templates() -> None:
    limited = replace(spec("a"), resources=NameFilter(("file:///docs/*",)))
    state = offered(a=(limited, offering(templates=("file:///{+path}",))))
    assert owner(find_resource(state, READER, "file:///docs/x", START)) == "a"
    assert isinstance(find_resource(state, READER, "file:///etc/x", START), Denial)
    assert state.visible.view("default").templates == {}


def test_a_resource_waits_while_a_server_starts_for_the_first_time() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    assert find_resource(state, READER, "x:y", START) == PendingServers(("a",))
    assert find_resource(state, READER, "x:y", START, "a") == PendingServers(("a",))
    answer(state, worker, FAILED)
    denied = find_resource(state, READER, "x:y", START)
    assert isinstance(denied, Denial)
    assert denied.message.endswith("not started, or need a login, may have it: a.")


def test_of_servers_that_have_not_started_those_in_the_name_are_named_first() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, *(spec(server_id) for server_id in ("aa", "bb", "cc", "dd", "ee", "zed")))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        answer(state, worker, FAILED)
    denied = find_name(state, READER, "zed_echo", START)
    assert isinstance(denied, Denial)
    assert denied.message.endswith("may have it: zed, aa, bb, cc, dd and 1 more.")


@pytest.mark.parametrize("server_id", ["", "a"])
def test_a_uri_over_the_limit_is_not_found(server_id: str) -> None:
    state = offered(a=(spec("a"), offering(templates=("x:{+any}",))))
    denied = find_resource(state, READER, "x:" + "y" * MAX_URI, START, server_id)
    assert isinstance(denied, Denial)
    assert len(denied.message) < 1_000


def test_of_many_uris_those_that_begin_most_alike_are_compared() -> None:
    uris = tuple(f"file:///{number:04}/report.txt" for number in range(5_000))
    state = offered(a=(spec("a"), offering(resources=uris)))
    denied = find_resource(state, READER, "file:///4321/report.tx", START)
    assert isinstance(denied, Denial)
    assert "Did you mean 'file:///4321/report.txt'" in denied.message


def test_messages_contain_no_control_characters() -> None:
    state = offered(a=(spec("a"), offering()))
    denied = find_resource(state, READER, "x:\x1b[2J", START)
    assert isinstance(denied, Denial)
    assert "\x1b" not in denied.message


@pytest.mark.parametrize("uri", ["FILE:///secret/x", "file:///%73ecret/x", "file:///a/../secret/x"])
@pytest.mark.parametrize("server_id", ["", "a"])
def test_another_spelling_of_a_uri_passes_no_filter(uri: str, server_id: str) -> None:
    limited = replace(spec("a"), resources=NameFilter((), ("file:///secret/*",)))
    state = offered(a=(limited, offering(resources=(uri,), templates=("{+any}",))))
    assert isinstance(find_resource(state, READER, uri, START, server_id), Denial)
    assert state.visible.view("default").resources == {}


def test_a_uri_with_too_many_long_templates_is_found_by_naming_its_server() -> None:
    hostile = tuple("{a}" + "x" * 4_000 + f"{{b}}y{n}{{c}}" for n in range(1_000))
    state = offered(a=(spec("a"), offering(templates=hostile)))
    denied = find_resource(state, READER, "x" * MAX_URI, START)
    assert isinstance(denied, Denial)
    assert denied.message.endswith("Name the server.")
    assert owner(find_resource(state, READER, "x" * MAX_URI, START, "a")) == "a"
    assert owner(find_resource(state, READER, "z" + hostile[0][3:], START, "a")) == "a"


def test_a_filter_of_patterns_judges_the_worst_uri_at_once() -> None:
    patterns = tuple("*a" * 200 + f"*{n}" for n in range(20))
    limited = replace(spec("a"), resources=NameFilter((), patterns))
    state = offered(a=(limited, offering(templates=("{+any}",))))
    for uri in ("x:" + "a" * 8_000, "file:///" + "a/../" * 1_600, "x:" + "%61" * 2_700):
        assert owner(find_resource(state, READER, uri, START)) == "a"


def test_a_server_that_does_not_exist_is_refused_with_the_nearest() -> None:
    state, _ = started(spec("everything"), spec("time"))
    denied = unknown_server(state, "default", ["time", "everythin", "zzz"], START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.TOOL_NOT_FOUND
    assert denied.message == "There is no server 'everythin'. Did you mean 'everything'?"
    assert denied.metadata == {"nearest": "everything"}


def test_servers_that_exist_and_leaseways_own_are_listed() -> None:
    state, _ = started(spec("a"))
    assert unknown_server(state, "default", [], START) is None
    assert unknown_server(state, "default", ["a", "mcp_admin"], START) is None


def test_a_server_that_has_not_started_is_known() -> None:
    state = coordinator()
    load(state, spec("a"))
    assert unknown_server(state, "default", ["a"], START) is None
    down, _ = never_up()
    assert unknown_server(down, "default", ["a"], at(1)) is None
    assert unknown_server(down, "default", ["aa"], at(1)) is not None


def test_before_the_first_configuration_no_server_is_unknown() -> None:
    assert unknown_server(coordinator(), "default", ["a"], START) is None


def test_no_name_is_unknown_before_a_configuration_was_read() -> None:
    """A client that knows a server from an earlier control plane must try again."""
    state = coordinator()
    key = LeaseKey("default", "dialog", "a")
    answers = [
        place(state, key, (), START),
        *(find_name(state, READER, name, START) for name in ("a_echo", "a:echo")),
        find_resource(state, READER, "notes://a", START),
    ]
    for denied in answers:
        assert isinstance(denied, Denial)
        assert denied.reason is Reason.SYNCING
    state.record_config_problems((), START)  # there is none, or a broken one
    denied = find_name(state, READER, "a_echo", START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.TOOL_NOT_FOUND
