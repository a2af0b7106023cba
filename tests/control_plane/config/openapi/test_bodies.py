"""Bodies of OpenAPI operations as parameters of tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from leaseway.control_plane.config.openapi.operations import Imported, import_document
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import input_schema
from leaseway.data_plane.kinds.http_api.requests import build_request
from leaseway.spec.kinds.http_tools import HttpTool


def imported(paths: str, **more: Any) -> Imported:
    return import_document({"openapi": "3.1.0", "paths": yaml.safe_load(paths), **more})


def only(paths: str, **more: Any) -> HttpTool:
    (tool,) = imported(paths, **more).tools
    return tool


def test_a_part_that_is_a_document_is_written_by_the_caller() -> None:
    schema = {"type": "object", "properties": {"order": {"type": "object"}}}
    encoding = {"order": {"contentType": "application/xml"}}
    media = {"multipart/form-data": {"schema": schema, "encoding": encoding}}
    tool = only(json.dumps({"/x": {"post": {"requestBody": {"content": media}}}}))
    (order,) = tool.parameters
    assert order.parsed == {"type": "string", "contentMediaType": "application/xml"}


def test_members_that_an_optional_body_needs_say_so() -> None:
    properties = {"a": {"type": "string", "description": "An a."}, "b": {"type": "string"}}
    schema = {"type": "object", "required": ["a"], "properties": properties}
    media = {"application/json": {"schema": schema}}
    tool = only(json.dumps({"/x": {"post": {"requestBody": {"content": media}}}}))
    a, b = tool.parameters
    assert not a.required
    assert a.parsed["description"] == "An a. Required if anything of the body is sent."
    assert b.parsed == {"type": "string"}


def test_a_document_that_the_caller_writes_is_described() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    media = {"application/xml": {"schema": schema, "example": "<x><a>1</a></x>"}}
    tool = only(json.dumps({"/x": {"post": {"requestBody": {"content": media}}}}))
    (body,) = tool.parameters
    assert body.parsed == {
        "type": "string",
        "description": f"Its content by JSON Schema: {json.dumps(schema)}",
        "contentMediaType": "application/xml",
        "examples": ["<x><a>1</a></x>"],
    }


_PET: dict[str, Any] = {
    "type": "object",
    "description": "A pet.",
    "properties": {"id": {"type": "integer", "xml": {"attribute": True}}},
}


@pytest.mark.parametrize(
    ("schema", "about"),
    [
        ({"$ref": "#/components/schemas/Pet"}, "A pet. The root element is Pet. Its"),
        ({**_PET, "xml": {"name": "animal"}}, "A pet. The root element is animal. Its"),
        ({"allOf": [{"$ref": "#/components/schemas/Pet"}, {"type": "object"}]}, "Its"),
    ],
)
def test_a_document_in_xml_is_described_with_its_elements(schema: Any, about: str) -> None:
    body = {"content": {"application/xml": {"schema": schema}}}
    tool = only(
        json.dumps({"/x": {"post": {"requestBody": body}}}), components={"schemas": {"Pet": _PET}}
    )
    (written,) = tool.parameters
    assert written.parsed["description"].startswith(f"{about} content by JSON Schema: {{")
    assert '"xml": {"attribute": true}' in written.parsed["description"]
    assert ArgumentCheck(input_schema(tool)).accepts({"body": "<Pet id='1'/>"})


def test_a_text_in_xml_keeps_no_word_that_a_file_cannot_have() -> None:
    part = {"type": "string", "xml": {"name": "code"}}
    schema = {"type": "string", "anyOf": [part, {**part, "maxLength": 3}]}
    media = {"application/xml": {"schema": schema}}
    tool = only(json.dumps({"/x": {"post": {"requestBody": {"content": media}}}}))
    (written,) = tool.parameters
    assert "xml" not in json.dumps({**written.parsed, "contentMediaType": ""})


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        ("{}", {}),
        ("{ type: string }", {}),
        ("{ type: string, format: binary }", {"contentEncoding": "base64"}),
        (
            "{ type: array, items: { type: string, format: binary } }",
            {"contentEncoding": "base64"},
        ),
        (
            "{ type: object, additionalProperties: { format: binary } }",
            {"contentEncoding": "base64"},
        ),
    ],
)
def test_a_form_whose_fields_are_not_named_takes_any(schema: str, fields: dict[str, Any]) -> None:
    media = f"{{ multipart/form-data: {{ schema: {schema} }} }}"
    tool = only(f"/x: {{ post: {{ requestBody: {{ description: D., content: {media} }} }} }}")
    (body,) = tool.parameters
    assert (body.name, body.is_body, body.parsed["type"]) == ("body", True, "object")
    assert body.parsed["additionalProperties"] == fields
    assert str(body.parsed["description"]).startswith("D. The form")


@pytest.mark.parametrize("more", ["", ", additionalProperties: false"])
def test_an_empty_object_is_no_body_that_a_request_goes_without(more: str) -> None:
    schema = f"{{ type: object, properties: {{}}{more} }}"
    body = f"{{ content: {{ application/x-www-form-urlencoded: {{ schema: {schema} }} }} }}"
    assert imported(f"/x: {{ get: {{ requestBody: {body} }} }}").notes == ()


def test_a_media_type_may_be_a_reference() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = only(
        "/x: { post: { requestBody: { content: { application/json:"
        " { $ref: '#/components/mediaTypes/A' } } } } }",
        components={"mediaTypes": {"A": {"schema": schema}}},
    )
    assert [parameter.name for parameter in tool.parameters] == ["a"]


def test_a_form_with_any_other_fields_is_one_argument_whose_parts_have_their_types() -> None:
    schema = {
        "type": "object",
        "properties": {"order": {"type": "object"}, "note": {"type": "string"}},
        "additionalProperties": True,
    }
    media = {
        "multipart/form-data": {
            "schema": schema,
            "encoding": {"note": {"contentType": "text/markdown"}},
        }
    }
    tool = only(json.dumps({"/x": {"post": {"requestBody": {"content": media}}}}))
    sent = {"order": {"id": 1}, "note": "a", "more": "b"}
    body = build_request(tool, "http://x", {"body": sent}).body or b""
    assert b'name="order"\r\nContent-Type: application/json\r\n\r\n{"id":1}' in body
    assert b'name="note"\r\nContent-Type: text/markdown\r\n\r\na' in body
    assert b'name="more"\r\n\r\nb' in body


ONE = "{ type: object, properties: { a: { type: string } } }"


@pytest.mark.parametrize(
    ("other", "is_open"),
    [
        ("{ properties: { b: { type: string } }, not: { required: [c] } }", True),
        ("{ patternProperties: { '^x-': { type: string } } }", True),
        ("{ type: string }", False),
        ("{ $ref: '#/components/schemas/Text' }", False),
    ],
)
def test_an_alternative_of_a_form_that_fields_cannot_tell_leaves_it_open(
    other: str, is_open: bool
) -> None:
    media = f"{{ multipart/form-data: {{ schema: {{ oneOf: [{ONE}, {other}] }} }} }}"
    tool = only(
        f"/x: {{ post: {{ requestBody: {{ content: {media} }} }} }}",
        components={"schemas": {"Text": {"type": "string"}}},
    )
    assert [parameter.name for parameter in tool.parameters] == ["body" if is_open else "a"]


FORM = "application/x-www-form-urlencoded"
FIELDS = """
{ l: { type: array, items: { type: string } }, o: { type: object }, s: { type: string }, any: {},
  id: { type: array, readOnly: true } }
