"""Calls over a known head run without a task, and do what they do in one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.front.harness import ACCEPT, Host, front, host

from leaseway.front.envelope import RequestMessage
from leaseway.front.http.heads import DirectCall, DirectCalls
from leaseway.front.http.streams import HttpReply
from leaseway.sdk import LeaseLost, ServerError, WorkerLost
from leaseway.sdk.testing import CallContext, FakeLeaseway


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        counter = fake.server("counter", stateful=True)

        @counter.tool
        def count(ctx: CallContext) -> str:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            return str(ctx.state["n"])

        shared = fake.server("shared")

        @shared.tool
        def greet(ctx: CallContext, name: str) -> str:
            ctx.log(f"greets {name}", "warning")
            return f"Hello {name}."

        yield fake


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[DirectCall]:
    """The calls that have begun without a task."""
    calls: list[DirectCall] = []
    begin = DirectCalls.begin

    def record(direct: DirectCalls, message: RequestMessage, reply: HttpReply) -> DirectCall | None:
        call = begin(direct, message, reply)
        if call is not None:
            calls.append(call)
        return call

    monkeypatch.setattr(DirectCalls, "begin", record)
    return calls


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
        live = begun[0].calls.live
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
        live = begun[0].calls.live
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
            assert await calling == (202, "")
        assert not begun[0].calls.live.is_busy


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
                assert begun[0].calls.live.calls_in_flight == 1
        async with asyncio.timeout(BOUND):
            while begun[0].calls.live.calls_in_flight:
                await asyncio.sleep(0.01)
        assert [recorded.arguments for recorded in fake.calls[-1:]] == [{"name": "Ada"}]
