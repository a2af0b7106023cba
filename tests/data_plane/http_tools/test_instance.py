"""Instances of servers with HTTP tools, with a real REST server."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.http_tools.callers import calling, spec_of
from tests.servers import rest_api
from tests.servers.rest_api import RestApi

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.spec.kinds.http_api import Credential
from leaseway.spec.kinds.http_tools import HttpParameter, HttpTool
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault

TEMPLATE = "Name: {{ .data.name }}{{- range $i, $t := .data.tags }} {{ $i }}={{ $t }}{{- end }}"
USER_ID = HttpParameter("userId", "path", '{"type": "string"}', required=True)
VERBOSE = HttpParameter("verbose", "query", '{"type": "boolean"}')
TRACE = HttpParameter("X-Trace", "header", '{"type": "string"}')
GET_USER = HttpTool("get_user", "GET", "/users/{userId}", parameters=(USER_ID, VERBOSE, TRACE))


@pytest.fixture
async def api() -> AsyncIterator[RestApi]:
    async with rest_api.serve() as serving:
        yield serving


async def test_a_call_is_one_request_whose_response_is_rendered_by_the_template(
    api: RestApi,
) -> None:
    tool = replace(GET_USER, response_template=TEMPLATE)
    headers = {"Authorization": Value("env", "TOKEN")}
    async with calling(
        spec_of(api.url, tool, headers=headers), {"TOKEN": "s3cret-t0ken"}
    ) as caller:
        assert caller.instance.state == "ready"
        assert list(caller.instance.tools) == ["get_user"]
        text = await caller.text("get_user", userId="a/b", verbose=True, **{"X-Trace": "t ä"})
    assert text == "Name: Ann 0=a 1=b"
    assert (api.last.method, api.last.raw_path) == ("GET", "/users/a%2Fb?verbose=true")
    assert api.last.headers["X-Trace"].encode("utf-8", "surrogateescape").decode() == "t ä"
    assert api.last.headers["Authorization"] == "s3cret-t0ken"
    assert len(api.seen) == 1


async def test_without_a_template_the_result_is_the_response(api: RestApi) -> None:
    async with calling(spec_of(api.url, GET_USER)) as caller:
        answer = json.loads(await caller.text("get_user", userId="7"))
    assert answer == {"data": {"name": "Ann", "tags": ["a", "b"], "id": "7"}, "query": {}}


async def test_the_trace_is_sent_in_headers(api: RestApi) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with calling(spec_of(api.url, GET_USER)) as caller:
        await caller.outcome("get_user", {"traceparent": parent, "tracestate": "a=b"}, userId="1")
    assert (api.last.headers["traceparent"], api.last.headers["tracestate"]) == (parent, "a=b")


@pytest.mark.parametrize("baggage", ["a=1\r\nX-Admin: yes", "a=\0", "a" * 100_000, {"a": 1}, 7])
async def test_baggage_that_no_header_may_be_costs_only_itself(
    api: RestApi, baggage: object
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with calling(spec_of(api.url, GET_USER)) as caller:
        meta = {"traceparent": parent, "baggage": baggage}
        assert not (await caller.outcome("get_user", meta, userId="1")).is_error
    assert api.last.headers["traceparent"] == parent
    assert "baggage" not in api.last.headers


@pytest.mark.parametrize(
    ("status", "more"), [(404, ""), (400, ""), (500, ""), (429, "7"), (503, "7")]
)
async def test_an_error_status_is_an_error_of_the_tool_with_status_and_body(
    api: RestApi, status: int, more: str
) -> None:
    tool = HttpTool("t", "GET", f"/status/{status}", response_template="{{ .x }}")
    async with calling(spec_of(api.url, tool)) as caller:
        result = await caller.result("t")
    lines = result["content"][0]["text"].splitlines()
    assert lines[0].startswith(f"HTTP {status} ")
    assert lines[-1] == f"status {status}"
    assert ("Retry-After: 7" in lines) is bool(more)
    assert result["isError"] is True
    assert result["_meta"]["leaseway/http_status"] == status
    assert result["_meta"].get("leaseway/retry_after", "") == more


async def test_an_empty_body_is_no_failure_of_the_template(api: RestApi) -> None:
    """A model that is told of an error would send what has succeeded again."""
    tool = HttpTool("t", "DELETE", "/status/204", response_template="{{ .x }}")
    async with calling(spec_of(api.url, tool)) as caller:
        outcome = await caller.outcome("t")
        assert not outcome.is_error
        assert b"HTTP 204 No Content" in outcome.payload


async def test_a_failed_template_reports_the_reason_and_the_response(api: RestApi) -> None:
    tool = replace(GET_USER, response_template="a\n{{ .data.name.first }}")
    page = HttpTool("page", "GET", "/html", response_template="{{ . }}")
    large = HttpTool("large", "GET", "/large?size=200000", response_template="{{ .rows.x }}")
    async with calling(spec_of(api.url, tool, page, large)) as caller:
        result = await caller.result("get_user", userId="1")
        text = result["content"][0]["text"]
        assert result["isError"] is True
        assert "a string has no field first, line 2." in text
        assert '{"data": {"name": "Ann"' in text
        assert "the response is not JSON" in await caller.text("page")
        shown = await caller.text("large")
    assert len(shown) < 70_000
    assert "more characters are not shown" in shown


async def test_idempotent_requests_are_retried(api: RestApi) -> None:
    tools = (
        HttpTool("get", "GET", "/flaky", retries=2),
        HttpTool("post", "POST", "/flaky"),
        HttpTool("drop", "PUT", "/drop", retries=1),
    )
    async with calling(spec_of(api.url, *tools)) as caller:
        api.failures, api.retry_after = 2, "0"
        assert await caller.text("get") == '{"ok": true}'
        assert len(api.seen) == 3
        api.failures = 1
        assert "HTTP 503" in await caller.text("post")
        assert len(api.seen) == 4
        api.failures, api.retry_after = 1, "120"  # longer than the maximum
        assert "Retry-After: 120" in await caller.text("get")
        api.failures, api.retry_after = 1, "Sun, 06 Nov 1994 08:49:37 GMT"  # a date that is past
        assert await caller.text("get") == '{"ok": true}'
        api.failures = 1
        assert await caller.text("drop") == '{"ok": true}'
        api.failures = 99
        fault = await caller.fault("drop")
    assert (fault.reason, fault.started) == ("SERVER_LOST", "unknown")


async def test_retries_of_a_server_apply_to_its_idempotent_tools(api: RestApi) -> None:
    tools = (HttpTool("get", "GET", "/flaky"), HttpTool("post", "POST", "/flaky"))
    async with calling(spec_of(api.url, *tools, retries=1)) as caller:
        api.failures, api.retry_after = 1, "0"
        assert await caller.text("get") == '{"ok": true}'
        api.failures = 1
        assert "HTTP 503" in await caller.text("post")


async def test_a_call_to_an_unreachable_server_has_not_started() -> None:
    async with calling(spec_of("http://127.0.0.1:9", GET_USER)) as caller:
        fault = await caller.fault("get_user", userId="1")
    assert (fault.reason, fault.started) == ("SERVER_LOST", "no")
    assert "could not be reached at http://127.0.0.1:9" in fault.message


async def test_a_tool_has_its_own_timeout(api: RestApi) -> None:
    slow = HttpTool("slow", "GET", "/slow", timeout=0.2)
    async with calling(spec_of(api.url, slow)) as caller:
        fault = await caller.fault("slow")
    assert fault.reason == "DEADLINE_EXCEEDED"
    assert "within 0.2 s, the timeout of its tool slow" in fault.message


async def test_a_cancelled_call_cancels_its_request(api: RestApi) -> None:
    slow = HttpTool("slow", "GET", "/slow")
    async with calling(spec_of(api.url, slow)) as caller, asyncio.timeout(BOUND):
        pending, done = caller.start_call("slow")
        await api.waiting.wait()
        assert pending.written
        pending.cancel("enough")
        await api.gone.wait()
        assert not done.done()
        assert caller.instance.in_flight == 0


async def test_close_fails_calls_in_flight_and_rejects_new_ones(api: RestApi) -> None:
    async with calling(spec_of(api.url, HttpTool("slow", "GET", "/slow"))) as caller:
        _, done = caller.start_call("slow")
        async with asyncio.timeout(BOUND):
            await api.waiting.wait()
            await caller.instance.close()
            outcome, late = await done, await caller.outcome("slow")
    assert outcome.fault is not None
    assert late.fault is not None
    assert late.fault.reason == "SERVER_LOST"
    assert caller.listener.closed == [None]


async def test_redirects_are_followed_only_if_configured(api: RestApi) -> None:
    moved = HttpTool("moved", "GET", "/redirect")
    around = HttpTool("around", "GET", "/around")
    post = HttpTool("post", "POST", "/redirect")
    async with calling(spec_of(api.url, moved)) as caller:
        text = await caller.text("moved")
        assert "HTTP 302 Found\nLocation: /users/1" in text
    async with calling(spec_of(api.url, moved, around, post, follow_redirects=True)) as caller:
        assert '"id": "1"' in await caller.text("moved")
        assert "HTTP 302" in await caller.text("post")
        fault = await caller.fault("around")
    assert "redirects that do not end" in fault.message


async def test_a_redirect_to_another_host_has_no_credentials(api: RestApi) -> None:
    moved = HttpTool("moved", "GET", "/redirect", parameters=(TRACE,))
    headers = {"Authorization": Value("literal", "s3cret-t0ken")}
    async with rest_api.serve() as other:
        api.elsewhere = other.url
        spec = spec_of(api.url, moved, headers=headers, follow_redirects=True)
        async with calling(spec) as caller:
            assert '"id": "1"' in await caller.text("moved", **{"X-Trace": "mine"})
        assert api.last.headers["Authorization"] == "s3cret-t0ken"
        assert not {"Authorization", "X-Trace"} & set(other.last.headers)


async def test_a_redirect_that_cannot_be_followed_is_the_response(api: RestApi) -> None:
    moved = HttpTool("moved", "GET", "/redirect")
    async with calling(spec_of(api.url, moved, follow_redirects=True)) as caller:
        api.elsewhere = "ftp://127.0.0.1"
        text = await caller.text("moved")
    assert "HTTP 302 Found\nLocation: ftp://127.0.0.1/users/1" in text


@pytest.mark.parametrize("target", ["http://169.254.169.254", "http://[fd00:ec2::254]"])
async def test_a_redirect_further_inside_is_not_followed(api: RestApi, target: str) -> None:
    moved = HttpTool("moved", "GET", "/redirect")
    async with calling(spec_of(api.url, moved, follow_redirects=True)) as caller:
        api.elsewhere = target
        fault = await caller.fault("moved")
    assert (fault.reason, fault.started) == ("SERVER_ERROR", "yes")
    assert f"redirects to {target}, which is inside this network" in fault.message


async def test_a_name_that_leads_further_inside_at_the_connection_is_not_followed(
    api: RestApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = socket.getaddrinfo, list[str]()

    def find(host: Any, *args: Any, **options: Any) -> Any:
        asked.append(host)
        return real("169.254.169.254" if host == "rebound.example" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    moved = HttpTool("moved", "GET", "/redirect", retries=2)
    async with calling(spec_of(api.url, moved, follow_redirects=True)) as caller:
        api.elsewhere = "http://rebound.example"
        fault = await caller.fault("moved")
    assert "redirects to http://rebound.example, which is inside this network" in fault.message
    # An answer to an earlier question would say nothing about the address of the connection.
    assert asked.count("rebound.example") == 1


async def test_an_address_with_spaces_and_umlauts_is_encoded(api: RestApi) -> None:
    tool = HttpTool("t", "GET", "/x")
    own = HttpTool("own", "GET", "/x", base_url="/a ü")
    async with calling(spec_of(f"{api.url}/b ü%20", tool, own)) as caller:
        await caller.result("t")
        await caller.result("own")
    assert [seen.raw_path for seen in api.seen] == ["/b%20%C3%BC%20/x", "/a%20%C3%BC/x"]


async def test_a_host_that_is_redirected_to_is_named_if_it_fails(api: RestApi) -> None:
    moved = HttpTool("moved", "GET", "/redirect")
    api.elsewhere = "http://127.0.0.1:9"
    async with calling(spec_of(api.url, moved, follow_redirects=True)) as caller:
        fault = await caller.fault("moved")
    assert "could not be reached at http://127.0.0.1:9" in fault.message


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_a_response_that_cannot_be_decompressed_says_so(api: RestApi, encoding: str) -> None:
    packed = HttpTool("packed", "GET", f"/packed/{encoding}")
    async with calling(spec_of(api.url, packed)) as caller:
        fault = await caller.fault("packed")
    assert "its response cannot be decompressed" in fault.message


async def test_media_and_text_responses(api: RestApi) -> None:
    names = ("image", "bytes", "text", "empty", "html")
    tools = [HttpTool(name, "GET", f"/{name}") for name in names]
    async with calling(spec_of(api.url, *tools)) as caller:
        image = (await caller.result("image"))["content"][0]
        assert (image["type"], image["mimeType"]) == ("image", "image/png")
        assert base64.b64decode(image["data"]) == rest_api.PIXEL
        blob = (await caller.result("bytes"))["content"][0]["resource"]
        assert (base64.b64decode(blob["blob"]), blob["mimeType"]) == (b"\0\1\2", "application/zip")
        assert await caller.text("text") == "größe"
        assert await caller.text("empty") == "HTTP 204 No Content"
        assert await caller.text("html") == "<p>not JSON</p>"


async def test_a_response_above_the_limit_fails(api: RestApi) -> None:
    large = HttpTool("large", "GET", "/large", parameters=(HttpParameter("size", "query"),))
    async with calling(spec_of(api.url, large)) as caller:
        assert len(await caller.text("large", size=1_000_000)) > 1_000_000
        fault = await caller.fault("large", size=20_000_000)
    assert fault.reason == "RESULT_TOO_LARGE"


async def test_json_and_form_bodies_are_sent(api: RestApi) -> None:
    body = (HttpParameter("a", "body"), HttpParameter("b", "body"))
    tools = (
        HttpTool("json", "POST", "/echo", parameters=body),
        HttpTool("form", "POST", "/echo", parameters=body, body="form"),
    )
    async with calling(spec_of(api.url, *tools)) as caller:
        assert json.loads(await caller.text("json", a={"x": [1]}, b="ä")) == {
            "a": {"x": [1]},
            "b": "ä",
        }
        assert api.last.headers["Content-Type"] == "application/json"
        assert await caller.text("form", a=1, b="x&y") == "a=1&b=x%26y"


async def test_invalid_arguments_and_unknown_tools_send_no_request(api: RestApi) -> None:
    async with calling(spec_of(api.url, GET_USER)) as caller:
        fault = await caller.fault("get_user", userId="..")
        assert fault.reason == "INVALID_ARGUMENTS"
        unknown = await caller.outcome("nothing")
        assert unknown.fault is not None
        assert unknown.fault.reason == "TOOL_NOT_FOUND"
    assert not api.seen


async def test_a_failed_start_has_a_reason() -> None:
    headers = {"Authorization": Value("env", "NOT_SET")}
    for spec, problem, words in (
        (spec_of("http://127.0.0.1:9", GET_USER, headers=headers), "MISSING_REFERENCE", "NOT_SET"),
        (spec_of("${HOST:-ftp://x}", GET_USER), "START_FAILED", "base_url is not an http"),
        (
            spec_of("http://127.0.0.1:9", replace(GET_USER, response_template="{{ if }}")),
            "START_FAILED",
            "tool get_user does not compile",
        ),
    ):
        with pytest.raises(Fault, match=words) as raised:
            async with calling(spec):
                raise AssertionError("it started")
        assert raised.value.metadata["problem"] == problem


KEY = "k/e y&%=ä-0123456789"
BY_KEY = Credential("query", "api key", Value("env", "KEY"))


async def test_credentials_are_sent_by_their_kind(api: RestApi) -> None:
    security = {
        "q": BY_KEY,
        "b": Credential("basic", "ann", Value("env", "PASSWORD")),
        "h": Credential("header", "X-Key", Value("env", "KEY2")),
        "c": Credential("cookie", "sid", Value("env", "KEY2")),
    }
    tool = replace(GET_USER, endpoint="/users/{userId}?v=1")
    values = {"KEY": KEY, "KEY2": "second", "PASSWORD": "p:w"}
    async with calling(spec_of(api.url, tool, security=security), values) as caller:
        await caller.text("get_user", userId="7", verbose=True)
        sent = caller.instance.resolved_values
    assert api.last.query == [("v", "1"), ("verbose", "true"), ("api key", KEY)]
    assert api.last.headers["Authorization"] == "Basic " + base64.b64encode(b"ann:p:w").decode()
    assert (api.last.headers["X-Key"], api.last.headers["Cookie"]) == ("second", "sid=second")
    assert KEY not in repr(sent)


async def test_cookies_of_a_call_are_sent_beside_the_credential(api: RestApi) -> None:
    cookie = HttpParameter("theme", "cookie", '{"type": "string"}')
    tool = replace(GET_USER, parameters=(*GET_USER.parameters, cookie))
    security = {"c": Credential("cookie", "sid", Value("env", "KEY"))}
    async with calling(spec_of(api.url, tool, security=security), {"KEY": KEY}) as caller:
        await caller.text("get_user", userId="7", theme="dark; sid=forged")
    assert api.last.headers["Cookie"] == f"sid={KEY}; theme=dark%3B%20sid=forged"


async def test_a_tool_sends_the_credentials_that_it_names(api: RestApi) -> None:
    security = {
        "q": BY_KEY,
        "user": Credential("bearer", "", Value("literal", "u1")),
        "admin": Credential("bearer", "", Value("literal", "a1")),
    }
    tools = (
        replace(GET_USER, security=("user",)),
        replace(GET_USER, name="admin", security=("admin", "q")),
    )
    async with calling(spec_of(api.url, *tools, security=security), {"KEY": KEY}) as caller:
        await caller.text("get_user", userId="7")
        assert (api.last.headers["Authorization"], api.last.query) == ("Bearer u1", [])
        await caller.text("admin", userId="7")
        assert (api.last.headers["Authorization"], len(api.last.query)) == ("Bearer a1", 1)


async def test_an_anonymous_tool_sends_headers_and_no_credential(api: RestApi) -> None:
    security = {"q": BY_KEY, "b": Credential("bearer", "", Value("env", "KEY"))}
    headers = {"X-Team": Value("literal", "blue")}
    tools = (GET_USER, replace(GET_USER, name="open", security=()))
    spec = spec_of(api.url, *tools, headers=headers, security=security)
    async with calling(spec, {"KEY": KEY}) as caller:
        await caller.text("get_user", userId="7")
        assert api.last.headers["Authorization"] == f"Bearer {KEY}"
        await caller.text("open", userId="7")
    assert "Authorization" not in api.last.headers
    assert api.last.query == []
    assert api.last.headers["X-Team"] == "blue"


async def test_results_and_errors_do_not_show_credentials_in_the_query(
    api: RestApi,
) -> None:
    """Many servers repeat a request's URL in their response."""
    tools = (
        HttpTool("tell", "GET", "/tell"),
        HttpTool("made", "GET", "/tell?as=text", response_template="{{ .x }}"),
    )
    spec = spec_of(api.url, *tools, security={"q": BY_KEY})
    async with calling(spec, {"KEY": KEY}) as caller:
        for tool in tools:
            outcome = await caller.outcome(tool.name)
            assert outcome.is_error
            assert b"[hidden]" in outcome.payload
            assert b"0123456789" not in outcome.payload
    gone = spec_of("http://127.0.0.1:1", *tools, security={"q": BY_KEY})
    async with calling(gone, {"KEY": KEY}) as caller:
        fault = (await caller.outcome("tell")).fault
    assert fault is not None
    assert "0123456789" not in f"{fault!r} {fault} {fault.__cause__!r}"


