"""A shared server whose session is gone gets a new one, by whatever wording it says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, until

from leaseway.data_plane.kinds.remote.http import connection
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.data_plane.mcp.protocol.messages import log_level
from leaseway.data_plane.mcp.protocol.messages.pending import InvalidResponse, RawRequest
from leaseway.wire.errors import Reason
from leaseway.wire.timing.backoff import Backoff

Refuse = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
TOOLS = [{"name": "echo", "inputSchema": {"type": "object"}}]
CACHE: dict[str, Any] = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}


def status(code: int, body: str = "", kind: str = "text/plain") -> Refuse:
    """Refuse by a status."""

    async def refuse(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=code, text=body, content_type=kind)

    return refuse


def rpc(code: int, message: str, http: int = 200, *, has_id: bool = True) -> Refuse:
    """Refuse by a JSON-RPC error."""

    async def refuse(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        error = {"code": code, "message": message}
        key = request["id"] if has_id else None
        return web.json_response({"jsonrpc": "2.0", "id": key, "error": error}, status=http)

    return refuse


async def event_error(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    """Refuse by an error in an event stream."""
    error = {"code": -32000, "message": "unknown connection"}
    answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"event: message\ndata: {answer}\n\n".encode())
    return response


async def log_in(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Send the client to a page for people."""
    return web.Response(status=302, headers={"Location": "http://127.0.0.2:1/login"})


