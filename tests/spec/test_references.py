from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.spec.references import UnresolvedReference, expand, references


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${HOME}", "/root"),
        ("a${HOME}b${HOME}", "a/rootb/root"),
        ("${PORT:-80}", "80"),
        ("${EMPTY:-80}", "80"),
        ("${EMPTY}", ""),
        ("${HOME:-80}", "/root"),
        ("${NONE:-}", ""),
        ("$HOME ${} ${1A} ${A-B}", "$HOME ${} ${1A} ${A-B}"),
        ("${URL:-http://a/b?c=$d}", "http://a/b?c=$d"),
    ],
)
def test_references_are_expanded_like_in_a_shell(text: str, expected: str) -> None:
    assert expand(text, {"HOME": "/root", "EMPTY": ""}) == expected


def test_an_unset_variable_without_a_default_is_an_error() -> None:
    with pytest.raises(UnresolvedReference, match="TOKEN") as caught:
        expand("${HOME}/${TOKEN}", {"HOME": "x"})
    assert caught.value.name == "TOKEN"


def test_values_are_not_expanded_again() -> None:
    assert expand("${A}", {"A": "${B}", "B": "never"}) == "${B}"


def test_names_and_defaults_are_listed_in_order() -> None:
    assert references("${A} ${B:-} ${C:-d}") == (("A", None), ("B", ""), ("C", "d"))


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_references_is_unchanged(text: str) -> None:
    assert expand(text, {}) == text
    assert references(text) == ()