async def test_a_credential_in_the_query_is_sent_to_the_configured_host_only(api: RestApi) -> None:
    tool = HttpTool("go", "GET", "/redirect")
    spec = spec_of(api.url, tool, security={"q": BY_KEY}, follow_redirects=True)
    async with rest_api.serve() as other, calling(spec, {"KEY": KEY}) as caller:
        await caller.text("go")  # to the same host
        assert dict(api.last.query) == {"api key": KEY}
        api.elsewhere = other.url
        await caller.text("go")
        assert other.last.path == "/users/1"
        assert other.last.query == []


async def test_a_body_has_the_content_type_of_its_tool(api: RestApi) -> None:
    body = HttpParameter("body", "body", "{}", is_body=True)
    tool = HttpTool(
        "t", "PATCH", "/users/1", parameters=(body,), content_type="application/merge-patch+json"
    )
    async with calling(spec_of(api.url, tool)) as caller:
        await caller.text("t", body={"a": None})
    assert api.last.headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(api.last.body) == {"a": None}


async def test_a_request_without_a_body_says_no_content_type(api: RestApi) -> None:
    async with calling(spec_of(api.url, HttpTool("t", "POST", "/users/1"))) as caller:
        await caller.outcome("t")
    assert api.last.method == "POST"
    assert "Content-Type" not in api.last.headers


