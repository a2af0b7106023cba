"""Filters, transforms, name rules and clashes (design.md#configuration)."""

import random
import re
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.control_plane.core.catalog.exposure import (
    Exposure,
    expose,
    resolve_clashes,
)
from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS, NamedKind
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, Transform, VariantKey, transformed
from leaseway.wire.names import ORIGINAL_NAME_RULE, is_valid_original_name

ORIGINAL_RULE = f"a tool name has {ORIGINAL_NAME_RULE}"


def server(
    whitelist: tuple[str, ...] = (),
    blacklist: tuple[str, ...] = (),
    transforms: tuple[Transform, ...] = (),
) -> ServerSpec:
    """Return a server with one filter, of its tools and of its prompts."""
    return server_spec(
        VariantKey("time"),
        "stdio",
        tools=NameFilter(whitelist, blacklist),
        prompts=NameFilter(whitelist, blacklist),
        transforms=transforms,
    )


def names(exposure: Exposure) -> list[str]:
    return [exposed for _, exposed in exposure.exposed]


LISTED = ["open", "open_unsafe", "page_close", "search"]


@pytest.mark.parametrize(
    ("whitelist", "blacklist", "expected"),
    [
        pytest.param((), (), LISTED, id="no filter registers all"),
        pytest.param(("open*",), (), ["open", "open_unsafe"], id="whitelist alone restricts"),
        pytest.param(("none",), (), [], id="whitelist alone may leave nothing"),
        pytest.param((), ("*_unsafe",), ["open", "page_close", "search"], id="blacklist alone"),
        pytest.param((), ("*",), [], id="blacklist of everything"),
        pytest.param(("open_unsafe",), ("*_unsafe",), LISTED, id="whitelist overrides blacklist"),
        pytest.param(
            ("search",), ("page_*",), ["open", "open_unsafe", "search"], id="no restriction"
        ),
        pytest.param(("open*",), ("*",), ["open", "open_unsafe"], id="curated from nothing"),
        pytest.param(("open", "search"), (), ["open", "search"], id="any of several patterns"),
    ],
)
def test_the_filters_choose_what_registers(
    whitelist: tuple[str, ...], blacklist: tuple[str, ...], expected: list[str]
) -> None:
    assert names(expose(server(whitelist, blacklist), LISTED)) == expected


PREFIX = Transform("prefix", "playwright_")
REPLACE = Transform("prefix", "my_", "stock_")
SUFFIX = Transform("suffix", "_pw")


@pytest.mark.parametrize(
    ("transforms", "name", "expected"),
    [
        ((), "open", "open"),
        ((PREFIX,), "open", "playwright_open"),
        ((PREFIX,), "playwright_open", "playwright_playwright_open"),
        ((REPLACE,), "stock_open", "my_open"),
        ((REPLACE,), "open", "my_open"),
        ((REPLACE,), "open_stock_", "my_open_stock_"),
        ((REPLACE,), "stock_stock_open", "my_stock_open"),
        ((SUFFIX,), "open", "open_pw"),
        ((PREFIX, SUFFIX), "open", "playwright_open_pw"),
        ((REPLACE, PREFIX), "stock_open", "playwright_my_open"),
        ((PREFIX, REPLACE), "stock_open", "my_playwright_stock_open"),
        ((SUFFIX, SUFFIX), "open", "open_pw_pw"),
        ((Transform("prefix", "", "stock_"),), "stock_open", "open"),
        ((Transform("replace", "-", "_"), PREFIX), "a_b_c", "playwright_a-b-c"),
        ((Transform("replace", "", "stock_"),), "stock_stock_open", "open"),
    ],
)
def test_transforms_apply_in_order(
    transforms: tuple[Transform, ...], name: str, expected: str
) -> None:
    assert transformed(name, transforms) == expected
    assert expose(server(transforms=transforms), [name]).exposed == ((name, expected),)


def test_filters_see_original_names_not_transformed_ones() -> None:
    spec = server(whitelist=("open",), transforms=(PREFIX,))
    assert expose(spec, ["open", "playwright_open"]).exposed == (("open", "playwright_open"),)


