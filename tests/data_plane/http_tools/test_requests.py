"""HTTP requests of calls: an argument changes only its own part."""

from __future__ import annotations

import base64
import email
import json
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.kinds.http_api.definitions import definition
from leaseway.data_plane.kinds.http_api.requests import (
    MAX_HEADER_VALUE,
    HttpRequest,
    build_request,
)
from leaseway.spec.kinds.http_tools import STYLES, Body, HttpParameter, HttpTool, Position, Style
from leaseway.wire.errors import Fault

BASE = "https://api.example.com/v1"


def parameter(
    name: str, position: Position, *, style: Style = "repeat", schema: str = "{}", **more: Any
) -> HttpParameter:
    return HttpParameter(name, position, schema, style=style, **more)


def tool(
    *parameters: HttpParameter,
    endpoint: str = "/x",
    method: str = "POST",
    body: Body = "json",
    content_type: str = "",
) -> HttpTool:
    return HttpTool(
        "t", method, endpoint, parameters=parameters, body=body, content_type=content_type
    )


def request(called: HttpTool, **arguments: Any) -> HttpRequest:
    return build_request(called, BASE, arguments)


_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(_text.filter(lambda text: text not in (".", "..")))
def test_any_text_in_a_path_is_one_segment(text: str) -> None:
    called = tool(parameter("id", "path"), endpoint="/users/{id}/posts", method="GET")
    url = urlsplit(request(called, id=text).url)
    assert (url.scheme, url.netloc, url.query, url.fragment) == ("https", "api.example.com", "", "")
    before, users, part, posts = url.path.lstrip("/").split("/")
    assert (before, users, posts) == ("v1", "users", "posts")
    assert unquote(part) == text


@given(_text, _text)
def test_any_text_in_a_query_is_one_value(name: str, text: str) -> None:
    called = tool(parameter(name, "query"), endpoint="/x?fixed=1", method="GET")
    url = urlsplit(request(called, **{name: text}).url)
    assert (url.netloc, url.path, url.fragment) == ("api.example.com", "/v1/x", "")
    pairs = parse_qsl(url.query, keep_blank_values=True, strict_parsing=True)
    assert pairs == [("fixed", "1"), (name, text)]


@given(st.text())
def test_any_text_in_a_header_is_sent_unchanged_or_rejected(text: str) -> None:
    called = tool(parameter("X-Trace", "header"), method="GET")
    if text.isprintable() and text == text.strip():
        assert request(called, **{"X-Trace": text}).headers == {"X-Trace": text}
        assert not set("\r\n\0") & set(text)
    else:
        with pytest.raises(Fault, match="X-Trace"):
            request(called, **{"X-Trace": text})


@given(st.dictionaries(_text, st.text() | st.integers() | st.booleans() | st.none(), min_size=1))
def test_any_value_in_a_json_body_is_unchanged(values: dict[str, Any]) -> None:
    called = tool(*(parameter(name, "body") for name in values))
    sent = request(called, **values)
    assert sent.url == f"{BASE}/x"
    assert json.loads(sent.body or b"") == json.loads(json.dumps(values))
    assert sent.headers == {"Content-Type": "application/json"}


@given(st.dictionaries(_text, _text, min_size=1))
def test_any_text_in_a_form_is_unchanged(values: dict[str, str]) -> None:
    called = tool(*(parameter(name, "body") for name in values), body="form")
    body = (request(called, **values).body or b"").decode()
    assert parse_qsl(body, keep_blank_values=True, strict_parsing=True) == list(values.items())


@given(st.binary(), st.text(st.characters(exclude_categories=["Cs"])))
def test_parts_of_a_multipart_body_are_unchanged(data: bytes, text: str) -> None:
    called = tool(
        parameter("file", "body", schema='{"contentEncoding": "base64"}'),
        parameter("note", "body"),
        body="multipart",
    )
    sent = request(called, file=base64.b64encode(data).decode(), note=text)
    head = f"Content-Type: {sent.headers['Content-Type']}\r\n\r\n".encode()
    parsed = email.message_from_bytes(head + (sent.body or b""), policy=HTTP)
    file, note = parsed.iter_parts()
    assert file.get_param("name", header="content-disposition") == "file"
    assert note.get_param("name", header="content-disposition") == "note"
    raw = sent.body or b""
    assert b"\r\n\r\n" + data + b"\r\n--" in raw
    assert b"\r\n\r\n" + text.encode() + b"\r\n--" in raw


