"""Schemas and bodies of OpenAPI documents: what they say, and what is only text."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml

from leaseway.control_plane.config.openapi.operations import import_document
from leaseway.control_plane.config.openapi.schemas import MAX_SCHEMAS
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import input_schema
from leaseway.data_plane.kinds.http_api.requests import HttpRequest, build_request
from leaseway.spec.kinds.http_tools import HttpTool

BASE = "https://api.example.com"


def only(operation: str, *, path: str = "/x", method: str = "post", **components: Any) -> HttpTool:
    made = import_document(
        {
            "openapi": "3.1.0",
            "paths": {path: {method: yaml.safe_load(operation)}},
            "components": components,
        }
    )
    assert not made.skipped, made.skipped
    (tool,) = made.tools
    return tool


def request(tool: HttpTool, **arguments: Any) -> HttpRequest:
    assert not ArgumentCheck(input_schema(tool)).violations(arguments)
    return build_request(tool, BASE, arguments)


def keywords(node: Any) -> set[str]:
    if isinstance(node, dict):
        return set(node).union(*map(keywords, node.values()))
    return set().union(*map(keywords, node)) if isinstance(node, list) else set()


REPOSITORY = {
    "type": "object",
    "required": ["visibility"],
    "properties": {
        "id": {"$ref": "#/components/schemas/Id"},
        "headline": {"type": "string", "example": "leaseway", "default": "x"},
        "private": {"type": "boolean", "default": False, "description": "Who sees it."},
        "visibility": {"enum": ["public"], "default": "public"},
        "kind": {"const": "repository"},
        "nested": {
            "type": "object",
            "properties": {"wiki": {"type": "boolean", "default": True}},
            "default": {"wiki": True},
        },
        "list": {"type": "array", "items": {"type": "string", "default": "a"}, "default": ["a"]},
        "merged": {"allOf": [{"$ref": "#/components/schemas/Merge"}], "default": "squash"},
        "updated": {"type": "string", "readOnly": True, "default": "now"},
        "url": {"allOf": [{"type": "string"}], "readOnly": True},
    },
}
SCHEMAS = {
    "Repository": REPOSITORY,
    "Merge": {"enum": ["squash", "rebase"], "default": "rebase"},
    "Id": {"type": "integer", "readOnly": True, "default": 0},
}
PATCH = """
parameters:
  - { name: version, in: path, required: true, schema: { type: string, default: v1 } }
  - { name: page, in: query, schema: { type: integer, default: 1 } }
  - { name: per, in: query, required: true, schema: { default: 30 } }
  - { name: X-Kind, in: header, schema: { enum: [a], default: a } }
