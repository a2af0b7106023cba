"""OpenAPI documents as HTTP tools: small ones for each rule, public ones as a whole."""

from __future__ import annotations

import contextlib
import copy
import gzip
import inspect
import json
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.control_plane.config.parsing import load
from tests.specs import part

from leaseway.control_plane.config.openapi.documents import Documents, DocumentUnavailable
from leaseway.control_plane.config.openapi.operations import (
    BadDocument,
    Imported,
    OperationSelection,
    import_document,
)
from leaseway.control_plane.config.openapi.writing import native_server, server_id
from leaseway.data_plane.kinds.http_api.definitions import input_schema
from leaseway.spec.kinds.http_tools import HttpTool, find_faults
from leaseway.spec.model import VariantKey
from leaseway.wire.names import is_valid_name

CORPUS = Path(__file__).resolve().parents[3] / "corpus" / "openapi"
PUBLIC = {"github": (1223, 0), "kubernetes-core": (248, 0), "wsf-schedule": (25, 0)}
"""Operations that are tools, and those that are none."""


def public(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        gzip.decompress((CORPUS / f"{name}.json.gz").read_bytes())
    )
    return document


def imported(paths: str, **more: Any) -> Imported:
    return import_document({"openapi": "3.1.0", "paths": yaml.safe_load(paths), **more})


def only(paths: str, **more: Any) -> HttpTool:
    made = imported(paths, **more)
    assert not made.skipped, made.skipped
    (tool,) = made.tools
    return tool


@pytest.mark.parametrize("name", PUBLIC)
def test_every_operation_of_a_public_document_is_a_valid_tool_or_has_a_reason(name: str) -> None:
    made = import_document(public(name))
    assert (len(made.tools), len(made.skipped)) == PUBLIC[name]
    # Kubernetes' document does not say where its server is.
    assert made.base_url.startswith("https://") == (name != "kubernetes-core")
    names = [tool.name for tool in made.tools]
    assert len(set(names)) == len(names)
    for tool in made.tools:
        assert is_valid_name(tool.name)
        assert not list(find_faults(tool))
        jsonschema_rs.validator_for(input_schema(tool))
    for skipped in made.skipped:
        assert skipped.reason


@pytest.mark.parametrize("name", PUBLIC)
def test_a_document_that_was_written_out_means_the_same(name: str, tmp_path: Path) -> None:
    made = import_document(
        public(name),
        OperationSelection(
            include_paths=("/repos/*/issues*", "/gists*", "/*all*", "/api/*/configmaps*")
        ),
    )
    path = tmp_path / "mcp.yaml"
    path.write_text(native_server(made, "api", name))
    parsed = load(path)
    assert [issue for issue in parsed.issues if issue.severity == "error"] == []
    written = part(parsed.servers[VariantKey("api")]).http_tools
    assert [tool.name for tool in written] == [tool.name for tool in made.tools]
    for each_tool, other in zip(written, made.tools, strict=True):
        assert (each_tool.method, each_tool.endpoint, each_tool.body) == (
            other.method,
            other.endpoint,
            other.body,
        )
        assert each_tool.content_type == other.content_type
        assert input_schema(each_tool) == input_schema(other)


def test_parameters_come_from_the_path_and_from_the_operation() -> None:
    tool = only("""
/users/{id}:
  parameters:
    - { name: id, in: path, required: true, schema: { type: integer } }
    - { name: lang, in: query, schema: { type: string } }
  get:
    operationId: users/get
    summary: Get a user
    description: Of this shop.
    parameters:
      - { name: lang, in: query, required: true, description: Which, schema: { type: string } }
      - { name: 'ids[]', in: query, explode: false, schema: { type: array } }
      - { name: filter, in: query, style: deepObject, schema: { type: object } }
      - { name: Authorization, in: header, schema: { type: string } }
      - { name: Content-Length, in: header, required: true, schema: { type: integer } }
      - { name: X-Trace, in: header, schema: { type: string } }
""")
    assert (tool.name, tool.method, tool.endpoint) == ("users_get", "GET", "/users/{id}")
    assert tool.description == "Get a user\n\nOf this shop."
    assert [
        (parameter.name, parameter.position, parameter.required, parameter.style)
        for parameter in tool.parameters
    ] == [
        ("id", "path", True, "comma"),
        ("lang", "query", True, "repeat"),
        ("ids", "query", False, "comma"),
        ("filter", "query", False, "deep"),
        ("X-Trace", "header", False, "comma"),
    ]
    assert tool.parameters[2].wire_name == "ids[]"
    assert tool.parameters[1].parsed == {"type": "string", "description": "Which"}


