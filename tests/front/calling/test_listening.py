"""`subscriptions/listen`: its acknowledgement is first, and says what was refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
from tests.conftest import BOUND
from tests.front.harness import ACCEPT, MODERN, Host, front, host

from leaseway.front.calling.conversations import Carried
from leaseway.front.calling.listening import REFUSED_KEY, listen
from leaseway.front.calling.requests import Request
from leaseway.front.catalog import CatalogCache
from leaseway.front.lists.ui_resources import ServerResource
from leaseway.front.protocol.envelope import RequestMessage
from leaseway.front.protocol.messages import ListenFilter
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.table import SessionTable
from leaseway.sdk import AsyncClient
from leaseway.sdk.testing import FakeLeaseway

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
HEADERS = {
    **ACCEPT,
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "subscriptions/listen",
}


async def messages(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


@asynccontextmanager
async def listening(
    client: Host, notifications: Mapping[str, Any]
) -> AsyncIterator[aiohttp.ClientResponse]:
    params = {"notifications": notifications, "_meta": MODERN}
    message = {"jsonrpc": "2.0", "id": 3, "method": "subscriptions/listen", "params": params}
    async with client.http.post(client.url, json=message, headers=HEADERS) as answer:
        yield answer


async def test_a_refused_resource_costs_nothing_else() -> None:
    uris = ["note:none", "note:a"]
    wanted = {"resourceSubscriptions": uris, "toolsListChanged": True}
    with FakeLeaseway() as fake:
        (notes := fake.server("notes")).resource("note:a", "old")
        async with (
            asyncio.timeout(BOUND),
            front(fake) as url,
            host(url) as client,
            listening(client, wanted) as answer,
        ):
            told = messages(answer)
            first = await anext(told)
            accepted = {"resourceSubscriptions": ["note:a"], "toolsListChanged": True}
            assert (first["method"], first["params"]["notifications"]) == (ACKNOWLEDGED, accepted)
            refused = first["params"]["_meta"][REFUSED_KEY]
            assert list(refused) == ["note:none"]
            assert "There is no resource 'note:none'" in refused["note:none"]
            notes.resource("note:a", "new")
            second = await anext(told)
            assert (second["method"], second["params"]["uri"]) == (UPDATED, "note:a")


async def test_a_stream_of_which_all_is_refused_is_an_error() -> None:
    wanted = {"resourceSubscriptions": ["note:none"]}
    with FakeLeaseway() as fake:
        fake.server("notes").resource("note:a", "old")
        async with (
            asyncio.timeout(BOUND),
            front(fake) as url,
            host(url) as client,
            listening(client, wanted) as answer,
        ):
            error = (await answer.json())["error"]
    assert (error["code"], error["data"]["reason"]) == (-32602, "TOOL_NOT_FOUND")


class Subscribed:
    """A subscription that is confirmed at once and has one update."""

    def __init__(self, uri: str) -> None:
        self.uris = [uri]

    async def __aenter__(self) -> Subscribed:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing."""

    def __aiter__(self) -> Subscribed:
        return self

    async def __anext__(self) -> str:
        if self.uris:
            return self.uris.pop()
        await asyncio.Event().wait()
        raise StopAsyncIteration


class Session:
    """A session whose subscription to `note:late` is confirmed once it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()

    def subscribe_resource(self, uri: str, *, server: str | None = None) -> Subscribed:
        return Late(uri, self.let) if uri == "note:late" else Subscribed(uri)


class Late(Subscribed):
    def __init__(self, uri: str, let: asyncio.Event) -> None:
        super().__init__(uri)
        self.let = let

    async def __aenter__(self) -> Subscribed:
        await self.let.wait()
        return self


class Catalog:
    """Lists that change while a client waits for its acknowledgement."""

    def __init__(self) -> None:
        self.tell: Callable[[str, frozenset[str], bytes], None] | None = None

    async def listing(self, kind: str) -> None:
        """Nothing."""

    async def resource(self, uri: str, scope: str, session: str) -> ServerResource:
        return ServerResource(uri)

    def subscribe(self, tell: Callable[[str, frozenset[str], bytes], None]) -> Callable[[], None]:
        self.tell = tell
        return asyncio.Event().set


async def test_what_changes_before_the_acknowledgement_is_told_after_it() -> None:
    sent: asyncio.Queue[Any] = asyncio.Queue()
    listener = Listener(lambda message: sent.put_nowait(json.loads(message)))
    carried = Carried(cast("SessionTable", None))
    message = RequestMessage(b"3", "subscriptions/listen", b"{}")
    request = Request(message, listener, True, "", carried)
    session, catalog, ending = Session(), Catalog(), asyncio.Event()
    filters = ListenFilter(tools_list_changed=True, resource_subscriptions=["note:a", "note:late"])
    async with asyncio.timeout(BOUND):
        running = asyncio.create_task(
            listen(
                request,
                filters,
                cast("CatalogCache", catalog),
                cast("AsyncClient", session),
                ending,
            )
        )
        while catalog.tell is None:
            await asyncio.sleep(0)
        for _ in range(3):
            catalog.tell("tools", frozenset({"notes"}), b"")
        session.let.set()
        told = [(await sent.get())["method"] for _ in range(4)]
        ending.set()
        await running
    assert told[0] == ACKNOWLEDGED
    assert sorted(told[1:]) == [UPDATED, UPDATED, "notifications/tools/list_changed"]