"""


@pytest.mark.parametrize(
    ("media", "encoding", "lost"),
    [
        (FORM, "{ l: { style: pipeDelimited, explode: false } }", ["l"]),
        (FORM, "{ l: { style: form }, s: { style: form, explode: false } }", []),
        (FORM, "{ l: { contentType: application/json } }", ["l"]),
        (FORM, "{ o: { contentType: application/json }, l: { contentType: text/plain } }", []),
        (FORM, "{ o: { style: form } }", ["o"]),
        (FORM, "{ o: { style: deepObject }, s: { style: form } }", []),
        (FORM, "{ o: { style: deepObject }, l: { style: form } }", ["l"]),
        (FORM, "{ s: { allowReserved: true }, l: { style: odd }, o: odd }", ["s", "l"]),
        (FORM, "{ any: { style: spaceDelimited }, id: { style: spaceDelimited } }", ["any"]),
        ("multipart/form-data", "{ l: { style: pipeDelimited, explode: false } }", ["l"]),
        ("multipart/form-data", "{ l: { style: form }, o: { style: deepObject } }", []),
        ("multipart/form-data", "{ o: { contentType: application/xml } }", []),
        ("multipart/form-data", "{ more: { contentType: image/png }, x: {} }", ["more"]),
    ],
)
def test_an_encoding_that_a_form_of_one_argument_cannot_keep_is_noted(
    media: str, encoding: str, lost: list[str]
) -> None:
    schema = f"{{ type: object, additionalProperties: true, properties: {FIELDS} }}"
    content = f"{{ {media}: {{ schema: {schema}, encoding: {encoding} }} }}"
    made = imported(f"/x: {{ post: {{ requestBody: {{ content: {content} }} }} }}")
    assert [parameter.name for parameter in made.tools[0].parameters] == ["body"]
    about = "The tool of POST /x can't send its field {!r} as its 'encoding' says"
    assert list(made.notes) == [
        f"{about.format(name)}: the form is one parameter." for name in lost
    ]
    closed = imported(
        f"/x: {{ post: {{ requestBody: {{ content: {content} }} }} }}".replace(
            "additionalProperties: true", "additionalProperties: false"
        )
    )
    assert not any("one parameter" in note for note in closed.notes)


@pytest.mark.parametrize(("many", "notes"), [(100, 100), (101, 101), (1_000, 101)])
def test_notes_of_encodings_are_bounded(many: int, notes: int) -> None:
    encoding = {f"f{number}": {"style": "spaceDelimited"} for number in range(many)}
    schema = {"type": "object", "additionalProperties": True}
    media = {FORM: {"schema": schema, "encoding": encoding}}
    made = imported(json.dumps({"/x": {"post": {"requestBody": {"content": media}}}}))
    assert len(made.notes) == notes
    assert ("more than 100 fields" in made.notes[-1]) is (many > 100)


def test_only_head_and_options_have_no_body() -> None:
    body = (
        "requestBody: { content: { application/json: { schema: { type: object, properties:"
        " { query: { type: object } } } } } }"
    )
    made = imported(f"/x: {{ get: {{ {body} }}, head: {{ {body} }} }}")
    search, head = made.tools
    assert [(of.name, of.position) for of in search.parameters] == [("query", "body")]
    assert (head.method, head.parameters) == ("HEAD", ())
    assert made.notes == ("The tool of HEAD /x can't send its optional body: HEAD has none.",)


def test_an_optional_body_without_members_is_no_parameter_of_a_get_or_delete() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    body = {"content": {"application/x-www-form-urlencoded": {"schema": schema}}}
    made = imported(
        json.dumps({"/x": {method: {"requestBody": body} for method in ("get", "delete")}})
    )
    assert [tool.parameters for tool in made.tools] == [(), ()]
    assert not made.notes


def test_a_get_that_needs_a_body_sends_it_also_if_it_is_empty() -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    tool = only(json.dumps({"/x": {"get": {"requestBody": body}}}))
    assert input_schema(tool)["required"] == ["body"]
    assert build_request(tool, "http://x", {"body": {}}).body == b"{}"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("iVBORw0KGgo=", "image/png"),
        ("data:image/jpg;base64,aGk=", "image/jpg"),
        ("aGk=", "application/dicom"),
        ("data:text/csv;base64,aGk=", "application/dicom"),
    ],
)
def test_a_body_of_several_types_of_files_has_that_of_the_file(data: str, kind: str) -> None:
    kinds = ("application/dicom", "image/jpg", "image/png")
    content = {name: {"schema": {"type": "string", "format": "binary"}} for name in kinds}
    tool = only(json.dumps({"/x": {"post": {"requestBody": {"content": content}}}}))
    sent = build_request(tool, "http://x", {"body": data})
    assert sent.headers["Content-Type"] == kind
