"""To which session a call belongs, for clients that say it in different ways, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.front.harness import ACCEPT, MODERN, front, host, session_of
from tests.front.http.fake_fronts import Keys

from leaseway.front.calling.conversations import SessionOptions
from leaseway.front.http.cookies import SessionCookie
from leaseway.front.http.streams import AiohttpSender, HttpReply
from leaseway.front.sessions.ended import EndedSessions
from leaseway.identity.authenticator import Authenticator
from leaseway.sdk import ServerError
from leaseway.sdk.testing import CallContext, FakeLeaseway
from leaseway.sdk.testing.registry import Offers
from leaseway.spec.model import ServerSpec
from leaseway.wire.messages.mcp import SESSION_RULES

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """A system whose leased server counts its calls, and one that is shared."""
    with FakeLeaseway() as fake:
        counter = fake.server("counter", stateful=True)

        @counter.tool
        def count(ctx: CallContext, by: int = 1) -> str:
            """Count."""
            ctx.state["n"] = ctx.state.get("n", 0) + by
            return f"{ctx.lease_id} {ctx.state['n']}"

        shared = fake.server("shared")

        @shared.tool
        def greet(name: str) -> str:
            """Greet."""
            return f"Hello {name}."

        yield fake


def text_of(result: Any) -> str:
    """Return the first text of a result of the official client."""
    text: str = result.content[0].text
    return text


@pytest.mark.parametrize("meta", [MODERN, {}])
async def test_a_model_continues_by_passing_back_the_session(
    fake: FakeLeaseway, meta: dict[str, Any]
) -> None:
    async with front(fake) as url, host(url) as model:
        listed = await model.send("tools/list", {"_meta": meta})
        tools = {tool["name"]: tool["inputSchema"] for tool in listed["tools"]}
        assert "pass back the session" in tools["count"]["properties"]["session"]["description"]
        assert "session" not in tools["greet"]["properties"]
        first = await model.call(meta=meta)
        session = session_of(first)
        assert len(session) == 32, "models copy it"
        again = await model.count(meta=meta, session=session)
        assert again == (first["content"][0]["text"].split()[0], 2)
        other = await model.call(meta=meta, session="")
        assert session_of(other) != session
        assert other["content"][0]["text"].split() != list(map(str, again))
        assert (await model.call(meta=meta, session=session))["content"][0]["text"].endswith(" 3")
        assert len(fake.leases) == 2


async def test_the_official_client_has_one_lease_for_its_conversation(fake: FakeLeaseway) -> None:
    async with front(fake) as url:
        for era in ("2026-07-28", "legacy"):
            async with Client(url, mode=era) as one, Client(url, mode=era) as other:
                for client, number in ((one, 1), (other, 1), (one, 2), (other, 2), (one, 3)):
                    result = await client.call_tool("count", {})
                    assert text_of(result).split()[1] == str(number)


async def test_the_official_client_without_cookies_passes_the_session(fake: FakeLeaseway) -> None:
    async with front(fake) as url, httpx2.AsyncClient() as http:
        http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode="2026-07-28") as client:
            await client.list_tools()
            counted = []
            session: dict[str, str] = {}
            for _ in range(3):
                result = await client.call_tool("count", session)
                counted.append(text_of(result))
                session = session or {"session": (result.meta or {})["leaseway/session"]}
            assert [text.split()[1] for text in counted] == ["1", "2", "3"]
            assert text_of(await client.call_tool("count", {})).split()[1] == "1"


async def test_hosts_that_initialize_before_each_call_say_their_conversation(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as chat:
        counted = []
        for number in range(8):
            session = await chat.initialize()
            meta = {"openai/session": f"conversation-{number % 2}"}
            counted.append(await chat.count(session, meta))
        assert [number for _, number in counted] == [1, 1, 2, 2, 3, 3, 4, 4]
        assert len(fake.leases) == 2


async def test_a_program_names_its_conversation_in_a_header(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as program:
        one, other = ({"Leaseway-Conversation": name} for name in ("dialog-1", "dialog-2"))
        connection = await program.initialize()
        assert (await program.count(connection))[1] == 1, "the lease of its connection"
        for number in (1, 2, 3):
            anew = await program.initialize()
            assert (await program.count(anew | one))[1] == number, "it connects for each call"
            assert (await program.count(connection | other))[1] == number
        assert (await program.count(one, MODERN))[1] == 4, "without a session of the protocol"
        assert (await program.count(connection))[1] == 2
        assert len(fake.leases) == 3
        released = {"name": "lease_release", "arguments": {}, "_meta": MODERN}
        result = await program.send("tools/call", released, one)
        assert result["structuredContent"] == {"released": True}
        assert len(fake.leases) == 2
        assert (await program.count(connection | one))[1] == 1


async def test_clients_with_initialize_say_a_handle_in_meta_too(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as program:
        handle = session_of(await program.call(meta=MODERN))
        header = await program.initialize()
        assert (await program.count(header))[1] == 1, "the lease of its connection"
        meta = {"leaseway/session": handle}
        assert (await program.count(header, meta))[1] == 2
        assert (await program.count(meta=meta))[1] == 3
        assert (await program.count(header))[1] == 2
        for wrong in ("invented", handle[:-1], 7):
            with pytest.raises(LookupError, match=r"Unknown handle|must be a handle"):
                await program.call(header, {"leaseway/session": wrong})
            assert program.status == 200, "404 would end the session of the connection"


async def test_a_handle_is_found_below_an_escaped_key(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as program:
        handle = session_of(await program.call(meta=MODERN))
        call = {"name": "count", "_meta": {"leaseway/session": handle}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        body = json.dumps(message).replace("/session", "\\/session").encode()
        async with program.http.post(url, data=body, headers=ACCEPT | JSON) as answer:
            result = (await answer.json())["result"]
        assert result["content"][0]["text"].endswith(" 2")


async def test_a_client_without_a_session_header_is_served(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        await client.initialize()
        assert await client.send("ping", {}) == {}
        greeting = await client.send("tools/call", {"name": "greet", "arguments": {"name": "you"}})
        assert greeting["content"] == [{"type": "text", "text": "Hello you."}]
        with pytest.raises(LookupError, match="needs a session: send the Mcp-Session-Id"):
            await client.send("logging/setLevel", {"level": "info"})
        with pytest.raises(LookupError, match="ended session"):
            await client.send("ping", {}, {"Mcp-Session-Id": "invented"})
        assert client.status == 404
        for method, status in (("GET", 405), ("DELETE", 405)):
            async with client.http.request(method, url, headers=ACCEPT) as answer:
                assert answer.status == status


@pytest.mark.parametrize("meta", [MODERN, {}])
async def test_a_client_that_returns_cookies_keeps_its_lease(
    fake: FakeLeaseway, meta: dict[str, Any]
) -> None:
    async with front(fake) as url, host(url, cookies=True) as one, host(url, cookies=True) as other:
        if not meta:
            await one.initialize()
            await other.initialize()
        for number in (1, 2, 3):
            assert (await one.count(meta=meta))[1] == number
            assert (await other.count(meta=meta))[1] == number
        assert len(fake.leases) == 2


async def test_a_client_that_returns_cookies_keeps_its_lease_below_a_path_of_a_proxy(
    fake: FakeLeaseway,
) -> None:
    async def forward(request: web.Request) -> web.Response:
        sent = {name: value for name, value in request.headers.items() if name != "Host"}
        body = await request.read()
        async with aiohttp.request("POST", url, data=body, headers=sent) as answer:
            return web.Response(body=await answer.read(), headers=answer.headers)

    proxy = web.Application()
    proxy.router.add_post("/tools/ai/mcp", forward)
    async with (
        front(fake, public_url="https://example.com/tools/ai") as url,
        TestServer(proxy) as outer,
        host(str(outer.make_url("/tools/ai/mcp")), cookies=True) as client,
    ):
        assert [(await client.count(meta=MODERN))[1] for _ in range(3)] == [1, 2, 3]


async def test_the_end_of_a_cookies_session_is_told_once(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url, cookies=True) as client:
        header = await client.initialize()
        await client.count()
        async with client.http.delete(url, headers=header) as answer:
            assert answer.status == 204
        await client.send("tools/list", {})
        with pytest.raises(LookupError, match="Its state is lost"):
            await client.call()
        assert (await client.count())[1] == 1
        assert (await client.count())[1] == 2


async def test_a_client_with_cookies_is_told_no_end_of_a_session_whose_first_call_failed(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url, cookies=True) as client:
        fake.fail_next("count", ServerError("fetch failed"))
        with pytest.raises(LookupError, match="fetch failed"):
            await client.call(meta=MODERN)
        assert (await client.call(meta=MODERN, by="much"))["isError"]
        assert [(await client.count(meta=MODERN))[1] for _ in range(2)] == [1, 2]


def test_a_cookie_may_be_taken_back_after_it_was_sent() -> None:
    told, reply = EndedSessions(), HttpReply(AiohttpSender(Mock()))
    SessionCookie("", told).take_back(reply, "session-1")
    assert not SessionCookie("", told, "session-1").is_lost
    assert SessionCookie("", told, "session-2").is_lost


async def test_an_operator_may_give_a_principal_one_lease(
    fake: FakeLeaseway, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    one, other = keys.make("acme"), keys.make("acme")
    options = SessionOptions(rules=SESSION_RULES)
    async with (
        front(fake, options, Authenticator(keys=keys.file)) as url,
        host(url, one) as client,
        host(url, other) as neighbour,
    ):
        assert [(await client.count(meta=MODERN))[1] for _ in range(3)] == [1, 2, 3]
        assert (await neighbour.count(meta=MODERN))[1] == 1


async def test_without_rules_each_call_leases_for_itself(fake: FakeLeaseway) -> None:
    async with front(fake, SessionOptions(rules=())) as url, host(url, cookies=True) as client:
        listed = await client.send("tools/list", {"_meta": MODERN})
        assert not any("session" in str(tool["inputSchema"]) for tool in listed["tools"])
        for _ in range(3):
            result = await client.call(meta=MODERN)
            assert result["content"][0]["text"].endswith(" 1")
            assert len(result["content"]) == 1
        assert not fake.leases


async def test_a_session_is_worth_nothing_to_others(fake: FakeLeaseway, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    owner, neighbour, stranger = keys.make("acme"), keys.make("acme"), keys.make("beta")
    async with front(fake, None, Authenticator(keys=keys.file)) as url, host(url, owner) as client:
        header = await client.initialize()
        await client.count(header)
        session = session_of(await client.call(meta=MODERN))
        chat = {"openai/session": "conversation-1"}
        dialog = {"Leaseway-Conversation": "dialog-1"}
        await client.count(header, chat)
        await client.count(header | dialog)
        forged = session[:-1] + ("A" if session[-1] != "A" else "B")
        for key, stolen in ((neighbour, session), (stranger, session), (owner, forged)):
            async with host(url, key) as thief:
                refused = await thief.call(meta=MODERN, session=stolen)
                assert refused["isError"]
                assert "Unknown session" in refused["content"][0]["text"]
                with pytest.raises(LookupError, match="Unknown handle"):
                    await thief.call(meta={**MODERN, "leaseway/session": stolen})
                with pytest.raises(LookupError, match="Unknown handle"):
                    await thief.call({"Leaseway-Session": stolen}, MODERN)
                if key == owner:
                    continue
                with pytest.raises(LookupError, match="ended session"):
                    await thief.call(header)
                with pytest.raises(LookupError, match="Its state is lost"):
                    await thief.call({"Cookie": f"leaseway-session={session}"}, MODERN)
                assert (await thief.count(await thief.initialize(), chat))[1] == 1
                assert (await thief.count(await thief.initialize() | dialog))[1] == 1
        assert (await client.count(meta=MODERN, session=session))[1] == 2
        assert (await client.count(header, chat))[1] == 2


async def test_a_released_session_cannot_be_used_again(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        session = session_of(await client.call(meta=MODERN))
        arguments = {"handle": session}
        released = {"name": "lease_release", "arguments": arguments, "_meta": MODERN}
        result = await client.send("tools/call", released)
        assert result["structuredContent"] == {"released": True}
        assert not fake.leases
        refused = await client.call(meta=MODERN, session=session)
        assert "Call again without it for a new one" in refused["content"][0]["text"]
        assert not fake.leases


async def test_a_call_that_fails_leaves_no_session_behind(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        wrong = await client.call(meta=MODERN, by="much")
        assert wrong["isError"]
        assert "leaseway/session" not in wrong["_meta"]
        wrong = await client.call(meta=MODERN, session=7)
        assert "must be" in wrong["content"][0]["text"]
        assert not fake.leases
        with pytest.raises(LookupError, match="must be the id of a conversation"):
            await client.call(meta={**MODERN, "openai/session": 7})


async def test_a_handle_is_passed_as_the_session(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        arguments = {"serverId": "counter"}
        acquired = {"name": "lease_acquire", "arguments": arguments, "_meta": MODERN}
        handle = (await client.send("tools/call", acquired))["structuredContent"]["handle"]
        assert [(await client.count(meta=MODERN, session=handle))[1] for _ in range(2)] == [1, 2]
        params = {"name": "counter:count", "arguments": {"session": handle}, "_meta": MODERN}
        again = await client.send("tools/call", params)
        assert again["content"][0]["text"].endswith(" 3"), "a qualified name is the same tool"
        assert len(fake.leases) == 1


async def test_a_client_with_a_session_continues_where_a_handle_says(
    fake: FakeLeaseway, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    owner, neighbour = keys.make("acme"), keys.make("acme")
    async with front(fake, None, Authenticator(keys=keys.file)) as url, host(url, owner) as client:
        header = await client.initialize()
        listed = await client.send("tools/list", {}, header)
        assert not any("session" in str(tool["inputSchema"]) for tool in listed["tools"])
        acquired = {"name": "lease_acquire", "arguments": {"serverId": "counter"}}
        handle = (await client.send("tools/call", acquired, header))["structuredContent"]["handle"]
        assert (await client.count(header))[1] == 1, "the session of its protocol is another one"
        lease, number = await client.count(header, session=handle)
        assert number == 1
        renewed = await client.initialize()
        assert await client.count(renewed, session=handle) == (lease, 2)
        assert (await client.count(header))[1] == 2

        async with host(url, neighbour) as thief:
            refused = await thief.call(await thief.initialize(), session=handle)
            assert "Unknown session" in refused["content"][0]["text"]
        forged = handle[:-1] + ("A" if handle[-1] != "A" else "B")
        refused = await client.call(header, session=forged)
        assert "Unknown session" in refused["content"][0]["text"]
        released = {"name": "lease_release", "arguments": {"handle": handle}}
        result = await client.send("tools/call", released, renewed)
        assert result["structuredContent"] == {"released": True}
        refused = await client.call(header, session=handle)
        assert "Unknown session" in refused["content"][0]["text"]


async def test_what_is_no_handle_is_an_argument_of_the_tool_to_a_client_with_a_session(
    fake: FakeLeaseway,
) -> None:
    notes = fake.server("notes", stateful=True)

    @notes.tool
    def keep(**named: Any) -> str:
        """Keep."""
        return str(named)

    async with front(fake) as url, host(url) as client:
        header = await client.initialize()
        for session in ("morning", "", None, 7):
            params = {"name": "keep", "arguments": {"session": session}}
            result = await client.send("tools/call", params, header)
            assert result["content"][0]["text"] == str({"session": session})


async def test_sessions_that_no_rule_uses_are_replaced_by_the_argument(fake: FakeLeaseway) -> None:
    rules = tuple(rule for rule in SESSION_RULES if rule not in ("mcp-session", "principal"))
    async with front(fake, SessionOptions(rules=rules)) as url, host(url) as model:
        header = await model.initialize()
        listed = await model.send("tools/list", {}, header)
        tools = {tool["name"]: tool["inputSchema"] for tool in listed["tools"]}
        assert "session" in tools["count"]["properties"]
        assert "lease_release" in tools
        session = session_of(await model.call(header))
        for number in (2, 3):
            assert (await model.count(await model.initialize(), session=session))[1] == number
        assert len(fake.leases) == 1


async def test_every_front_with_the_key_continues_a_session(fake: FakeLeaseway) -> None:
    async with front(fake) as first, front(fake) as second:
        async with host(first) as client:
            session = session_of(await client.call(meta=MODERN))
            chat = {**MODERN, "openai/session": "one"}
            await client.count(meta=chat)
        async with host(second) as client:
            assert (await client.count(meta=MODERN, session=session))[1] == 2
            assert (await client.count(meta=chat))[1] == 2


async def test_the_rules_of_a_server_come_before_those_of_the_front(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = Offers.spec

    def spec(offers: Offers) -> ServerSpec:
        return replace(described(offers), sessions_from=("principal",))

    monkeypatch.setattr(Offers, "spec", spec)
    fake.server("other", stateful=True)  # a change, after which the specs are read again
    async with front(fake) as url, host(url) as client:
        assert [(await client.count(meta=MODERN))[1] for _ in range(3)] == [1, 2, 3]
        listed = await client.send("tools/list", {"_meta": MODERN})
        (count,) = [tool for tool in listed["tools"] if tool["name"] == "count"]
        assert "session" not in count["inputSchema"]["properties"]