def test_cookies_are_parameters_unless_the_server_sets_them(tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text("""
openapi: 3.1.0
servers: [ { url: 'http://x' } ]
paths: { /x: { get: { operationId: x, parameters: [
  { name: sid, in: cookie, required: true, schema: { type: string } },
  { name: theme, in: cookie, schema: { type: [array, 'null'] }, explode: false } ] } } }
components: { securitySchemes: { login: { type: apiKey, in: cookie, name: sid } } }
""")
    file = tmp_path / "mcp.yaml"
    for more, names in {
        "": ["sid", "theme"],
        "security: { login: { env: SID } }": ["theme"],
        "headers: { Cookie: { env: COOKIES } }": [],
    }.items():
        entry = f"{{ transport: http_api, openapi: api.yaml, {more} }}"
        file.write_text(f"version: 1\nservers: {{ a: {entry} }}\n")
        (tool,) = part(load(file).servers[VariantKey("a")]).http_tools
        assert [parameter.name for parameter in tool.parameters] == names


def test_all_of_and_references_become_members_of_the_body() -> None:
    schemas = {
        "Base": {"type": "object", "properties": {"id": {"type": "integer", "readOnly": True},
                 "name": {"type": "string"}}, "required": ["id", "name"]},
        "Pet": {"allOf": [{"$ref": "#/components/schemas/Base"},
                {"type": "object", "properties": {"tag": {"$ref": "#/components/schemas/Tag"}}}]},
        "Tag": {"type": "string", "nullable": True, "enum": ["a", "b"]},
    }  # fmt: skip
    tool = only(
        """
/pets/{name}:
  post:
    parameters: [ { name: name, in: path, required: true, schema: {} } ]
    requestBody:
      required: true
      content: { application/json: { schema: { $ref: '#/components/schemas/Pet' } } }
""",
        components={"schemas": schemas},
    )
    assert tool.name == "post_pets_name"
    assert [
        (parameter.name, parameter.wire_name, parameter.required) for parameter in tool.parameters
    ] == [
        ("name", "", True),
        ("body_name", "name", True),
        ("tag", "", False),
    ]
    assert tool.parameters[2].parsed == {"type": ["string", "null"], "enum": ["a", "b", None]}


def test_a_body_that_is_no_plain_object_is_one_parameter() -> None:
    tool = only("""
/pets:
  put:
    requestBody: { content: { application/json: { schema: { type: array } } } }
""")
    (body,) = tool.parameters
    assert (body.name, body.is_body, body.parsed["type"]) == ("body", True, "array")


@pytest.mark.parametrize(
    ("media", "body", "names"),
    [
        ("application/x-www-form-urlencoded: { schema: { type: object, properties: { a: {} } } }",
         "form", ["a"]),
        (("multipart/form-data: { schema: { type: object, properties: { file:"
         " { type: string, format: binary }, note: { type: string } } } }"),
         "multipart", ["file", "note"]),
        (("multipart/related: { schema: { type: object, properties: { file:"
         " { type: string, format: binary }, note: { type: string } } } }"),
         "multipart", ["file", "note"]),
        ("multipart/mixed: { schema: { type: array, items: { contentEncoding: base64 } } }",
         "multipart", ["body"]),
        ("image/png: {}", "binary", ["body"]),
        ("text/plain: { schema: { type: string } }", "text", ["body"]),
        ("application/xml: { schema: { type: object } }", "text", ["body"]),
        ("text/plain: {}, application/vnd.x+json: { schema: { type: object } }", "json", ["body"]),
    ],
)  # fmt: skip
def test_bodies_of_other_kinds(media: str, body: str, names: list[str]) -> None:
    tool = only(f"/x:\n  post:\n    requestBody: {{ content: {{ {media} }} }}\n")
    assert tool.body == body
    assert [parameter.name for parameter in tool.parameters] == names
    if body in ("multipart", "binary"):
        assert tool.parameters[0].is_binary


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        ("/x: { trace: {} }", "the method TRACE is not supported"),
        ("/x: { additionalOperations: { COPY: {} } }", "the method COPY is not supported"),
        ("/x: { get: { parameters: [ { in: query, required: true } ] } }", "has no name"),
        (f"/x: {{ get: {{ parameters: [ {{ $ref: '#/{'x' * 9_999}' }} ] }} }}", "4096 characters"),
        ("/x: { get: { servers: [ { url: 'ftp://other' } ] } }", "none of them is a usable"),
        ("/x: { get: { parameters: [ { name: id, in: path } ] } }", "no placeholder {id}"),
        (("/x: { get: { parameters: [ { name: c, in: cookie, required: true, schema:"
          " { type: array } } ] } }"), "writes as several cookies"),
        ("/x: { get: { parameters: [ { $ref: 'x.yaml#/p' } ] } }", "which is not read"),
        ("/x: { get: { parameters: [ { $ref: '#/nowhere' } ] } }", "which does not exist"),
        ("/x/{id}: { get: { parameters: [ { name: id, in: path, style: odd } ] } }", "style 'odd'"),
        (("/x: { get: { parameters: [ { name: id, in: query, style: odd, required: true } ]"
          " } }"), "style 'odd'"),
        (("/x: { get: { parameters: [ { name: id, in: header, style: odd, required: true } ]"
          " } }"), "style 'odd'"),
        (("/x: { post: { requestBody: { content: { multipart/mixed: { schema:"
         " { type: string } } } } } }"), "neither an object nor a list"),
        (("/x: { head: { requestBody: { required: true, content: { application/json: {} } } } }"),
         "needs a body"),
        ("/x: { get: 5 }", "it is not a mapping"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_tool_says_why(paths: str, why: str) -> None:
    made = imported(paths)
    assert not made.tools
    assert why in made.skipped[0].reason


@pytest.mark.parametrize(
    ("operation", "note"),
    [
        ("parameters: [ { name: p, in: query, style: odd } ]", "parameter 'p': one of its"),
        ("parameters: [ { name: p, in: cookie, style: odd } ]", "parameter 'p': its cookie param"),
        ("parameters: [ { name: 'p;', in: cookie } ]", "parameter 'p': it has the cookie param"),
        ("parameters: [ { name: p, in: matrix } ]", "parameter 'p': its parameter 'p' is in"),
        ("parameters: [ { name: 'p p', in: header } ]", "parameter 'p_p': it has the header"),
        ("parameters: [ { in: query } ]", "parameter without a name."),
        ("parameters: [ null ]", "parameter without a name."),
    ],
)
def test_an_optional_part_that_cannot_be_sent_costs_only_itself(operation: str, note: str) -> None:
    made = imported(f"/x: {{ get: {{ {operation} }} }}")
    assert made.skipped == ()
    assert [tool.parameters for tool in made.tools] == [()]
    (said,) = made.notes
    assert said.startswith(f"The tool of GET /x can't send its optional {note}")


def test_each_faulty_parameter_costs_only_itself() -> None:
    faulty = "{ name: 'p p', in: header }, { name: 'p;', in: cookie }"
    made = imported(f"/x: {{ get: {{ parameters: [ {faulty}, {{ name: q, in: query }} ] }} }}")
    assert [parameter.name for parameter in made.tools[0].parameters] == ["q"]
    assert len(made.notes) == 2


def test_a_header_that_is_told_twice_in_other_letters_is_one() -> None:
    told = "{ name: x-tok, in: header }, { name: X-Tok, in: header, description: Yours. }"
    (parameter,) = only(f"/x: {{ get: {{ parameters: [ {told} ] }} }}").parameters
    assert (parameter.name, parameter.parsed) == ("X-Tok", {"description": "Yours."})


def test_a_placeholder_that_the_document_says_nothing_of_is_a_text() -> None:
    tool = only("/x/{id}/y: { get: {} }")
    (parameter,) = tool.parameters
    assert (parameter.name, parameter.position, parameter.required) == ("id", "path", True)
    assert parameter.parsed == {"type": "string"}


@pytest.mark.parametrize("target", ["./other.yaml#/Pet", "#/components/schemas/Nowhere"])
def test_a_schema_accepts_anything_where_its_reference_has_no_target(target: str) -> None:
    body = (
        f"{{ type: object, properties: {{ pet: {{ $ref: '{target}' }}, n: {{ type: integer }} }} }}"
    )
    content = f"{{ application/json: {{ schema: {body} }} }}"
    made = imported(f"/x: {{ post: {{ requestBody: {{ content: {content} }} }} }}")
    (tool,) = made.tools
    assert {parameter.name: parameter.parsed for parameter in tool.parameters} == {
        "pet": {},
        "n": {"type": "integer"},
    }
    (note,) = made.notes
    assert target in note


def test_schemas_that_refer_to_themselves_are_cut_where_they_begin_again() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}}
    tool = only(
        "/x: { get: { parameters: [ { name: n, in: query, schema:"
        " { $ref: '#/components/schemas/Node' } } ] } }",
        components={"schemas": {"Node": node}},
    )
    schema = tool.parameters[0].parsed
    assert schema == {"type": "object", "properties": {"next": {}}}


