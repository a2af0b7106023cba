from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import (
    check_caller_names,
    is_valid_name,
    nearest,
    qualified,
    split_qualified,
)


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


def test_a_qualified_name_is_split_at_its_first_colon() -> None:
    assert split_qualified(qualified("time", "now")) == ("time", "now")
    assert split_qualified("time:now:then") == ("time", "now:then")
    assert split_qualified("time_now") is None


def test_similar_names_come_first_and_others_are_left_out() -> None:
    known = ["read_file", "read_files", "write_file", "zebra"]
    assert nearest("read_fil", known)[0] == "read_file"
    assert "zebra" not in nearest("read_fil", known)
    assert nearest("qqqq", known) == []


def test_the_number_of_similar_names_is_limited() -> None:
    assert len(nearest("tool", [f"tool{n}" for n in range(20)], limit=2)) == 2


@pytest.mark.parametrize("name", ["", "a", "a b", "München/42:ü", "x" * 256])
def test_valid_caller_names_are_accepted(name: str) -> None:
    check_caller_names(session=name, tenant=name, agent=name)


@pytest.mark.parametrize("name", ["x" * 257, "a\nb", "a\tb", "a\x00", "a\x7f", "a\x85", "a\u2028b"])
@pytest.mark.parametrize("which", ["session", "tenant", "agent"])
def test_invalid_caller_names_are_rejected_and_not_repeated(which: str, name: str) -> None:
    given = {which: name}
    with pytest.raises(Fault) as caught:
        check_caller_names(**given)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert which in caught.value.message
    assert "at most 256 characters" in caught.value.message
    assert name not in caught.value.message