requestBody: { content: { %s: { schema: %s } } }
"""


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data",
                                  "application/x-www-form-urlencoded"])  # fmt: skip
@pytest.mark.parametrize(
    "schema",
    [
        "{ $ref: '#/components/schemas/Repository' }",
        "{ allOf: [ { $ref: '#/components/schemas/Repository' }, { properties: { q: {} } } ] }",
    ],
)
def test_nothing_is_sent_that_the_caller_did_not_give(kind: str, schema: str) -> None:
    tool = only(PATCH % (kind, schema), path="/{version}/x", method="patch", schemas=SCHEMAS)
    sent = request(tool, per=5, private=True, visibility="public")
    assert sent.url == f"{BASE}/v1/x?per=5", "only a path cannot do without a value"
    assert set(sent.headers) == {"Content-Type"}
    body = (sent.body or b"").decode()
    assert "private" in body
    assert not {name for name in REPOSITORY["properties"] if name in body} - {
        "private",
        "visibility",
    }


def test_defaults_are_text_and_members_that_only_responses_have_are_gone() -> None:
    whole = "{ type: array, items: { $ref: '#/components/schemas/Repository' } }"
    for schema in ("{ $ref: '#/components/schemas/Repository' }", whole):
        tool = only(PATCH % ("application/json", schema), path="/{version}/x", schemas=SCHEMAS)
        properties = copy.deepcopy(input_schema(tool)["properties"])
        assert properties.pop("version") == {
            "type": "string",
            "default": "v1",
            "description": 'Default: "v1".',
        }
        assert not {"default", "readOnly", "id", "updated", "url"} & keywords(properties)
        assert properties["page"]["description"] == "Default: 1."
    body = properties["body"]["items"]["properties"]
    assert body["private"]["description"] == "Who sees it. Default: false."
    assert body["headline"]["examples"] == ["leaseway"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "nullable": True},
        {"type": ["string", "null"]},
        {"type": "string", "x-nullable": True},
        {"$ref": "#/components/schemas/Text", "nullable": True},
        {"allOf": [{"$ref": "#/components/schemas/Text"}], "nullable": True},
        {"oneOf": [{"$ref": "#/components/schemas/Text"}], "nullable": True, "description": "d"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["a", "b"], "nullable": True},
        {"type": "string", "enum": ["a"], "nullable": True},
    ],
)
def test_null_is_sent_where_the_document_allows_it_and_left_out_elsewhere(schema: Any) -> None:
    body = {"type": "object", "properties": {"a": schema, "b": {"type": "string"}}}
    media = {"application/json": {"schema": body}}
    tool = only(
        yaml.safe_dump({"requestBody": {"content": media}}),
        schemas={"Text": {"type": "string"}},
    )
    assert request(tool, a="a").body == b'{"a":"a"}'
    assert request(tool, a=None).body == b'{"a":null}'
    assert build_request(tool, BASE, {"a": None, "b": None}).body == b'{"a":null}'
    assert ArgumentCheck(input_schema(tool)).violations({"a": 5})


def test_keywords_beside_a_reference_apply_together_with_its_target() -> None:
    pet = {"type": "object", "properties": {"name": {"type": "string"}}, "description": "Any pet."}
    cat = {
        "$ref": "#/components/schemas/Pet",
        "description": "A cat.",
        "properties": {"lives": {"$ref": "#/components/schemas/Count", "maximum": 9}},
        "required": ["name"],
    }
    tool = only(
        "requestBody: { required: true, content: { application/json: { schema: { $ref:"
        " '#/components/schemas/Cat' } } } }",
        schemas={"Pet": pet, "Cat": cat, "Count": {"type": "integer", "minimum": 0}},
    )
    assert [(parameter.name, parameter.required) for parameter in tool.parameters] == [
        ("name", True),
        ("lives", False),
    ]
    check = ArgumentCheck(input_schema(tool))
    assert not check.violations({"name": "Tom", "lives": 9})
    for lives in (-1, 10, "9"):
        assert check.violations({"name": "Tom", "lives": lives})
    listed = only(
        "parameters: [ { $ref: '#/components/parameters/Q', description: Mine } ]",
        parameters={"Q": {"name": "cat", "in": "query", "schema": cat, "description": "Its own"}},
        schemas={"Pet": pet, "Count": {}},
    )
    assert listed.parameters[0].parsed["description"] == "Mine"


FILES = {
    "today's FastAPI": {"type": "string", "contentMediaType": "application/octet-stream"},
    "an optional file": {"anyOf": [{"type": "string", "contentMediaType": "image/png"},
                                   {"type": "null"}]},
    "OpenAPI 3.0": {"type": "string", "format": "binary"},
    "with an encoding": {"type": "string", "contentEncoding": "base64",
                         "contentMediaType": "image/png"},
    "a list": {"type": "array", "items": {"type": "string", "format": "binary"}},
    "an optional list": {"anyOf": [{"type": "array", "items": {"type": "string",
                         "contentMediaType": "application/octet-stream"}}, {"type": "null"}]},
    "a reference": {"$ref": "#/components/schemas/File"},
    "an encoding's type": {},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_of_a_multipart_body_are_sent_as_bytes(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"f": FILES[name], "note": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["f"],
    }
    encoding = {"f": {"contentType": "image/png"}} if name == "an encoding's type" else {}
    media = {"multipart/form-data": {"schema": schema, "encoding": encoding}}
    tool = only(
        yaml.safe_dump({"requestBody": {"required": True, "content": media}}),
        schemas={"File": FILES["today's FastAPI"]},
    )
    data = "AP8AYQ=="
    sent = request(tool, f=[data, data] if "list" in name else data, note="plain", n=3)
    body = sent.body or b""
    assert body.count(b'filename="f') == (2 if "list" in name else 1)
    assert b"\r\n\r\n\x00\xff\x00a\r\n" in body
    assert b'name="note"\r\n\r\nplain\r\n' in body
    assert b'name="n"\r\n\r\n3\r\n' in body
    kind = (
        "image/png" if "image/png" in str((FILES[name], encoding)) else "application/octet-stream"
    )
    assert f"Content-Type: {kind}\r\n".encode() in body


def test_text_with_a_media_type_is_sent_as_text() -> None:
    schema = {
        "type": "object",
        "properties": {
            "csv": {"type": "string", "contentMediaType": "text/csv"},
            "json": {"type": "string", "contentMediaType": "application/json"},
            "svg": {"type": "string"},
        },
    }
    for kind in ("multipart/form-data", "application/json"):
        media = {kind: {"schema": schema, "encoding": {"svg": {"contentType": "image/svg+xml"}}}}
        tool = only(yaml.safe_dump({"requestBody": {"content": media}}))
        body = request(tool, csv="a,b", json="[]", svg="<svg/>").body or b""
        assert all(text in body for text in (b"a,b", b"[]", b"<svg/>"))


@pytest.mark.parametrize(
    ("member", "encoding", "value", "body"),
    [
        ("{ type: array }", "{}", ["a", 1], b"f=a&f=1"),
        ("{ type: array }", "{ explode: false }", ["a", 1], b"f=a,1"),
        ("{ type: array }", "{ style: spaceDelimited, explode: false }", ["a", 1], b"f=a%201"),
        ("{ type: array }", "{ style: pipeDelimited }", ["a", 1], b"f=a%7C1"),
        ("{ type: array }", "{ contentType: application/json }", ["a", 1], b"f=%5B%22a%22%2C1%5D"),
        ("{ type: object }", "{}", {"a": 1}, b"f=%7B%22a%22%3A1%7D"),
        ("{ type: object }", "{ style: form }", {"a": 1, "b": 2}, b"a=1&b=2"),
        ("{ type: object }", "{ style: form, explode: false }", {"a": 1}, b"f=a,1"),
        ("{ type: object }", "{ style: deepObject }", {"a": [1]}, b"f%5Ba%5D%5B0%5D=1"),
        ("{ type: string }", "{ allowReserved: true }", "a/b", b"f=a/b"),
        ("{ type: string }", "{}", "a/b c", b"f=a%2Fb%20c"),
    ],
)
def test_members_of_a_form_are_written_in_their_encoding(
    member: str, encoding: str, value: Any, body: bytes
) -> None:
    schema = f"{{ type: object, properties: {{ f: {member} }} }}"
    kind = "application/x-www-form-urlencoded"
    tool = only(
        f"requestBody: {{ content: {{ {kind}: {{ schema: {schema}, encoding: {{ f: {encoding} }}"
        " } } }"
    )
    assert request(tool, f=value).body == body


@pytest.mark.parametrize(
    ("parameter", "value", "query"),
    [
        ("schema: { type: array }", ["a", "b"], "q=a&q=b"),
        ("explode: false, schema: { type: array }", ["a", "b,c"], "q=a,b%2Cc"),
        ("style: spaceDelimited, schema: { type: array }", ["a", "b"], "q=a%20b"),
        ("style: spaceDelimited, explode: true, schema: { type: array }", ["a", "b"], "q=a&q=b"),
        ("style: pipeDelimited, explode: false, schema: { type: array }", ["a", "b"], "q=a%7Cb"),
        ("schema: { type: object }", {"a": 1, "b": 2}, "a=1&b=2"),
        ("schema: { properties: { a: {} } }", {"a": 1}, "a=1"),
        ("schema: { type: [object, 'null'] }", {"a": 1}, "a=1"),
        ("schema: { anyOf: [ { type: object }, { type: 'null' } ] }", {"a": 1}, "a=1"),
        ("explode: false, schema: { type: object }", {"a": 1, "b": 2}, "q=a,1,b,2"),
        ("style: deepObject, schema: { type: object }", {"a": {"b": 1}}, "q%5Ba%5D%5Bb%5D=1"),
        ("content: { application/json: { schema: {} } }", {"a": [1]}, "q=%7B%22a%22%3A%5B1%5D%7D"),
        ("content: { application/json: { schema: {} } }", "x", "q=%22x%22"),
        ("content: { text/plain: { schema: {} } }", "x", "q=x"),
        ("allowReserved: true, schema: { type: string }", "/a?b&c", "q=/a?b%26c"),
        ("schema: { type: boolean }", True, "q=true"),
    ],
)
def test_queries_are_written_in_their_style(parameter: str, value: Any, query: str) -> None:
    tool = only(f"parameters: [ {{ name: q, in: query, {parameter} }} ]", method="get")
    assert request(tool, q=value).url == f"{BASE}/x?{query}"


@pytest.mark.parametrize(
    ("parameter", "value", "text"),
    [
        ("", ["a", "b"], "a,b"),
        ("", {"a": 1, "b": 2}, "a,1,b,2"),
        ("explode: true, ", {"a": 1, "b": 2}, "a=1,b=2"),
    ],
)
def test_headers_and_paths_are_written_in_the_simple_style(
    parameter: str, value: Any, text: str
) -> None:
    both = ", ".join(
        f"{{ name: {name}, in: {place}, required: true, {parameter}schema: {{}} }}"
        for name, place in (("X-Q", "header"), ("id", "path"))
    )
    tool = only(f"parameters: [ {both} ]", path="/x/{id}", method="get")
    sent = request(tool, id=value, **{"X-Q": value})
    assert (sent.url, sent.headers["X-Q"]) == (f"{BASE}/x/{text}", text)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("label", ".a.b"),
        ("matrix", ";id=a;id=b"),
    ],
)
def test_paths_may_have_labels_and_matrices(style: str, text: str) -> None:
    tool = only(
        f"parameters: [ {{ name: id, in: path, style: {style}, explode: true, schema: {{}} }} ]",
        path="/x{id}/y",
        method="get",
    )
    assert request(tool, id=["a", "b"]).url == f"{BASE}/x{text}/y"


@pytest.mark.parametrize(
    ("kind", "body", "sent"),
    [
        ("application/json", "json", "application/json"),
        ("application/json; charset=utf-8", "json", "application/json"),
        ("APPLICATION/JSON", "json", "application/json"),
        ("application/vnd.api+json", "json", "application/vnd.api+json"),
        ("application/vnd.api+json; charset=utf-8", "json", "application/vnd.api+json"),
        ("application/vnd.x+json; version=2", "json", "application/vnd.x+json; version=2"),
        ("application/*+json", "json", "application/json"),
        ("text/json", "json", "text/json"),
        ("text/plain", "text", "text/plain; charset=utf-8"),
        ("text/plain; charset=iso-8859-1", "text", "text/plain; charset=utf-8"),
        ("application/xml", "text", "application/xml; charset=utf-8"),
        ("application/x-www-form-urlencoded; charset=utf-8", "form",
         "application/x-www-form-urlencoded"),
        ("application/octet-stream", "binary", "application/octet-stream"),
        ("image/*", "binary", "application/octet-stream"),
        ("image/png", "binary", "image/png"),
    ],
)  # fmt: skip
def test_a_body_is_sent_with_its_media_type(kind: str, body: str, sent: str) -> None:
    tool = only(
        yaml.safe_dump({"requestBody": {"content": {kind: {"schema": {"properties": {"a": {}}}}}}})
    )
    assert tool.body == body
    value = {"a": "YQ=="} if body in ("json", "form") else {"body": "YQ=="}
    assert request(tool, **value).headers["Content-Type"] == sent


@pytest.mark.parametrize(
    "keyword",
    [
        "pattern: '^[\\w-.]+$'",
        "minimum: '1'",
        "multipleOf: 0",
        "uniqueItems: 1",
        "format: 5",
        "patternProperties: { '[': {} }",
    ],
)
def test_a_keyword_that_no_validator_takes_is_dropped(keyword: str) -> None:
    content = f"application/json: {{ schema: {{ properties: {{ a: {{ {keyword} }} }} }} }}"
    tool = only(f"requestBody: {{ content: {{ {content} }} }}")
    assert not any(tool.parameters[0].parsed.values())


@pytest.mark.parametrize(("default", "kept"), [("5", {"default": 5}), ("five", {})])
def test_a_default_of_a_path_is_sent_only_if_it_fits(default: str, kept: dict[str, Any]) -> None:
    parameter = f"{{ name: id, in: path, schema: {{ type: integer, default: {default} }} }}"
    tool = only(f"parameters: [ {parameter} ]", path="/x/{id}")
    schema = tool.parameters[0].parsed
    assert {key: schema[key] for key in schema.keys() & {"default"}} == kept


def test_schemas_of_a_tool_are_left_open_in_their_depths_where_they_are_too_large() -> None:
    wide = {f"m{number}": {"type": "string", "description": "x" * 300} for number in range(70)}
    members = {
        f"p{number}": {
            "type": "object",
            "description": "kept",
            "properties": {"deep": {"type": "object", "properties": wide}},
        }
        for number in range(10)
    }
    small = {"type": "string", "maxLength": 3}
    schema = {"type": "object", "properties": {**members, "small": small}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    tool = only(json.dumps({"requestBody": body}))
    assert sum(len(parameter.schema) for parameter in tool.parameters) <= MAX_SCHEMAS
    shown = {parameter.name: parameter.parsed for parameter in tool.parameters}
    assert shown["small"] == small
    assert shown["p3"]["description"] == "kept"
    assert shown["p3"]["properties"]["deep"]["type"] == "object"


def test_a_fragment_of_a_path_tells_operations_apart_and_is_not_sent() -> None:
    tool = only("{ operationId: start }", path="/jobs#start")
    assert request(tool).url == f"{BASE}/jobs"


def test_a_placeholder_in_the_query_of_a_path_is_a_parameter_of_the_query() -> None:
    parameter = "{ name: file, in: path, required: true, schema: { type: string } }"
    tool = only(
        f"{{ operationId: export, parameters: [ {parameter} ] }}",
        path="/export/{id}?kind=csv&name={file}&to={to}",
        method="get",
    )
    sent = request(tool, id="1", name="a&b", to="x").url
    assert sent == f"{BASE}/export/1?kind=csv&name=a%26b&to=x"


@pytest.mark.parametrize(
    ("parameter", "schema"),
    [
        ("example: 7", {"examples": [7]}),
        ("examples: { a: { value: 7 }, b: { value: 8 }, c: {} }", {"examples": [7, 8]}),
        ("schema: { example: 7 }, example: 8", {"examples": [8]}),
        ("deprecated: true", {"description": "Deprecated."}),
        ("deprecated: true, description: Old.", {"description": "Deprecated. Old."}),
        ("schema: { deprecated: true, default: 1 }", {"description": "Deprecated. Default: 1."}),
        (f"schema: {{ type: string, example: {'x' * 99_999} }}", {"type": "string"}),
    ],
)
def test_examples_and_deprecation_are_told(parameter: str, schema: dict[str, Any]) -> None:
    made = only(f"{{ parameters: [ {{ name: p, in: query, {parameter} }} ] }}")
    assert made.parameters[0].parsed == schema


PATTERNS = [
    ("/^[a-z]+$/", "^[a-z]+$"),
    ("/^a$/u", "^a$"),
    ("/^a$/i", None),
    ("/[a-z]+$/", "[a-z]+$"),
    (r"/\d{3}/g", r"\d{3}"),
    ("/(^a$)/", "(^a$)"),
    ("^/a/$", "^/a/$"),
    ("/a/b/", "/a/b/"),
    ("/a", "/a"),
    (r"[$]/a/\/", r"[$]/a/\/"),
    (r"a\$/m", r"a\$/m"),
    ("/users/me", "/users/me"),
]


@pytest.mark.parametrize(("pattern", "kept"), PATTERNS)
def test_a_pattern_as_javascript_writes_it_is_one_of_json_schema(
    pattern: str, kept: str | None
) -> None:
    given = {"name": "q", "in": "query", "schema": {"type": "string", "pattern": pattern}}
    tool = only(json.dumps({"parameters": [given]}))
    assert tool.parameters[0].parsed.get("pattern") == kept


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("/^x-/", {"patternProperties": {"^x-": {}}, "additionalProperties": False}),
        ("/^x-/i", {"patternProperties": {}}),
        ("[", {"patternProperties": {}}),
    ],
)
def test_an_object_is_open_where_no_pattern_tells_its_members(
    pattern: str, kept: dict[str, Any]
) -> None:
    schema = {"patternProperties": {pattern: {}}, "additionalProperties": False}
    tool = only(json.dumps({"parameters": [{"name": "q", "in": "query", "schema": schema}]}))
    assert tool.parameters[0].parsed == kept


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"type": "object", "description": "Any."}, {"description": "Any."}),
        ({"$ref": "#/components/schemas/Any"}, {}),
        ({"type": "object", "nullable": True}, {}),
        ({"type": ["object", "string"]}, {"type": ["object", "string"]}),
        ({"type": "object", "maxProperties": 1}, {"type": "object", "maxProperties": 1}),
    ],
)
def test_values_of_a_map_that_are_only_called_objects_may_be_anything(
    values: dict[str, Any], kept: dict[str, Any]
) -> None:
    schema = {"type": "object", "additionalProperties": values}
    given = {"name": "q", "in": "query", "schema": schema}
    tool = only(json.dumps({"parameters": [given]}), schemas={"Any": {"type": "object"}})
    assert tool.parameters[0].parsed == {"type": "object", "additionalProperties": kept}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("minimum: 3, exclusiveMinimum: false", {"minimum": 3}),
        ("minimum: 3, exclusiveMinimum: true", {"exclusiveMinimum": 3}),
        ("maximum: 3, exclusiveMaximum: true", {"exclusiveMaximum": 3}),
        ("maximum: 3, exclusiveMaximum: 2", {"maximum": 3, "exclusiveMaximum": 2}),
        ("maximum: three, exclusiveMaximum: true, minimum: 1", None),
        ("maximum: 3, exclusiveMaximum: two", None),
    ],
)
def test_what_is_not_allowed_may_have_a_bound_with_a_flag(rule: str, kept: Any) -> None:
    schema = f"{{ properties: {{ a: {{ not: {{ {rule} }} }} }} }}"
    media = f"{{ application/json: {{ schema: {schema} }} }}"
    (number,) = only(f"requestBody: {{ content: {media} }}").parameters
    assert number.parsed.get("not") == kept


CHOICES = """
schemas:
  Animal:
    oneOf: [ { $ref: '#/components/schemas/Cat' }, { $ref: '#/components/schemas/Dog' },
             { $ref: '#/components/schemas/Newt' }, { $ref: '#/components/schemas/Owl' } ]
    discriminator: { propertyName: kind, mapping: { meow: Cat, c: '#/components/schemas/Cat' } }
  Cat: { type: object, properties: { kind: { type: string, description: What it is. } } }
  Dog: { type: object, properties: { packs: { type: number } } }
  Newt: { type: object, properties: { kind: { const: newt } } }
  Owl: { allOf: [ { type: object, properties: { kind: { enum: [owl] } } }, { required: [kind] } ] }
