"""A shared server whose session is gone gets a new one, by whatever wording it says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, peer_of, until
from tests.data_plane.mcp.http.refusing_server import (
    DOUBTS,
    RATE_LIMITS,
    REJECTIONS,
    TOOLS,
    Refuse,
    Server,
    hang,
    later,
    rpc,
)

from leaseway.data_plane.kinds.remote.http import connection
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.data_plane.mcp.protocol.messages import log_level
from leaseway.data_plane.mcp.protocol.messages.pending import InvalidResponse, RawRequest
from leaseway.wire.errors import Reason
from leaseway.wire.timing.backoff import Backoff


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


async def test_calls_get_a_new_session_of_a_server_that_lists_its_tools_in_any(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await shared(bench, url)
    server.lists_in_any_session = True
    for number in (2, 3):
        server.forget()
        texts = [f"{number} {n}" for n in range(20)]
        answers = (echo(bench, instance, text) for text in texts)
        assert await asyncio.gather(*answers) == texts
        assert server.opened == number
    assert instance.state == "ready"
    assert sorted(server.called) == sorted({*server.called})


async def test_a_lease_goes_on_although_its_calls_get_404(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await bench.start(bench.http_spec(url))
    server.lists_in_any_session = True
    session = server.current
    server.forget()
    fault = await bench.call_fault(instance, "echo", {"text": "one"})
    assert "HTTP status 404, but serves other requests" in fault.message
    server.current = session
    assert await echo(bench, instance, "on") == "on"
    assert server.opened == 1


async def test_a_server_that_opens_no_second_session_keeps_the_first_after_a_404_to_a_call(
    bench: Bench, server: Server, url: str
) -> None:
    instance = await shared(bench, url)
    server.refuses_initialize = rpc(-32600, "Server already initialized", 400)
    fault = await bench.call_fault(instance, "echo", {"text": "missing"})
    assert "HTTP status 404 (no such document), but serves other requests" in fault.message
    assert await echo(bench, instance, "on") == "on"
    assert (instance.state, server.opened) == ("ready", 1)
    assert server.requests.count("tools/call") == 2 + 1


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
    in_vain = 0 if leased else 1  # a new session is tried once
    assert (instance.state, server.opened) == ("ready", 1 + in_vain)
    assert server.requests.count("tools/call") == 2 * 2 + in_vain + 2


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
    # A request that comes again shows that the first answer was read.
    spec = bench.http_spec(url)
    fault = await bench.fails_late(spec, lambda _: server.requests.count(method) > 1)
    assert fault.metadata["problem"] == "START_TIMEOUT"
    assert "within 60 s: The server remote answered with HTTP status 429" in fault.message
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