def test_a_schema_that_would_explode_is_left_open_further_down() -> None:
    schemas: dict[str, Any] = {"S0": {"type": "string"}}
    for number in range(1, 20):
        ref = {"$ref": f"#/components/schemas/S{number - 1}"}
        schemas[f"S{number}"] = {"type": "object", "properties": dict.fromkeys("abcdef", ref)}
    tool = only(
        "/x: { get: { parameters: [ { name: n, in: query, schema:"
        " { $ref: '#/components/schemas/S19' } } ] } }",
        components={"schemas": schemas},
    )
    assert 0 < len(tool.parameters[0].schema) <= 32 * 1024


@pytest.mark.parametrize("key", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data"])
def test_schemas_that_double_at_each_level_cost_little(key: str, kind: str) -> None:
    schemas: dict[str, Any] = {"S0": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for number in range(1, 40):
        ref = {"$ref": f"#/components/schemas/S{number - 1}"}
        schemas[f"S{number}"] = {key: [ref, ref], "properties": {"b": ref}}
    last = {"$ref": "#/components/schemas/S39"}
    media = {kind: {"schema": last, "encoding": {"b": {"style": "form"}}}}
    began = time.process_time()
    made = import_document(
        {
            "openapi": "3.1.0",
            "components": {"schemas": schemas},
            "paths": {
                "/x": {
                    "post": {
                        "parameters": [{"name": "q", "in": "query", "schema": last}],
                        "requestBody": {"content": media},
                    }
                }
            },
        }
    )
    assert time.process_time() - began < 5
    assert len(made.tools) + len(made.skipped) == 1


def test_names_are_made_valid_and_unique() -> None:
    made = imported(
        """
/a: { get: { operationId: 'a b/c' }, post: { operationId: 'a_b_c' } }
/b: { get: { operationId: '%s' } }
"""
        % ("x" * 100)
    )
    names = [tool.name for tool in made.tools]
    assert names[:2] == ["a_b_c", "a_b_c_2"]
    assert is_valid_name(names[2])


def test_operations_are_chosen_by_id_tag_and_path() -> None:
    document = {
        "openapi": "3.0.0",
        "paths": {
            "/pets": {"get": {"operationId": "list", "tags": ["pets"]}},
            "/pets/x": {"get": {"operationId": "get", "tags": ["pets"]}},
            "/users": {"get": {"operationId": "users", "tags": ["admin"]}},
        },
    }

    def names(**choice: tuple[str, ...]) -> list[str]:
        return [tool.name for tool in import_document(document, OperationSelection(**choice)).tools]

    assert names() == ["list", "get", "users"]
    assert names(include_tags=("pets",)) == ["list", "get"]
    assert names(include_operations=("us*",), include_paths=("/pets",)) == ["list", "users"]
    assert names(exclude_paths=("/pets*",)) == ["users"]
    assert names(include_tags=("pets",), exclude_operations=("get",)) == ["list"]


def test_security_schemes_say_where_credentials_go() -> None:
    schemes = {
        "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "bearer": {"type": "http", "scheme": "bearer"},
        "oauth": {"type": "oauth2", "flows": {}},
        "user": {"type": "http", "scheme": "Basic"},
        "query": {"type": "apiKey", "in": "query", "name": "k"},
        "jar": {"type": "apiKey", "in": "cookie", "name": "sid"},
        "certificate": {"type": "mutualTLS"},
        "digest": {"type": "http", "scheme": "digest"},
    }
    made = imported("/x: { get: {} }", components={"securitySchemes": schemes})
    assert {name: (scheme.kind, scheme.name) for name, scheme in made.schemes.items()} == {
        "key": ("header", "X-Key"),
        "bearer": ("bearer", ""),
        "oauth": ("bearer", ""),
        "user": ("basic", ""),
        "query": ("query", "k"),
        "jar": ("cookie", "sid"),
        "certificate": (None, ""),
        "digest": (None, ""),
    }
    written = yaml.safe_load(native_server(made, "a", "x"))["servers"]["a"]["security"]
    assert written == {  # one for each thing that is set
        "key": {"type": "header", "name": "X-Key", "value": {"secret": "a_key"}},
        "bearer": {"type": "bearer", "value": {"secret": "a_bearer"}},
        "query": {"type": "query", "name": "k", "value": {"secret": "a_query"}},
        "jar": {"type": "cookie", "name": "sid", "value": {"secret": "a_jar"}},
    }


@pytest.mark.parametrize("known", [{}, {"k": {"type": "http", "scheme": "bearer"}}])
def test_a_header_for_the_credential_is_a_scheme_unless_there_is_one(known: Any) -> None:
    made = imported(
        "/x: { get: { parameters: [ { name: authorization, in: header, required: true } ] } }",
        components={"securitySchemes": known},
    )
    assert not made.tools[0].parameters
    assert [(scheme.kind, scheme.name) for scheme in made.schemes.values()] == (
        [("bearer", "")] if known else [("header", "Authorization")]
    )


def test_a_body_keeps_the_type_that_the_document_says() -> None:
    made = imported(
        """
/a: { post: { requestBody: { content: { '*/*': { schema: { type: object, properties:
      { n: { type: integer } } } } } } } }
/b: { patch: { requestBody: { content: { application/json-patch+json: { schema: {} },
      application/merge-patch+json: { schema: { type: object } } } } } }
/c: { post: { requestBody: { content: { '*/*': { schema: { type: string, format: binary } } } } } }
"""
    )
    assert [(tool.body, tool.content_type) for tool in made.tools] == [
        ("json", ""),
        ("json", "application/merge-patch+json"),
        ("binary", ""),
    ]
    assert [parameter.name for parameter in made.tools[0].parameters] == ["n"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "must be a mapping"),
        ({"swagger": "1.2"}, "Swagger 1.2, but OpenAPI 3 or Swagger 2 is needed"),
        ({"swagger": "2.0", "paths": []}, "'paths' is not a mapping"),
        ({"openapi": "4.0"}, "OpenAPI 4.0"),
        ({"openapi": "3.1.0", "paths": []}, "'paths' is not a mapping"),
    ],
)
def test_what_is_no_document_is_refused(document: object, words: str) -> None:
    with pytest.raises(BadDocument, match=words):
        import_document(document)


