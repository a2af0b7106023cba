"""Checks of arguments, whose values appear in no message."""

import copy
import json
import resource
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.tools.arguments import ArgumentCheck, parse_arguments
from leaseway.data_plane.core.tools.schema_check import SchemaNotCompiled
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.portable_json import has_many_values

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 3},
        "items": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["count"],
    "additionalProperties": False,
}


def test_arguments_that_fit_are_accepted() -> None:
    assert ArgumentCheck(SCHEMA).accepts({"count": 3, "items": ["a"]})


def test_each_violation_has_a_json_path() -> None:
    found = dict(ArgumentCheck(SCHEMA).violations({"count": 1, "items": ["a", 2], "other": 1}))
    assert set(found) == {"$.count", "$.items[1]", "$"}
    assert "minimum" in found["$.count"]
    assert "other" in found["$"]


NAMED = {
    "type": "object",
    "properties": {"kind": {"type": "string", "default": "png"}, "name": {"type": "string"}},
    "required": ["kind", "name"],
}


@pytest.mark.parametrize(
    ("schema", "enough", "too_little"),
    [
        (NAMED, {"name": "a"}, {"kind": "png"}),
        ({"properties": {"in": NAMED}}, {"in": {"name": "a"}}, {"in": {"kind": "png"}}),
        (
            {"properties": {"all": {"type": "array", "items": NAMED}}},
            {"all": [{"name": "a"}]},
            {"all": [{"kind": "png"}]},
        ),
        (
            {"properties": {"required": NAMED, "default": {}}, "required": ["default"]},
            {"default": 1},
            {"required": {"name": "a"}},
        ),
    ],
)
def test_a_required_property_with_a_default_may_be_omitted(
    schema: dict[str, object], enough: dict[str, object], too_little: dict[str, object]
) -> None:
    before = copy.deepcopy(schema)
    check = ArgumentCheck(schema)
    assert check.accepts(enough)
    assert not check.accepts(too_little)
    assert schema == before


def test_a_choice_of_nothing_which_no_client_is_listed_excludes_no_value() -> None:
    choice = {"type": "string", "enum": []}
    lists = {"type": "array", "items": choice}
    optional = {"anyOf": [choice, {"type": "null"}]}
    check = ArgumentCheck({"properties": {"project": choice, "all": lists, "other": optional}})
    assert check.accepts({"project": "a", "all": ["b"], "other": "c"})
    assert not check.accepts({"project": 1})


def test_a_value_for_a_property_with_a_default_is_checked() -> None:
    assert [path for path, _ in ArgumentCheck(NAMED).violations({"name": "a", "kind": 1})] == [
        "$.kind"
    ]


@given(st.text(min_size=8, alphabet="zqxj"))
def test_a_violation_never_shows_the_value(secret: str) -> None:
    for _, message in ArgumentCheck(SCHEMA).violations({"count": secret, "items": [secret, 1]}):
        assert secret not in message


