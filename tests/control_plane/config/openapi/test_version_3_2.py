"""What version 3.2 of OpenAPI has added: whole queries, items of lists, the method QUERY."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from leaseway.control_plane.config.openapi.operations import Imported, import_document
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import definition, input_schema
from leaseway.data_plane.kinds.http_api.requests import HttpRequest, build_request
from leaseway.spec.kinds.http_tools import HttpTool


def only(operation: str, method: str = "get") -> HttpTool:
    paths = {"/x": {method: yaml.safe_load(operation)}}
    made = import_document({"openapi": "3.2.0", "paths": paths})
    assert not made.skipped, made.skipped
    assert not made.notes, made.notes
    return made.tools[0]


def request(tool: HttpTool, **arguments: Any) -> HttpRequest:
    assert not ArgumentCheck(input_schema(tool)).violations(arguments)
    return build_request(tool, "http://a", arguments)


QUERY = "parameters: [ { name: q, in: querystring, required: true, content: { %s } } ]"
FIELDS = """application/x-www-form-urlencoded: {
  schema: { type: object, required: [a], properties: { a: { type: string },
    l: { type: array, items: { type: integer } },
    o: { type: object, properties: { n: { type: integer } } } } },
  encoding: { o: { style: deepObject } } }"""


def test_the_fields_of_a_whole_query_are_parameters() -> None:
    tool = only(QUERY % FIELDS)
    assert input_schema(tool)["required"] == ["a"]
    sent = request(tool, a="x y&", l=[1, 2], o={"n": 3})
    assert sent.url == "http://a/x?a=x%20y%26&l=1&l=2&o%5Bn%5D=3"


FIELD_RULES = """
description: Find.
parameters:
  - name: q
    in: querystring
    description: What to find.
    content: { application/x-www-form-urlencoded: { $ref: '#/components/mediaTypes/Query' } }
"""
MEDIA = """
schema:
  type: object
  properties:
    a: { type: string }
    b: { type: array, items: { type: string } }
    c: { type: string }
    id: { type: string, readOnly: true }