async def text_error(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Answer with an error that is not JSON-RPC."""
    return web.json_response({"error": "no such session"})


async def error_event(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Send an event of a type that MCP does not have."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"event: error\ndata: session not found\n\n")
    return response


async def empty_stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """End the stream without an answer."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def cut(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Cut the connection."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def hang(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(600)
    raise AssertionError


REJECTIONS = {
    "404": status(404),
    "400 session id": rpc(-32000, "Bad Request: No valid session ID provided", 400, has_id=False),
    "400 not initialized": rpc(-32000, "Bad Request: Server not initialized", 400, has_id=False),
    "401": status(401, '{"error":"invalid_session"}', "application/json"),
    "403": status(403, "Forbidden"),
    "410": status(410),
    "409": status(409, "stale"),
    "422": status(422, "<html>unprocessable</html>", "text/html"),
    "-32000 with 200": rpc(-32000, "Session terminated"),
    "-32600 with 200": rpc(-32600, "Session not found"),
    "-32602 with 200": rpc(-32602, "Invalid request parameters"),
    "-32001 with 200": rpc(-32001, "Session expired"),
    "-32601 with 404": rpc(-32601, "no such session", 404),
    "an event": event_error,
    "a redirect": log_in,
}
"""Refusals after which the call is sent again: it certainly did not start."""

DOUBTS = {
    "500": status(500, "Internal Server Error"),
    "500 with JSON-RPC": rpc(-32603, "boom", 500),
    "502": status(502, "<html>bad gateway</html>", "text/html"),
    "503": status(503),
    "-32603 with 200": rpc(-32603, "Internal error"),
    "an empty body": status(200, "", "application/json"),
    "202": status(202),
    "204": status(204),
    "a page": status(200, "<html>log in</html>", "text/html"),
    "an empty stream": empty_stream,
    "an error without JSON-RPC": text_error,
    "an event of another type": error_event,
    "206 with a page": status(206, "<p>", "text/html"),
    "a cut connection": cut,
}
"""Refusals of which nobody knows whether the call had started."""

RATE_LIMITS = {
    "a text": status(429, "slow down"),
    "JSON-RPC": rpc(-32004, "slow down", 429),
    "JSON-RPC without an id": rpc(-32004, "slow down", 429, has_id=False),
}
"""What servers answer that want fewer requests."""


def later(code: int, *, has_rpc: bool = True) -> Refuse:
    """Refuse until later."""

    async def refuse(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        error = {"code": -32004, "message": "later"}
        answer = {"jsonrpc": "2.0", "id": request["id"], "error": error}
        text = json.dumps(answer) if has_rpc else "later"
        return web.Response(status=code, text=text, headers={"Retry-After": "0"})

    return refuse


class Server:
    """A server with sessions; a legacy one, unless it becomes modern."""

    def __init__(self) -> None:
        self.refuse: Refuse = status(404)
        self.current = ""
        self.opened = 0
        self.requests: list[str] = []
        self.called: list[str] = []
        self.refuses_lists = False
        self.refuses_initialize: Refuse | None = None
        self.refuses_discover: Refuse | None = None
        self.is_modern = False
        self.keeps_sessions = True
        self.misrouted = 0
        self.has_ids = True
        self.capabilities: dict[str, Any] = {"tools": {}}

    def becomes_modern(self) -> None:
        """Serve without `initialize` and sessions."""
        self.is_modern, self.has_ids, self.current = True, False, "any"

    def forget(self) -> None:
        """Restart the server, as its client sees it."""
        self.current = ""

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer a message."""
        message = await request.json()
        method, key = message["method"], message.get("id")
        self.requests.append(method)
        if method == "initialize":
            return await self.initialize(request, message)
        if key is None:
            return web.Response(status=202)
        if method == "server/discover":
            return await self.discover(request, message)
        if method == "tools/call" and self.misrouted:
            self.misrouted -= 1
            return web.Response(status=404, text="default backend")
        known = request.headers.get("mcp-session-id") == self.current or not self.has_ids
        if not known or not self.current:
            return await self.refuse(request, message)
        if method == "tools/list" and self.refuses_lists:
            return await self.refuse(request, message)
        if method == "tools/list":
            return self.result(key, {"tools": TOOLS, **CACHE})
        if method == "tools/call":
            said = message["params"]["arguments"].get("text", "")
            if said == "missing":
                return web.Response(status=404, text="no such document")
            if said == "bad":
                return await rpc(-32602, "Invalid request parameters")(request, message)
            self.called.append(said)
            return self.result(key, {"content": [{"type": "text", "text": said}]})
        return self.result(key, {})

    async def discover(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Answer the greeting of the modern era, the second time if it is refused first."""
        refuse, self.refuses_discover = self.refuses_discover, None
        if refuse is None and not self.is_modern:
            refuse = rpc(-32601, "Method not found")
        if refuse is not None:
            return await refuse(request, message)
        result = {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities, **CACHE}
        return self.result(message["id"], result)

    async def initialize(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Open a session."""
        if self.refuses_initialize is not None:
            return await self.refuses_initialize(request, message)
        self.opened += 1
        name = f"session-{self.opened}"
        self.current = name if self.keeps_sessions or self.opened == 1 else "another"
        info = {"capabilities": self.capabilities, "serverInfo": {"name": "s", "version": "0"}}
        response = self.result(message["id"], {"protocolVersion": "2025-06-18", **info})
        if self.has_ids:
            response.headers["mcp-session-id"] = name
        return response

    def result(self, key: object, result: dict[str, Any]) -> web.Response:
        """Return a result."""
        return web.json_response({"jsonrpc": "2.0", "id": key, "result": result})


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def url(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    async with TestServer(app) as running:
        yield str(running.make_url("/mcp"))


async def shared(bench: Bench, url: str, **more: Any) -> Instance:
    return await bench.start(bench.http_spec(url, truely_stateless=True), **more)


def peer_of(instance: Instance) -> Peer:
    assert instance._peer is not None
    return instance._peer


async def echo(bench: Bench, instance: Instance, text: str) -> str:
    return await bench.text(instance, "echo", {"text": text})


@pytest.mark.parametrize("how", REJECTIONS)
async def test_a_call_that_was_rejected_with_its_session_is_sent_again_in_a_new_one(
    bench: Bench, server: Server, url: str, how: str
) -> None:
    instance = await shared(bench, url)
    server.refuse = REJECTIONS[how]
    for number in (2, 3):
        server.forget()
        texts = [f"{number} {n}" for n in range(20)]
        answers = (echo(bench, instance, text) for text in texts)
        assert await asyncio.gather(*answers) == texts
        assert server.opened == number
    assert instance.state == "ready"
    assert sorted(server.called) == sorted({*server.called})


async def test_a_call_that_is_sent_again_follows_its_log_level(
    bench: Bench, server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_level, "PATIENCE", BOUND)
    server.capabilities["logging"] = {}
    instance = await shared(bench, url)
    for _ in range(2):
        server.forget()
        server.requests.clear()
        wants: dict[str, Any] = {"on_log": lambda *_: None, "log_level": "debug"}
        calls = [bench.start_call(instance, "echo", {"text": "on"}, **wants) for _ in range(3)]
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(outcome for _, outcome in calls))
        renewed = server.requests[server.requests.index("notifications/initialized") :]
        sent = [method for method in renewed if method in ("logging/setLevel", "tools/call")]
        assert sent[-4:] == ["logging/setLevel", *["tools/call"] * 3]


@pytest.mark.parametrize("how", DOUBTS)
async def test_a_call_that_may_have_started_is_not_sent_again_but_a_new_session_opens(
    bench: Bench, server: Server, url: str, how: str
) -> None:
    instance = await shared(bench, url)
    server.refuse = DOUBTS[how]
    server.forget()
    fault = await bench.call_fault(instance, "echo", {"text": "one"})
    assert fault.started != "no"
    await until(lambda: server.opened == 2)
    assert await echo(bench, instance, "on") == "on"
    assert server.called == ["on"]
    assert instance.state == "ready"


async def test_a_server_without_session_ids_is_initialized_again(
    bench: Bench, server: Server, url: str
) -> None:
    server.has_ids = False
    instance = await shared(bench, url)
    server.refuse = REJECTIONS["400 not initialized"]
    for number in (2, 3):
        server.forget()
        assert (
            await asyncio.gather(*(echo(bench, instance, "on") for _ in range(20))) == ["on"] * 20
        )
        assert server.opened == number


async def test_a_lease_ends_if_its_server_refuses_everything_for_too_long(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await bench.start(bench.http_spec(url), patience=Patience(answer=0.3))
    server.refuse = DOUBTS["500"]
    server.forget()
    await bench.call_fault(instance, "echo", {"text": "one"})
    closed, fault = await bench.next_closed()
    assert closed is instance
    assert fault is not None
    assert "refuses every request" in fault.message
    assert "HTTP status 500" in fault.message
    assert server.opened == 1


async def test_a_session_whose_requests_hang_is_replaced_after_a_timeout(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await shared(bench, url, patience=Patience(answer=0.3))
    server.refuse = hang
    server.forget()
    call, _ = bench.start_call(instance, "echo", {"text": "one"})
    await bench.written(call)
    call.cancel("the deadline has passed")
    closed, fault = await bench.next_closed()  # its supervisor starts the next one
    assert closed is instance
    assert fault is not None


@pytest.mark.parametrize("leased", [True, False])
async def test_errors_of_tools_do_not_touch_the_session(
    bench: Bench, server: Server, url: str, leased: bool
) -> None:
    instance = await bench.start(bench.http_spec(url, truely_stateless=not leased))
    server.requests.clear()
    faults = [
        await bench.call_fault(instance, "echo", {"text": "bad"}),
        *await asyncio.gather(
            *(bench.call_fault(instance, "echo", {"text": "bad"}) for _ in range(100))
        ),
    ]
    assert {(fault.reason, fault.started) for fault in faults} == {(Reason.SERVER_ERROR, "yes")}
    assert server.opened == 1
    # The cheap requests are few, and none is sent for each error.
    assert server.requests.count("tools/list") <= 10
    assert await echo(bench, instance, "on") == "on"


@pytest.mark.parametrize("leased", [True, False])
async def test_a_404_that_only_one_request_gets_costs_only_its_call(
    bench: Bench, server: Server, url: str, leased: bool
) -> None:
    instance = await bench.start(bench.http_spec(url, truely_stateless=not leased))
    for _ in range(2):
        fault = await bench.call_fault(instance, "echo", {"text": "missing"})
        assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "unknown")
        assert "HTTP status 404 (no such document), but serves other requests" in fault.message
        assert await echo(bench, instance, "on") == "on"
    assert (instance.state, server.opened) == ("ready", 1)
    assert server.requests.count("tools/call") == 2 * 2 + 2


@pytest.mark.parametrize("leased", [True, False])
async def test_a_call_that_a_proxy_sends_to_another_server_is_sent_again(
    bench: Bench, server: Server, url: str, leased: bool
) -> None:
    instance = await bench.start(bench.http_spec(url, truely_stateless=not leased))
    server.misrouted = 1
    assert await echo(bench, instance, "on") == "on"
    assert (server.called, server.misrouted, instance.state) == (["on"], 0, "ready")
    assert server.opened == 1


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("how", RATE_LIMITS)
async def test_a_rate_limit_costs_no_session(
    bench: Bench, server: Server, url: str, how: str, leased: bool
) -> None:
    instance = await bench.start(bench.http_spec(url, truely_stateless=not leased))
    session, server.current, server.refuse = server.current, "", RATE_LIMITS[how]
    fault = await bench.call_fault(instance, "echo", {"text": "one"})
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "no")
    assert "HTTP status 429 (slow down): it receives too many requests." in fault.message
    server.current = session
    assert await echo(bench, instance, "on") == "on"
    assert (instance.state, server.opened) == ("ready", 1)


@pytest.mark.parametrize("code", [429, 503])
async def test_a_modern_server_that_asks_to_wait_is_probed_once(
    bench: Bench, server: Server, url: str, code: int
) -> None:
    server.becomes_modern()
    instance = await bench.start(bench.http_spec(url))
    server.requests.clear()
    server.forget()
    server.refuse = later(code)
    async with asyncio.timeout(BOUND):
        fault = await peer_of(instance).probe()
    assert server.requests == ["tools/list"]
    assert fault is None if code == 429 else "HTTP status 503 (later)" in f"{fault}"


@pytest.mark.parametrize("has_rpc", [True, False])
async def test_a_request_of_ours_in_a_session_waits_for_a_busy_server(
    bench: Bench, server: Server, url: str, has_rpc: bool
) -> None:
    instance = await bench.start(bench.http_spec(url))
    session = server.current

    async def refuse_once(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        server.current = session
        return await later(503, has_rpc=has_rpc)(request, message)

    server.requests.clear()
    server.forget()
    server.refuse = refuse_once
    async with asyncio.timeout(BOUND):
        assert json.loads(await peer_of(instance).request("prompts/list")) == {}
    assert server.requests == ["prompts/list"] * 2


async def test_a_request_of_ours_without_a_timeout_does_not_wait_forever(
    bench: Bench, server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await bench.start(bench.http_spec(url))
    monkeypatch.setattr(connection, "RETRY", Backoff(initial=0.01, maximum=0.01))
    server.forget()
    server.refuse = RATE_LIMITS["a text"]
    entry = RawRequest(max_wait=0.1)
    async with asyncio.timeout(BOUND):
        with pytest.raises(InvalidResponse, match="HTTP status 429"):
            await peer_of(instance)._request_in_era("prompts/list", None, entry=entry)
    assert "HTTP status 429" in entry.postponed


@pytest.mark.parametrize("protocol", ["auto", "2026-07-28"])
async def test_a_modern_server_may_want_the_greeting_later(
    bench: Bench, server: Server, url: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.2)
    server.becomes_modern()
    server.refuses_discover = later(429)
    instance = await bench.start(bench.http_spec(url, protocol=protocol))
    assert instance.protocol_version == "2026-07-28"
    assert server.requests == ["server/discover"] * 2 + ["tools/list"]


@pytest.mark.parametrize("how", RATE_LIMITS)
async def test_a_start_waits_while_the_server_wants_fewer_requests(
    bench: Bench, server: Server, url: str, how: str
) -> None:
    refused: list[str] = []

    async def refuse_once(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["method"] in refused:
            return server.result(message["id"], {"tools": TOOLS})
        refused.append(message["method"])
        server.refuses_initialize = None
        return await RATE_LIMITS[how](request, message)

    server.refuses_lists, server.refuse = True, refuse_once
    server.refuses_initialize = refuse_once
    instance = await shared(bench, url)
    assert refused == ["initialize", "tools/list"]
    assert list(instance.tools) == ["echo"]


@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
async def test_a_start_that_waits_too_long_says_what_for(
    bench: Bench, server: Server, url: str, method: str
) -> None:
    async def refuse(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        server.refuses_discover = refuse
        return await RATE_LIMITS["JSON-RPC"](request, message)

    server.refuses_discover = refuse if method == "server/discover" else None
    server.refuses_initialize = refuse if method == "initialize" else None
    server.refuses_lists, server.refuse = method == "tools/list", refuse
    fault = await bench.fails(bench.http_spec(url, startup_timeout=1.0))
    assert fault.metadata["problem"] == "START_TIMEOUT"
    assert "within 1 s: The server remote answered with HTTP status 429" in fault.message
    assert fault.message.endswith(" Raise startup_timeout.")


@pytest.mark.parametrize("how", ["410", "-32600 with 200", "an event"])
async def test_a_leased_instance_whose_session_is_gone_is_lost(
    bench: Bench, server: Server, url: str, how: str
) -> None:
    instance = await bench.start(bench.http_spec(url))
    server.refuse = REJECTIONS[how]
    server.forget()
    fault = await bench.call_fault(instance, "echo", {"text": "one"})
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    assert "no longer knows its MCP session" in fault.message
    assert (await bench.next_closed())[0] is instance
    assert server.opened == 1


@pytest.mark.parametrize("leased", [True, False])
async def test_a_server_that_never_listed_its_tools_fails_to_start_with_what_it_said(
    bench: Bench, server: Server, url: str, leased: bool
) -> None:
    server.refuse, server.refuses_lists = REJECTIONS["401"], True
    fault = await bench.fails(bench.http_spec(url, truely_stateless=not leased))
    assert "it requires a credential" in fault.message
    assert server.requests.count("tools/list") == 1


@pytest.mark.parametrize("refuse", [DOUBTS["503"], REJECTIONS["403"]], ids=["503", "403"])
async def test_a_short_fault_does_not_cost_a_lease(
    bench: Bench, server: Server, url: str, refuse: Refuse
) -> None:
    instance = await bench.start(bench.http_spec(url))
    session, server.current, server.refuse = server.current, "", refuse
    await bench.call_fault(instance, "echo", {"text": "one"})
    await until(lambda: [reason for reason, _ in bench.warned] == ["SERVER_REFUSING"])
    server.current = session
    await until(lambda: not bench.warned)
    assert await echo(bench, instance, "on") == "on"
    assert server.opened == 1


async def test_a_server_that_refuses_each_new_session_is_given_up(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await shared(bench, url)
    server.refuse, server.keeps_sessions = REJECTIONS["403"], False
    server.forget()
    fault = await bench.call_fault(instance, "echo", {"text": "one"})
    assert fault.reason in (Reason.SERVER_ERROR, Reason.SERVER_LOST)
    assert (await bench.next_closed())[0] is instance
    assert server.opened <= 3


async def test_a_server_that_opens_no_session_for_a_while_keeps_its_connection(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await shared(bench, url)
    server.refuse, server.refuses_initialize = REJECTIONS["410"], DOUBTS["503"]
    server.forget()
    fault = await bench.call_fault(instance, "echo", {"text": "one"})
    assert fault.started == "no"
    await until(lambda: [reason for reason, _ in bench.warned] == ["SERVER_REFUSING"])
    server.refuses_initialize = None
    await until(lambda: server.opened == 2)
    assert await echo(bench, instance, "on") == "on"
    await until(lambda: not bench.warned)
    assert instance.state == "ready"


async def test_a_call_in_flight_is_not_cut_off_by_a_new_session(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await shared(bench, url)
    gate = asyncio.Event()

    async def late(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["method"] == "tools/call" and message["params"]["arguments"]["text"] == "slow":
            await gate.wait()
            return server.result(message["id"], {"content": [{"type": "text", "text": "slow"}]})
        return await REJECTIONS["401"](request, message)

    server.refuse = late
    server.forget()
    slow, outcome = bench.start_call(instance, "echo", {"text": "slow"})
    await bench.written(slow)
    await until(lambda: server.requests.count("tools/call") == 1)
    assert await echo(bench, instance, "on") == "on"
    gate.set()
    async with asyncio.timeout(BOUND):
        assert (await outcome).fault is None
