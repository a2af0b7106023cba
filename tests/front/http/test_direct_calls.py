"""Calls over a known head run without a task, and do what they do in one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.conftest import BOUND
from tests.front.harness import ACCEPT, MODERN, VERSION, Host, front, host, session_of

from leaseway.front.calling.handles import RELEASE
from leaseway.front.http.connection import FrontConnection
from leaseway.front.http.direct_calls import DirectCall, ModernCalls, SessionCalls
from leaseway.front.http.streams import HttpReply
from leaseway.front.protocol.envelope import RequestMessage
from leaseway.front.sessions.live_session import LiveSession
from leaseway.sdk import LeaseLost, ServerError, WorkerLost
from leaseway.sdk.testing import CallContext, FakeLeaseway
from leaseway.wire.bounds import MAX_META

ELICIT = "elicitation/create"
QUESTION = {
    "mode": "form",
    "message": "What to drink?",
    "requestedSchema": {"type": "object", "properties": {"drink": {"type": "string"}}},
}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        counter = fake.server("counter", stateful=True)

        @counter.tool
        def count(ctx: CallContext, text: str = "") -> str:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            return str(ctx.state["n"])

        shared = fake.server("shared")

        @shared.tool
        def greet(ctx: CallContext, name: str) -> str:
            ctx.log(f"greets {name}", "warning")
            ctx.progress(1, message=f"thinks of {name}")
            return f"Hello {name}."

        @shared.tool
        async def order(ctx: CallContext) -> str:
            answer = await ctx.ask(ELICIT, QUESTION)
            return f"Ordered {answer['content']['drink']}."

        yield fake


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[DirectCall]:
    """The calls that have begun without a task."""
    calls: list[DirectCall] = []

    def recording(
        begin: Callable[[Any, RequestMessage, HttpReply], DirectCall | None],
    ) -> Callable[[Any, RequestMessage, HttpReply], DirectCall | None]:
        def record(direct: Any, message: RequestMessage, reply: HttpReply) -> DirectCall | None:
            call = begin(direct, message, reply)
            if call is not None:
                calls.append(call)
            return call

        return record

    for kind in (SessionCalls, ModernCalls):
        monkeypatch.setattr(kind, "begin", recording(kind.begin))
    return calls


def live_of(call: DirectCall) -> LiveSession:
    assert isinstance(call.calls, SessionCalls)
    return call.calls.live


async def call(client: Host, session: dict[str, str], tool: str, **arguments: str) -> str:
    result = await client.send("tools/call", {"name": tool, "arguments": arguments}, session)
    text: str = result["content"][0]["text"]
    return text


async def post(client: Host, session: dict[str, str], message: dict[str, Any]) -> tuple[int, str]:
    """Send a message; return the status and the body of the response."""
    async with asyncio.timeout(BOUND):
        sent = {"jsonrpc": "2.0", **message}
        async with client.http.post(client.url, json=sent, headers={**ACCEPT, **session}) as answer:
            return answer.status, await answer.text()


def greeting(request_id: int) -> dict[str, Any]:
    params = {"name": "greet", "arguments": {"name": "Ada"}}
    return {"id": request_id, "method": "tools/call", "params": params}


def modern_greeting(
    meta: dict[str, Any] | None = None, capabilities: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a message of a modern client, and its headers."""
    return modern_call("greet", {"name": "Ada"}, meta, capabilities)


