"""Tools whose input schemas models refuse: every client lists them so that its model takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.front.harness import MODERN, Host, front, host

from leaseway.sdk.testing import CallContext, FakeLeaseway

TEXT = {"type": "string"}
CHOICE = {
    "type": "object",
    "anyOf": [
        {"properties": {"id": TEXT}, "required": ["id"]},
        {"properties": {"url": TEXT}, "required": ["url"]},
    ],
}
ODD = {"type": "object", "properties": {"since>": TEXT, "session[]": TEXT}, "required": ["since>"]}


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:

        @fake.tool(schema=CHOICE)
        def choose(**arguments: Any) -> str:
            return str(arguments)

        @fake.tool(schema=ODD)
        def shared(**arguments: Any) -> str:
            return str(arguments)

        @fake.server("notes", stateful=True).tool(schema=ODD)
        def leased(ctx: CallContext, **arguments: Any) -> str:
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            return f"{ctx.state['n']} {arguments}"

        yield fake


async def listed(client: Host, headers: dict[str, str], meta: dict[str, Any]) -> dict[str, Any]:
    result = await client.send("tools/list", {"_meta": meta}, headers)
    return {tool["name"]: tool["inputSchema"] for tool in result["tools"]}


async def called(
    client: Host, name: str, headers: dict[str, str], meta: dict[str, Any], **arguments: Any
) -> str:
    params = {"name": name, "arguments": arguments, "_meta": meta}
    result = await client.send("tools/call", params, headers)
    text: str = result["content"][0]["text"]
    assert not result.get("isError"), text
    return text


async def test_choices_at_the_root_are_shown_to_clients_that_know_them(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        session = await client.initialize()
        assert (await listed(client, {}, MODERN))["choose"] == CHOICE
        assert (await listed(client, session, {}))["choose"] == {
            "type": "object",
            "properties": {"id": TEXT, "url": TEXT},
            "description": "Pass one of: id; url.",
        }
        assert await called(client, "choose", session, {}, url="x") == "{'url': 'x'}"


@pytest.mark.parametrize("is_modern", [True, False])
async def test_renamed_arguments_reach_the_server_by_its_names(
    fake: FakeLeaseway, is_modern: bool
) -> None:
    async with front(fake) as url, host(url) as client:
        headers = {} if is_modern else await client.initialize()
        meta = MODERN if is_modern else {}
        tools = await listed(client, headers, meta)
        assert tools["shared"] == {
            "type": "object",
            "properties": {
                "since": {"title": "since>", **TEXT},
                "session": {"title": "session[]", **TEXT},
            },
            "required": ["since"],
        }
        given = {"since": "a", "session": "b"}
        arrived = "{'since>': 'a', 'session[]': 'b'}"
        for _ in range(2):  # the second call finds the tool known
            assert await called(client, "shared", headers, meta, **given) == arrived
        assert await called(client, "shared", headers, meta, **{"since>": "a"}) == "{'since>': 'a'}"


async def test_the_argument_for_the_session_stands_beside_renamed_ones(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        tools = await listed(client, {}, MODERN)
        assert set(tools["leased"]["properties"]) == {"since", "session", "leaseway_session"}
        given = {"since": "a", "session": "b"}
        arrived = "{'since>': 'a', 'session[]': 'b'}"
        params = {"name": "leased", "arguments": given, "_meta": MODERN}
        first = await client.send("tools/call", params)
        handle = first["_meta"]["leaseway/session"]
        assert first["content"][0]["text"] == f"1 {arrived}"
        again = await called(client, "leased", {}, MODERN, **given, leaseway_session=handle)
        assert again == f"2 {arrived}"
