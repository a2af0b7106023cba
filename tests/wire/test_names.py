from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.names import is_valid_name, nearest, qualified, split_qualified


@given(st.text(max_size=70))
def test_the_rule_is_that_of_model_providers(name: str) -> None:
    assert is_valid_name(name) == bool(re.match(r"^[a-zA-Z0-9_-]{1,64}\Z", name))


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("a" * 64, True),
        ("a" * 65, False),
        ("", False),
        ("a\n", False),
        ("ä", False),
        ("a.b", False),
    ],
)
def test_the_rule_holds_at_its_edges(name: str, valid: bool) -> None:
    assert is_valid_name(name) is valid


def test_a_qualified_name_comes_apart_as_it_was_made() -> None:
    assert split_qualified(qualified("time", "now")) == ("time", "now")


def test_only_the_first_colon_separates() -> None:
    assert split_qualified("time:now:then") == ("time", "now:then")


def test_an_exposed_name_is_not_qualified() -> None:
    assert split_qualified("time_now") is None


def test_the_nearest_names_come_first_and_strangers_not_at_all() -> None:
    known = ["read_file", "read_files", "write_file", "zebra"]
    assert nearest("read_fil", known)[0] == "read_file"
    assert "zebra" not in nearest("read_fil", known)
    assert nearest("qqqq", known) == []


def test_at_most_as_many_as_asked_for_are_named() -> None:
    assert len(nearest("tool", [f"tool{n}" for n in range(20)], limit=2)) == 2
