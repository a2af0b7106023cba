"""Objects that several schemas describe: subtypes of a discriminator, and parts of an `allOf`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from leaseway.control_plane.config.openapi.documents import Documents
from leaseway.control_plane.config.openapi.objects import Objects
from leaseway.control_plane.config.openapi.operations import (
    OperationSelection,
    import_document,
)
from leaseway.control_plane.config.openapi.references import Derivations, References
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


def posting(schema: object, schemas: Any = PETS, kind: str = "application/json") -> HttpTool:
    """Return the tool that posts a schema."""
    media = {kind: {"schema": schema}}
    operation = {"requestBody": {"required": True, "content": media}}
    made = import_document(
        {
            "openapi": "3.1.0",
            "paths": {"/x": {"post": operation}},
            "components": {
                "schemas": yaml.safe_load(schemas) if isinstance(schemas, str) else schemas
            },
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
        "discriminator": {"propertyName": "type", "mapping": {"h": "Hard"}},
    }
    tool = posting(inline)
    assert accepts(tool, type="h", own=1, scale=3)
    assert {parameter.name for parameter in tool.parameters} == {"type", "own", "scale", "kg"}


@pytest.mark.parametrize(
    "subtypes", ["", "Cat: { allOf: [ { $ref: '#/components/schemas/Pet' } ] }"]
)
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("Missing", "#/components/schemas/Missing, which does not exist"),
        ("'#/components/schemas/Missing'", "#/components/schemas/Missing, which does not exist"),
        ("'other.yaml#/A'", "which does not exist"),
        ("Alias", "#/components/schemas/Missing, which does not exist"),
        ("Text", "#/components/schemas/Text, which is no schema"),
        ("Round", "its references form a cycle"),
        ("7", "a $ref that is not text"),
    ],
)
def test_a_value_whose_subtype_is_not_there_may_be_sent_with_any_members(
    target: str, words: str, subtypes: str
) -> None:
    schemas = f"""
Pet:
  type: object
  additionalProperties: false
  properties: {{ kind: {{ type: string, enum: [Pet] }} }}
  discriminator: {{ propertyName: kind, mapping: {{ lost: {target} }} }}
Alias: {{ $ref: '#/components/schemas/Missing' }}
Round: {{ $ref: '#/components/schemas/Round' }}
Text: nothing
{subtypes}
"""
    body = {"content": {"application/json": {"schema": ref("Pet")}}}
    made = import_document(
        {
            "openapi": "3.1.0",
            "paths": {"/x": {"post": {"requestBody": body}}},
            "components": {"schemas": yaml.safe_load(schemas)},
        }
    )
    (tool,), (note,) = made.tools, made.notes
    assert words in note
    assert accepts(tool, body={"kind": "lost", "more": 1})
    assert accepts(tool, body={"kind": "Cat"}) is bool(subtypes)
    assert not accepts(tool, body={"kind": "Dog"})
    assert "lost." in tool.parameters[0].parsed["properties"]["kind"]["description"]


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


BASE = "type: object, discriminator: { propertyName: kind }, properties: { kind: { type: string } }"
LIVES = "properties: { lives: { type: integer } }"


@pytest.mark.parametrize(
    "schemas",
    [
        f"""
Pet: {{ {BASE} }}
PetIn: {{ $ref: '#/components/schemas/Pet' }}
Cat: {{ allOf: [ {{ $ref: '#/components/schemas/PetIn' }}, {{ {LIVES} }} ] }}
""",
        f"""
Pet: {{ $ref: '#/components/schemas/Pet[T]' }}
Pet[T]: {{ {BASE} }}
Cat: {{ allOf: [ {{ $ref: '#/components/schemas/Pet%5BT%5D' }}, {{ {LIVES} }} ] }}
""",
        f"""
Pet: {{ {BASE} }}
Cat: {{ allOf: [ {{ allOf: [ {{ $ref: '#/components/schemas/Pet' }} ] }} ], {LIVES} }}
""",
    ],
    ids=["alias", "escaped", "nested"],
)
def test_a_subtype_is_found_however_it_refers_to_its_base(schemas: str) -> None:
    tool = posting(ref("Pet"), schemas)
    assert accepts(tool, kind="Cat", lives=9)
    assert "Cat: lives." in tool.parameters[0].parsed["description"]


OPENAPI = """
openapi: 3.1.0
servers: [ { url: 'http://x' } ]
paths:
  /x:
    post:
      requestBody:
        required: true
        content: { application/json: { schema: { $ref: 'REF' } } }