def modern_call(
    tool: str,
    arguments: dict[str, Any],
    meta: dict[str, Any] | None = None,
    capabilities: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a message of a modern client, and its headers."""
    declared = {**MODERN, "io.modelcontextprotocol/clientCapabilities": capabilities or {}}
    params = {"name": tool, "arguments": arguments, "_meta": {**declared, **(meta or {})}, **more}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}
    return {"id": 1, "method": "tools/call", "params": params}, headers


async def post_modern(
    client: Host, sent: tuple[dict[str, Any], dict[str, str]]
) -> tuple[int, dict[str, Any]]:
    """Send the message of a modern client; return the status and the response."""
    message, headers = sent
    status, body = await post(client, headers, message)
    return status, json.loads(body.rpartition("data: ")[2])


async def test_calls_after_the_first_with_a_head_run_without_a_task(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        assert [await call(client, session, "greet", name=name) for name in "abc"] == [
            "Hello a.",
            "Hello b.",
            "Hello c.",
        ]
        assert len(begun) == 2
        assert [await call(client, session, "count") for _ in range(3)] == ["1", "2", "3"]
        assert len(begun) == 4, "the first call of the lease waits for a place"
        live = live_of(begun[0])
        assert (live.calls, live.calls_in_flight, live.is_busy) == (6, 0, False)
        assert not [item for item in begun[0].calls.running if isinstance(item, DirectCall)]


async def test_a_fault_of_such_a_call_is_handled_as_that_of_others(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        for _ in range(2):  # in a task, then without one
            fake.fail_next("greet", ServerError("The server is out of greetings."))
            with pytest.raises(LookupError, match="out of greetings"):
                await call(client, session, "greet", name="Ada")
        assert len(begun) == 1
        fake.fail_next("greet", WorkerLost("The worker ended before.", started="no"))
        assert await call(client, session, "greet", name="Bob") == "Hello Bob.", "another try"
        assert await call(client, session, "count") == "1"
        fake.fail_next("count", LeaseLost("The instance ended."))
        with pytest.raises(LookupError, match="instance ended"):
            await call(client, session, "count")
        live = live_of(begun[0])
        assert (live.calls, live.calls_in_flight, live.is_busy) == (5, 0, False)


@pytest.mark.parametrize("ends_session", [False, True])
async def test_the_client_cancels_such_a_call_by_its_id_or_with_its_session(
    fake: FakeLeaseway, begun: list[DirectCall], ends_session: bool
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await call(client, session, "greet", name="Ada")
        with fake.hold("greet") as held:
            calling = asyncio.create_task(post(client, session, greeting(7)))
            await asyncio.to_thread(held.wait)
            assert len(begun) == 1
            if ends_session:
                async with client.http.delete(url, headers=session) as answer:
                    assert answer.status == 204
            else:
                params = {"requestId": 7, "reason": "no need"}
                await post(client, session, {"method": "notifications/cancelled", "params": params})
            status, response = await calling
            if ends_session:
                assert json.loads(response)["error"]["data"]["reason"] == "CANCELLED"
            else:
                assert (status, response) == (202, "")
        assert not live_of(begun[0]).is_busy


async def test_what_the_server_says_first_makes_its_response_a_stream(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await post(client, session, greeting(1))
        await client.send("logging/setLevel", {"level": "warning"}, session)
        status, body = await post(client, session, greeting(2))
        assert status == 200
        assert body.index("greets Ada") < body.index("Hello Ada.")
        status, body = await post(client, session, greeting(3))
        assert body.index("greets Ada") < body.index("Hello Ada.")
        assert len(begun) == 2


async def test_clients_that_set_no_level_get_messages_from_info_on(fake: FakeLeaseway) -> None:
    @fake.server("talker").tool
    def talk(ctx: CallContext) -> str:
        ctx.log("in detail", level="debug")
        ctx.log("in short", level="info")
        return "said"

    message = {"id": 1, "method": "tools/call", "params": {"name": "talk"}}
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        status, body = await post(client, session, message)
        assert status == 200
        assert body.index("in short") < body.index("said")
        assert "in detail" not in body
        status, body = await post(client, {**session, "Accept": "application/json"}, message)
        assert json.loads(body)["result"]["content"][0]["text"] == "said"


async def test_a_client_that_disconnects_has_not_cancelled_its_call(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await call(client, session, "greet", name="Ada")
        async with aiohttp.ClientSession() as http:
            other = Host(http, url)
            await call(other, session, "greet", name="Bob")
            with fake.hold("greet") as held:
                calling = asyncio.create_task(post(other, session, greeting(7)))
                await asyncio.to_thread(held.wait)
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                assert live_of(begun[0]).calls_in_flight == 1
        async with asyncio.timeout(BOUND):
            while live_of(begun[0]).calls_in_flight:
                await asyncio.sleep(0.01)
        assert [recorded.arguments for recorded in fake.calls[-1:]] == [{"name": "Ada"}]


async def test_calls_with_meta_or_escapes_run_without_a_task(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    metas: list[dict[str, Any]] = [
        {"progressToken": "t\n1"},
        {"progressToken": 2, "example.com/order": {"n": 1}},
        {"traceparent": TRACE, "tracestate": "a=1"},
        {"traceparent": "none"},
        {"io.modelcontextprotocol/clientInfo": {"name": "host"}},
    ]
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await call(client, session, "greet", name="Ada")
        assert await call(client, session, "greet", name='"\n') == 'Hello "\n.'
        assert await call(client, session, "count") == "1"
        assert await call(client, session, "count", text="a\nb") == "2"
        assert len(begun) == 2
        for number, meta in enumerate(metas):
            message = greeting(number)
            message["params"]["_meta"] = meta
            status, body = await post(client, session, message)
            assert (status, "Hello Ada." in body) == (200, True), meta
            reported = json.dumps(meta.get("progressToken"), ensure_ascii=False)
            assert (f'"progressToken":{reported},"progress":1' in body) == ("progressToken" in meta)
        assert len(begun) == 2 + len(metas)
        assert [sent.trace for sent in begun[2:]] == [
            ("", ""),
            ("", ""),
            (TRACE, "a=1"),
            ("", ""),
            ("", ""),
        ]
        assert begun[3].events.meta == b'{"example.com/order":{"n":1}}'


@pytest.mark.parametrize(
    "meta",
    [
        {"progressToken": 1.5},
        {"openai/session": 5},
        {"leaseway/session": "none"},
        {"leaseway/media": "none"},
        {"large": "x" * 70_000},
    ],
)
async def test_a_meta_that_may_be_wrong_or_choose_a_session_needs_a_task(
    fake: FakeLeaseway, begun: list[DirectCall], meta: dict[str, Any]
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await call(client, session, "greet", name="Ada")
        message = greeting(1)
        message["params"]["_meta"] = meta
        _, body = await post(client, session, message)
        assert "error" in json.loads(body)
        assert not begun


async def test_calls_of_modern_clients_run_without_a_task_whatever_their_tokens_and_traces(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    metas: list[dict[str, Any]] = [
        {},
        {"progressToken": 1},
        {"progressToken": 2, "traceparent": TRACE},
        {"io.modelcontextprotocol/logLevel": "info"},
    ]
    async with front(fake) as url, host(url) as client:
        assert (await post_modern(client, modern_greeting()))[0] == 200
        for meta in metas:
            message, headers = modern_greeting(meta)
            status, body = await post(client, headers, message)
            assert status == 200
            assert '"resultType":"complete"' in body
            assert "Hello Ada." in body
            assert ("thinks of Ada" in body) == ("progressToken" in meta)
            assert ("greets Ada" in body) == ("io.modelcontextprotocol/logLevel" in meta)
        assert len(begun) == len(metas)
        assert not begun[0].calls.running


async def test_a_modern_call_that_declares_or_names_something_else_is_checked_anew(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        message, headers = modern_greeting()
        await post_modern(client, (message, headers))
        other = modern_call("order", {})[0]
        status, response = await post_modern(client, (other, headers))
        assert (status, response["error"]["code"]) == (400, -32020), "another name than its header"
        other = modern_greeting({VERSION: "2020-01-01"})[0]
        assert (await post_modern(client, (other, headers)))[0] == 400
        other = modern_greeting(capabilities={"elicitation": 5})[0]
        assert (await post_modern(client, (other, headers)))[0] == 400
        assert not begun
        assert (await post_modern(client, (message, headers)))[0] == 200
        assert len(begun) == 1


async def test_a_modern_call_whose_server_asks_goes_on_in_a_task_until_the_next_try(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    elicits: dict[str, Any] = {"elicitation": {"form": {}}}
    async with front(fake) as url, host(url) as client:
        for tries in range(2):  # in a task, then without one
            _, response = await post_modern(client, modern_call("order", {}, None, elicits))
            asked = response["result"]
            ((name, question),) = asked["inputRequests"].items()
            assert question["params"]["message"] == QUESTION["message"]
            answers = {name: {"action": "accept", "content": {"drink": "tea"}}}
            _, response = await post_modern(
                client,
                modern_call(
                    "order",
                    {},
                    None,
                    elicits,
                    inputResponses=answers,
                    requestState=asked["requestState"],
                ),
            )
            assert response["result"]["content"][0]["text"] == "Ordered tea."
            assert len(begun) == tries


async def test_a_modern_client_that_disconnects_has_cancelled_its_call(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url:
        async with host(url) as client:
            await post_modern(client, modern_greeting())
            with fake.hold("greet") as held:
                calling = asyncio.create_task(post_modern(client, modern_greeting()))
                await asyncio.to_thread(held.wait)
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                async with asyncio.timeout(BOUND):
                    while begun[0].calls.running:
                        await asyncio.sleep(0.01)
        assert begun[0].call_id not in begun[0].exchange.pending


async def test_a_fault_of_a_modern_call_is_handled_as_that_of_others(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        await post_modern(client, modern_greeting())
        fake.fail_next("greet", WorkerLost("The worker ended before.", started="no"))
        _, response = await post_modern(client, modern_greeting({"traceparent": TRACE}))
        assert response["result"]["content"][0]["text"] == "Hello Ada.", "another try"
        fake.fail_next("greet", ServerError("The server is out of greetings."))
        _, response = await post_modern(client, modern_greeting())
        assert "out of greetings" in response["error"]["message"]
        assert len(begun) == 2


async def test_a_call_without_a_task_has_a_span_as_others(
    fake: FakeLeaseway, begun: list[DirectCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def spans() -> list[ReadableSpan]:
        found = exporter.get_finished_spans()
        return [span for span in found if span.name == "execute_tool greet"]

    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        await call(client, session, "greet", name="Ada")
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        message = greeting(1)
        message["params"]["_meta"] = {"traceparent": TRACE}
        await post(client, session, message)
        fake.fail_next("greet", ServerError("The server is out of greetings."))
        await post(client, session, greeting(2))
        with fake.hold("greet") as held:
            calling = asyncio.create_task(post(client, session, greeting(3)))
            await asyncio.to_thread(held.wait)
            await post(
                client,
                session,
                {"method": "notifications/cancelled", "params": {"requestId": 3}},
            )
            await calling
        assert len(begun) == 3
    continued, failed, cancelled = spans()
    assert continued.context is not None
    assert continued.parent is not None
    assert f"{continued.parent.span_id:016x}" in TRACE
    assert f"{continued.context.span_id:016x}" in begun[0].trace[0]
    attributes = [dict(span.attributes or {}) for span in (continued, failed, cancelled)]
    assert attributes[0]["leaseway.server"] == "shared"
    assert [found.get("error.type") for found in attributes] == [None, "SERVER_ERROR", "CANCELLED"]


async def test_modern_calls_in_a_session_that_they_say_run_without_a_task(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        _, response = await post_modern(client, modern_call("count", {}))
        handle = session_of(response["result"])

        async def count() -> Any:
            return (await post_modern(client, modern_call("count", {"session": handle})))[1]

        counted = [(await count())["result"]["content"] for _ in range(3)]
        assert [content[0]["text"] for content in counted] == ["2", "3", "4"]
        assert len(begun) == 3
        live = begun[0].live
        assert live is not None
        assert (live.calls, live.calls_in_flight) == (4, 0)
        fake.fail_next("count", LeaseLost("The instance ended."))
        assert "instance ended" in (await count())["error"]["message"]
        assert len(begun) == 4
        assert not live.is_busy
        for arguments in ({}, {"session": 5}, {"session": "unknown"}):
            await post_modern(client, modern_call("count", arguments))
        assert len(begun) == 4, "these need a new session, or an error"


async def test_a_disconnected_client_leaves_its_session_idle_whenever_it_goes(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as client:
        _, response = await post_modern(client, modern_call("count", {}))
        sent = modern_call("count", {"session": session_of(response["result"])})
        with fake.hold("count") as held:
            calling = asyncio.create_task(post_modern(client, sent))
            await asyncio.to_thread(held.wait)
            (direct,) = begun
            assert direct.live is not None
            assert direct.live.calls_in_flight == 1
            direct.detach()
            direct.on_other()
            assert isinstance(direct.owner, FrontConnection)
            direct.owner.connection_lost(None)  # before the task has started
            async with asyncio.timeout(BOUND):
                while direct.live.is_busy or direct.calls.running:
                    await asyncio.sleep(0.01)
            assert direct.call_id not in direct.exchange.pending
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)


async def test_a_call_whose_session_ends_meanwhile_has_started_and_ends_as_others(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    async with front(fake) as url, host(url) as other:
        for ways in range(2):  # in a task, then without one
            async with host(url) as client:
                _, response = await post_modern(other, modern_call("count", {}))
                handle = session_of(response["result"])
                sent = modern_call("count", {"session": handle})
                if ways:
                    await post_modern(client, sent)
                with fake.hold("count") as held:
                    calling = asyncio.create_task(post_modern(client, sent))
                    await asyncio.to_thread(held.wait)
                    await post_modern(other, modern_call(RELEASE, {"handle": handle}))
                    _, response = await calling
                assert response["error"]["data"] == {"reason": "LEASE_RELEASED", "started": "yes"}
                assert len(begun) == ways
        live = begun[0].live
        assert live is not None
        assert not live.is_busy


async def test_a_long_meta_is_not_kept_as_long_as_its_connection(
    fake: FakeLeaseway, begun: list[DirectCall]
) -> None:
    long = {"io.modelcontextprotocol/other": "x" * MAX_META}
    async with front(fake) as url, host(url) as client:
        for _ in range(2):
            status, _ = await post_modern(client, modern_greeting(long))
            assert status == 200
        assert not begun
        await post_modern(client, modern_greeting())
        await post_modern(client, modern_greeting(long))
        assert not begun
        await post_modern(client, modern_greeting())
        assert len(begun) == 1