@pytest.mark.parametrize("original", ["", "x" * 257, "a\n", "a\u202eb", "\ud800"])
def test_an_invalid_original_name_is_skipped_with_a_warning(original: str) -> None:
    exposure = expose(server(), [original, "ok"])
    assert names(exposure) == ["ok"]
    (problem,) = exposure.problems
    assert (problem.reason, problem.severity, problem.scope) == (
        "INVALID_TOOL_NAME",
        "warning",
        "server",
    )
    assert problem.server_id == "time"
    assert f"is skipped: {ORIGINAL_RULE}. Ask the server's maintainer" in problem.message


def test_a_transform_does_not_make_an_invalid_original_name_valid() -> None:
    fix = Transform("prefix", "", "bad\tname ")
    assert expose(server(transforms=(fix,)), ["bad\tname x"]).exposed == ()


def test_a_tool_of_whose_name_transforms_leave_nothing_is_skipped() -> None:
    exposure = expose(server(transforms=(Transform("replace", "", "now"),)), ["now"])
    assert exposure.exposed == ()
    assert exposure.problems[0].message == (
        "Server 'time': tool 'now' is skipped: its transforms leave nothing of its name. Change the"
        " transforms."
    )


def test_a_tool_whose_altered_name_is_reserved_has_another() -> None:
    (name,) = names(expose(server(), ["mcp release"]))
    assert re.fullmatch("mcp_release_[0-9a-f]{8}", name)


def test_a_tool_keeps_its_name_beside_one_in_which_characters_are_replaced() -> None:
    spec = server(transforms=(Transform("replace", "_", "."), Transform("prefix", "p_")))
    exposure = expose(spec, ["a.now", "a_now", "b.now"])
    assert exposure.exposed == (("a_now", "p_a_now"), ("b.now", "p_b_now"))
    assert [problem.subject for problem in exposure.problems] == ["a.now"]


def test_two_tools_with_one_exposed_name_leave_it_to_the_smaller_original() -> None:
    spec = server(transforms=(Transform("prefix", "p_", "a_"),))
    exposure = expose(spec, ["now", "a_now"])
    assert exposure.exposed == (("a_now", "p_now"),)
    (problem,) = exposure.problems
    assert (problem.reason, problem.subject) == ("DUPLICATE_TOOL_NAME", "now")
    assert problem.message == (
        "Server 'time': tool 'now' is skipped: its transforms give it the name 'p_now', which"
        " 'a_now' already has. Change the transforms, or filter one of the two."
    )


def test_a_tool_listed_twice_is_registered_once_with_a_warning() -> None:
    exposure = expose(server(), ["now", "now", "now"])
    assert names(exposure) == ["now"]
    (problem,) = exposure.problems
    assert (problem.reason, problem.subject) == ("TOOL_LISTED_TWICE", "now")
    assert "it lists tool 'now' more than once" in problem.message


@pytest.mark.parametrize(
    ("whitelist", "blacklist", "messages"),
    [
        (("open",), (), []),
        (("open*",), ("*_*",), []),
        (("open*",), ("page_close",), []),
        ((), ("*",), []),
        ((), ("*_delete",), []),
        (
            ("opne",),
            ("page_clos",),
            [
                "its whitelist names 'opne', but it lists no such tool. Did you mean 'open'?",
                (
                    "its blacklist names 'page_clos', but it lists no such tool. Did you mean"
                    " 'page_close'?"
                ),
            ],
        ),
        (
            ("close_*",),
            (),
            [
                (
                    "its filters leave out all that it lists, 4 tools: 'open', 'open_unsafe',"
                    " 'page_close', 'search'. Correct them, or write blacklist: ['*']."
                )
            ],
        ),
    ],
)
def test_a_filter_is_a_warning_only_if_it_cannot_be_intended(
    whitelist: tuple[str, ...], blacklist: tuple[str, ...], messages: list[str]
) -> None:
    problems = expose(server(whitelist, blacklist), LISTED).problems
    assert [problem.message for problem in problems] == [f"Server 'time': {m}" for m in messages]
    assert {(problem.reason, problem.severity) for problem in problems} <= {
        ("TOOLS_FILTERED", "warning")
    }


def test_of_many_wrong_names_the_first_ones_get_a_suggestion() -> None:
    listed = [f"{'tool_' * 8}{number}" for number in range(500)]
    began = time.process_time()
    problems = expose(server(tuple(f"{name}x" for name in listed)), listed).problems
    assert time.process_time() - began < 5  # comparing each with all takes much longer
    assert "its filters leave out all that it lists" in problems[0].message
    assert sum("Did you mean" in problem.message for problem in problems) == 19
    assert "TOOLS_FILTERED for 481 more" in problems[-1].message