"""
CAT_FILE = f"allOf: [ {{ $ref: Pet.yaml }}, {{ {LIVES} }} ]"
MAPPED = BASE.replace("propertyName: kind", "propertyName: kind, mapping: { meow: TARGET }")


@pytest.mark.parametrize(
    ("files", "value"),
    [
        (
            {
                "api.yaml": OPENAPI.replace("REF", "#/components/schemas/Pet")
                + "components: { schemas: { Pet: { $ref: Pet.yaml }, Cat: { $ref: Cat.yaml } } }",
                "Pet.yaml": f"---\n{{ {BASE} }}",
                "Cat.yaml": CAT_FILE,
            },
            "Cat",
        ),
        (
            {
                "api.yaml": OPENAPI.replace("REF", "Pet.yaml"),
                "Pet.yaml": f"---\n{{ {MAPPED.replace('TARGET', 'Cat.yaml')} }}",
                "Cat.yaml": CAT_FILE,
            },
            "meow",
        ),
        (
            {
                "api.yaml": OPENAPI.replace("REF", "all.yaml#/Pet"),
                "all.yaml": f"Pet: {{ {BASE} }}\n"
                f"Cat: {{ allOf: [ {{ $ref: '#/Pet' }} ], {LIVES} }}",
            },
            "Cat",
        ),
        *(
            (
                {
                    "api.yaml": OPENAPI.replace("REF", "all.yaml#/components/schemas/Pet"),
                    "all.yaml": "components: { schemas: {"
                    f" Pet: {{ {MAPPED.replace('TARGET', target)} }}, Cat: {{ {LIVES} }} }} }}",
                },
                "meow",
            )
            for target in ("'#/components/schemas/Cat'", "Cat")
        ),
    ],
    ids=["a file each", "mapped file", "schemas alone", "mapped in another", "named in another"],
)
def test_subtypes_are_found_in_every_form_of_a_split_document(
    tmp_path: Path, files: dict[str, str], value: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    loaded = Documents().load(str(tmp_path / "api.yaml"), OperationSelection()).imported
    assert (loaded.notes, loaded.skipped) == ((), ())
    assert accepts(loaded.tools[0], kind=value, lives=9)
    assert f"{value}: lives." in loaded.tools[0].parameters[0].parsed["description"]


def test_files_that_lead_from_subtype_to_subtype_are_each_looked_at_once(tmp_path: Path) -> None:
    text = OPENAPI.replace("REF", "0.yaml#/definitions/Base")
    (tmp_path / "api.yaml").write_text(text)
    many = 60
    base = f"Base: {{ {BASE} }}, More: {{ allOf: [ {{ $ref: '#/definitions/Base' }} ]"
    for number in range(many):
        following = f"{number + 1}.yaml#/definitions/Base"
        more = f", properties: {{ m: {{ $ref: '{following}' }} }}" if number < many - 1 else ""
        (tmp_path / f"{number}.yaml").write_text(f"definitions: {{ {base}{more} }} }}")
    looked_at: list[Any] = []

    class Counting(Derivations):
        def add(self, document: Any) -> Any:
            looked_at.append(document)
            return super().add(document)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leaseway.control_plane.config.openapi.split.bundling.Derivations", Counting)
        Documents().load(str(tmp_path / "api.yaml"), OperationSelection())
    assert len(looked_at) == many + 1


OPEN_CAT = PETS.replace("required: [lives]", "RULE")


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        ("not: { required: [dead] }", False),
        ("patternProperties: { '^x-': {} }", True),
        ("additionalProperties: true", True),
    ],
)
def test_a_subtype_with_rules_of_its_own_costs_no_member(rule: str, other: bool) -> None:
    tool = posting({"properties": {"pet": ref("Pet")}}, OPEN_CAT.replace("RULE", rule))
    assert accepts(tool, pet={"kind": "meow", "lives": 9})
    assert accepts(tool, pet={"kind": "Puppy", "weeks": 3})
    assert not accepts(tool, pet={"kind": "Puppy", "weeks": "three"})
    (pet,) = tool.parameters
    assert pet.parsed.get("additionalProperties") is (True if other else None)


def test_a_subtype_that_is_too_large_to_be_read_leaves_its_base_open() -> None:
    parts: list[Any] = [{"properties": {f"m{number}": {}}} for number in range(600)]
    large = json.dumps({"allOf": [ref("Pet"), *parts]})
    assert accepts(posting(ref("Pet"), f"{PETS}\nHuge: {large}"), body={"kind": "Huge", "m599": 1})


@pytest.mark.parametrize(
    "part",
    [{"description": "A pet."}, {"type": "object"}, {"nullable": True}, {"required": ["kind"]}],
)
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_part_beside_a_base_does_not_end_its_subtypes(part: Any, is_inside: bool) -> None:
    both = {"allOf": [ref("Pet"), part]}
    sent = {"kind": "meow", "lives": 9}
    if is_inside:
        tool = posting({"type": "object", "properties": {"pet": both}})
        assert accepts(tool, pet=sent)
        assert not accepts(tool, pet={**sent, "lives": "nine"})
    else:
        tool = posting(both)
        assert accepts(tool, **sent)
        assert not accepts(tool, **{**sent, "lives": "nine"})


def test_a_subtype_without_members_has_none_of_its_siblings() -> None:
    tool = posting(ref("Fish"), PETS + "Fish: { allOf: [ { $ref: '#/components/schemas/Pet' } ] }")
    assert {parameter.name for parameter in tool.parameters} == {"kind", "name"}


def test_a_subtype_may_have_several_values() -> None:
    schemas = PETS.replace("mapping: {", "mapping: { cat: Cat, pet: Pet,")
    about = posting(ref("Pet"), schemas).parameters[0].parsed["description"]
    assert "members: pet; cat or meow: lives; Dog" in about


LISTED = """
Pet: { type: object, discriminator: { propertyName: kind }, properties: { kind: KIND } }
Kind: { type: string, enum: [Pet] }
Cat:
  allOf:
    - $ref: '#/components/schemas/Pet'
    - { properties: { kind: { enum: [Cat] }, lives: { type: integer } } }
