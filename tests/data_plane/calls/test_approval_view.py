"""What a person sees of a call that needs approval."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.audit.redact import Redactor
from leaseway.data_plane.calls.approval_view import ApprovalView, view_call
from leaseway.wire.bounds import MAX_APPROVAL
from leaseway.wire.errors import Fault, Reason


def view(
    arguments: Any, extra: dict[str, Any] | None = None, schema: object = None
) -> ApprovalView:
    encoded = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
    return view_call("bank:pay", encoded, extra or {}, ["to", "amount"], Redactor(schema).hides)


def refusal(arguments: Any, extra: dict[str, Any] | None = None, schema: object = None) -> str:
    with pytest.raises(Fault) as error:
        view(arguments, extra, schema)
    assert error.value.reason is Reason.PERMISSION_DENIED
    return error.value.message


def test_declared_arguments_come_before_any_number_of_others() -> None:
    filler = {f"a{number:03}": "x" for number in range(500)}
    shown = view({**filler, "amount": 9, "to": "ann"}).shown_arguments
    assert shown.startswith('{"to":"ann","amount":9,"a000":"x"')
    assert json.loads(shown) == {**filler, "amount": 9, "to": "ann"}


def test_long_texts_are_shown_to_their_end() -> None:
    text = "x" * 20_000 + " and pay eve"
    assert json.loads(view({"note": text}).shown_arguments) == {"note": text}


def test_of_a_duplicate_key_the_value_that_runs_is_shown() -> None:
    found = view(b'{"to": "ann", "to": "eve"}')
    assert (found.arguments, found.shown_arguments) == (b'{"to":"eve"}', '{"to":"eve"}')


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("1\u202e00", "1\\u202e00"),
        ("1\u200b0", "1\\u200b0"),
        ("ann\u00a0eve", "ann\\u00a0eve"),
        ("\u3164", "\\u3164"),
        ("a\U000e0041", "a\\udb40\\udc41"),
        ("100\u0336", "100\\u0336"),
        ("\u05d0 100", "\\u05d0 100"),
    ],
    ids=["direction", "zero width", "other space", "filler", "tag", "overlay", "hebrew"],
)
def test_characters_that_draw_nothing_or_move_others_are_escaped(hidden: str, shown: str) -> None:
    assert view({"to": hidden}).shown_arguments == f'{{"to":"{shown}"}}'


def test_letters_of_other_scripts_and_their_accents_stay_readable() -> None:
    names = {"to": "Zoë Müller", "memo": "工资 зарплата e\u0301"}
    shown = view(names).shown_arguments
    assert "\\u" not in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"to": "https://ann:pw1234@bank.example"}, "'to'"),
        ({"token": "x"}, "'token'"),
        ({"a": [{"api_key": "x"}]}, "'a.api_key'"),
        ({"env": [{"name": "TOKEN", "value": "x"}]}, "'env.value'"),
        ({"pin_code": "1234"}, "'pin_code'"),
    ],
)
def test_what_records_would_redact_is_refused_by_name(arguments: Any, named: str) -> None:
    schema = {"properties": {"pin_code": {"type": "string", "format": "password"}}}
    assert f"{named} look like secrets" in refusal(arguments, schema=schema)
    assert f"'_meta.{named[1:]} look" in refusal({}, {"_meta": arguments}, schema)


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps({"to": "x" * MAX_APPROVAL}).encode(),
        json.dumps({"to": "\u202e" * (MAX_APPROVAL // 4)}, ensure_ascii=False).encode(),
        b'{"to": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"to": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"to": ' + b"9" * 5_000 + b"}",
    ],
    ids=["long", "long when shown", "deep", "deeper", "digits"],
)
def test_what_a_person_cannot_read_is_refused(arguments: bytes) -> None:
    assert "cannot be shown to a person" in refusal(arguments)


NAMES = st.text().filter(lambda name: not Redactor().hides(name, ""))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text().filter(lambda text: "://" not in text),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_what_is_shown_means_what_runs_and_is_visible(arguments: dict[str, Any]) -> None:
    found = view(arguments)
    assert json.loads(found.shown_arguments) == json.loads(found.arguments) == arguments
    assert all(char.isprintable() for char in found.shown_arguments)
