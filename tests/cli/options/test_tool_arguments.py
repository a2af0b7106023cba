"""Parsing a tool's arguments from a command line."""

from __future__ import annotations

import pytest

from leaseway.cli.options.tool_arguments import (
    are_pairs,
    keep_texts,
    parse_arguments,
    parse_texts,
)


def test_no_words_are_no_arguments() -> None:
    assert parse_arguments([]) == {}


def test_one_json_object_is_used_unchanged() -> None:
    assert parse_arguments(['{"a": {"b": [1, null]}}']) == {"a": {"b": [1, None]}}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("k=text", "text"),
        ("k=3", 3),
        ("k=1.5", 1.5),
        ("k=true", True),
        ("k=null", None),
        ('k="3"', "3"),
        ("k=[1, 2]", [1, 2]),
        ("k=a=b", "a=b"),
        ("k=", ""),
        ("k={broken", "{broken"),
        ("k=" + "[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_is_json_if_it_parses_else_text(word: str, value: object) -> None:
    assert parse_arguments([word]) == {"k": value}


def test_a_dash_reads_stdin() -> None:
    assert parse_arguments(["-"], stdin='{"k": 1}\n') == {"k": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loose"], "Argument 1 is neither key=value nor a JSON object"),
        (["a=1", "=2"], "Argument 2 is neither"),
        (["a=1", "a=2"], "'a' is given twice"),
        (["{1}"], "cannot be read at line 1, column 2"),
        (["{" + '"a":{' * 50_000], "nested too deeply"),
    ],
)
def test_invalid_arguments_are_an_error(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(words)


def test_a_key_that_is_there_twice_is_an_error_in_a_value_too() -> None:
    with pytest.raises(
        ValueError, match="argument 'filter' cannot be used: it has the key 'a' twice"
    ):
        parse_arguments(['filter={"b": {"a": 1, "a": "hunter2"}}'])


@pytest.mark.parametrize("text", ["", "[1]", "3", "{"])
def test_stdin_must_contain_an_object(text: str) -> None:
    with pytest.raises(ValueError, match="The JSON of stdin"):
        parse_arguments(["-"], stdin=text)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "9" * 5000, "9" * 400])
def test_a_value_that_json_does_not_have_is_a_text(value: str) -> None:
    assert parse_arguments([f"query={value}"]) == {"query": value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": NaN}', "NaN, which JSON does not have"),
        ('{"a": 1e999}', "beyond the range"),
        ('{"a": 1, "a": "hunter2"}', "the key 'a' twice"),
    ],
)
def test_an_object_that_is_not_json_is_an_error(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse_arguments([text])
    assert "hunter2" not in str(caught.value)


def test_messages_never_repeat_values() -> None:
    for words in (["hunter2"], ['{"password": hunter2}'], ["k=hunter2", "k=hunter2"]):
        with pytest.raises(ValueError) as caught:
            parse_arguments(words)
        assert "hunter2" not in str(caught.value)


def test_parse_texts_keeps_all_values_as_strings() -> None:
    assert parse_texts(["n=5", "j={}", "e="]) == {"n": "5", "j": "{}", "e": ""}


@pytest.mark.parametrize("words", [["loose"], ["=v"], ["k=secret", "k=secret"]])
def test_invalid_texts_are_rejected_without_repeating_values(words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        parse_texts(words)
    assert "secret" not in str(caught.value)


def test_undecoded_bytes_are_decoded_as_utf8() -> None:
    hidden = "name=é".encode().decode("ascii", "surrogateescape")
    assert parse_arguments([hidden]) == {"name": "é"}
    assert parse_texts([hidden]) == {"name": "é"}


def test_bytes_that_are_not_utf8_are_an_error() -> None:
    with pytest.raises(ValueError, match="not UTF-8"):
        parse_arguments([b"name=\xff".decode("utf-8", "surrogateescape")])


def test_a_value_stays_a_string_if_the_schema_has_a_string() -> None:
    words = ["zip=01234", "id=7", "flag=true", "n=7", "any=7", "unknown=7"]
    schema = {
        "properties": {
            "zip": {"type": "string"},
            "id": {"type": "string"},
            "flag": {"type": "string"},
            "n": {"type": "integer"},
            "any": True,
        }
    }
    fitted = keep_texts(words, parse_arguments(words), schema)
    assert fitted == {"zip": "01234", "id": "7", "flag": "true", "n": 7, "any": 7, "unknown": 7}


NULLABLE: dict[str, object] = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("definition", "word", "value"),
    [
        (NULLABLE, "7", "7"),
        (NULLABLE, "true", "true"),
        (NULLABLE, '"7"', '"7"'),
        (NULLABLE, "null", None),
        ({"type": ["string", "null"]}, "7", "7"),
        ({"oneOf": [{"anyOf": [{"type": "string"}]}, {"type": "array"}]}, "7", "7"),
        ({"oneOf": [{"anyOf": [{"type": "string"}]}, {"type": "array"}]}, "[7]", [7]),
        ({"type": ["string", "integer"]}, "7", 7),
        ({"type": ["string", "number"]}, "7", 7),
        ({"type": ["string", "integer"]}, "7.5", "7.5"),
        ({"type": ["string", "boolean"]}, "7", "7"),
        ({"type": ["string", "boolean"]}, "true", True),
        ({"type": [{}, 5], "anyOf": 3}, "7", 7),
    ],
)
def test_a_value_is_a_string_if_it_may_be_one_and_not_what_it_looks_like(
    definition: dict[str, object], word: str, value: object
) -> None:
    words, schema = [f"id={word}"], {"properties": {"id": definition}}
    assert keep_texts(words, parse_arguments(words), schema) == {"id": value}


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": []}])
def test_a_schema_without_properties_changes_no_value(schema: dict[str, object]) -> None:
    assert keep_texts(["k=7"], {"k": 7}, schema) == {"k": 7}


@pytest.mark.parametrize(
    ("words", "pairs"), [(["a=1"], True), (["-"], False), (['{"a": 1}'], False), (["-", "a"], True)]
)
def test_an_object_or_a_dash_is_not_a_list_of_pairs(words: list[str], pairs: bool) -> None:
    assert are_pairs(words) is pairs
