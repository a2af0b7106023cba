"""Objects that several schemas describe: subtypes of a discriminator, and parts of an `allOf`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from leaseway.control_plane.config.openapi.documents import Documents
from leaseway.control_plane.config.openapi.operations import (
    OperationSelection,
    import_document,
)
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import input_schema
from leaseway.data_plane.kinds.http_api.requests import build_request
from leaseway.spec.kinds.http_tools import HttpTool

PETS = """
Pet:
  type: object
  additionalProperties: false
  required: [kind]
  properties: { kind: { type: string, description: What it is. }, name: { type: string } }
  discriminator: { propertyName: kind, mapping: { meow: '#/components/schemas/Cat' } }
Cat:
  allOf:
    - $ref: '#/components/schemas/Pet'
    - { type: object, required: [lives], properties: { lives: { type: integer } } }
Dog: { allOf: [ { $ref: '#/components/schemas/Pet' } ], properties: { packs: { type: number } } }
Puppy:
  allOf: [ { $ref: '#/components/schemas/Dog' }, { properties: { weeks: { type: integer } } } ]
Stone: { allOf: [ { $ref: '#/components/schemas/Hard' } ], properties: { kg: { type: number } } }
Hard: { type: object, properties: { scale: { type: integer } } }
"""


def posting(schema: object, schemas: str = PETS) -> HttpTool:
    """Return the tool that posts a schema as JSON."""
    media = {"application/json": {"schema": schema}}
    operation = {"requestBody": {"required": True, "content": media}}
    made = import_document(
        {
            "openapi": "3.1.0",
            "paths": {"/x": {"post": operation}},
            "components": {"schemas": yaml.safe_load(schemas)},
        }
    )
    assert not made.skipped, made.skipped
    assert not made.notes, made.notes
    return made.tools[0]


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def accepts(tool: HttpTool, **arguments: Any) -> bool:
    return not ArgumentCheck(input_schema(tool)).violations(arguments)


def test_the_members_of_subtypes_are_arguments_of_a_body_of_their_base() -> None:
    tool = posting(ref("Pet"))
    sent = {"kind": "Puppy", "name": "Tim", "packs": 1.5, "weeks": 3}
    assert accepts(tool, **sent)
    assert json.loads(build_request(tool, "http://x", sent).body or b"") == sent
    assert not accepts(tool, kind="meow", kg=1)
    schema = input_schema(tool)
    assert schema["required"] == ["kind"]
    assert schema["properties"]["kind"]["description"] == (
        "What it is. Its values and their further members: meow: lives; Dog: packs; Puppy: packs,"
        " weeks."
    )


@pytest.mark.parametrize(
    "schema",
    [
        ref("Pet"),
        {"allOf": [ref("Pet")], "description": "A pet."},
        {"$ref": "#/components/schemas/Pet", "description": "A pet."},
    ],
    ids=["alone", "in allOf", "described"],
)
def test_the_members_of_subtypes_are_members_of_a_base_inside_a_body(schema: Any) -> None:
    tool = posting({"type": "object", "properties": {"pets": {"type": "array", "items": schema}}})
    assert accepts(tool, pets=[{"kind": "meow", "lives": 9}, {"kind": "Dog", "packs": 1}])
    assert not accepts(tool, pets=[{"kind": "meow", "lives": "nine"}])
    assert not accepts(tool, pets=[{"lives": 9}])


def test_a_subtype_is_not_its_siblings() -> None:
    tool = posting(ref("Cat"))
    assert {parameter.name for parameter in tool.parameters} == {"kind", "name", "lives"}
    assert input_schema(tool)["required"] == ["kind", "lives"]


def test_a_subtype_with_subtypes_of_its_own_has_their_members_alone() -> None:
    tool = posting(ref("Dog"))
    assert {parameter.name for parameter in tool.parameters} == {"kind", "name", "packs", "weeks"}
    assert "Puppy: weeks." in tool.parameters[0].schema


def test_what_only_a_mapping_names_is_a_subtype() -> None:
    inline = {
        "type": "object",
        "properties": {"own": {"type": "integer"}},
        "discriminator": {"propertyName": "type", "mapping": {"h": "Hard", "no": "Missing"}},
    }
    tool = posting(inline)
    assert accepts(tool, type="h", own=1, scale=3)
    assert {parameter.name for parameter in tool.parameters} == {"type", "own", "scale", "kg"}


def test_members_that_differ_between_subtypes_take_what_either_takes() -> None:
    schemas = """
