"""Exposed prompts and resources, and problems about the others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import offering, recorded, spec

from leaseway.control_plane.core.catalog.kinds import PROMPTS
from leaseway.control_plane.core.catalog.listing import ListedItem
from leaseway.control_plane.core.catalog.prompts_resources import (
    expose_recorded,
    expose_resources,
    resource_problems,
)
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.filters.names import NO_FILTER, NameFilter
from leaseway.spec.filters.uris import UriFilter
from leaseway.wire.bounds import MAX_DEFINITION, MAX_LISTED, MAX_URI
from leaseway.wire.names import ORIGINAL_NAME_RULE

SPEC = spec("a")


def reasons(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(problem.reason, problem.subject) for problem in problems]


def test_prompts_are_filtered_by_their_own_filter_and_transformed_as_tools_are() -> None:
    rules = replace(SPEC, tools=NameFilter((), ("*",)), prompts=NameFilter((), ("secret_*",)))
    exposure = expose_recorded(rules, recorded("greet", "secret_x"), PROMPTS)
    assert exposure.exposed == (("greet", "a_greet"),)
    assert exposure.problems == ()


def test_a_prompts_name_follows_the_rule_of_tools_names() -> None:
    exposure = expose_recorded(SPEC, recorded("no\tgood", "x" * 257, "ok"), PROMPTS)
    assert exposure.exposed == (("ok", "a_ok"),)
    assert {problem.reason for problem in exposure.problems} == {"INVALID_PROMPT_NAME"}
    assert exposure.problems[0].message == (
        f"Server 'a': prompt 'no\\tgood' is skipped: a prompt name has {ORIGINAL_NAME_RULE}. Ask"
        " the server's maintainer to fix it."
    )


def test_a_malformed_prompt_is_skipped_with_a_problem() -> None:
    huge = recorded("huge", definition=b"x" * (MAX_DEFINITION + 1))
    nameless = (ListedItem("", b"7"), ListedItem("", b"{}"))
    exposure = expose_recorded(SPEC, (*nameless, *huge, *recorded("ok")), PROMPTS)
    assert exposure.exposed == (("ok", "a_ok"),)
    assert reasons(exposure.problems) == [("INVALID_PROMPT", "huge"), ("INVALID_PROMPT", "")]
    too_large, malformed = exposure.problems
    assert f"has {MAX_DEFINITION + 1} bytes, the limit is {MAX_DEFINITION}" in too_large.message
    assert malformed.message == (
        "Server 'a': 2 prompts skipped: no object with a text 'name'. Ask the server's"
        " maintainer to fix it."
    )


def test_prompts_over_the_limit_are_skipped_with_a_problem() -> None:
    names = [f"p{number:05}" for number in range(MAX_LISTED + 2)]
    exposure = expose_recorded(SPEC, recorded(*names), PROMPTS)
    assert len(exposure.exposed) == MAX_LISTED
    (problem,) = exposure.problems
    assert problem.reason == "TOO_MANY_PROMPTS"
    assert problem.message == "Server 'a': 2 prompts skipped: the limit is 10000 per server."


def test_resources_are_filtered_by_uri_and_never_renamed() -> None:
    found = offering(
        resources=("file:///b", "file:///a", "file:///secret/k"),
        templates=("file:///{path}", "file:///secret/{path}"),
    )
    rules = NameFilter((), ("file:///secret/*",))
    seen = expose_resources(found, rules)
    assert [resource.name for resource in seen.resources] == ["file:///a", "file:///b"]
    assert [template.name for template in seen.templates] == ["file:///{path}"]
    assert len(seen.every_template) == 2, "the filter applies to matching URIs"
    assert resource_problems(replace(SPEC, resources=rules), found) == ()
    nothing = NameFilter(("file:///nowhere/*",))
    assert reasons(resource_problems(replace(SPEC, resources=nothing), found)) == [
        ("RESOURCES_FILTERED", "")
    ]


def test_malformed_resources_are_skipped_with_problems() -> None:
    long = "x:" + "y" * MAX_URI
    found = offering(resources=("a:b", "a:b", long), templates=("",))
    assert [resource.name for resource in expose_resources(found, NO_FILTER).resources] == ["a:b"]
    problems = resource_problems(SPEC, found)
    assert [problem.reason for problem in problems] == [
        "INVALID_RESOURCE",
        "RESOURCE_LISTED_TWICE",
        "INVALID_RESOURCE_TEMPLATE",
    ]
    assert f"its 'uri' has {len(long)} characters, the limit is {MAX_URI}" in problems[0].message
    assert "'uriTemplate'" in problems[2].message
    assert all(len(problem.message) < 400 for problem in problems)


def test_of_two_resources_with_one_uri_the_first_is_listed() -> None:
    first, second = (ListedItem("a:b", content) for content in (b"1", b"2"))
    found = replace(offering(), resources=(first, second))
    assert expose_resources(found, NO_FILTER).resources == (first,)


@pytest.mark.parametrize("rules", [NameFilter(("a*",)), NameFilter((), ("a*",)), NO_FILTER])
def test_a_server_that_lists_none_has_none_and_no_problems(rules: NameFilter) -> None:
    limited = replace(SPEC, prompts=rules, resources=rules)
    assert expose_recorded(limited, (), PROMPTS).exposed == ()
    assert expose_resources(offering("tool"), rules).resources == ()
    assert resource_problems(limited, offering("tool")) == ()


_URIS = st.lists(st.text("ab/:{}", max_size=6), max_size=12)
_PATTERNS = st.lists(st.text("ab/:*", max_size=4), max_size=3).map(tuple)
_RULES = st.builds(NameFilter, _PATTERNS, _PATTERNS)


@settings(deadline=None)
@given(_URIS, _RULES, st.randoms(use_true_random=False))
def test_exposed_resources_do_not_depend_on_the_order_of_the_listing(
    uris: list[str], rules: NameFilter, rng: random.Random
) -> None:
    found = offering(resources=tuple(uris), templates=tuple(uris))
    order = rng.sample(uris, len(uris))
    other = offering(resources=tuple(order), templates=tuple(order))
    allows = UriFilter(rules.whitelist, rules.blacklist).allows
    seen = expose_resources(found, rules)
    assert expose_resources(other, rules) == seen
    names = [resource.name for resource in seen.resources]
    assert names == sorted({uri for uri in uris if uri and allows(uri)})
    problems = resource_problems(replace(SPEC, resources=rules), found)
    again = resource_problems(replace(SPEC, resources=rules), other)
    assert {problem.key for problem in problems} == {key.key for key in again}
