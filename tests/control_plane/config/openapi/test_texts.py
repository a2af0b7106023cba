"""The texts of OpenAPI documents: what YAML and JSON have that tools have not."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from leaseway.control_plane.config.openapi import documents
from leaseway.control_plane.config.openapi.documents import Documents, DocumentUnavailable, parse
from leaseway.control_plane.config.openapi.operations import OperationSelection, import_document
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import input_schema

MERGED = """
openapi: 3.0.3
x-paging: &paging
  parameters: [{ name: page, in: query, schema: { type: integer } }]
  description: Paged.
x-listing: &listing { <<: *paging, summary: List }
paths:
  /pets:
    get:
      !!merge <<: *listing
      operationId: pets
      description: Pets.
  /cats: { get: { operationId: cats, <<: [{ summary: Cats }, *listing] } }
"""


def test_keys_of_yaml_that_are_merged_count_as_written_out() -> None:
    pets, cats = import_document(parse(MERGED, "pets.yaml")).tools
    assert (pets.title, pets.description) == ("List", "List\n\nPets.")
    assert (cats.title, cats.description) == ("Cats", "Cats\n\nPaged.")
    assert [tool.parameters[0].name for tool in (pets, cats)] == ["page", "page"]


def test_merged_keys_are_limited() -> None:
    lines = [f"a{n}: &a{n} {{ b{n}: 1, !!merge <<: [*a{n - 1}, *a{n - 1}] }}" for n in range(1, 30)]
    assert len(parse("\n".join(["a0: &a0 { b: 1 }", *lines]), "")["a29"]) == 30
    many = ", ".join(["*a"] * 2_000)
    keys = ", ".join(f"k{number}: 1" for number in range(2_000))
    with pytest.raises(DocumentUnavailable, match="merge keys"):
        parse(f"a: &a {{ {keys} }}\nb: {{ <<: [{many}] }}", "")


def test_a_document_in_yaml_may_nest_as_deep_as_public_ones_do() -> None:
    deep = "{ a: " * 100 + "1" + " }" * 100
    assert parse(f"x-deep: {deep}", "")["x-deep"]["a"]


def test_what_no_json_in_utf_8_has_is_read_as_what_it_has() -> None:
    assert parse("- !!timestamp 2020-01-01\n- !!binary aGk=\n- !!set { x }", "") == [
        "2020-01-01",
        "aGk=",
        {"x": None},
    ]
    assert parse(r'{"half": "a\ud83d", "whole": "\ud83d\ude00"}', "") == {
        "half": "a?",
        "whole": "\U0001f600",
    }


def test_a_path_without_a_slash_is_no_tool_and_said() -> None:
    paths: dict[str, Any] = {"pets": {"get": {}}, "/cats": {"get": {}}, "x-internal": {"get": {}}}
    made = import_document({"openapi": "3.1.0", "paths": paths})
    assert [tool.endpoint for tool in made.tools] == ["/cats"]
    assert [(skip.operation, skip.reason) for skip in made.skipped] == [
        ("pets", "its path does not begin with '/'")
    ]


@pytest.mark.parametrize("odd", [["a"], {"a": 1}])
@pytest.mark.parametrize("member", ["name", "in", "style"])
@pytest.mark.parametrize("version", [{"swagger": "2.0"}, {"openapi": "3.0.3"}])
def test_members_of_another_type_cost_at_most_their_operation(
    version: dict[str, str], member: str, odd: Any
) -> None:
    parameter = {"name": "a", "in": "query", "required": True, member: odd}
    paths = {"/a": {"get": {"parameters": [parameter]}}, "/b": {"get": {}}}
    made = import_document({**version, "paths": paths})
    assert "/b" in [tool.endpoint for tool in made.tools]


def test_a_document_that_cannot_be_converted_costs_only_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "import_document", Mock(side_effect=TypeError))
    path = tmp_path / "api.json"
    path.write_text('{"openapi": "3.0.3"}')
    with pytest.raises(DocumentUnavailable, match="can't be converted: see the log"):
        Documents().load(str(path), OperationSelection())


def test_an_example_with_an_id_leaves_its_parameter_checked() -> None:
    schema = {"type": "object", "example": {"$id": "a1", "size": 5}}
    get = {"parameters": [{"name": "filter", "in": "query", "schema": schema}]}
    (tool,) = import_document({"openapi": "3.0.3", "paths": {"/x": {"get": get}}}).tools
    assert ArgumentCheck(input_schema(tool)).violations({"filter": 5})


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("0891234", 891_234),
        ("[-08, +012, 0o17, 0x1F, 00]", [-8, 12, 15, 31, 0]),
        ("{ null: 1, true: 2, 1.10: 3, 012: 4 }", {"null": 1, "true": 2, "1.10": 3, "012": 4}),
    ],
)
def test_numbers_and_keys_are_those_of_yaml_1_2_and_json(text: str, content: object) -> None:
    assert parse(f"example: {text}", "") == {"example": content}


@pytest.mark.parametrize("value", ["!!bool maybe", "!!float ''", "!!int x", "9" * 6_000])
def test_a_scalar_that_does_not_match_its_tag_is_told_with_its_line(value: str) -> None:
    with pytest.raises(DocumentUnavailable, match=r"line 2: This value is not a valid \w+\."):
        parse(f"openapi: 3.0.3\nexample: {value}", "")
