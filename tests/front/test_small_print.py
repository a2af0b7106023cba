"""Clauses of the specification that differ between eras, or that few clients rely on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.front.harness import ACCEPT, MODERN, VERSION, Host, front, host

from leaseway.data_plane.core.calls.call import Outcome
from leaseway.front.lists.definitions import LIST_TTL
from leaseway.front.protocol.handshake import SERVER_INFO, SERVER_INFO_KEY
from leaseway.sdk import ServerError
from leaseway.sdk.testing import CallContext, FakeLeaseway, instance
from leaseway.wire.bounds import MAX_JSON_RPC_BATCH

MODERN_HEADERS = {**ACCEPT, "MCP-Protocol-Version": "2026-07-28"}
ERAS = pytest.mark.parametrize("meta", [{}, MODERN], ids=["legacy", "modern"])


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        notes = fake.server("notes")
        notes.resource("note://today", "Rain.")

        @notes.tool
        def greet() -> str:
            """Greet."""
            return "Hello."

        @notes.prompt()
        def ask() -> str:
            """Ask."""
            return "Why?"

        yield fake


async def exchange(client: Host, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    """Send a body as it is; return the status and the JSON of the response."""
    sent = {"Content-Type": "application/json", **headers}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.http.post(client.url, data=data, headers=sent) as answer:
        return answer.status, await answer.json()


async def error_of(
    client: Host, method: str, params: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    """Send a request that fails; return its error."""
    if VERSION in params.get("_meta", {}):
        headers = {**MODERN_HEADERS, **headers, "Mcp-Method": method}
        if named := params.get("name", params.get("uri")):
            headers["Mcp-Name"] = named
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    _, response = await exchange(client, message, {**ACCEPT, **headers})
    error: dict[str, Any] = response["error"]
    return error


def lease(ctx: CallContext) -> str:
    """Return the lease."""
    return ctx.lease_id


@ERAS
async def test_a_resource_that_no_server_has_is_the_error_of_the_clients_era(
    fake: FakeLeaseway, meta: dict[str, Any]
) -> None:
    async with front(fake) as url, host(url) as client:
        error = await error_of(client, "resources/read", {"uri": "x://y", "_meta": meta}, {})
        assert error["code"] == (-32602 if meta else -32002)
        assert error["data"]["uri"] == "x://y"
        if not meta:
            session = await client.initialize()
            error = await error_of(client, "resources/subscribe", {"uri": "x://y"}, session)
            assert error["code"] == -32002


@ERAS
@pytest.mark.parametrize(
    ("code", "data", "text"),
    [
        (-32002, None, "Resource not found"),
        (-32002, {"uri": "note://gone"}, "gone"),
        (-32602, {"uri": "note://gone"}, "gone"),
        (-32602, None, "Resource note://today not found"),
        (-32602, None, "Unknown resource: note://today"),
    ],
)
async def test_a_server_that_misses_a_resource_is_quoted_with_the_code_of_the_clients_era(
    fake: FakeLeaseway, meta: dict[str, Any], code: int, data: Any, text: str
) -> None:
    def gone() -> str:
        quoted = {"code": str(code), "message": text}
        raise ServerError(text, metadata=quoted | ({"data": json.dumps(data)} if data else {}))

    fake.server("gone").resource("note://gone", gone)
    async with front(fake) as url, host(url) as client:
        error = await error_of(client, "resources/read", {"uri": "note://gone", "_meta": meta}, {})
        assert error["code"] == (-32602 if meta else -32002)


@ERAS
@pytest.mark.parametrize("token", [True, 1.5, [], {}])
async def test_a_progress_token_of_another_type_is_refused(
    fake: FakeLeaseway, meta: dict[str, Any], token: Any
) -> None:
    async with front(fake) as url, host(url) as client:
        params = {"name": "greet", "_meta": {**meta, "progressToken": token}}
        error = await error_of(client, "tools/call", params, {})
        assert error["code"] == -32602
        assert "progressToken" in error["message"]


@ERAS
async def test_what_is_null_in_meta_is_not_asked_for(
    fake: FakeLeaseway, meta: dict[str, Any]
) -> None:
    async with front(fake) as url, host(url) as client:
        nulls = {"progressToken": None, "io.modelcontextprotocol/logLevel": None}
        result = await client.send("tools/call", {"name": "greet", "_meta": {**meta, **nulls}})
        assert not result.get("isError"), result


@pytest.mark.parametrize("level", [7, "loud", ["info"], {}])
async def test_an_unknown_log_level_is_refused(fake: FakeLeaseway, level: Any) -> None:
    async with front(fake) as url, host(url) as client:
        meta = {**MODERN, "io.modelcontextprotocol/logLevel": level}
        error = await error_of(client, "tools/call", {"name": "greet", "_meta": meta}, {})
        assert error["code"] == -32602
        session = await client.initialize()
        error = await error_of(client, "logging/setLevel", {"level": level}, session)
        assert error["code"] == -32602


async def test_every_modern_result_names_the_server_and_no_older_one_does(
    fake: FakeLeaseway,
) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("tools/list", {}),
        ("tools/call", {"name": "greet"}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "ask"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "note://today"}),
    ]
    async with front(fake) as url, host(url) as client:
        for method, params in [*requests, ("server/discover", {})]:
            headers = {"Mcp-Name": params["uri"]} if "uri" in params else {}
            result = await client.send(method, {**params, "_meta": MODERN}, headers)
            assert result["_meta"][SERVER_INFO_KEY] == SERVER_INFO, method
            assert result["resultType"] == "complete"
        for method, params in requests:
            result = await client.send(method, params)
            assert not result.keys() & {"resultType", "ttlMs", "cacheScope", "_meta"}, method


async def test_lists_hold_for_the_time_that_a_change_takes_to_arrive(fake: FakeLeaseway) -> None:
    fake.server("counter", stateful=True).tool(lease)
    kinds = ("tools", "prompts", "resources", "resources/templates")
    async with front(fake) as url, host(url) as client:
        for kind in kinds:
            result = await client.send(f"{kind}/list", {"_meta": MODERN})
            assert (result["ttlMs"], result["cacheScope"]) == (LIST_TTL, "private"), kind


@pytest.mark.parametrize(
    "accept",
    [
        "Application/JSON, Text/Event-Stream",
        "TEXT/EVENT-STREAM;q=0.5 , APPLICATION/*",
        "*/*",
    ],
)
async def test_media_types_are_compared_without_case(fake: FakeLeaseway, accept: str) -> None:
    async with front(fake) as url, host(url) as client:
        headers = {"Accept": accept, "Content-Type": "Application/JSON; Charset=UTF-8"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await exchange(client, message, headers))[0] == 200


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", ""])
async def test_a_client_that_accepts_neither_json_nor_streams_is_refused(
    fake: FakeLeaseway, accept: str
) -> None:
    async with front(fake) as url, host(url) as client:
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await exchange(client, message, {"Accept": accept}))[0] == 406


@pytest.mark.parametrize("body", [b"{", b"7", b'{"jsonrpc":"2.0","id":{},"method":"x"}'])
async def test_an_error_without_an_id_has_none_in_the_modern_era(
    fake: FakeLeaseway, body: bytes
) -> None:
    async with front(fake) as url, host(url) as client:
        _, older = await exchange(client, body, ACCEPT)
        assert older["id"] is None
        status, modern = await exchange(client, body, MODERN_HEADERS)
        assert status == 400
        assert "id" not in modern
        assert modern["error"]["code"] == older["error"]["code"]
        _, refused = await exchange(client, body, {**MODERN_HEADERS, "Accept": "text/html"})
        assert "id" not in refused


@pytest.mark.parametrize("headers", [ACCEPT, MODERN_HEADERS])
async def test_a_refusal_after_the_body_was_read_has_the_id_of_its_request(
    fake: FakeLeaseway, headers: dict[str, str]
) -> None:
    meta = MODERN if headers is MODERN_HEADERS else {}
    message = request("a", "tools/call", name="greet", _meta=meta)
    routing = {"Mcp-Method": "tools/call", "Mcp-Name": "greet"}
    unknown = {**headers, **routing, "Leaseway-Session": "x"}
    async with front(fake) as url, host(url) as client:
        status, refused = await exchange(
            client, message, {**headers, **unknown, "Mcp-Name": "greet"}
        )
        assert (status, refused["id"]) == (404, "a")


async def test_a_message_without_a_version_of_json_rpc_is_refused_with_its_id(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        _, refused = await exchange(client, {"id": 7, "method": "ping"}, ACCEPT)
        assert (refused["id"], refused["error"]["code"]) == (7, -32600)


def request(request_id: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


async def test_a_batch_is_answered_as_one_in_the_version_that_has_batches(
    fake: FakeLeaseway,
) -> None:
    batch = [
        request(1, "ping"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"id": "no version", "method": "ping"},
        7,
        request("call", "tools/call", name="greet"),
        request(2, "initialize", protocolVersion="2025-03-26"),
        request(3, "unknown/method"),
    ]
    async with front(fake) as url, host(url) as client:
        session = await client.initialize(version="2025-03-26")
        for headers in (session, {}, {"MCP-Protocol-Version": "2025-03-26"}):
            status, responses = await exchange(client, batch, {**ACCEPT, **headers})
            assert status == 200
            found = {response["id"]: response for response in responses}
            assert found.keys() == {1, "no version", None, "call", 2, 3}
            assert found["call"]["result"]["content"][0]["text"] == "Hello."
            assert found[1]["result"] == {}
            codes = [found[name]["error"]["code"] for name in ("no version", None, 2, 3)]
            assert codes == [-32600, -32600, -32600, -32601]


async def test_other_versions_have_no_batches(fake: FakeLeaseway) -> None:
    batch = [request(1, "ping")]
    async with front(fake) as url, host(url) as client:
        later = await client.initialize(version="2025-06-18")
        for headers in (later, {"MCP-Protocol-Version": "2025-11-25"}, MODERN_HEADERS):
            _, refused = await exchange(client, batch, {**ACCEPT, **headers})
            assert refused["error"]["code"] == -32600


@pytest.mark.parametrize("length", [0, MAX_JSON_RPC_BATCH + 1])
async def test_a_batch_has_a_bounded_number_of_messages(fake: FakeLeaseway, length: int) -> None:
    async with front(fake) as url, host(url) as client:
        _, refused = await exchange(client, [request(1, "ping")] * length, ACCEPT)
        assert refused["error"]["code"] == -32600
        assert f"1 to {MAX_JSON_RPC_BATCH}" in refused["error"]["message"]


async def test_a_batch_without_requests_is_accepted(fake: FakeLeaseway) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    async with front(fake) as url, host(url) as client:
        session = await client.initialize(version="2025-03-26")
        sent = {**ACCEPT, **session}
        async with client.http.post(url, json=[note, note], headers=sent) as answer:
            assert (answer.status, await answer.read()) == (202, b"")


async def test_a_batch_whose_call_reports_progress_is_a_stream_with_all_responses(
    fake: FakeLeaseway,
) -> None:
    @fake.server("slow").tool
    def work(ctx: CallContext) -> str:
        ctx.progress(1, 2, "half")
        return "done"

    meta = {"progressToken": "p"}
    batch = [request(1, "ping"), request(2, "tools/call", name="work", _meta=meta)]
    async with (
        front(fake) as url,
        host(url) as client,
        client.http.post(url, json=batch, headers=ACCEPT) as answer,
    ):
        assert answer.content_type == "text/event-stream"
        lines = (await answer.text()).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert events[0]["params"] == {
        "progressToken": "p",
        "progress": 1,
        "total": 2,
        "message": "half",
    }
    assert {event["id"] for event in events[1:]} == {1, 2}


async def test_the_reason_of_a_cancellation_reaches_the_server(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: asyncio.Queue[str] = asyncio.Queue()
    loop, started = asyncio.get_running_loop(), asyncio.Event()

    def record(call: Any, reason: str) -> None:
        loop.call_soon_threadsafe(reasons.put_nowait, reason)
        call.end(Outcome(b""))

    monkeypatch.setattr(instance._ActiveRequest, "cancel", record)

    @fake.server("slow").tool
    async def wait() -> str:
        loop.call_soon_threadsafe(started.set)
        await asyncio.Event().wait()
        return "never"

    async with asyncio.timeout(BOUND), front(fake) as url, host(url) as client:
        headers = {**ACCEPT, **await client.initialize()}
        call = client.http.post(url, json=request(7, "tools/call", name="wait"), headers=headers)
        calling = asyncio.ensure_future(call)
        await started.wait()
        cancelled = {"requestId": 7, "reason": "The user changed her mind."}
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
        async with client.http.post(url, json=note, headers=headers) as answer:
            assert answer.status == 202
        assert await reasons.get() == "The user changed her mind."
        (await calling).release()
