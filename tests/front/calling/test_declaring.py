"""What the front declares beside tools, and what it answers for what it did not declare."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import Client
from mcp_types import METHOD_NOT_FOUND
from tests.front.harness import MODERN, front, host

from leaseway.front.calling.conversations import Carried
from leaseway.front.calling.declaring import Declaring
from leaseway.front.calling.requests import Request
from leaseway.front.catalog import CatalogCache
from leaseway.front.protocol.envelope import RequestMessage
from leaseway.front.protocol.handshake import EVERYTHING, Declared
from leaseway.front.protocol.messages import JsonRpcError
from leaseway.sdk.relay import IntroductionList, ServerIntroduction
from leaseway.sdk.testing import FakeLeaseway

UI = "io.modelcontextprotocol/ui"
TOOLS = {"tools": {"listChanged": True}, "logging": {}}
PROMPTS = {**TOOLS, "prompts": {"listChanged": True}, "completions": {}}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
NEEDING = {
    "prompts/get": {"name": "p"},
    "resources/read": {"uri": "note://a"},
    "resources/subscribe": {"uri": "note://a"},
    "resources/unsubscribe": {"uri": "note://a"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "p"},
        "argument": {"name": "a", "value": ""},
    },
    "logging/setLevel": {"level": "info"},
}


def now() -> str:
    return "noon"


def greet(name: str) -> str:
    return f"Hello {name}."


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """Serve a server with tools only, one with a prompt, one with a resource. All may log."""
    with FakeLeaseway() as fake:
        fake.server("clock").tool(now)
        fake.server("greeter").prompt()(greet)
        fake.server("notes").resource("note://a", "Noted.")
        yield fake


async def declared(url: str, mode: str) -> dict[str, Any]:
    """Return what the official client is told."""
    async with Client(url, mode=mode) as client:
        capabilities = client.session.server_capabilities
        assert capabilities is not None
        return capabilities.model_dump(by_alias=True, exclude_none=True)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_is_told_what_the_servers_that_it_sees_have(
    fake: FakeLeaseway, mode: str
) -> None:
    resources = {"resources": {"subscribe": True, "listChanged": True}}
    async with front(fake) as url:
        assert await declared(f"{url}/clock", mode) == TOOLS
        assert await declared(f"{url}/greeter", mode) == PROMPTS
        assert await declared(f"{url}/notes", mode) == {**TOOLS, **resources}
        assert await declared(url, mode) == {**PROMPTS, **resources}


async def test_a_method_that_was_not_declared_is_unknown(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(f"{url}/clock") as client:
        session = await client.initialize()
        with pytest.raises(LookupError, match="no server that this client sees has prompts"):
            await client.send("prompts/get", {"name": "p"}, session)
        with pytest.raises(LookupError, match="no server that this client sees has prompts"):
            await client.send("prompts/get", {"name": "p", "_meta": MODERN})
        assert client.status == 404


async def test_a_list_that_was_not_declared_is_empty(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(f"{url}/clock") as client:
        session = await client.initialize()
        assert await client.send("prompts/list", {}, session) == {"prompts": []}
        assert await client.send("resources/list", {}, session) == {"resources": []}


async def test_a_client_that_gets_media_as_links_is_told_of_resources(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(f"{url}/clock") as client:
        links = {"Leaseway-Media": "links"}
        result = await client.send("initialize", INITIALIZE, links)
        assert result["capabilities"] == {**TOOLS, "resources": {"listChanged": True}}


class Told(CatalogCache):
    """A catalog that is told what servers say."""

    said: IntroductionList | None

    async def introduced(self) -> IntroductionList | None:
        return self.said


@pytest.fixture
async def catalog(fake: FakeLeaseway) -> AsyncIterator[Told]:
    async with fake.async_client() as client:
        yield Told(client)


def request(method: str, params: dict[str, Any], declared: Declared | None = None) -> Request:
    """Return a request in a session to which something was declared."""
    live: Any = SimpleNamespace(declared=declared)
    unused: Any = None
    return Request(
        message=RequestMessage(b"1", method, json.dumps(params).encode()),
        listener=unused,
        modern=False,
        scope="",
        carried=Carried(unused, live),
    )


def said(*capabilities: str, pending: tuple[str, ...] = ()) -> IntroductionList:
    """Return what the server `a` says while others are starting."""
    return IntroductionList(
        [ServerIntroduction("a", "", (UI, "unknown"), capabilities)], 1, pending
    )


async def test_everything_is_declared_while_a_server_that_is_seen_is_starting(
    catalog: Told,
) -> None:
    declaring = Declaring(catalog, "inline")
    catalog.said = said("prompts", pending=("b",))
    assert await declaring.declared("") == Declared(EVERYTHING.capabilities, (UI,))
    assert (await declaring.declared("b")).capabilities == EVERYTHING.capabilities
    assert (await declaring.declared("a")).capabilities == {"prompts"}
    catalog.said = said("prompts")
    assert (await declaring.declared("")).capabilities == {"prompts"}
    assert (await declaring.declared("b")).capabilities == frozenset()
    catalog.said = None  # the control plane does not answer
    assert await declaring.declared("") is EVERYTHING


@pytest.mark.parametrize(("method", "params"), NEEDING.items())
async def test_each_method_needs_its_capability_now_or_in_its_session(
    catalog: Told, method: str, params: dict[str, Any]
) -> None:
    declaring = Declaring(catalog, "inline")
    catalog.said = said()
    with pytest.raises(JsonRpcError) as caught:
        await declaring.check(request(method, params, Declared()))
    assert caught.value.code == METHOD_NOT_FOUND
    await declaring.check(request(method, params, EVERYTHING))
    catalog.said = said(*EVERYTHING.capabilities)
    await declaring.check(request(method, params, Declared()))


async def test_a_linked_artifact_is_read_whatever_servers_have(catalog: Told) -> None:
    catalog.said = said()
    ref = "artifacts/mcp/a/t/20260101T000000000Z-0f8fad5b-d9cb-8a9f-a165-70867728950e.png"
    await Declaring(catalog, "inline").check(
        request("resources/read", {"uri": f"leaseway://{ref}"}, Declared())
    )