def test_a_blacklist_may_name_a_tool_as_models_see_it() -> None:
    exposure = expose(server(blacklist=("rm_all", "get-*")), ["rm all", "rm:all", "get x", "a.b"])
    assert exposure.exposed == (("a.b", "a_b"),)
    assert exposure.problems == ()


def test_a_filter_is_asked_once_about_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    passes = NameFilter.passes

    def counted(rules: NameFilter, name: str) -> bool:
        asked.append(name)
        return passes(rules, name)

    monkeypatch.setattr(NameFilter, "passes", counted)
    assert names(expose(server(("open*",)), LISTED)) == ["open", "open_unsafe"]
    assert asked == LISTED


def test_a_filter_that_leaves_nothing_out_is_no_problem() -> None:
    assert expose(server(("*",), ("zzz*",)), LISTED).problems == ()


@pytest.mark.parametrize(("count", "more"), [(20, "'t19'. "), (21, "'t19' and 1 more. ")])
def test_a_list_of_filtered_tools_is_abbreviated_beyond_20(count: int, more: str) -> None:
    (problem,) = expose(server(("no*",)), [f"t{n:02}" for n in range(count)]).problems
    assert more in problem.message
    assert "'t20'" not in problem.message


def test_many_warnings_with_one_reason_end_in_one_summary() -> None:
    problems = expose(server(), [f"bad\t{n:03}" for n in range(500)]).problems
    assert len(problems) == 21
    assert len({problem.key for problem in problems}) == 21
    assert "for 480 more" in problems[-1].message


def test_a_huge_name_with_control_characters_makes_a_short_plain_message() -> None:
    (problem,) = expose(server(), ["\x1b[31m" + "x" * 1_000_000]).problems
    assert len(problem.message) < 300
    assert "\x1b" not in problem.message


def test_a_tenants_problems_carry_the_tenant() -> None:
    spec = server_spec(VariantKey("time", "acme"), "stdio")
    (problem,) = expose(spec, ["no\tgood"]).problems
    assert problem.tenant == "acme"
    assert problem.message.startswith("Server 'time' of tenant 'acme': ")


def test_a_clashing_name_belongs_to_the_smaller_server_id_by_code_point() -> None:
    result = resolve_clashes({"b": [("x", "now")], "a": [("y", "now")], "Z": [("z", "now")]})
    assert result.owner == {"now": ("Z", "z")}
    assert result.skipped == {("a", "y"), ("b", "x")}
    assert [problem.message for problem in result.problems] == [
        f"Server '{loser}': tool '{tool}' is skipped: server 'Z' already has the name 'now', and"
        " the smaller server id keeps it. Qualified names (server:name) still work. Give one of"
        " the servers a prefix under 'transform'."
        for loser, tool in [("a", "y"), ("b", "x")]
    ]
    assert {problem.reason for problem in result.problems} == {"TOOL_NAME_CLASH"}
    assert {problem.severity for problem in result.problems} == {"warning"}


def test_names_lost_to_one_server_are_one_problem_that_lists_them() -> None:
    names = [f"t{number:02}" for number in range(30)]
    pairs = [(name, name) for name in names]
    result = resolve_clashes({"a": pairs, "b": pairs, "c": [("t00", "t00")]})
    folded, single = result.problems
    assert (folded.server_id, folded.subject, single.subject) == ("b", "a:*", "t00")
    assert "30 tools are skipped: server 'a' already has their names" in folded.message
    assert "'t00', 't01'" in folded.message
    assert " more." in folded.message, "however many, the message is bounded"
    assert len(result.skipped) == 31


def test_a_name_that_is_another_servers_id_has_a_problem_of_its_own() -> None:
    result = resolve_clashes(
        {
            "A": [("p", "b")],
            "b": [("p", "a"), ("q", "c")],
            "z": [("p", "a"), ("q", "b"), ("r", "c")],
        }
    )
    assert {problem.subject for problem in result.problems} == {"b:*", "b"}


def test_the_rest_of_a_clashing_server_keeps_its_names() -> None:
    result = resolve_clashes({"a": [("now", "now")], "b": [("now", "now"), ("then", "then")]})
    assert result.owner == {"now": ("a", "now"), "then": ("b", "then")}


