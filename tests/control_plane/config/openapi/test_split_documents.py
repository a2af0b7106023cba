"""OpenAPI documents that are split over files, or over addresses of a web server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leaseway.control_plane.config.openapi.documents import Documents, OpenApiDocument
from leaseway.control_plane.config.openapi.operations import OperationSelection
from leaseway.control_plane.config.openapi.split.parts import MAX_FETCHED, Origin

SPLIT = {
    "openapi.yaml": """
openapi: 3.1.0
servers: [ { url: 'http://x' } ]
paths: { $ref: paths/all.yaml }
components: { schemas: { $ref: schemas/all.yaml } }
""",
    "paths/all.yaml": "/pets: { $ref: pets.yaml }\n/odd: { get: { operationId: odd } }",
    "paths/pets.yaml": """
post:
  operationId: add
  parameters: [ { $ref: '../parameters.yaml#/trace' } ]
  requestBody:
    required: true
    content: { application/json: { schema: { $ref: '../openapi.yaml#/components/schemas/Pet' } } }
  responses: { '200': { $ref: never-read.yaml } }
""",
    "parameters.yaml": """
trace: { $ref: '#/hidden/trace' }
hidden: { trace: { name: X-Trace, in: header, schema: { $ref: 'schemas/all.yaml#/Name' } } }
""",
    "schemas/all.yaml": """
Pet: { type: object, properties: { name: { $ref: '#/Name' }, friend: { $ref: '#/Pet' } } }
Name: { type: string, maxLength: 7 }
""",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "openapi.yaml"


def load(source: object, documents: Documents | None = None) -> OpenApiDocument:
    return (documents or Documents()).load(str(source), OperationSelection())


def of_add(document: OpenApiDocument) -> dict[str, Any]:
    """Return the schemas of the parameters of the tool `add`."""
    tool = next(tool for tool in document.imported.tools if tool.name == "add")
    return {parameter.name: parameter.parsed for parameter in tool.parameters}


def check_split(document: OpenApiDocument) -> None:
    imported = document.imported
    assert (imported.skipped, imported.notes) == ((), ())
    assert [tool.name for tool in imported.tools] == ["add", "odd"]
    schemas = of_add(document)
    assert schemas["X-Trace"] == schemas["name"] == {"type": "string", "maxLength": 7}
    assert schemas["friend"]["type"] == "object"


def test_references_lead_to_files_in_the_folder_which_are_watched(tmp_path: Path) -> None:
    documents, source = Documents(), write(tmp_path, SPLIT)
    first = load(source, documents)
    check_split(first)
    assert first.files.keys() == {tmp_path / name for name in SPLIT}
    assert load(source, documents).imported is first.imported
    (tmp_path / "parameters.yaml").write_text("trace: { name: X-Other, in: header }")
    assert "X-Other" in of_add(load(source, documents))


def test_references_lead_to_anchors_of_their_own_and_of_other_documents(tmp_path: Path) -> None:
    files = {
        "openapi.yaml": """
openapi: 3.1.0
servers: [ { url: 'http://x' } ]
paths:
  /pets:
    post:
      operationId: add
      requestBody: { content: { application/json: { schema: { $ref: '#pet' } } } }
components: { schemas: { Pet: { $anchor: pet, type: object, properties: {
  name: { $ref: 'more.yaml#name' }, friend: { $ref: '#pet' } } } } }