Kitten:
  allOf:
    - $ref: '#/components/schemas/Cat'
    - { properties: { kind: { const: kitten }, weeks: { type: integer } } }
"""


@pytest.mark.parametrize(
    "kind",
    [
        "{ type: string, enum: [Pet] }",
        "{ const: Pet }",
        "{ $ref: '#/components/schemas/Kind' }",
        "{ allOf: [ { $ref: '#/components/schemas/Kind' } ] }",
    ],
)
@pytest.mark.parametrize(
    ("base", "values"),
    [("Pet", {"Pet", "Cat", "kitten"}), ("Cat", {"Cat", "kitten"}), ("Kitten", {"kitten"})],
)
@pytest.mark.parametrize("is_inside", [False, True])
def test_the_values_of_subtypes_may_be_sent_where_a_base_lists_its_own_alone(
    kind: str, base: str, values: set[str], is_inside: bool
) -> None:
    schema = {"type": "object", "properties": {"pet": ref(base)}} if is_inside else ref(base)
    tool = posting(schema, LISTED.replace("KIND", kind))
    for value in (*values, "Dog"):
        sent = {"pet": {"kind": value}} if is_inside else {"kind": value}
        assert accepts(tool, **sent) is (value != "Dog")
    if base == "Pet":
        assert "kitten: lives, weeks." in json.dumps(input_schema(tool))


def test_a_form_whose_base_has_too_many_subtypes_takes_any_field() -> None:
    schemas: dict[str, Any] = {"A": {"type": "object", "discriminator": {"propertyName": "t"}}}
    for number in range(60):
        part = {"properties": {f"m{number}": {"type": "string"}, "t": {"type": "string"}}}
        schemas[f"S{number}"] = {"allOf": [ref("A"), part]}
    tool = posting(ref("A"), json.dumps(schemas), "multipart/form-data")
    sent = {"body": {"t": "S59", "m59": "x"}}
    assert accepts(tool, **sent)
    body = build_request(tool, "http://x", sent).body or b""
    assert b'name="t"' in body
    assert b'name="m59"' in body


def test_parts_that_repeat_one_another_are_searched_for_bases_within_a_limit() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"p": {"type": "string"}}}
    for _ in range(6):
        schema = {"allOf": [schema] * 8}
    followed: list[Any] = []

    class Counting(References):
        def end(self, node: Any) -> Any:
            followed.append(node)
            return super().end(node)

    Objects(Counting({})).with_subtypes(schema)
    assert len(followed) < 1_000


@pytest.mark.parametrize(("many", "is_listed"), [(499, True), (500, False), (20_000, False)])
def test_a_base_whose_subtypes_have_too_many_values_takes_any(many: int, is_listed: bool) -> None:
    schemas = yaml.safe_load(LISTED.replace("KIND", "{ type: string, enum: [Pet] }"))
    values = [f"v{number}" for number in range(many)]
    schemas["Cat"]["allOf"][1]["properties"]["kind"]["enum"] = values
    del schemas["Kitten"]
    began = time.process_time()
    tool = posting({"properties": {"pet": ref("Pet"), "cat": ref("Cat")}}, schemas)
    assert time.process_time() - began < 1.0
    assert accepts(tool, pet={"kind": "Pet"}, cat={"kind": "v0"})
    assert accepts(tool, pet={"kind": values[-1]})
    assert accepts(tool, pet={"kind": "Dog"}) is not is_listed


def chain(length: int) -> dict[str, Any]:
    """Return schemas that extend one another, the last one a base."""
    schemas: dict[str, Any] = yaml.safe_load(f"B0: {{ {BASE} }}")
    schemas["B0"]["properties"]["kind"]["enum"] = ["q"]
    for number in range(1, length):
        schemas[f"B{number}"] = {"allOf": [ref(f"B{number - 1}")]}
    return schemas


@pytest.mark.parametrize("length", [20, 400, 2_000])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_chain_of_bases_is_read_to_a_depth(length: int, is_inside: bool) -> None:
    schemas = chain(length)
    for name in ("B0", f"B{length // 2}", f"B{length - 1}"):
        schema = {"properties": {"m": ref(name)}} if is_inside else ref(name)
        assert posting(schema, schemas).parameters


def test_alternatives_inside_one_another_are_read_to_a_depth() -> None:
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(1_000):
        schema = {"anyOf": [schema]}
    assert posting(schema, kind="application/jsonl").body == "text"