def test_a_server_id_is_made_of_the_title() -> None:
    assert server_id("Pet Store (v1)") == "pet-store-v1"
    assert server_id("宠物") == "api"


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    path, documents = tmp_path / "api.yaml", Documents()
    path.write_text("openapi: 3.1.0\npaths: { /a: { get: {} } }\n")
    first = documents.load(str(path), OperationSelection()).imported
    assert documents.load(str(path), OperationSelection()).imported is first
    path.write_text("openapi: 3.1.0\npaths: { /a: { get: {} }, /b: { get: {} } }\n")
    assert len(documents.load(str(path), OperationSelection()).imported.tools) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "can't be read: no such file"),
        ("{ not json", "is not valid JSON"),
        ("a: [", "is not valid YAML"),
        ("a: &x [*x, *x]", "has no version"),
        ("[" * 200, "nest deeper"),
        ("\n<!DOCTYPE html>", "is a web page or XML, no OpenAPI document"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "api.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DocumentUnavailable, match=words):
        Documents().load(str(path), OperationSelection())


_SMALL: dict[str, Any] = yaml.safe_load("""
openapi: 3.1.0
info: { title: t }
servers: [ { url: 'http://{h}', variables: { h: { default: a } } } ]
paths:
  /a/{id}:
    parameters: [ { $ref: '#/components/parameters/P' } ]
    post:
      operationId: x
      tags: [t]
      requestBody:
        required: true
        content:
          application/json:
            schema: { allOf: [ { $ref: '#/components/schemas/S' }, { properties: { q: {} } } ] }
          multipart/form-data: { schema: {}, encoding: { f: { style: deepObject } } }
    get: { parameters: [ { name: q, in: query, content: { a/b: { schema: {} } } } ] }
components:
  parameters: { P: { name: id, in: path, required: true, schema: { type: string } } }
  schemas: { S: { type: object, required: [a], properties: { a: { minimum: 1 }, b: {} } } }
  securitySchemes: { k: { type: apiKey, in: header, name: X } }
""")


def _places(node: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [above] if above else []
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, inner in items:
            found += _places(inner, (*above, key))
    return found


_junk: st.SearchStrategy[Any] = st.sampled_from(
    [None, 5, "x", [], {}, [1], True, [{}], {"a": 1}, {"$ref": "#/components/schemas/S"},
     {"$ref": 5}, {"$ref": "#/paths"}, "#/nowhere"]
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(_places(_SMALL)), _junk), max_size=4))
def test_whatever_is_wrong_in_a_document_it_is_read_or_refused(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    document: Any = copy.deepcopy(_SMALL)
    for place, value in changes:
        with contextlib.suppress(KeyError, TypeError, IndexError):
            node = document
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = copy.deepcopy(value)
    with contextlib.suppress(BadDocument):
        made = import_document(document)
        for tool in made.tools:
            assert not list(find_faults(tool))
            json.dumps(input_schema(tool))
        assert native_server(made, "a", "x")


def test_a_document_that_is_nested_too_deeply_costs_only_itself(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {"S0": {}}
    for number in range(1, 24):
        part = {"$ref": f"#/components/schemas/S{number - 1}"}
        schemas[f"S{number}"] = {"properties": {"a": part}}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/S23"}}}
    paths = {"/x": {"post": {"requestBody": {"content": content}}}}
    document = {"openapi": "3.1.0", "paths": paths, "components": {"schemas": schemas}}
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(document))
    documents = Documents()

    def load_below(frames: int) -> None:
        if frames:
            load_below(frames - 1)
        else:
            documents.load(str(path), OperationSelection())

    with pytest.raises(DocumentUnavailable, match=r"deep\.json is nested too deeply\.$"):
        load_below(sys.getrecursionlimit() - len(inspect.stack(0)) - 60)
    assert documents.load(str(path), OperationSelection()).imported.tools


QUERY = """
parameters: [ { name: q, in: querystring, description: What to find., content: {
  application/x-www-form-urlencoded: { schema: { properties: { a: { type: string } } } } } } ]
"""


@pytest.mark.parametrize(
    ("operation", "description"),
    [
        ("{}", "GET /x/{id}"),
        ("{ deprecated: true }", "Deprecated. GET /x/{id}"),
        (f"{{ {QUERY} }}", "GET /x/{id}\n\nIts query: What to find."),
        (f"{{ summary: Find., {QUERY} }}", "Find.\n\nIts query: What to find."),
    ],
)
def test_a_tool_without_a_description_names_its_request(operation: str, description: str) -> None:
    assert only(f"/x/{{id}}: {{ get: {operation} }}").description == description