""",
        "more.yaml": "names: [ { $anchor: name, type: string, maxLength: 7 } ]",
    }
    document = load(write(tmp_path, files))
    assert document.imported.notes == ()
    schemas = of_add(document)
    assert schemas["name"]["maxLength"] == 7
    assert schemas["friend"]["properties"]["name"]["maxLength"] == 7


def test_a_file_that_is_missing_costs_what_refers_to_it_until_it_is_there(tmp_path: Path) -> None:
    source, documents = write(tmp_path, SPLIT), Documents()
    (tmp_path / "paths/pets.yaml").unlink()
    document = load(source, documents)
    assert [tool.name for tool in document.imported.tools] == ["odd"]
    assert "paths/pets.yaml, which can't be read" in document.imported.skipped[0].reason
    assert tmp_path / "paths/pets.yaml" in document.files
    write(tmp_path, SPLIT)
    check_split(load(source, documents))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("../secret.yaml#/p", "outside of the folder"),
        ("link.yaml#/p", "outside of the folder"),
        ("/etc/passwd", "outside of the folder"),
        ("https://example.com/p.yaml#/p", "to files beside it only"),
        ("file://host/p.yaml#/p", "to files beside it only"),
        (".", "not a regular file"),
        ("broken.yaml", "neither JSON nor YAML"),
        ("good.yaml#/none", "good.yaml#/none, which does not exist"),
        ("good.yaml#anchor", "which does not exist"),
        ("good.yaml#/loop/x", "form a cycle"),
        ("a%00b.yaml", "which can't be read"),
    ],
)
def test_a_reference_of_a_file_that_leads_elsewhere_is_refused(
    tmp_path: Path, reference: str, words: str
) -> None:
    folder = tmp_path / "api"
    (tmp_path / "secret.yaml").write_text("p: { name: p, in: query }")
    operation = f"{{ get: {{ parameters: [ {{ $ref: '{reference}' }} ] }} }}"
    source = write(
        folder,
        {
            "openapi.yaml": f"openapi: 3.1.0\npaths: {{ /a: {operation}, /b: {{ get: {{}} }} }}",
            "broken.yaml": "[",
            "good.yaml": "loop: { $ref: '#/loop/y' }",
        },
    )
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    imported = load(source).imported
    assert [tool.endpoint for tool in imported.tools] == ["/b"]
    assert words in imported.skipped[0].reason


@pytest.mark.parametrize("reference", ["a\ud800.json", "a.json#/\ud800", "#/\ud800"])
def test_a_reference_with_half_a_character_costs_only_what_has_it(
    tmp_path: Path, reference: str
) -> None:
    operations = {
        "/a": {"get": {"parameters": [{"$ref": reference}]}},
        "/b": {"get": {}},
    }
    document = json.dumps({"openapi": "3.1.0", "paths": operations})
    imported = load(write(tmp_path, {"openapi.yaml": document})).imported
    assert [tool.endpoint for tool in imported.tools] == ["/b"]
    assert imported.skipped[0].reason.encode().startswith(b"it refers to ")


class Web:
    """A web server with files; it counts how often each is fetched."""

    def __init__(self, files: dict[str, str]) -> None:
        self.requests: list[str] = []
        self.missing = 404
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.requests.append(self.path[1:])
                text = files.get(self.path[1:])
                self.send_response(web.missing if text is None else 200)
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def files() -> dict[str, str]:
    return dict(SPLIT)


@pytest.fixture
def web(files: dict[str, str]) -> Iterator[Web]:
    web = Web(files)
    yield web
    web.server.shutdown()
    web.server.server_close()


def test_references_of_a_fetched_document_are_fetched_from_its_origin(web: Web) -> None:
    check_split(load(f"{web.url}/openapi.yaml"))
    assert sorted(web.requests) == sorted(SPLIT)


def test_a_fetched_document_refers_to_no_other_host(web: Web, files: dict[str, str]) -> None:
    other = f"http://localhost:{web.server.server_address[1]}/parameters.yaml"
    files["paths/pets.yaml"] = files["paths/pets.yaml"].replace("../parameters.yaml", other)
    (skipped,) = load(f"{web.url}/openapi.yaml").imported.skipped
    assert f"{other}#/trace, which is on another host" in skipped.reason
    assert "parameters.yaml" not in web.requests


def test_a_reference_that_readers_of_addresses_differ_in_costs_only_what_has_it(
    web: Web, files: dict[str, str]
) -> None:
    odd = web.url.replace("http://", "http://example.com\\@") + "/parameters.yaml"
    files["paths/pets.yaml"] = files["paths/pets.yaml"].replace("../parameters.yaml", odd)
    imported = load(f"{web.url}/openapi.yaml").imported
    assert [tool.name for tool in imported.tools] == ["odd"]
    assert "which can't be fetched: it is no web address" in imported.skipped[0].reason


def test_a_fetched_document_has_a_bounded_number_of_others(web: Web, files: dict[str, str]) -> None:
    names = [f"{number}.yaml" for number in range(MAX_FETCHED + 1)]
    paths = ", ".join(f"/{name}: {{ $ref: {name} }}" for name in names)
    files["openapi.yaml"] = f"openapi: 3.1.0\npaths: {{ {paths} }}"
    files.update(dict.fromkeys(names, "get: {}"))
    imported = load(f"{web.url}/openapi.yaml").imported
    assert len(imported.tools) == MAX_FETCHED
    assert f"more than {MAX_FETCHED} documents" in imported.skipped[0].reason


@pytest.mark.parametrize("status", [503, 429, 404])
def test_tools_stay_while_a_part_of_their_document_cannot_be_fetched(
    web: Web, files: dict[str, str], status: int
) -> None:
    now, web.missing = 0.0, status
    documents = Documents(lambda: now)
    check_split(load(f"{web.url}/openapi.yaml", documents))
    del files["paths/pets.yaml"]
    now = 301.0
    document = load(f"{web.url}/openapi.yaml", documents)
    if status == 404:  # it is gone, and costs only what refers to it
        assert [tool.name for tool in document.imported.tools] == ["odd"]
        assert "HTTP status 404" in document.imported.skipped[0].reason
        assert not document.stale
    else:
        check_split(document)
        assert "can't be fetched whole" in document.stale


NAMED = """
openapi: 3.1.0
servers: [ { url: 'http://x' } ]
paths:
  /pets:
    post:
      operationId: add
      requestBody:
        content: { application/json: { schema: { $ref: '#/components/schemas/Pet' } } }