@pytest.mark.parametrize("value", ["", ".", "..", None])
def test_a_path_segment_that_leads_elsewhere_is_rejected(value: str | None) -> None:
    called = tool(parameter("id", "path"), endpoint="/users/{id}", method="DELETE")
    with pytest.raises(Fault, match="cannot be sent"):
        request(called, id=value)


def test_two_placeholders_can_not_form_a_parent_segment() -> None:
    called = tool(parameter("a", "path"), parameter("b", "path"), endpoint="/d/{a}{b}/x")
    with pytest.raises(Fault, match="lead elsewhere"):
        request(called, a=".", b=".")


def test_a_missing_path_parameter_is_rejected() -> None:
    called = tool(parameter("id", "path"), endpoint="/users/{id}", method="GET")
    with pytest.raises(Fault, match="id is part of the path and is missing"):
        request(called)


@pytest.mark.parametrize(
    ("style", "value", "query"),
    [
        ("repeat", [1, "b"], "q=1&q=b"),
        ("comma", [1, "b,c"], "q=1,b%2Cc"),
        ("comma", {"R": 1, "G": None, "B": "b"}, "q=R,1,B,b"),
        ("pipe", {"R": 1, "B": "b"}, "q=R%7C1%7CB%7Cb"),
        ("spread", {"a": [1, 2]}, "a=1&a=2"),
        ("json", "x", "q=%22x%22"),
        ("space", ["a", "b"], "q=a%20b"),
        ("pipe", ["a", "b"], "q=a%7Cb"),
        ("deep", {"a": 1, "b": {"c": ["x"]}}, "q%5Ba%5D=1&q%5Bb%5D%5Bc%5D%5B0%5D=x"),
        ("spread", {"a": 1, "b": "c"}, "a=1&b=c"),
        ("json", {"a": [1]}, "q=%7B%22a%22%3A%5B1%5D%7D"),
        ("repeat", {"a": 1}, "q=%7B%22a%22%3A1%7D"),
        ("repeat", True, "q=true"),
        ("repeat", 1.5, "q=1.5"),
        ("repeat", 5.0, "q=5"),
        ("comma", [5.0, 1e21], "q=5,1e21"),
        ("repeat", None, ""),
        ("repeat", [], ""),
        ("comma", [], ""),
        ("pipe", {}, ""),
        ("json", [], "q=%5B%5D"),
    ],
)  # fmt: skip
def test_lists_and_objects_are_encoded_in_their_style(style: Style, value: Any, query: str) -> None:
    called = tool(parameter("q", "query", style=style), method="GET")
    assert urlsplit(request(called, q=value).url).query == query


@pytest.mark.parametrize(
    ("style", "explode", "text", "listed", "named"),
    [
        ("comma", False, "5", "3,4,5", "R,100,G,200"),
        ("comma", True, "5", "3,4,5", "R=100,G=200"),
        ("label", False, ".5", ".3,4,5", ".R,100,G,200"),
        ("label", True, ".5", ".3.4.5", ".R=100.G=200"),
        ("matrix", False, ";id=5", ";id=3,4,5", ";id=R,100,G,200"),
        ("matrix", True, ";id=5", ";id=3;id=4;id=5", ";R=100;G=200"),
    ],
)
def test_a_path_has_the_text_that_rfc_6570_gives_it(
    style: Style, explode: bool, text: str, listed: str, named: str
) -> None:
    called = tool(parameter("id", "path", style=style, explode=explode), endpoint="/x/{id}")
    for value, expected in ((5, text), ([3, 4, 5], listed), ({"R": 100, "G": 200}, named)):
        assert request(called, id=value).url == f"{BASE}/x/{expected}"


@given(st.dictionaries(st.sampled_from("abc"), _text, min_size=1))
def test_any_text_in_a_cookie_is_one_value(values: dict[str, str]) -> None:
    called = tool(*(parameter(name, "cookie", style="comma") for name in values), method="GET")
    sent = request(called, **values).headers["Cookie"]
    pairs = [pair.partition("=") for pair in sent.split("; ")]
    assert {name: unquote(value) for name, _, value in pairs} == values
    assert sent.isascii()
    assert sent.isprintable()
    assert not set(',"\\') & set(sent)


