"""Matching URIs with templates."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.spec.filters.uri_templates import (
    ComparedUri,
    TooMuchEffort,
)


@pytest.mark.parametrize(
    ("template", "uri", "expected"),
    [
        ("note://{id}", "note://7", True),
        ("note://{id}", "note://7/x", False),
        ("note://{id}", "memo://7", False),
        ("note://{id}", "note://", True),
        ("note://{id}/text", "note://7/text", True),
        ("note://{id}/text", "note://7/texts", False),
        ("db://{db}/{table}", "db://main/users", True),
        ("db://{db}/{table}", "db://main/users/1", False),
        ("file:///{+path}", "file:///a/b/c.txt", True),
        ("file:///{+path}.{ext}", "file:///a.b/c.d", True),
        ("file:///{+path}.{ext}", "file:///a.b/c", False),
        ("page://{name}{#section}", "page://a#b/c", True),
        ("find://x{?q,limit}", "find://x?q=a/b&limit=3", True),
        ("at://{x,y}", "at://1,2", True),
        ("v://{var:3}/{list*}", "v://abc/1,2", True),
        ("file://{folder*}/{name}", "file://a/b/c.txt", True),
        ("plain://x", "plain://x", True),
        ("plain://x", "plain://y", False),
        ("odd://{", "odd://{", True),
        ("odd://{}", "odd://x", False),
        ("note://{id}", "note://{id}", True),
    ],
)
def test_a_simple_expression_matches_no_slash_and_one_with_operator_does(
    template: str, uri: str, expected: bool
) -> None:
    assert ComparedUri(uri).matches(template) is expected


_PIECES = st.lists(st.sampled_from(["{v}", "{+v}", "a", "/", ".", "a/"]), max_size=6)


@settings(deadline=None)
@given(_PIECES, st.text("a/.b", max_size=12))
def test_it_matches_as_the_regular_expression_does(pieces: list[str], uri: str) -> None:
    runs = {"{v}": "[^/]*", "{+v}": ".*"}
    expression = "".join(runs.get(piece) or re.escape(piece) for piece in pieces)
    assert ComparedUri(uri).matches("".join(pieces)) == (re.fullmatch(expression, uri) is not None)


def test_a_hostile_template_takes_bounded_time() -> None:
    assert not ComparedUri("x" * 2_000).matches("{+a}x" * 32 + "y")
    assert not ComparedUri("x" * 8_000).matches("{+a}x" * 33), "more than 32 stand for nothing"


def test_a_template_with_exponential_backtracking_is_matched_at_once() -> None:
    assert not ComparedUri("x" * 8_192).matches("{a}x" * 32 + "y")
    assert not ComparedUri("x" * 8_191).matches("{+a}x{b}" * 16 + "{+c}y")
    assert ComparedUri("x" * 8_192).matches("{+a}" + "x" * 4_000 + "{b}" + "x" * 4_000 + "{c}")
    assert not ComparedUri(("x" * 63 + "/") * 128).matches("{+a}" + "x" * 4_000 + "{b}y")


def test_the_cost_of_a_uri_is_bounded_for_any_number_of_templates() -> None:
    compared, seen = ComparedUri("x" * 8_192), []

    def compare() -> None:
        for number in range(100_000):
            assert not compared.matches("{a}" + "x" * 4_000 + f"{{b}}y{number}{{c}}")
            seen.append(number)

    with pytest.raises(TooMuchEffort):
        compare()
    assert 1 < len(seen) < 50


def test_ordinary_templates_are_never_too_many() -> None:
    compared = ComparedUri("note://7/of/many?parts=1")
    for number in range(50_000):
        assert not compared.matches(f"notes{number}://{{id}}/{{name}}")