components:
  schemas:
    Pet:
      type: object
      properties: { kind: { type: string } }
      discriminator: { propertyName: kind }
    Other: { $ref: 'other.yaml#/components/schemas/Other' }
    Cat: { allOf: [ { $ref: '#/components/schemas/Pet' } ], properties: { MEMBER } }
"""
OTHER = "components: { schemas: { Other: {}, More: { $ref: 'more.yaml#/More' } } }"


@pytest.fixture
def named(files: dict[str, str]) -> dict[str, str]:
    """Serve a document whose operation does not need what one of its names leads to."""
    files.clear()
    files["openapi.yaml"] = NAMED.replace("MEMBER", "lives: { type: integer }")
    files["other.yaml"] = OTHER
    return files


def test_names_of_a_document_in_which_nothing_is_needed_lead_no_further(
    web: Web, named: dict[str, str]
) -> None:
    assert not load(f"{web.url}/openapi.yaml").imported.notes
    assert web.requests == ["openapi.yaml", "other.yaml"]
    named["other.yaml"] = OTHER.replace("{}", "{ allOf: [ { $ref: 'openapi.yaml#PET' } ] }")
    named["other.yaml"] = named["other.yaml"].replace("#PET", "#/components/schemas/Pet")
    named["more.yaml"] = f"More: {json.dumps(MORE)}"
    web.requests.clear()
    imported = load(f"{web.url}/openapi.yaml").imported
    assert web.requests == ["openapi.yaml", "other.yaml", "more.yaml"]
    assert {parameter.name for parameter in imported.tools[0].parameters} >= {"lives", "more"}


MORE = {
    "allOf": [{"$ref": "openapi.yaml#/components/schemas/Pet"}],
    "properties": {"more": {"type": "integer"}},
}


@pytest.mark.parametrize("status", [503, 404])
def test_a_document_that_is_only_searched_for_subtypes_holds_no_tools_back(
    web: Web, named: dict[str, str], status: int
) -> None:
    now, web.missing = 0.0, status
    documents = Documents(lambda: now)
    assert not load(f"{web.url}/openapi.yaml", documents).imported.notes
    del named["other.yaml"]
    named["openapi.yaml"] = named["openapi.yaml"].replace("operationId: add", "operationId: new")
    now = 301.0
    document = load(f"{web.url}/openapi.yaml", documents)
    assert [tool.name for tool in document.imported.tools] == ["new"]
    assert not document.stale
    (note,) = document.imported.notes
    assert f"none are looked for in {web.url}/other.yaml, which can't be fetched: " in note


def test_a_document_that_a_found_subtype_needs_is_needed(web: Web, named: dict[str, str]) -> None:
    now, web.missing = 0.0, 503
    member = "lives: { $ref: 'other.yaml#/components/schemas/Other' }"
    named["openapi.yaml"] = NAMED.replace("MEMBER", member)
    documents = Documents(lambda: now)
    load(f"{web.url}/openapi.yaml", documents)
    del named["other.yaml"]
    now = 301.0
    document = load(f"{web.url}/openapi.yaml", documents)
    assert "can't be fetched whole: it refers to" in document.stale


def test_half_of_the_time_is_for_documents_that_are_needed() -> None:
    given: list[float] = []

    def fetch(address: str, limit: int, seconds: float) -> bytes:
        given.append(seconds)
        return b""

    origin = Origin("http://x/a.yaml", 100, 100.0, fetch, lambda data: data)
    origin.read_optional("http://x/b.yaml")
    origin.read("http://x/c.yaml")
    assert given[0] <= 50.0 < given[1]
