"""Swagger 2 documents: converted, they make the requests that they describe."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from leaseway.control_plane.config.openapi.operations import Imported, import_document
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import input_schema
from leaseway.data_plane.kinds.http_api.requests import HttpRequest, build_request

PETS = """
swagger: '2.0'
info: { title: Pets }
host: pets.example.com
basePath: /v2
schemes: [http, https]
consumes: [application/json]
securityDefinitions:
  key: { type: apiKey, in: header, name: X-Key }
  user: { type: basic }
  oauth: { type: oauth2, flow: implicit, authorizationUrl: 'https://x.test', scopes: {} }
parameters:
  Limit: { name: limit, in: query, type: integer, default: 20, maximum: 100 }
definitions:
  Pet:
    type: object
    required: [name]
    properties:
      id: { type: integer, readOnly: true }
      name: { type: string }
      tag: { type: string, x-nullable: true, default: none }
      kind: { $ref: '#/definitions/Kind' }
  Kind: { type: string, enum: [cat, dog] }
paths:
  /pets/{ids}:
    parameters:
      - { name: ids, in: path, required: true, type: array, items: { type: integer } }
    get:
      operationId: find
      parameters:
        - $ref: '#/parameters/Limit'
        - { name: tags, in: query, type: array, items: { type: string }, collectionFormat: multi }
        - { name: csv, in: query, type: array, items: { type: string } }
        - { name: ssv, in: query, type: array, items: { type: string }, collectionFormat: ssv }
        - { name: pipes, in: query, type: array, items: { type: string }, collectionFormat: pipes }
        - { name: X-Ids, in: header, type: array, items: { type: integer } }
    patch:
      operationId: change
      parameters:
        - { name: pet, in: body, required: true, schema: { $ref: '#/definitions/Pet' } }
  /form:
    post:
      operationId: form
      consumes: [application/x-www-form-urlencoded]
      parameters:
        - { name: name, in: formData, type: string, required: true, description: Whose. }
        - { name: tags, in: formData, type: array, items: { type: string } }
        - { name: more, in: formData, type: array, collectionFormat: multi, items: {} }
  /upload:
    post:
      operationId: upload
      schemes: [http]
      parameters:
        - { name: file, in: formData, type: file }
        - { name: note, in: formData, type: string, default: x }
  /xml:
    post:
      operationId: xml
      consumes: [application/xml]
      parameters: [ { name: doc, in: body, schema: { type: object } } ]
  /tabs:
    get:
      operationId: tabs
      parameters:
        - { name: t, in: query, required: true, type: array, items: {}, collectionFormat: tsv }
"""


@pytest.fixture(scope="module")
def pets() -> Imported:
    return import_document(yaml.safe_load(PETS))


def request(pets: Imported, tool: str, **arguments: Any) -> HttpRequest:
    called = next(each_tool for each_tool in pets.tools if each_tool.name == tool)
    assert not ArgumentCheck(input_schema(called)).violations(arguments)
    return build_request(called, called.base_url or pets.base_url, arguments)


def test_operations_servers_and_security_are_converted(pets: Imported) -> None:
    assert (pets.title, pets.base_url) == ("Pets", "https://pets.example.com/v2")
    assert {tool.name: tool.base_url for tool in pets.tools} == {
        "find": "",
        "change": "",
        "form": "",
        "upload": "http://pets.example.com/v2",
        "xml": "",
    }
    assert {name: scheme.kind for name, scheme in pets.schemes.items()} == {
        "key": "header",
        "user": "basic",
        "oauth": "bearer",
    }
    (skipped,) = pets.skipped
    assert "has the style 'tsv'" in skipped.reason


def test_lists_are_written_in_their_collection_format(pets: Imported) -> None:
    lists = {name: ["a", "b"] for name in ("tags", "csv", "ssv", "pipes")}
    sent = request(pets, "find", ids=[1, 2], **lists, **{"X-Ids": [3, 4]})
    assert sent.url == (
        "https://pets.example.com/v2/pets/1,2?tags=a&tags=b&csv=a,b&ssv=a%20b&pipes=a%7Cb"
    )
    assert sent.headers == {"X-Ids": "3,4"}


def test_bodies_have_the_members_of_their_definition_and_no_defaults(pets: Imported) -> None:
    assert request(pets, "change", ids=[1], name="Tom").body == b'{"name":"Tom"}'
    sent = request(pets, "change", ids=[1], name="Tom", tag=None, kind="cat")
    assert sent.body == b'{"name":"Tom","tag":null,"kind":"cat"}'
    change = next(tool for tool in pets.tools if tool.name == "change")
    assert ArgumentCheck(input_schema(change)).violations({"ids": [1], "name": "x", "kind": "cow"})


def test_forms_files_and_other_types_are_sent(pets: Imported) -> None:
    sent = request(pets, "form", name="Tom", tags=["a", "b"], more=[1, 2])
    assert sent.body == b"name=Tom&tags=a,b&more=1&more=2"
    sent = request(pets, "upload", file="AP8=")
    assert b'filename="file"' in (sent.body or b"")
    assert b"\x00\xff" in (sent.body or b"")
    assert b"note" not in (sent.body or b"")
    sent = request(pets, "xml", body="<pet/>")
    assert (sent.body, sent.headers["Content-Type"]) == (
        b"<pet/>",
        "application/xml; charset=utf-8",
    )


@pytest.mark.parametrize(
    ("host", "path", "address"),
    [
        ("pets.example", "com/v2", "https://pets.example/com/v2"),
        ("http://pets.example/", "/v2/", "https://pets.example/v2"),
        ("pets.example:8443", None, "https://pets.example:8443"),
    ],
)
def test_a_host_and_its_path_are_never_read_as_another_host(
    host: str, path: str | None, address: str
) -> None:
    document: dict[str, Any] = {"swagger": "2.0", "host": host, "basePath": path, "paths": {}}
    assert import_document(document).base_url == address