def test_cookies_may_be_lists_and_are_bounded() -> None:
    called = tool(parameter("ids", "cookie", style="comma"), method="GET")
    assert request(called, ids=[1, "a b"]).headers == {"Cookie": "ids=1,a%20b"}
    assert request(called, ids=[]).headers == {}
    with pytest.raises(Fault, match="the cookies have more than"):
        request(called, ids="x" * MAX_HEADER_VALUE)


def test_a_header_of_an_empty_list_is_not_sent() -> None:
    called = tool(parameter("X-Ids", "header", style="comma"), method="GET")
    assert request(called, **{"X-Ids": []}).headers == {}


def test_reserved_characters_stay_only_where_they_end_no_value() -> None:
    called = tool(parameter("q", "query", allow_reserved=True), method="GET")
    sent = request(called, q="a/b?c:d@e,f=g&h#i+j%k;l").url
    assert sent == f"{BASE}/x?q=a/b?c:d@e,f=g%26h%23i%2Bj%25k%3Bl"


def test_null_for_a_parameter_that_does_not_accept_it_is_left_out() -> None:
    inner = {
        "type": "object",
        "properties": {"x": {"type": "string"}, "y": {"type": ["string", "null"]}},
    }
    called = tool(
        parameter("name", "body", schema='{"type": "string"}'),
        parameter("note", "body", schema='{"anyOf": [{"type": "string"}, {"type": "null"}]}'),
        parameter("inner", "body", schema=json.dumps(inner)),
    )
    sent = request(called, name=None, note=None, inner={"x": None, "y": None, "z": None})
    assert json.loads(sent.body or b"") == {"note": None, "inner": {"y": None, "z": None}}
    parts = request(HttpTool("t", "POST", "/x", parameters=called.parameters, body="multipart"))
    assert parts.body is None


def test_a_form_that_is_one_parameter_repeats_its_lists() -> None:
    called = tool(parameter("body", "body", is_body=True, style="json"), body="form")
    assert request(called, body={"a": [1, "x"], "b": {"c": 1}}).body == (
        b"a=1&a=x&b=%7B%22c%22%3A1%7D"
    )


def test_parts_say_their_media_type_and_each_file_of_a_list_is_a_part() -> None:
    file = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
    optional = {"anyOf": [{"type": "array", "items": {"oneOf": [file, {}]}}, {"type": "null"}]}
    called = tool(
        parameter("files", "body", schema=json.dumps(optional)),
        parameter("meta", "body", schema='{"type": "object"}'),
        parameter("xml", "body", schema='{"contentMediaType": "application/xml"}'),
        parameter("tags", "body"),
        body="multipart",
    )
    data = [base64.b64encode(text).decode() for text in (b"one", b"two")]
    sent = request(called, files=[*data, {"id": 1}], meta={"a": 1}, xml="<a/>", tags=["x", 2, None])
    head = f"Content-Type: {sent.headers['Content-Type']}\r\n\r\n".encode()
    parts = list(email.message_from_bytes(head + (sent.body or b""), policy=HTTP).iter_parts())
    assert [
        (
            part.get_param("name", header="content-disposition"),
            part.get_filename(),
            part.get("content-type"),
            part.get_payload(),
        )
        for part in parts
    ] == [
        ("files", "files.png", "image/png", "one"),
        ("files", "files.png", "image/png", "two"),
        ("files", None, "application/json", '{"id":1}'),
        ("meta", None, "application/json", '{"a":1}'),
        ("xml", None, "application/xml", "<a/>"),
        ("tags", None, None, "x"),
        ("tags", None, None, "2"),
    ]


@pytest.mark.parametrize(
    ("declared", "content", "name", "kind"),
    [
        ("", b"\x89PNG\r\n\x1a\n", "file.png", "image/png"),
        ("application/octet-stream", b"%PDF-1.7", "file.pdf", "application/pdf"),
        ("text/csv", b"a,b", "file.csv", "text/csv"),
        ("application/x-thing", b"%PDF-1.7", "file", "application/x-thing"),
        ("", b"a", "file", "application/octet-stream"),
    ],
)
def test_a_file_has_the_type_that_it_is_and_a_name_with_its_extension(
    declared: str, content: bytes, name: str, kind: str
) -> None:
    schema = {"contentEncoding": "base64", **({"contentMediaType": declared} if declared else {})}
    called = tool(parameter("file", "body", schema=json.dumps(schema)), body="multipart")
    body = request(called, file=base64.b64encode(content).decode()).body or b""
    assert f'; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'.encode() + content in body


