from __future__ import annotations

import json
from datetime import date
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.sdk.calls.requests import encode_arguments
from leaseway.wire.bounds import MAX_ARGUMENTS
from leaseway.wire.errors import Fault, Reason

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False).filter(lambda number: abs(number) != float("inf")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _values, max_size=4))
def test_json_values_are_encoded_unchanged(arguments: dict[str, Any]) -> None:
    try:
        expected = json.loads(json.dumps(arguments, ensure_ascii=False).encode())
    except UnicodeEncodeError:  # lone surrogates, which UTF-8 cannot encode
        with pytest.raises(Fault, match="lone surrogate"):
            encode_arguments("t", arguments)
        return
    assert json.loads(encode_arguments("t", arguments)) == expected


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_arguments_become_an_empty_object(nothing: dict[str, Any] | None) -> None:
    assert encode_arguments("t", nothing) == b"{}"


def test_any_mapping_is_accepted() -> None:
    assert encode_arguments("t", MappingProxyType({"a": 1})) == b'{"a":1}'


def _circle() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    return circle


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"a": {1, 2}}, "`a` is of type set"),
        ({"a": [0, {"b": date(2026, 1, 1)}]}, "`a[1].b` is of type datetime.date"),
        ({"a": 1, "b": [float("nan")]}, "`b[0]` is NaN or infinite"),
        ({"a": {float("nan"): 1}}, "`a` has a key that is NaN or infinite"),
        ({"a": 7**6000}, "`a` is a number of thousands of digits"),
        ({"a": {7**6000: 1}}, "`a` has a key of thousands of digits"),
        ({"a": b"secret"}, "`a` is of type bytes"),
        ({"a": "secret \ud800"}, "`a` has a lone surrogate"),
        ({"a": ({"\ud800": 1},)}, "`a[0]` has a key with a lone surrogate"),
        (_circle(), " is nested too deeply, or contains itself"),
        ({(1, 2): 1}, "the whole has a key of type tuple"),
        ({"a": {1: {2: 3}, b"secret": 1}}, "`a` has a key of type bytes"),
    ],
)
def test_what_json_lacks_is_rejected_with_its_place_and_without_quoting_it(
    arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Fault) as caught:
        encode_arguments("pay", arguments)
    assert caught.value.reason is Reason.INVALID_ARGUMENTS
    assert caught.value.started == "no"
    assert "'pay'" in caught.value.message
    assert f"{problem}. Pass" in caught.value.message or f"{problem}, half" in caught.value.message
    assert len(caught.value.message) < 400
    assert "secret" not in caught.value.message


def test_the_bound_is_at_four_mebibytes() -> None:
    frame = len(b'{"a":""}')
    assert len(encode_arguments("t", {"a": "x" * (MAX_ARGUMENTS - frame)})) == MAX_ARGUMENTS
    with pytest.raises(Fault, match=str(MAX_ARGUMENTS)):
        encode_arguments("t", {"a": "x" * (MAX_ARGUMENTS - frame + 1)})
