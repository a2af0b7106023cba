"""Patterns and filters of design.md#configuration."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.spec.filters.names import NameFilter, breadth, matches, passes


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("open", "open", True),
        ("open", "reopen", False),
        ("open", "Open", False),
        ("browser_*", "browser_click", True),
        ("browser_*", "browser_", True),
        ("browser_*", "a_browser_x", False),
        ("*_unsafe", "run_unsafe", True),
        ("*_unsafe", "run_unsafe2", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "a-c-b-c", True),
        ("a*b*c", "acb", False),
        ("aba*aba", "aba", False),
        ("aba*aba", "ababa", False),
        ("a*bc*c", "abc", False),
        ("*", "", True),
        ("**", "anything", True),
        ("", "", True),
        ("", "x", False),
        ("a?", "ab", False),
        ("a?", "a?", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a.c", "abc", False),
        ("*", "two\nlines", True),
    ],
)
def test_only_stars_are_wildcards(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("rm all", "rm_all", False),
        ("rm.all", "rm-all", False),
        ("rm:all/x", "rm_*", False),
        ("löschen", "l_schen", False),
        ("🗑 all", "__all", False),
        ("🗑 all", "___all", False),
        ("rm_all", "rm-all", True),
        ("rm all", "rm.all", True),
        ("rm all", "all", True),
    ],
)
def test_a_blacklist_holds_for_a_name_as_models_are_given_it(
    name: str, pattern: str, expected: bool
) -> None:
    assert NameFilter(blacklist=(pattern,)).passes(name) is expected
    assert NameFilter(also=NameFilter(blacklist=(pattern,))).passes(name) is expected
    assert NameFilter((name,), (pattern,)).passes(name), "the whitelist comes first"
    assert NameFilter((pattern,)).passes(name) is False, "a whitelist has the server's spelling"


@settings(deadline=None)
@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_a_pattern_matches_like_the_equivalent_regular_expression(pattern: str, name: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert matches(pattern, name) == (re.fullmatch(expression, name, re.DOTALL) is not None)


@settings(deadline=None)
@given(st.text("ab*", max_size=8), st.text("ab*", max_size=8))
def test_a_pattern_comes_before_those_that_match_more(wide: str, narrow: str) -> None:
    # `*` in a pattern stands for itself here: what matches it matches all that the pattern does.
    if matches(wide, narrow) and not matches(narrow, wide):
        assert breadth(narrow) < breadth(wide)


def test_a_hostile_pattern_and_name_take_linear_time() -> None:
    assert not matches("*a" * 500 + "*b", "a" * 100_000)


@pytest.mark.parametrize(
    ("whitelist", "blacklist", "passing"),
    [
        ((), (), ["file:///a", "file:///b", "db://t"]),
        (("file:*",), (), ["file:///a", "file:///b"]),
        ((), ("file:*",), ["db://t"]),
        (("file:///a",), ("file:*",), ["file:///a", "db://t"]),
    ],
)
def test_a_whitelist_is_strict_without_a_blacklist_and_an_exception_with_one(
    whitelist: tuple[str, ...], blacklist: tuple[str, ...], passing: list[str]
) -> None:
    uris = ["file:///a", "file:///b", "db://t"]
    assert [uri for uri in uris if passes(uri, whitelist, blacklist)] == passing