@pytest.mark.parametrize(
    ("url", "name", "kind"),
    [
        ("data:text/csv;name=a%20b.csv;base64,aGk=", "a b.csv", "text/csv"),
        ('DATA:text/csv; charset=utf-8; filename="..\\a.csv"; BASE64,aGk=', "a.csv", "text/csv"),
        ("data:;name=..;base64,aGk%3D", "file", "application/octet-stream"),
        ("data:text/plain,h%69", "file.txt", "text/plain"),
        ("data:a b;name=a%22%0D.txt,hi", "file", "application/octet-stream"),
        ("data:a/b;name=a%22.txt,hi", "a%22.txt", "a/b"),
    ],
)
def test_a_data_url_says_the_name_and_type_of_its_file(url: str, name: str, kind: str) -> None:
    file = parameter("file", "body", schema='{"contentEncoding": "base64"}')
    body = request(tool(file, body="multipart"), file=url).body or b""
    assert f'; filename="{name}"\r\nContent-Type: {kind}\r\n\r\nhi\r\n'.encode() in body


def test_members_of_a_whole_body_are_its_parts() -> None:
    schema = {
        "properties": {"meta": {"type": "object"}},
        "additionalProperties": {"contentEncoding": "base64"},
    }
    whole = parameter("body", "body", is_body=True, schema=json.dumps(schema))
    sent = request(tool(whole, body="multipart"), body={"meta": {"a": 1}, "x": "aGk=", "y": None})
    form, body = 'Content-Disposition: form-data; name="', (sent.body or b"").decode()
    assert f'{form}meta"\r\nContent-Type: application/json\r\n\r\n{{"a":1}}' in body
    file = 'x"; filename="x"\r\nContent-Type: application/octet-stream\r\n\r\nhi\r\n'
    assert f"{form}{file}" in body
    assert 'name="y"' not in body


def test_parts_of_other_multipart_bodies_have_places_instead_of_names() -> None:
    related = tool(
        parameter("meta", "body", schema='{"type": "object"}'),
        parameter("file", "body", schema='{"contentEncoding": "base64"}'),
        body="multipart",
        content_type="multipart/related",
    )
    sent = request(related, meta={"a": 1}, file="aGk=")
    kind, _, boundary = sent.headers["Content-Type"].partition("; boundary=")
    assert kind == "multipart/related"
    assert (sent.body or b"").split(f"--{boundary}".encode()) == [
        b"",
        b'\r\nContent-Type: application/json\r\n\r\n{"a":1}\r\n',
        b"\r\nContent-Type: application/octet-stream\r\n\r\nhi\r\n",
        b"--\r\n",
    ]
    mixed = tool(
        parameter("body", "body", is_body=True), body="multipart", content_type="multipart/mixed"
    )
    listed = request(mixed, body=["one", "two"]).body or b""
    assert listed.count(b"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n") == 2


def test_defaults_and_wire_names_are_sent() -> None:
    called = tool(
        parameter("limit", "query", schema='{"default": 10}'),
        parameter("body_id", "body", wire_name="id"),
        parameter("id", "path"),
        endpoint="/x/{id}",
    )
    sent = request(called, id=3, body_id=4)
    assert sent.url == f"{BASE}/x/3?limit=10"
    assert sent.body == b'{"id":4}'


def test_a_body_may_be_one_parameter() -> None:
    whole = parameter("items", "body", is_body=True)
    assert request(tool(whole), items=[1, 2]).body == b"[1,2]"
    data = parameter("data", "body", is_body=True, schema='{"contentMediaType": "image/png"}')
    sent = request(tool(data, body="binary"), data=base64.b64encode(b"\x89PNG").decode())
    assert (sent.body, sent.headers) == (b"\x89PNG", {"Content-Type": "image/png"})
    text = parameter("text", "body", is_body=True)
    assert request(tool(text, body="text"), text="ä").body == "ä".encode()


