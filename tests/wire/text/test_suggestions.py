"""Suggestions for unknown names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.wire.names import nearest
from leaseway.wire.text import suggestions as likeness
from leaseway.wire.text.suggestions import alike

MANY = [f"server{n // 20:03}_some_tool_name_{n % 20:02}_{n}" for n in range(10_000)]


@settings(deadline=None)
@given(st.text("abcd", min_size=1, max_size=8), st.sets(st.text("abcd", max_size=8), max_size=20))
def test_the_nearest_of_few_names_is_suggested(name: str, known: set[str]) -> None:
    assert alike(name, known) == nearest(name, known)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("everything_echo", ["echo", "web_echo"]),
        ("mcp__leaseway__echo", ["echo"]),
        ("server:echo", ["echo", "web_echo"]),
        ("search", ["web_search", "web-search", "files/search"]),
        ("quux", []),
    ],
)
def test_a_name_with_another_prefix_or_none_is_suggested_first(
    name: str, suggested: list[str]
) -> None:
    known = ["echo", "web_echo", "web_search", "web-search", "files/search", "unrelated_name"]
    assert alike(name, known) == suggested


def test_a_typing_error_is_found_among_ten_thousand() -> None:
    assert MANY[2467] in alike("server123_some_tool_nam_07_2467", MANY)
    assert MANY[2467] in alike("erver123_some_tool_name_07_2467", MANY), "by how it ends"
    assert MANY[2467] in alike("server123_some_tool_name_07_246", MANY), "by how it begins"


def test_the_number_of_compared_characters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def counting(name: str, known: dict[str, None]) -> list[str]:
        compared.append(len(name) * sum(map(len, known)))
        return []

    monkeypatch.setattr(likeness, "nearest", counting)
    for name in ("a", "a" * 64, "a" * 300):
        alike(name, ["a" * 300 + str(n) for n in range(1000)] + ["a" * n for n in range(300)] * 20)
        alike(name, MANY)
    assert len(compared) == 6
    assert max(compared) <= 250_000


def test_a_name_over_the_limit_has_no_suggestion() -> None:
    assert alike("a" * 301, ["a" * 301]) == []
    assert alike("", ["a"]) == []
    assert alike("ab", []) == []
