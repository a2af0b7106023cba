"""JSON pointers, as references of schemas and names of claims write them."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.wire.json_pointer import at_fragment, at_pointer, escaped, unescaped

DOCUMENT = {"a/b": {"~": [10, {"c d": 11}]}, "": 12, "none": None}


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", DOCUMENT),
        ("/", 12),
        ("/a~1b/~0/0", 10),
        ("/a~1b/~0/1/c d", 11),
        ("/a~1b/~0/2", None),
        ("/a~1b/~0/x", None),
        ("/a~1b/~0/" + "9" * 5_000, None),
        ("/none/a", None),
        ("a~1b", None),
    ],
)
def test_a_pointer_leads_to_a_part_or_to_nothing(pointer: str, found: Any) -> None:
    assert at_pointer(DOCUMENT, pointer) == found


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", DOCUMENT),
        ("#/a~1b/~0/1/c%20d", 11),
        ("#anchor", None),
        ("other#/none", None),
        (7, None),
    ],
)
def test_a_fragment_leads_there_in_its_own_document(reference: object, found: Any) -> None:
    assert at_fragment(DOCUMENT, reference) == found


@pytest.mark.parametrize(("name", "step"), [("a/b~c", "a~1b~0c"), ("~1", "~01"), ("a b%", "a b%")])
def test_a_step_of_a_pointer_leads_to_a_member_of_any_name(name: str, step: str) -> None:
    assert (escaped(name), unescaped(step)) == (step, name)
    assert at_pointer({name: 1}, f"/{escaped(name)}") == 1