@pytest.mark.parametrize("begin", ["", "data:image/png;base64,"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_may_be_base64_in_lines(begin: str, end: str) -> None:
    called = tool(parameter("data", "body", is_body=True), body="binary")
    for size in (0, 1, 57, 58, 114, 200):
        content = bytes(range(size))
        lines = base64.encodebytes(content).decode().replace("\n", end)
        assert request(called, data=f"{begin}{lines}").body == content
        assert request(called, data=f"{begin}{lines.rstrip()}").body == content


@pytest.mark.parametrize(
    "text",
    [
        "not base64!",
        "data:text/plain;base64",
        "data:;base64,!",
        "text in some words",
        "words\nin\nlines",
        "four\nandtwelve345",
        "abcd\nab\nabcd",
    ],
)
def test_what_is_no_file_is_rejected(text: str) -> None:
    called = tool(parameter("data", "body", is_body=True), body="binary")
    with pytest.raises(Fault, match="data is neither base64, a data: URL nor an artifact"):
        request(called, data=text)


def test_a_json_body_without_arguments_is_an_empty_object() -> None:
    assert request(tool(parameter("a", "body"))).body == b"{}"


def test_a_get_has_a_body_only_if_some_of_it_is_given() -> None:
    search = tool(parameter("query", "body"), method="GET")
    assert request(search, query={"match_all": {}}).body == b'{"query":{"match_all":{}}}'
    assert (request(search).body, request(search).headers) == (None, {})
    assert request(tool()).body is None


def test_a_url_that_is_too_long_is_rejected() -> None:
    with pytest.raises(Fault, match="more than 65536 characters"):
        request(tool(parameter("q", "query"), method="GET"), q="x" * 70_000)


def test_a_definition_has_the_parameters_of_all_positions() -> None:
    called = HttpTool(
        "get_user",
        "GET",
        "/users/{userId}",
        "Fetch a user",
        parameters=(
            parameter("userId", "path", schema='{"type": "string"}', required=True),
            parameter("verbose", "query", schema='{"type": "boolean"}'),
        ),
    )
    assert definition(called) == {
        "name": "get_user",
        "description": "Fetch a user",
        "inputSchema": {
            "type": "object",
            "properties": {"userId": {"type": "string"}, "verbose": {"type": "boolean"}},
            "additionalProperties": False,
            "required": ["userId"],
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": True},
    }


@pytest.mark.parametrize(
    ("method", "reads", "destroys", "repeats"),
    [
        ("GET", True, None, None),
        ("POST", False, False, False),
        ("PUT", False, True, True),
        ("PATCH", False, True, False),
        ("DELETE", False, True, True),
    ],
)
def test_annotations_follow_from_the_method(
    method: str, reads: bool, destroys: bool | None, repeats: bool | None
) -> None:
    hints = definition(tool(method=method))["annotations"]
    assert hints["readOnlyHint"] is reads
    assert hints.get("destructiveHint") is destroys
    assert hints.get("idempotentHint") is repeats


def test_annotations_can_be_overridden() -> None:
    called = HttpTool("search", "POST", "/search", annotations=(("readOnlyHint", True),))
    assert definition(called)["annotations"]["readOnlyHint"] is True


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from(["json", "form", "multipart", "binary", "text"]),
    st.sampled_from(STYLES),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("p", "q", "h", "b"), _json)),
)
def test_any_arguments_make_a_request_to_the_same_host_or_are_rejected(
    body: Body, style: Style, arguments: dict[str, Any]
) -> None:
    called = tool(
        parameter("p", "path", style=style),
        parameter("q", "query", style=style),
        parameter("h", "header", style=style),
        parameter("b", "body", style=style),
        endpoint="/a/{p}/z",
        body=body,
    )
    try:
        sent = build_request(called, BASE, arguments)
    except Fault as fault:
        assert str(fault.reason) == "INVALID_ARGUMENTS"  # noqa: PT017 - either is right
        return
    url = urlsplit(sent.url)
    assert (url.scheme, url.netloc, url.fragment) == ("https", "api.example.com", "")
    assert url.path.startswith("/v1/a/")
    assert url.path.endswith("/z")
    assert url.path.count("/") == 4
    assert set(sent.headers) <= {"h", "Content-Type"}


def test_an_endpoint_in_other_letters_is_percent_encoded() -> None:
    called = tool(parameter("id", "path"), endpoint="/straße%20/{id}?ort=köln", method="GET")
    assert request(called, id="ä/b").url == f"{BASE}/stra%C3%9Fe%20/%C3%A4%2Fb?ort=k%C3%B6ln"
