"""Faults of servers over event streams and websockets."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import until
from tests.specs import changed

from leaseway.data_plane.kinds.remote.http import errors
from leaseway.data_plane.kinds.remote.sse import SseTransport
from leaseway.data_plane.kinds.remote.websocket import WebSocketTransport
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.data_plane.mcp.protocol.messages.pending import RawRequest
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.data_plane.outgoing import Outgoing
from leaseway.spec.references import Value
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

Bench = Any
RawServer = Any  # of tests/servers/stream_raw.py, which has no types
BOTH = pytest.mark.parametrize("transport", ["sse", "websocket"])


@pytest.fixture
async def raw() -> AsyncIterator[RawServer]:
    """Run the server on this loop."""
    server = importlib.import_module("tests.servers.stream_raw").RawServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def at(bench: Bench, raw: RawServer, transport: str, how: str = "good", **spec: Any) -> Any:
    url = f"http://{raw.base}/sse/{how}" if transport == "sse" else f"ws://{raw.base}/ws/{how}"
    return bench.at(transport, url, protocol="legacy", **spec)


async def say(bench: Bench, instance: Instance, text: str) -> str:
    return str(await bench.text(instance, "say", {"text": text}))


async def fault_of(bench: Bench, instance: Instance, text: str) -> Fault:
    fault: Fault | None = (await bench.call(instance, "say", {"text": text})).fault
    assert fault is not None
    return fault


@BOTH
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("404", "HTTP status 404: check its url"),
        ("401", ": it requires a credential, or another one; set it in its entry, "),
        ("away", "redirects to http://127.0.0.2:1/other, which is not followed."),
        ("astray", "answered a request with a redirect to no address"),
        ("html", "check its url and transport."),
    ],
)
async def test_a_rejected_connection_fails_with_the_reason(
    bench: Bench, raw: RawServer, transport: str, how: str, words: str
) -> None:
    fault = await bench.fails(at(bench, raw, transport, how))
    assert (fault.reason, fault.metadata["problem"]) == (Reason.SERVER_NOT_READY, "START_FAILED")
    assert words in fault.message
    assert ("?" in fault.message) == fault.message.endswith(f"really {transport}?")


@BOTH
async def test_a_server_that_closes_the_connection_at_discover_is_greeted_with_initialize(
    bench: Bench, raw: RawServer, transport: str
) -> None:
    spec = changed(at(bench, raw, transport, "strict"), protocol="auto")
    instance = await bench.start(spec)
    assert instance.protocol_version == "2024-11-05"
    assert await say(bench, instance, "on") == "on"


@BOTH
async def test_an_unreachable_server_is_named_with_its_address(
    bench: Bench, raw: RawServer, transport: str
) -> None:
    await raw.stop()
    fault = await bench.fails(at(bench, raw, transport))
    assert fault.metadata["problem"] == "START_FAILED"
    assert "could not be reached at" in fault.message
    assert raw.base in fault.message


async def test_messages_reach_a_server_whose_proxy_takes_a_prefix_off(
    bench: Bench, raw: RawServer
) -> None:
    url = f"http://{raw.base}/a/proxy/sse/prefixless"
    instance = await bench.start(bench.at("sse", url, protocol="legacy"))
    assert await say(bench, instance, "on") == "on"
    assert (await fault_of(bench, instance, "status 404")).started == "no"
    assert await say(bench, instance, "on") == "on"


@pytest.mark.parametrize(
    ("transport", "how"), [("sse", "silent"), ("websocket", "mute")], ids=["sse", "websocket"]
)
async def test_a_silent_server_fails_at_the_startup_timeout(
    bench: Bench, raw: RawServer, transport: str, how: str
) -> None:
    fault = await bench.fails(at(bench, raw, transport, how, startup_timeout=0.3))
    assert fault.metadata["problem"] == "START_TIMEOUT"
    assert "within 0.3 s" in fault.message


@pytest.mark.parametrize(
    ("transport", "how", "words"),
    [
        ("sse", "early-end", "ended its event stream"),
        ("websocket", "early-end", "could not be reached"),
        ("sse", "foreign", "which is not the origin of its url"),
        ("sse", "no-url", "an endpoint that is not a URL"),
        ("sse", "mail", "an endpoint that is not a URL"),
    ],
)
async def test_a_connection_that_ends_during_the_start_fails_with_the_reason(
    bench: Bench, raw: RawServer, transport: str, how: str, words: str
) -> None:
    fault = await bench.fails(at(bench, raw, transport, how))
    assert fault.metadata["problem"] == "START_FAILED"
    assert words in fault.message
    assert raw.posts == []


@pytest.mark.parametrize(("transport", "url"), [("sse", "ftp://a/b"), ("websocket", "http://a/b")])
async def test_a_url_of_another_scheme_does_not_start(
    bench: Bench, transport: str, url: str
) -> None:
    fault = await bench.fails(bench.at(transport, url))
    assert fault.metadata["problem"] == "START_FAILED"
    assert "URL: write it like" in fault.message


@BOTH
async def test_configured_headers_reach_the_server(
    bench: Bench, raw: RawServer, transport: str
) -> None:
    headers = {"Authorization": Value("env", "TOKEN")}
    spec = at(bench, raw, transport, headers=headers)
    instance = await bench.start(spec, {"TOKEN": "Bearer t0ken"})
    seen = json.loads(await say(bench, instance, "seen"))
    assert seen["authorization"] == "Bearer t0ken"
    if transport == "websocket":
        assert seen["sec-websocket-protocol"] == "mcp"


async def test_a_websocket_without_a_close_frame_is_closed_completely(
    raw: RawServer,
) -> None:
    async with aiohttp.ClientSession() as http:
        transport = WebSocketTransport("deaf", f"ws://{raw.base}/ws/good", http, {}, Outgoing())
        await transport.connect()
        assert transport._socket is not None
        assert transport._session is not None
        transport._socket.close = asyncio.Event().wait  # type: ignore[method-assign, assignment]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await transport.disconnect()
        assert transport._session.closed


async def test_a_call_sent_again_while_its_first_post_hangs_is_closed_completely(
    raw: RawServer,
) -> None:
    message = b'{"id":1,"method":"tools/call","params":{"arguments":{"text":"hold"}}}\n'
    async with aiohttp.ClientSession() as http:
        transport = SseTransport("slow", f"http://{raw.base}/sse/good", http, {}, Outgoing())
        async with asyncio.timeout(BOUND):
            await transport.connect(StreamPeer("slow", transport))
            call = RawRequest()  # a call is the receipt of all its rounds
            for posts in (1, 2):
                transport.send(message, call)
                while raw.busy < posts:
                    await asyncio.sleep(0)
            await transport.disconnect()
        assert transport.waiting() == 0


async def test_a_redirect_of_the_event_stream_on_its_origin_is_followed(
    bench: Bench, raw: RawServer
) -> None:
    instance = await bench.start(at(bench, raw, "sse", "moved"))
    assert await say(bench, instance, "hello") == "hello"


@BOTH
async def test_invalid_messages_are_ignored_and_counted(
    bench: Bench, raw: RawServer, transport: str
) -> None:
    instance = await bench.start(at(bench, raw, transport))
    assert await say(bench, instance, "garbage") == "after it"
    assert instance._peer.garbage == 2
    fault = await fault_of(bench, instance, "broken")
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert await say(bench, instance, "still here") == "still here"


async def test_a_binary_frame_is_a_message(bench: Bench, raw: RawServer) -> None:
    instance = await bench.start(at(bench, raw, "websocket"))
    assert await say(bench, instance, "binary") == "in bytes"


@BOTH
async def test_a_message_above_the_limit_ends_the_connection(
    bench: Bench, raw: RawServer, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_LINE", bounds.MIB)
    instance = await bench.start(at(bench, raw, transport))
    fault = await fault_of(bench, instance, "oversize")
    assert fault.reason is Reason.SERVER_LOST
    assert f"{bounds.MIB} bytes (1 MiB" in fault.message
    async with asyncio.timeout(BOUND):
        assert (await bench.closed.get())[1] is not None


@BOTH
@pytest.mark.parametrize("how", ["end", "abort"])
async def test_a_lost_connection_fails_all_calls_in_flight(
    bench: Bench, raw: RawServer, transport: str, how: str
) -> None:
    instance = await bench.start(at(bench, raw, transport))
    waiting = [bench.start_call(instance, "say", {"text": "never"}) for _ in range(5)]
    for call, _ in waiting:
        await bench.written(call)
    fault = await fault_of(bench, instance, how)
    async with asyncio.timeout(BOUND):
        faults = [(await outcome).fault for _, outcome in waiting]
        closed, why = await bench.closed.get()
    assert {(each_fault.reason, each_fault.started) for each_fault in faults} == {
        (Reason.SERVER_LOST, "yes")
    }
    assert closed is instance
    assert why.message == fault.message
    if (transport, how) == ("websocket", "end"):
        assert fault.metadata["close_code"] == "1011"
        assert fault.message.endswith(
            "was closed by the server with code 1011 (internal error): out of paper."
        )
    assert (await bench.call(instance, "say", {"text": "x"})).fault.started == "no"


@pytest.mark.parametrize(
    ("text", "reason", "started"),
    [
        ("status 404", Reason.SERVER_ERROR, "no"),
        ("status 503", Reason.SERVER_ERROR, "no"),
        ("status 500", Reason.SERVER_ERROR, "unknown"),
        ("redirect", Reason.SERVER_ERROR, "no"),
        ("reset", Reason.SERVER_LOST, "unknown"),
    ],
)
async def test_a_failed_post_fails_only_its_own_call(
    bench: Bench, raw: RawServer, text: str, reason: Reason, started: str
) -> None:
    instance = await bench.start(at(bench, raw, "sse"))
    call, other = bench.start_call(instance, "say", {"text": "never"})
    await bench.written(call)
    fault = await fault_of(bench, instance, text)
    assert (fault.reason, fault.started) == (reason, started)
    assert ("(out of ink)" in fault.message) == text.startswith("status")
    assert not other.done()
    assert await say(bench, instance, "still here") == "still here"


async def test_a_refused_post_whose_body_does_not_end_has_its_status(
    bench: Bench, raw: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_ERROR_TIME", 0.01)
    instance = await bench.start(at(bench, raw, "sse"))
    async with asyncio.timeout(BOUND):
        fault = await fault_of(bench, instance, "endless")
    assert "HTTP status 500" in fault.message


@BOTH
async def test_a_server_that_falls_silent_is_pinged_and_disconnected(
    bench: Bench, raw: RawServer, transport: str
) -> None:
    patience = Patience(idle=0.1, answer=3.0)
    instance = await bench.start(at(bench, raw, transport), patience=patience)
    (line,) = raw.lines.values()
    await until(lambda: line.pings >= 2)
    assert instance.state == "ready"
    call, _ = bench.start_call(instance, "say", {"text": "deaf"})
    await bench.written(call)
    call.cancel("enough")
    closed, why = await bench.next_closed()
    assert closed is instance
    assert "has not answered a ping for 3 s" in why.message
    assert bench.disconnected == ["disconnected"]


async def test_posts_do_not_wait_for_one_another(bench: Bench, raw: RawServer) -> None:
    instance = await bench.start(at(bench, raw, "sse"))
    held = [bench.start_call(instance, "say", {"text": "hold"})[1] for _ in range(20)]
    async with asyncio.timeout(BOUND):
        while raw.busy < 20:
            await asyncio.sleep(0.001)
        assert await say(bench, instance, "past them") == "past them"
        raw.hold.set()
        assert {json.loads((await outcome).payload)["content"][0]["text"] for outcome in held} == {
            "hold"
        }


async def test_the_post_of_a_cancelled_call_is_cancelled(bench: Bench, raw: RawServer) -> None:
    instance = await bench.start(at(bench, raw, "sse"))
    call, _ = bench.start_call(instance, "say", {"text": "hold"})
    async with asyncio.timeout(BOUND):
        while not raw.busy:
            await asyncio.sleep(0.001)
        call.cancel("enough")
        while instance._peer.transport.waiting():
            await asyncio.sleep(0.001)
    assert await say(bench, instance, "still here") == "still here"


async def test_pending_posts_are_limited(bench: Bench, raw: RawServer) -> None:
    instance = await bench.start(at(bench, raw, "sse"))
    calls = [bench.start_call(instance, "say", {"text": "hold"}) for _ in range(1_030)]
    await asyncio.sleep(0)
    refused = [outcome.result().fault for _, outcome in calls if outcome.done()]
    assert 0 < len(refused) <= 10
    assert {(each_outcome.reason, each_outcome.started) for each_outcome in refused} == {
        (Reason.OVERLOADED, "no")
    }
    for call, _ in calls:
        call.cancel("enough")
