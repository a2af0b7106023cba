"""MCP Apps: two servers with one `ui://` URI, for clients of all servers and of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from tests.conftest import BOUND
from tests.front.harness import INFO, MODERN, front, host

from leaseway.front.lists.ui_resources import EXTENSION, for_client, of_server, result_for_client
from leaseway.sdk.testing import FakeLeaseway, Reply

APP = "text/html;profile=mcp-app"
URI = "ui://clock/app.html"
IDS = st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True)
ERAS = pytest.mark.parametrize("meta", [{}, MODERN], ids=["legacy", "modern"])


@given(st.text().map("ui://".__add__), IDS, st.sets(IDS))
def test_a_renamed_uri_leads_to_its_server_and_back(
    uri: str, server: str, others: set[str]
) -> None:
    found = of_server(for_client(uri, server), {server, *others})
    assert (found.uri, found.server) == (uri, server)
    assert found.for_client(found.uri) == for_client(uri, server)


@given(st.text(), st.sets(IDS))
def test_other_uris_are_those_of_their_servers(uri: str, servers: set[str]) -> None:
    if not uri.startswith("ui://"):
        assert for_client(uri, "a") == uri
        assert of_server(uri, servers) == (uri, None, False)


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "resource_link", "uri": URI, "name": "n"}], "isError": False},
        {"contents": [{"uri": URI, "text": "ui:", "_meta": {"ui": {"csp": {}}}}]},
        {"messages": [{"content": {"type": "resource", "resource": {"uri": URI}}}]},
        {"content": [{"type": "text", "text": "x"}], "_meta": {"ui": {"resourceUri": URI}}},
        {"content": [], "_meta": {"ui/resourceUri": URI, "other": 1.5}},
    ],
)
def test_uris_are_renamed_wherever_mcp_has_them(result: Any) -> None:
    sent = json.dumps(result)
    expected = json.loads(sent.replace(URI, for_client(URI, "paris")))
    for payload in (sent, sent.replace("/", "\\/")):
        assert json.loads(result_for_client(payload.encode(), "paris")) == expected


def test_a_servers_own_data_and_texts_stay_as_they_are() -> None:
    text = {"type": "text", "text": f"see {URI}"}
    result = {"content": [text], "structuredContent": {"uri": URI}}
    assert json.loads(result_for_client(json.dumps(result).encode(), "paris")) == result


@pytest.mark.parametrize("payload", [b'{"content":[],"n":1.0e2}', b'{"content":"ui:"', b"ui:"])
def test_results_without_such_uris_and_broken_ones_stay_as_they_are(payload: bytes) -> None:
    assert result_for_client(payload, "a") is payload


def show() -> str:
    """Show nothing."""
    return ""


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """Serve two apps that chose the same URI."""
    with FakeLeaseway() as fake:
        for name in ("paris", "tokyo"):
            server = fake.server(name, prefix=f"{name}_")
            server.resource(URI, f"<p>{name}</p>", mime_type=APP)

            @server.tool(meta={"ui": {"resourceUri": URI}})
            def show() -> Reply:
                """Show the time."""
                link = {"type": "resource_link", "uri": URI, "name": "app"}
                return Reply([link], meta={"ui": {"resourceUri": URI}})

        yield fake


@ERAS
async def test_a_host_reads_the_app_of_each_tool_by_its_uri(
    fake: FakeLeaseway, meta: dict[str, Any]
) -> None:
    async with front(fake) as url, host(url) as client:

        async def read(uri: str) -> str:
            headers = {"Mcp-Name": uri} if meta else {}
            result = await client.send("resources/read", {"uri": uri, "_meta": meta}, headers)
            (content,) = result["contents"]
            assert (content["uri"], content["mimeType"]) == (uri, APP)
            return str(content["text"])

        listed = await client.send("resources/list", {"_meta": meta})
        assert len({resource["uri"] for resource in listed["resources"]}) == 2
        tools = (await client.send("tools/list", {"_meta": meta}))["tools"]
        apps = {
            tool["name"]: tool["_meta"]["ui"]["resourceUri"] for tool in tools if "_meta" in tool
        }
        for city in ("paris", "tokyo"):
            uri = apps[f"{city}_show"]
            assert uri in {resource["uri"] for resource in listed["resources"]}
            assert await read(uri) == f"<p>{city}</p>"
            call = {"name": f"{city}_show", "_meta": meta}
            result = await client.send("tools/call", call)
            assert result["content"][0]["uri"] == result["_meta"]["ui"]["resourceUri"] == uri


async def test_a_client_of_one_server_gets_its_uris_as_they_are(fake: FakeLeaseway) -> None:
    async with front(fake) as url, Client(f"{url}/tokyo", mode="legacy") as client:
        (resource,) = (await client.list_resources()).resources
        assert str(resource.uri) == URI
        assert (await client.read_resource(URI)).contents[0].text == "<p>tokyo</p>"  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:resources/subscribe")
async def test_updates_name_the_uri_that_the_client_subscribed_to(fake: FakeLeaseway) -> None:
    (rome := fake.server("rome")).resource(URI, "old", mime_type=APP)
    uri = for_client(URI, "rome")
    updates: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        if message.method == "notifications/resources/updated":
            updates.put_nowait(str(message.params.uri))

    async with (
        asyncio.timeout(BOUND),
        front(fake) as url,
        Client(url, mode="legacy", message_handler=on_message) as client,
    ):
        await client.session.subscribe_resource(uri)
        rome.resource(URI, "new", mime_type=APP)
        assert await updates.get() == uri


@pytest.mark.parametrize("known", [(EXTENSION, "com.example/other"), ()])
async def test_extensions_that_pass_the_front_are_declared(
    fake: FakeLeaseway, known: tuple[str, ...]
) -> None:
    fake.server("extended", extensions=known).tool(show)
    async with front(fake) as url:
        for scope, expected in (("", [EXTENSION] if known else []), ("/paris", [])):
            async with host(f"{url}{scope}") as client:
                params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}
                results = [
                    await client.send("initialize", params),
                    await client.send("server/discover", {"_meta": MODERN}),
                ]
            for result in results:
                assert list(result["capabilities"].get("extensions", {})) == expected


@pytest.mark.parametrize(
    "contents",
    [
        [[[{"uri": URI}]]],
        [{"uri": URI, "text": "", "_meta": {"rows": list(range(100_001))}}],
    ],
)
def test_contents_that_take_long_to_read_stay_as_they_are(contents: Any) -> None:
    payload = json.dumps({"contents": contents}).encode()
    assert json.loads(result_for_client(payload, "paris")) == {"contents": contents}
