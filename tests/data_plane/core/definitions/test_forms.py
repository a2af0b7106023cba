"""Forms that servers ask people to fill in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaseway.data_plane.core.definitions.forms import corrected_form
from leaseway.data_plane.core.definitions.results import corrected_params

TEXT = {"type": "string"}
COLORS = {"type": "string", "enum": ["red", "blue"]}
TITLED = [{"title": "Red", "const": "red"}]


def form(field: Any, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": field}, **members}


@pytest.mark.parametrize(
    ("field", "corrected"),
    [
        ({"oneOf": TITLED}, {"type": "string", "oneOf": TITLED}),
        ({"anyOf": [{"const": "red"}]},
         {"type": "string", "oneOf": [{"title": "red", "const": "red"}]}),
        ({"enum": ["red", "blue"]}, COLORS),
        ({"type": ["string", "null"], "enum": ["red", "blue", None]}, COLORS),
        ({"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "A"},
         {**TEXT, "title": "A"}),
        ({"type": ["integer", "null"]}, {"type": "integer"}),
        ({"$ref": "#/$defs/Color", "default": "red"}, {**COLORS, "default": "red"}),
        ({"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]}, COLORS),
        ({"type": "array", "items": {"$ref": "#/$defs/Color"}}, {"type": "array", "items": COLORS}),
        ({"type": "array", "items": {"oneOf": TITLED}},
         {"type": "array", "items": {"anyOf": TITLED}}),
        ({**TEXT, "title": None, "format": "password", "default": 5}, TEXT),
        ({"type": "boolean", "default": 1}, {"type": "boolean"}),
        ({"type": "integer", "default": True}, {"type": "integer"}),
    ],
)  # fmt: skip
def test_a_field_is_written_as_clients_accept_it(field: Any, corrected: Any) -> None:
    written = corrected_form(form(field, **{"$defs": {"Color": COLORS}}))
    assert written["properties"] == {"a": corrected}
    assert corrected_form(written) is written


@pytest.mark.parametrize(
    "field",
    [
        {**TEXT, "title": "A", "format": "email", "default": "a@b.c", "pattern": "a"},
        {"type": "string", "enum": ["x"], "enumNames": ["X"]},
        {"type": "string", "oneOf": TITLED},
        {"type": "array", "items": {"anyOf": TITLED}, "default": ["red"]},
        {"type": "number", "default": 1},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/properties/a"},
        7,
    ],
)
def test_another_field_stays(field: Any) -> None:
    given = form(field, required=["a"])
    assert corrected_form(given) is given


def test_a_form_is_an_object_with_fields() -> None:
    assert corrected_form({"required": None}) == {"type": "object", "properties": {}}
    assert corrected_form(None) is None


def test_a_request_with_a_form_is_corrected_as_it_passes() -> None:
    params = {"message": "m", "requestedSchema": form({"enum": ["red", "blue"]})}
    corrected = json.loads(corrected_params(json.dumps(params).encode()))
    assert corrected == {"message": "m", "requestedSchema": form(COLORS)}


def test_a_list_of_itself_is_written_as_it_is() -> None:
    own = {"type": "array", "items": {"$ref": "#/properties/a"}}
    assert corrected_form(form(own))["properties"] == {"a": {"type": "array", "items": own}}


def test_a_form_that_would_become_long_stays() -> None:
    long = {"type": "string", "enum": ["x" * 30_000]}
    fields = {name: {"$ref": "#/$defs/long"} for name in "abc"}
    asked = {"requestedSchema": {"type": "object", "properties": fields, "$defs": {"long": long}}}
    params = json.dumps(asked).encode()
    assert corrected_params(params) is params