@pytest.mark.parametrize("name", ["mcp_release", "mcp_admin"])
def test_no_server_takes_a_name_of_the_admin_toolset(name: str) -> None:
    result = resolve_clashes({"a": [("tool", name)]})
    assert result.owner == {}
    (problem,) = result.problems
    assert problem.reason == "TOOL_NAME_RESERVED"
    assert f"the name '{name}' is reserved for 'mcp_admin'" in problem.message


def test_clashing_prompts_have_their_own_message() -> None:
    result = resolve_clashes({"b": [("x", "ask")], "a": [("y", "ask")]}, PROMPTS)
    assert result.owner == {"ask": ("a", "y")}
    (problem,) = result.problems
    assert problem.reason == "PROMPT_NAME_CLASH"
    assert problem.message.startswith(
        "Server 'b': prompt 'x' is skipped: server 'a' already has the name"
    )


def test_a_prompt_may_have_a_name_of_the_admin_toolset() -> None:
    assert resolve_clashes({"a": [("x", "mcp_release")]}, PROMPTS).problems == ()


def test_the_admin_toolset_comes_before_every_server() -> None:
    admin = [("mcp_release", "mcp_release"), ("x", "x")]
    result = resolve_clashes({"A": [("x", "x")], "mcp_admin": admin})
    assert result.owner == {"mcp_release": ("mcp_admin", "mcp_release"), "x": ("mcp_admin", "x")}
    assert result.skipped == {("A", "x")}


_NAMES = st.text(string.ascii_letters + "_-. é", max_size=6) | st.sampled_from(["x" * 64, "y" * 65])
_PATTERNS = st.lists(st.text("ab_*", max_size=4), max_size=3).map(tuple)
_TRANSFORMS = st.lists(
    st.builds(Transform, st.just("prefix"), st.text("ab_.", max_size=3), st.text("ab", max_size=2))
    | st.builds(Transform, st.just("suffix"), st.text("ab_.", max_size=3)),
    max_size=3,
).map(tuple)
_SERVERS = st.builds(server, _PATTERNS, _PATTERNS, _TRANSFORMS)
_KINDS = st.sampled_from([TOOLS, PROMPTS])


@settings(deadline=None)
@given(_SERVERS, st.lists(_NAMES, max_size=30), _KINDS, st.randoms(use_true_random=False))
def test_exposure_is_valid_sorted_unique_and_independent_of_the_listing_order(
    spec: ServerSpec, originals: list[str], kind: NamedKind, rng: random.Random
) -> None:
    exposure = expose(spec, originals, kind)
    shuffled = rng.sample(originals, len(originals))
    assert expose(spec, shuffled, kind) == exposure
    pairs = exposure.exposed
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for _, name in pairs)
    assert all(is_valid_original_name(original) for original, _ in pairs)
    assert [original for original, _ in pairs] == sorted({original for original, _ in pairs})
    assert len({name for _, name in pairs}) == len(pairs)
    assert {original for original, _ in pairs} <= set(originals)
    assert len({problem.key for problem in exposure.problems}) == len(exposure.problems)


_PAIRS = st.lists(
    st.tuples(st.sampled_from("pqrs"), st.sampled_from(["a", "b", "c", "mcp_release"])),
    unique_by=(lambda pair: pair[0], lambda pair: pair[1]),
)
_EXPOSURES = st.dictionaries(st.sampled_from(["A", "a", "b", "mcp_admin", "z-1"]), _PAIRS)


@settings(deadline=None)
@given(_EXPOSURES, _KINDS, st.randoms(use_true_random=False))
def test_clashes_are_resolved_regardless_of_the_order_of_servers(
    exposures: dict[str, list[tuple[str, str]]], kind: NamedKind, rng: random.Random
) -> None:
    result = resolve_clashes(exposures, kind)
    order = rng.sample(list(exposures), len(exposures))
    assert (
        resolve_clashes({each_server: exposures[each_server] for each_server in order}, kind)
        == result
    )
    tools = {
        (each_server, original) for each_server, pairs in exposures.items() for original, _ in pairs
    }
    assert set(result.owner.values()) | result.skipped == tools
    assert set(result.owner.values()).isdisjoint(result.skipped)
    assert {each_problem.server_id for each_problem in result.problems} == {
        server for server, _ in result.skipped
    }
    keys = {problem.key for problem in result.problems}
    assert len(keys) == len(result.problems) <= len(result.skipped)
