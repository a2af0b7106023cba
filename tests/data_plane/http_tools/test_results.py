"""What a response becomes: a text, or a resource with its bytes."""

from __future__ import annotations

import gzip
import json
from codecs import BOM_UTF8
from dataclasses import replace

import pytest
from multidict import CIMultiDict

from leaseway.data_plane.kinds.http_api.results import (
    HttpResponse,
    conditions,
    is_packed,
    result,
    unpacked,
)
from leaseway.spec.kinds.http_tools import HttpParameter, HttpTool


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/x-ndjson", b'{"a": 1}\n{"a": 2}', '{"a": 1}\n{"a": 2}'),
        ("application/x-yaml", "größe: 1".encode(), "größe: 1"),
        ("application/graphql; charset=latin-1", "ö".encode("latin-1"), "ö"),
        ("application/json", BOM_UTF8 + b"{}", "{}"),
        ("", b"plain", "plain"),
        ("text/plain", "café".encode("latin-1"), "café"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
        ("message/rfc822", b"Subject: x\r\n\r\nHi", "Subject: x\r\n\r\nHi"),
        ("multipart/mixed; boundary=b", b"--b--\r\n", "--b--\r\n"),
        ("chemical/x-mdl-sdfile", b"$$$$\n", "$$$$\n"),
        ("binary/octet-stream", b"plain", "plain"),
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
        ("application/zip; charset=binary", b"PK\xff"),
        ("video/mp4", b"mp4"),
    ],
)
def test_files_and_other_bytes_are_a_resource(kind: str, body: bytes) -> None:
    payload, _ = result(HttpResponse(200, {"content-type": kind}, body))
    (item,) = json.loads(payload)["content"]
    media_type = kind.partition(";")[0]
    assert (item["type"], item["resource"]["mimeType"]) == ("resource", media_type)


@pytest.mark.parametrize(
    ("charset", "body"),
    [
        ("; charset=utf-8", BOM_UTF8 + b'{"a": "\xc3\xb6"}'),
        ("; charset=latin-1", b'{"a": "\xf6"}'),
        ("", b'{"a": "\xc3\xb6"}'),
        ("", b'{"a": "\xf6"}'),
    ],
)
def test_a_template_gets_the_json_of_any_charset(charset: str, body: bytes) -> None:
    kind = f"application/json{charset}"
    assert json.loads(HttpResponse(200, {"content-type": kind}, body).utf8) == {"a": "ö"}


PACKED = gzip.compress(b"{}" * 500, mtime=0)  # the same in every process


@pytest.mark.parametrize(
    ("kind", "body", "is_unpacked"),
    [
        ("application/json", PACKED, True),
        ("text/csv; charset=utf-8", PACKED, True),
        (
            "application/json",
            gzip.compress(b"{}" * 499, mtime=0) + gzip.compress(b"{}", mtime=0),
            True,
        ),
        ("application/gzip", PACKED, False),
        ("", PACKED, False),
        ("application/json", PACKED[:-9], False),
        ("application/json", b"\x1f\x8b{}", False),
        ("application/json", b"{}" * 500, False),
    ],
)
def test_a_text_that_is_still_compressed_is_decompressed(
    kind: str, body: bytes, is_unpacked: bool
) -> None:
    response = HttpResponse(200, {"content-type": kind}, body)
    whole = unpacked(response, 1_000) if is_packed(response) else response
    assert whole.body == (b"{}" * 500 if is_unpacked else body)
    if is_unpacked:
        assert len(unpacked(response, 10).body) == 11


