"""Resources that results name are read at the server that has named them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.front.harness import MODERN, Host, front, host

from leaseway.front.lists.linked_resources import LinkedResources
from leaseway.sdk.testing import FakeLeaseway, Reply

URI = "file:///report"
ERAS = pytest.mark.parametrize("meta", [{}, MODERN], ids=["legacy", "modern"])


def link(uri: str) -> dict[str, Any]:
    return {"type": "resource_link", "uri": uri, "name": "n"}


def result(*uris: str) -> bytes:
    return msgspec.json.encode({"content": [link(uri) for uri in uris]})


@pytest.mark.parametrize(
    "payload",
    [
        {"content": [{"type": "text", "text": "t"}, link(URI)]},
        {"content": [{"type": "resource", "resource": {"uri": URI, "text": ""}}]},
        {"messages": [{"role": "user", "content": link(URI)}]},
        {"messages": [{"role": "user", "content": [link(URI)]}]},
    ],
)
def test_links_and_embedded_resources_of_tools_and_prompts_are_known(payload: Any) -> None:
    linked = LinkedResources()
    linked.learn("", "a", msgspec.json.encode(payload))
    assert linked.server_of("any", URI) == "a"


def test_a_session_has_its_own_links_and_the_newest_counts() -> None:
    linked = LinkedResources()
    linked.learn("", "a", result(URI))
    linked.learn("one", "b", result(URI, "x:y"))
    assert [linked.server_of(session, URI) for session in ("one", "two", "")] == ["b", "a", "a"]
    assert linked.server_of("two", "x:y") is None
    linked.learn("one", "c", result(URI))
    assert linked.server_of("one", URI) == "c"


@pytest.mark.parametrize("wrong", [{"type": "resource", "uri": 1}, "resource", None, 7])
def test_an_invalid_item_costs_no_other_link(wrong: Any) -> None:
    linked = LinkedResources()
    linked.learn("", "a", msgspec.json.encode({"content": [wrong, link(URI)]}))
    linked.learn("", "b", msgspec.json.encode({"content": [link("b:b")], "messages": wrong}))
    messages = [wrong, {"content": wrong}, {"content": [wrong, link("x:y")]}]
    linked.learn(
        "",
        "a",
        msgspec.json.encode(
            {"messages": messages},
        ),
    )
    found = [linked.server_of("", uri) for uri in (URI, "b:b", "x:y")]
    assert found == ["a", "b", "a"]


@pytest.mark.parametrize(
    "payload", [b'{"content":"resource"}', b'{"resource', b'{"content":[{"uri":1}],"resource":1}']
)
def test_what_is_no_result_of_mcp_is_not_learned(payload: bytes) -> None:
    linked = LinkedResources()
    linked.learn("", "a", payload)
    assert linked.server_of("", URI) is None


def test_links_have_a_bound() -> None:
    linked = LinkedResources()
    linked.learn("", "a", result(*(f"x:{n}" for n in range(1025)), "x:" + "y" * 1023))
    known = [n for n in range(1025) if linked.server_of("", f"x:{n}")]
    assert known == list(range(1, 1025))
    assert linked.server_of("", "x:" + "y" * 1023) is None


def notes_of(name: str) -> Callable[[str], str]:
    def note(number: str) -> str:
        """A note."""
        return f"{name} {number}"

    return note


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """Serve the same URIs by two servers, and link to them."""
    with FakeLeaseway() as fake:
        for name, stateful in (("paris", False), ("tokyo", True), ("lima", False)):
            server = fake.server(name, prefix=f"{name}_", stateful=stateful)

            @server.tool
            def show(uri: str) -> Reply:
                """Link to a resource."""
                return Reply([link(uri)])

            if name == "lima":
                server.resource("x:lima", "lima")
                continue
            server.resource(URI, name)

            server.resource_template("note://{number}")(notes_of(name))
        yield fake


@ERAS
async def test_a_client_of_all_servers_reads_what_a_result_has_linked_to(
    fake: FakeLeaseway, meta: dict[str, Any]
) -> None:
    async with front(fake) as url, host(url, cookies=True) as client:
        session = {} if meta else await client.initialize()

        async def read(client: Host, uri: str) -> str:
            headers = {**session, **({"Mcp-Name": uri} if meta else {})}
            got = await client.send("resources/read", {"uri": uri, "_meta": meta}, headers)
            return str(got["contents"][0]["text"])

        first = await read(client, URI)
        for name in ("tokyo", "paris", "tokyo", "paris"):
            for uri in (URI, "note://7"):
                params = {"name": f"{name}_show", "arguments": {"uri": uri}, "_meta": meta}
                await client.send("tools/call", params, session)
            assert await read(client, URI) == name
            assert await read(client, "note://7") == f"{name} 7"
        params = {"name": "lima_show", "arguments": {"uri": URI}, "_meta": meta}
        await client.send("tools/call", params, session)
        assert await read(client, URI) == first, "only other servers list it"