A: { type: object, discriminator: { propertyName: t }, properties: { t: { type: string } } }
B: { allOf: [ { $ref: '#/components/schemas/A' } ], properties: { v: { type: string } } }
C: { allOf: [ { $ref: '#/components/schemas/A' } ], properties: { v: { type: integer } } }
"""
    tool = posting(ref("A"), schemas)
    assert accepts(tool, t="B", v="text")
    assert accepts(tool, t="C", v=1)
    assert not accepts(tool, t="C", v=[])


def test_a_base_with_too_many_subtypes_takes_any_member() -> None:
    schemas: dict[str, Any] = {
        "A": {
            "type": "object",
            "required": ["t"],
            "discriminator": {"propertyName": "t"},
            "properties": {"t": {"type": "string"}},
        }
    }
    for number in range(60):
        part = {"properties": {f"m{number}": {"type": "integer"}}}
        schemas[f"S{number}"] = {"allOf": [ref("A"), part]}
    tool = posting(ref("A"), json.dumps(schemas))
    assert accepts(tool, body={"t": "S59", "m59": 1})
    assert not accepts(tool, body={"m59": 1})
    assert len(tool.parameters[0].schema) < 4_096


def test_subtypes_of_swagger_2_are_found_by_their_definitions() -> None:
    made = import_document(
        {
            "swagger": "2.0",
            "paths": {
                "/x": {
                    "post": {
                        "parameters": [
                            {"in": "body", "name": "b", "schema": {"$ref": "#/definitions/Track"}}
                        ]
                    }
                }
            },
            "definitions": {
                "Track": {
                    "type": "object",
                    "discriminator": "@odata.type",
                    "properties": {"@odata.type": {"type": "string"}},
                },
                "Audio": {
                    "allOf": [{"$ref": "#/definitions/Track"}],
                    "properties": {"rate": {"type": "integer"}},
                    "x-ms-discriminator-value": "#Media.Audio",
                },
            },
        }
    )
    (tool,) = made.tools
    kind, rate = tool.parameters
    assert "#Media.Audio: rate." in kind.parsed["description"]
    assert rate.sent_as == "rate"


def test_subtypes_of_a_split_document_are_read_with_what_they_refer_to(tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text("""
openapi: 3.1.0
servers: [ { url: 'http://x' } ]
paths:
  /x:
    post:
      requestBody:
        required: true
        content:
          application/json: { schema: { $ref: 'pets.yaml#/components/schemas/Pet' } }
""")
    (tmp_path / "pets.yaml").write_text(f"components: {{ schemas: {json.dumps(PET_FILES)} }}")
    (tmp_path / "lives.yaml").write_text("type: integer")
    loaded = Documents().load(str(tmp_path / "api.yaml"), OperationSelection()).imported
    assert not loaded.notes
    assert not accepts(loaded.tools[0], kind="Cat", lives="nine")
    assert accepts(loaded.tools[0], kind="Cat", lives=9)


PET_FILES = {
    "Pet": {
        "type": "object",
        "discriminator": {"propertyName": "kind"},
        "properties": {"kind": {"type": "string"}},
    },
    "Cat": {
        "allOf": [
            {"$ref": "#/components/schemas/Pet"},
            {"properties": {"lives": {"$ref": "lives.yaml"}}},
        ]
    },
}


CLOSED = {
    "type": "object",
    "properties": {"id": {"type": "string"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [CLOSED, {"properties": {"x": {"type": "integer"}}}]},
        {"allOf": [CLOSED], "properties": {"x": {"type": "integer"}}},
        {"properties": {"x": {"type": "integer"}}, "oneOf": [CLOSED, {"type": "object"}]},
    ],
    ids=["allOf", "beside", "oneOf"],
)
def test_a_part_that_allows_no_other_members_allows_those_of_the_other_parts(schema: Any) -> None:
    tool = posting({"type": "object", "properties": {"m": schema}})
    assert accepts(tool, m={"id": "1", "x": 2})
    assert not accepts(tool, m={"id": 1, "x": "2"})


def test_an_object_of_its_own_stays_closed() -> None:
    tool = posting({"type": "object", "properties": {"m": CLOSED, "n": {"allOf": [CLOSED]}}})
    assert not accepts(tool, m={"id": "1", "x": 2})
    assert not accepts(tool, n={"id": "1", "x": 2})


def test_a_body_that_allows_any_other_member_is_one_argument() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = posting({**schema, "additionalProperties": True})
    assert accepts(tool, body={"a": 1, "custom": [2]})
    assert not accepts(tool, body={"a": "1"})
    assert accepts(posting(schema), a=1)