encoding: { a: { allowReserved: true }, b: { style: odd } }
"""


def with_media(operation: str, media: str) -> Imported:
    document = {
        "openapi": "3.2.0",
        "paths": {"/x": {"get": yaml.safe_load(operation)}},
        "components": {"mediaTypes": {"Query": yaml.safe_load(media)}},
    }
    return import_document(document)


def test_each_field_of_a_whole_query_has_its_own_rules_and_costs_only_itself() -> None:
    made = with_media(FIELD_RULES, MEDIA)
    (tool,) = made.tools
    assert request(tool, a="x/y", c="x/y").url == "http://a/x?a=x/y&c=x%2Fy"
    assert [parameter.name for parameter in tool.parameters] == ["a", "c"]
    assert tool.description == "Find.\n\nIts query: What to find."
    (note,) = made.notes
    assert "its optional parameter 'b': one of its parameters has the style 'odd'" in note


def test_a_query_that_lacks_a_field_it_needs_is_not_sent_at_all() -> None:
    made = with_media(FIELD_RULES, MEDIA.replace("type: object", "required: [b]", 1))
    assert not made.tools[0].parameters
    assert "its optional parameter 'q'" in made.notes[0]


def test_the_media_type_of_a_parameter_may_be_a_reference() -> None:
    content = "{ application/json: { $ref: '#/components/mediaTypes/Query' } }"
    (tool,) = with_media(
        f"parameters: [ {{ name: p, in: query, content: {content} }} ]",
        "{ schema: { type: integer }, example: 7 }",
    ).tools
    assert tool.parameters[0].parsed == {"type": "integer", "examples": [7]}


@pytest.mark.parametrize(
    ("content", "value", "query"),
    [
        ("application/json: { schema: { type: object } }", {"a": [1]}, "%7B%22a%22%3A%5B1%5D%7D"),
        ("application/jsonpath: { schema: { type: string } }", "$.a[1]", "%24.a%5B1%5D"),
        ("application/x-www-form-urlencoded: { schema: { type: object } }", {"b": "1"}, "b=1"),
        ("", {"b": ["1", "2"]}, "b=1&b=2"),
    ],
    ids=["json", "text", "free form", "nothing"],
)
def test_a_whole_query_without_known_fields_is_one_parameter(
    content: str, value: Any, query: str
) -> None:
    assert request(only(QUERY % content), q=value).url == f"http://a/x?{query}"


def test_a_part_that_is_not_there_leaves_no_query() -> None:
    tool = only("parameters: [ { name: q, in: querystring, content: { text/plain: {} } } ]")
    assert request(tool).url == "http://a/x"


ITEM = "{ type: object, required: [a], properties: { a: { type: integer } } }"
BODY = "requestBody: { required: true, content: { %s: { %s } } }"


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("application/jsonl", b'{"a":1}\n{"a":2}\n'),
        ("application/x-ndjson", b'{"a":1}\n{"a":2}\n'),
        ("application/json-lines", b'{"a":1}\n{"a":2}\n'),
        ("application/json-seq", b'\x1e{"a":1}\n\x1e{"a":2}\n'),
    ],
)
@pytest.mark.parametrize("schema", ["itemSchema: %s", "schema: { type: array, items: %s }"])
def test_items_are_sent_on_lines_of_their_own(kind: str, sent: bytes, schema: str) -> None:
    tool = only(BODY % (kind, schema % ITEM), "post")
    made = request(tool, body=[{"a": 1}, {"a": 2}])
    assert (made.body, made.headers["Content-Type"]) == (sent, kind)
    assert ArgumentCheck(input_schema(tool)).violations({"body": [{"a": "1"}]})


@pytest.mark.parametrize("schema", [f"schema: {ITEM}", "schema: { type: string }"])
def test_lines_whose_schema_is_no_list_are_text(schema: str) -> None:
    tool = only(BODY % ("application/x-ndjson", schema), "post")
    assert request(tool, body='{"a":1}\n').body == b'{"a":1}\n'


def test_lines_that_may_also_be_one_value_are_one_argument() -> None:
    schema = "schema: { type: [array, object], properties: { a: { type: integer } } }"
    tool = only(BODY % ("application/jsonl", schema), "post")
    assert request(tool, body=[{"a": 1}, {"a": 2}]).body == b'{"a":1}\n{"a":2}\n'
    assert request(tool, body={"a": 1}).body == b'{"a":1}\n'


def test_items_of_a_mixed_body_are_parts_with_their_encoding() -> None:
    encoding = "itemSchema: {}, itemEncoding: { contentType: image/png }"
    made = request(only(BODY % ("multipart/mixed", encoding), "post"), body=["AAAA", "BBBB"])
    assert made.body is not None
    assert made.body.count(b"Content-Type: image/png\r\n\r\n") == 2
    made = request(only(BODY % ("multipart/mixed", f"itemSchema: {ITEM}"), "post"), body=[{"a": 1}])
    assert made.body is not None
    assert b'Content-Type: application/json\r\n\r\n{"a":1}\r\n' in made.body


def test_the_method_query_reads_and_has_a_body() -> None:
    tool = only(BODY % ("application/json", f"schema: {ITEM}"), "query")
    made = request(tool, a=1)
    assert (made.method, made.body) == ("QUERY", b'{"a":1}')
    assert definition(tool)["annotations"] == {"readOnlyHint": True, "openWorldHint": True}


def test_an_encoding_that_an_open_query_cannot_keep_is_noted() -> None:
    media = MEDIA.replace("type: object", "type: object\n  additionalProperties: true", 1)
    media = media.replace("b: { style: odd }", "b: { style: pipeDelimited }, c: { style: form }")
    made = with_media(FIELD_RULES, media)
    assert [parameter.name for parameter in made.tools[0].parameters] == ["q"]
    assert [note.partition(" as its ")[0][-3:] for note in made.notes] == ["'a'", "'b'"]