REF = "artifacts/mcp/s/t/20260102T030405678Z-01234567-89ab-8cde-8f01-23456789abcd.png"
FILE = HttpParameter("file", "body", '{"type": "string", "contentEncoding": "base64"}')
FILES = HttpParameter(
    "files", "body", '{"type": "array", "items": {"type": "string", "format": "binary"}}'
)


async def test_an_artifact_reference_is_replaced_by_its_bytes(api: RestApi) -> None:
    reads: list[tuple[str, int]] = []

    async def read(ref: str, limit: int) -> bytes:
        reads.append((ref, limit))
        return b"\x89PNG\xff"

    def request(name: str, **arguments: Any) -> ToolRequest:
        return ToolRequest(name, b"", json.dumps(arguments).encode(), read_artifact=read)

    tools = (
        HttpTool("put", "PUT", "/users/1", parameters=(FILE,), body="binary"),
        HttpTool("post", "POST", "/users/1", parameters=(FILE, FILES), body="multipart"),
        HttpTool("tell", "POST", "/users/1", parameters=(HttpParameter("file", "body"),)),
    )
    async with calling(spec_of(api.url, *tools)) as caller:

        async def call(name: str, **arguments: Any) -> Outcome:
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            caller.instance.call(request(name, **arguments), done.set_result)
            async with asyncio.timeout(BOUND):
                return await done

        assert (await call("put", file=REF)).fault is None
        assert api.last.body == b"\x89PNG\xff"
        assert (await call("post", file="AAEC", files=[REF, "AwQ=", REF])).fault is None
        assert api.last.body.count(b"\x89PNG\xff") == 2
        assert b"\x00\x01\x02" in api.last.body
        assert [ref for ref, _ in reads] == [REF, REF, REF]
        assert reads[2][1] == reads[1][1] - 5  # they share one limit
        assert (await call("tell", file=REF)).fault is None
        assert json.loads(api.last.body) == {"file": REF}  # not a parameter with bytes
        refused = (await call("put", file="artifacts/mcp/no/reference")).fault
        assert refused is not None
        assert "neither base64, a data: URL nor an artifact's reference" in refused.message
        assert b"or the reference of an artifact" in caller.instance.tools["put"]


async def test_whole_numbers_are_sent_without_a_fraction_wherever_they_are(api: RestApi) -> None:
    body = HttpParameter("body", "body", "{}", is_body=True)
    echo = HttpTool("echo", "POST", "/echo", parameters=(body,))
    async with calling(spec_of(api.url, echo)) as caller:
        await caller.result("echo", body={"count": 5.0, "sizes": [1e3, 0.5, 1e300]})
    assert api.last.body == b'{"count":5,"sizes":[1000,0.5,1e300]}'
