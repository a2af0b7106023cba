"""What a response becomes: a text, or a resource with its bytes."""

from __future__ import annotations

import json
from codecs import BOM_UTF8

import pytest

from leaseway.data_plane.kinds.http_api.results import HttpResponse, result


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/x-ndjson", b'{"a": 1}\n{"a": 2}', '{"a": 1}\n{"a": 2}'),
        ("application/x-yaml", "größe: 1".encode(), "größe: 1"),
        ("application/graphql; charset=latin-1", "ö".encode("latin-1"), "ö"),
        ("application/json", BOM_UTF8 + b"{}", "{}"),
        ("", b"plain", "plain"),
    ],
)
def test_what_is_text_by_its_type_or_its_bytes_is_a_text(kind: str, body: bytes, text: str) -> None:
    payload, _ = result(HttpResponse(200, {"content-type": kind}, body))
    assert json.loads(payload)["content"] == [{"type": "text", "text": text}]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/pdf", b"%PDF-1.7"),
        ("application/x-thing", b"a\0b"),
        ("application/zip", b"PK\xff"),
        ("video/mp4", b"mp4"),
    ],
)
def test_files_and_other_bytes_are_a_resource(kind: str, body: bytes) -> None:
    payload, _ = result(HttpResponse(200, {"content-type": kind}, body))
    (item,) = json.loads(payload)["content"]
    assert (item["type"], item["resource"]["mimeType"]) == ("resource", kind)


@pytest.mark.parametrize(
    ("charset", "body"),
    [("utf-8", BOM_UTF8 + b'{"a": "\xc3\xb6"}'), ("latin-1", b'{"a": "\xf6"}')],
)
def test_a_template_gets_the_json_of_any_charset(charset: str, body: bytes) -> None:
    kind = f"application/json; charset={charset}"
    assert json.loads(HttpResponse(200, {"content-type": kind}, body).utf8) == {"a": "ö"}