"""


@pytest.mark.parametrize("where", ["{ schema: ANIMAL }", "{ schema: { items: ANIMAL } }"])
def test_alternatives_say_the_value_that_chooses_them(where: str) -> None:
    media = where.replace("ANIMAL", "{ $ref: '#/components/schemas/Animal' }")
    operation = f"requestBody: {{ content: {{ application/json: {media} }} }}"
    (body,) = only(operation, **yaml.safe_load(CHOICES)).parameters
    cat, dog, newt, owl = body.parsed.get("items", body.parsed)["anyOf"]
    assert cat["properties"]["kind"]["description"] == 'What it is. Here "meow" or "c".'
    assert dog["properties"]["kind"] == {"description": 'Here "Dog".'}
    assert newt["properties"] == {"kind": {"const": "newt"}}
    assert "properties" not in owl


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ("{ type: [string, null] }", {"type": ["string", "null"]}),
        ("{ type: [string, string] }", {"type": ["string"]}),
        ("{ type: 'null', nullable: true }", {"type": "null"}),
        ("{ type: ['null'], nullable: true }", {"type": ["null"]}),
        ("{ type: null }", {}),
    ],
)
def test_types_are_listed_once_and_null_needs_no_quotes(schema: str, kept: Any) -> None:
    (value,) = only(f"parameters: [ {{ name: q, in: query, schema: {schema} }} ]").parameters
    assert value.parsed == kept


def test_a_pattern_that_workers_do_not_check_is_left_out() -> None:
    schema = "{ type: string, maxLength: 2048, pattern: '^arn:.{16,2044}$' }"
    (value,) = only(f"parameters: [ {{ name: q, in: query, schema: {schema} }} ]").parameters
    assert value.parsed == {"type": "string", "maxLength": 2048}


@pytest.mark.parametrize(
    ("schema", "fitting", "misfit"),
    [
        ({"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]}, ["b", "a"], ["c"]),
        ({"type": "array", "enum": ["a"]}, ["a"], ["c"]),
        ({"type": "string", "enum": [2, True]}, "2", 3),
        ({"type": "string", "enum": [1.1, "2.0"]}, "1.10", 1.2),
        ({"type": "integer", "enum": ["6 (Six)"], "nullable": True}, "6 (Six)", "7 (Seven)"),
        ({"type": "integer", "enum": ["6"]}, 6, "7"),
    ],
)
def test_values_that_are_none_of_their_type_do_not_shut_a_parameter(
    schema: dict[str, Any], fitting: object, misfit: object
) -> None:
    body = {"type": "object", "properties": {"v": schema}}
    operation = {"requestBody": {"content": {"application/json": {"schema": body}}}}
    check = ArgumentCheck(input_schema(only(json.dumps(operation))))
    assert not check.violations({"v": fitting})
    assert check.violations({"v": misfit})