def test_violations_are_bounded_in_number_and_length() -> None:
    many = ArgumentCheck(SCHEMA).violations({"count": 3, "items": list(range(100))})
    assert len(many) == 20
    (long,) = ArgumentCheck({"additionalProperties": False}).violations({"n" * 5000: 1})
    assert len(long[1]) <= 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no-such-type"},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
        {"properties": {"a": {"$ref": "file:///etc/hostname"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"pattern": "("},
        "no schema at all",
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_and_nothing_is_fetched(schema: object) -> None:
    with pytest.raises(SchemaNotCompiled):
        ArgumentCheck(schema)


@pytest.mark.parametrize(
    "arguments",
    [
        b"[1]",
        b"null",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 4_301 + b"}",
        b"\xff",
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_arguments_that_are_no_json_object_are_refused(arguments: bytes) -> None:
    with pytest.raises(Fault) as refusal:
        parse_arguments(arguments)
    assert refusal.value.reason is Reason.INVALID_ARGUMENTS
    assert refusal.value.started == "no"
    assert refusal.value.violations


def test_arguments_at_the_bound_pass_and_one_byte_more_does_not() -> None:
    whole = b'{"a":"' + b"x" * (bounds.MAX_ARGUMENTS - 8) + b'"}'
    assert len(whole) == bounds.MAX_ARGUMENTS
    assert parse_arguments(whole)
    with pytest.raises(Fault, match="4 MiB"):
        parse_arguments(whole + b" ")


@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")])
def test_arguments_at_the_bound_of_nesting_pass_and_one_level_more_does_not(
    pair: tuple[bytes, bytes],
) -> None:
    start, end = (part * (bounds.MAX_NESTING - 1) for part in pair)
    wide = b'{"flat":[' + b"[]," * 200 + b'"[[[["],"x":%s1%s}'
    assert parse_arguments(wide % (start, end))
    with pytest.raises(Fault, match="more than 128 levels"):
        parse_arguments(wide % (start + pair[0], end + pair[1]))


OPTIONAL = {
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string"},
        "near": {
            "type": "array",
            "items": {"properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
        },
    },
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"city": "Bonn", "unit": None}, True),
        ({"city": "Bonn", "near": [{"x": 1, "y": None}, {"x": None}]}, True),
        ({"city": None}, False),
        ({"city": "Bonn", "other": None}, False),
        ({"city": "Bonn", "near": [None]}, True),
        ({"city": "Bonn", "near": [1, {"x": "text"}]}, False),
    ],
)
def test_a_null_counts_as_an_omitted_optional_property(
    arguments: dict[str, object], fits: bool
) -> None:
    check = ArgumentCheck(OPTIONAL)
    before = copy.deepcopy(arguments)
    assert check.accepts(check.without_nulls(arguments)) == fits
    assert arguments == before


TEXTS = {"properties": {"x": {"type": "array", "items": {"type": "string"}}}}


def test_of_large_arguments_only_the_first_violation_is_looked_for() -> None:
    check = ArgumentCheck(TEXTS)
    began, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [(path, _)] = check.violations({"x": [1] * 90_000})
    assert path == "$.x[0]"
    [(path, message)] = check.violations({"x": [1, "y" * bounds.MAX_ARGUMENTS]})
    assert len(message) <= 200
    # All of them took seconds and more than half a gigabyte.
    assert time.process_time() - began < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 * 1024


@pytest.mark.parametrize(
    "many",
    [
        b'{"x":[' + b"1," * bounds.MAX_VALUES + b"1]}",
        b'{"x":[' + b'"",' * bounds.MAX_VALUES + b'""]}',
        b'{"x":[' + b'{"":[]},' * bounds.MAX_VALUES + b"1]}",
        b'{"x":[' + b'"\\"",' * bounds.MAX_VALUES + b"1]}",
        b'{"x":' + b"[" * bounds.MAX_VALUES * 2,
    ],
)
def test_arguments_with_too_many_values_are_refused_before_they_are_parsed(many: bytes) -> None:
    with pytest.raises(Fault, match="more than 100000 values and keys") as refusal:
        parse_arguments(many)
    assert (refusal.value.reason, refusal.value.started) == (Reason.INVALID_ARGUMENTS, "no")


@pytest.mark.parametrize("line", [b"a,b:c,{d}[e]\\n", b'say \\"a,b\\",', b"c:\\\\,"])
def test_a_long_text_counts_as_one_value(line: bytes) -> None:
    text = line * 90_000
    assert parse_arguments(b'{"x":"' + text + b'","y":[1,2]}')["y"] == [1, 2]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(alphabet=',:[]{}"\\a'),
        lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text('":,\\a'), each),
        max_leaves=12,
    )
)
def test_values_are_counted_outside_of_texts_only(value: object) -> None:
    def parts(one: object) -> int:
        if isinstance(one, dict):
            return 1 + len(one) + max(0, len(one) - 1) + sum(map(parts, one.values()))
        if isinstance(one, list):
            return 1 + max(0, len(one) - 1) + sum(map(parts, one))
        return 0

    document = json.dumps(value).encode()
    count = parts(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "MAX_VALUES", count)
        escapes = document.count(b"\\\\") + document.count(b'\\"')
        if escapes <= 4 * count and document.count(b'"') <= 4 * count:
            assert not has_many_values(document)
        patch.setattr(bounds, "MAX_VALUES", count - 1)
        assert has_many_values(document)
