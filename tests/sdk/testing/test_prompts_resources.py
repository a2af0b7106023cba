"""Prompts and resources of a fake: lists, requests, subscriptions, completions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sdk.fakes import BOUND

from leaseway.sdk import InputRequired, PermissionDenied, ServerError, ToolNotFound
from leaseway.sdk.testing import CallContext, FakeLeaseway


@pytest.fixture
def offers(fake: FakeLeaseway) -> FakeLeaseway:
    """Add a prompt and a resource of a shared server, and one of a leased one."""

    @fake.prompt(completions={"topic": ["ships", "shoes", "wax"]})
    def explain(topic: str, tone: str = "plain") -> str:
        """Explain something."""
        return f"Explain {topic} in a {tone} tone."

    fake.resource("note://one", "first", mime_type="text/markdown", description="A note.")
    shop = fake.server("shop", stateful=True, prefix="shop_")
    shop.resource("shop://logo", lambda: b"\x00\x01", mime_type="image/png")

    @shop.prompt(name="offer")
    async def make_offer() -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": {"type": "text", "text": "Cheap!"}}]

    return fake


async def test_prompts_can_be_listed_and_requested(offers: FakeLeaseway) -> None:
    async with offers.async_client() as client:
        explain, offer = await client.list_prompts()
        assert [(argument.name, argument.required) for argument in explain.arguments] == [
            ("topic", True),
            ("tone", False),
        ]
        assert (explain.description, explain.shared) == ("Explain something.", True)
        assert (offer.name, offer.qualified_name, offer.shared) == (
            "shop_offer",
            "shop:offer",
            False,
        )
        got = await client.get_prompt("explain", {"topic": "wax"})
        assert got.text == "Explain wax in a plain tone."
        async with client.session("one") as session:
            assert (await session.get_prompt("shop:offer")).messages[0]["role"] == "assistant"
            assert [lease.server_id for lease in offers.leases] == ["shop"]


async def test_prompts_return_media_by_reference_and_resources_return_it_in_place(
    offers: FakeLeaseway,
) -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": "AAE="}
    text = {"type": "text", "text": "see"}

    @offers.prompt()
    def show() -> list[dict[str, Any]]:
        return [{"role": "user", "content": picture}, {"role": "user", "content": [text, picture]}]

    async with offers.async_client() as client:
        session = client.session("one")
        for _ in range(2):  # the function's return value is not changed
            one, two = (await session.get_prompt("show")).messages
            assert one["content"].keys() == {"type", "mimeType", "byteLength", "artifact"}
            assert two["content"][0] == text
            for kept in (one["content"], two["content"][1]):
                assert kept["artifact"].startswith("artifacts/mcp/tools/show/")
                assert await session.read_artifact(kept["artifact"]) == b"\x00\x01"
        got = await session.get_prompt("show")
        assert [media.artifact is None for media in got.media] == [False, False]
        image = {"type": "image", "mime_type": "image/png", "data": "AAE="}
        assert await got.for_model() == [image, text, image]
        synchronous = await asyncio.to_thread(offers.client().get_prompt, "show")
        assert await asyncio.to_thread(lambda: list(synchronous.for_model())) == [
            image,
            text,
            image,
        ]
        shown = await session.get_prompt("show", inline_media=True)
        assert [message["content"] for message in shown.messages] == [picture, [text, picture]]
        assert (await session.read_resource("shop://logo")).blob == b"\x00\x01"


@pytest.mark.parametrize("arguments", [{}, {"topic": "wax", "volume": "11"}])
def test_a_prompt_rejects_missing_and_unknown_arguments(
    offers: FakeLeaseway, arguments: dict[str, str]
) -> None:
    with pytest.raises(ServerError) as caught:
        offers.client().get_prompt("explain", arguments)
    assert caught.value.code == -32602


async def test_resources_can_be_listed_read_and_subscribed_to(offers: FakeLeaseway) -> None:
    async with offers.async_client() as client, asyncio.timeout(BOUND):
        assert [resource.uri for resource in await client.list_resources()] == [
            "shop://logo",
            "note://one",
        ]
        assert (await client.read_resource("note://one")).text == "first"
        logo = (await client.session("one").read_resource("shop://logo")).raw["contents"][0]
        assert (logo["mimeType"], logo["blob"]) == ("image/png", "AAE=")
        async with client.subscribe_resource("note://one") as updates:
            offers.resource("note://one", "second")
            assert await updates.next() == "note://one"
            assert (await client.read_resource("note://one")).text == "second"


def test_arguments_are_completed(offers: FakeLeaseway) -> None:
    client = offers.client()
    assert client.complete("topic", "sh", prompt="explain").values == ["ships", "shoes"]
    assert client.complete("tone", "", prompt="explain").values == []


def test_templates_can_be_listed_read_and_completed(fake: FakeLeaseway) -> None:
    @fake.resource_template("file:///{+path}", description="A file.", mime_type="text/css")
    def file(path: str) -> str:
        return f"content of {path}"

    @fake.resource_template("note://{day}/{name}.md", completions={"day": ["mon", "tue"]})
    def note(day: str, name: str) -> bytes:
        """A note of a day."""
        return f"{day} {name}".encode()

    fake.resource("file:///listed", "the listed one")
    client = fake.client()
    first, second = client.list_resource_templates()
    assert (first.uri_template, first.name, first.description) == (
        "file:///{+path}",
        "file",
        "A file.",
    )
    assert (second.description, second.mime_type) == ("A note of a day.", "text/plain")
    read = client.read_resource("file:///a/b.css")
    assert (read.text, read.contents[0]["mimeType"]) == ("content of a/b.css", "text/css")
    assert client.read_resource("file:///listed").text == "the listed one"
    assert client.read_resource("note://mon/x.md").blob == b"mon x"
    assert client.complete("day", "t", template="note://{day}/{name}.md").values == ["tue"]
    for unknown in ("note://mon/a/b.md", "note://mon/.md", "note://mon/x_md"):
        with pytest.raises(ToolNotFound):
            client.read_resource(unknown)


def test_invalid_prompts_and_templates_are_rejected(fake: FakeLeaseway) -> None:
    with pytest.raises(ValueError, match="no name for a prompt"):
        fake.prompt(name="a b")(lambda: "")
    with pytest.raises(ValueError, match=r"'note://a' has no variables"):
        fake.resource_template("note://a")(lambda: "")


def test_exceptions_of_prompts_and_resources_fail_their_requests(fake: FakeLeaseway) -> None:
    @fake.prompt()
    def broken() -> str:
        raise ZeroDivisionError("by zero")

    @fake.resource_template("closed://{name}")
    def closed(name: str) -> str:
        raise PermissionDenied("Not you.")

    fake.resource("broken://a", lambda: "a"[7])
    client = fake.client()
    with pytest.raises(ServerError, match="Prompt 'broken' failed: by zero") as caught:
        client.get_prompt("broken")
    assert caught.value.code == -32603
    with pytest.raises(ServerError, match="Resource 'broken://a' failed: string index"):
        client.read_resource("broken://a")
    with pytest.raises(PermissionDenied, match="Not you"):
        client.read_resource("closed://a")


async def test_a_prompt_can_send_its_caller_a_request(
    fake: FakeLeaseway,
) -> None:
    @fake.prompt()
    async def welcome(context: CallContext) -> str:
        answer = await context.ask("elicitation/create", {"message": "Who?"})
        return f"Welcome {answer['content']['name']}"

    (listed,) = fake.client().list_prompts()
    assert listed.arguments == ()
    accepted = {"action": "accept", "content": {"name": "Ada"}}
    async with fake.async_client(on_elicitation=lambda _: accepted) as client:
        assert (await client.get_prompt("welcome")).text == "Welcome Ada"
    async with fake.async_client() as client:
        with pytest.raises(InputRequired, match="elicitation/create"):
            await client.get_prompt("welcome")