def test_an_empty_success_says_where_to_go_on() -> None:
    headers = {"location": "/jobs/5?key=s3cret", "retry-after": "7"}
    response = HttpResponse(202, headers, b"")
    payload, is_error = result(response, lambda text: text.replace("s3cret", "[hidden]"))
    text = "HTTP 202 Accepted\nRetry-After: 7\nLocation: /jobs/5?key=[hidden]"
    assert json.loads(payload) == {"content": [{"type": "text", "text": text}]}
    assert not is_error


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([("location", "/jobs/5?key=s3cret")], "Location: /jobs/5?key=[hidden]"),
        (
            [
                ("link", '</?page=1>; rel="first"'),
                ("link", '</?page=3,4>; title="more"; rel="next", </?page=9>; rel="last"'),
            ],
            'Link: </?page=3,4>; rel="next"',
        ),
        ([("link", "</?page=3>; rel=next")], 'Link: </?page=3>; rel="next"'),
        ([("link", '<https://api.w.org/>; rel="https://api.w.org/"')], ""),
        ([("link", "<" * 60_000)], ""),
        ([("allow", "GET")], ""),
        (
            [("content-disposition", 'attachment; filename="May.csv"')],
            'Content-Disposition: attachment; filename="May.csv"',
        ),
        ([("content-disposition", "inline;filename=f.txt")], ""),
        ([("content-disposition", "attachment")], ""),
    ],
)
def test_how_to_go_on_stands_beside_the_text(headers: list[tuple[str, str]], told: str) -> None:
    response = HttpResponse(200, CIMultiDict(headers), b"[]")
    payload, _ = result(response, lambda text: text.replace("s3cret", "[hidden]"))
    text, *more = json.loads(payload)["content"]
    assert text == {"type": "text", "text": "[]"}
    assert [item["resource"]["text"] for item in more] == ([told] if told else [])


@pytest.mark.parametrize("condition", ["If-Match", "If-None-Match"])
@pytest.mark.parametrize(("status", "body"), [(200, b"{}"), (204, b""), (412, b"It has changed.")])
def test_the_version_is_told_that_a_parameter_can_repeat(
    status: int, body: bytes, condition: str
) -> None:
    headers = CIMultiDict([("ETag", '"v1"'), ("Last-Modified", "Mon, 05 Jan 2026 10:00:00 GMT")])
    response = HttpResponse(status, headers, body)
    match = HttpParameter("match", "header", wire_name=condition)
    lock = HttpTool("lock", "PUT", "/x", parameters=(match,))
    payload, _ = result(response, told=conditions([lock]))
    assert 'Etag: \\"v1\\"' in payload.decode()
    assert "Last-Modified" not in payload.decode()
    payload, _ = result(response, told=conditions([replace(lock, parameters=())]))
    assert "Etag" not in payload.decode()


def test_what_has_not_changed_is_no_error() -> None:
    payload, is_error = result(HttpResponse(304, {"etag": '"v1"'}, b""), told=("etag",))
    assert not is_error
    assert json.loads(payload)["content"][0]["text"] == 'HTTP 304 Not Modified\nEtag: "v1"'


@pytest.mark.parametrize("status", [200, 404])
def test_a_request_for_headers_gets_all_of_them(status: int) -> None:
    headers = CIMultiDict(
        [("content-length", "7"), ("Allow", "GET"), ("set-cookie", "a=1"), ("allow", "PUT")]
    )
    payload, is_error = result(HttpResponse(status, headers, b"", is_of_headers=True))
    (item,) = json.loads(payload)["content"]
    assert item["text"].splitlines()[1:] == ["Content-Length: 7", "Allow: GET", "Allow: PUT"]
    assert is_error is (status == 404)


def test_a_refusal_says_what_is_allowed() -> None:
    payload, _ = result(HttpResponse(405, {"allow": "GET, PUT"}, b""))
    (item,) = json.loads(payload)["content"]
    assert item["text"] == "HTTP 405 Method Not Allowed\nAllow: GET, PUT"


@pytest.mark.parametrize("status", [200, 302, 429])
@pytest.mark.parametrize("name", ["content-type", "location", "retry-after"])
@pytest.mark.parametrize("body", [b"", b"text", b"\0\xff"])
def test_a_header_may_have_any_bytes(status: int, name: str, body: bytes) -> None:
    for value in (b"image/\xe9", b"text/plain; charset=\xe9", b"application/\xff"):
        headers = {name: value.decode("utf-8", "surrogateescape")}
        payload, _ = result(HttpResponse(status, headers, body))
        assert json.loads(payload)["content"]
