"""Prompts, resources, completions and subscriptions of real servers, in both eras."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import ServerCommand

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.mcp.instance import Instance
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Reason

if TYPE_CHECKING:
    from tests.data_plane.mcp.conftest import Bench

WAIT = 60.0
KINDS = pytest.mark.parametrize(
    ("transport", "protocol"),
    [("stdio", "auto"), ("stdio", "legacy"), ("http", "auto"), ("http", "legacy")],
)


@contextlib.asynccontextmanager
async def offering(
    bench: Bench, transport: str, protocol: str, *words: str
) -> AsyncIterator[Instance]:
    """Start an instance of the server with prompts and resources."""
    async with contextlib.AsyncExitStack() as stack:
        if transport == "stdio":
            spec = bench.stdio("offering_stdio", *words, protocol=protocol)
        else:
            address = await stack.enter_async_context(bench.serving("offering_http", *words))
            spec = bench.http_spec(f"{address}/mcp", protocol=protocol)
        instance = await bench.start(spec)
        yield instance
        await instance.close()


class Follower:
    """Follows one resource, and remembers what it is told."""

    def __init__(self, instance: Instance, uri: str) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.call = instance.follow(uri, self.told.put_nowait, self.end.set_result)

    async def next(self) -> str:
        """Return what it is told next."""
        async with asyncio.timeout(WAIT):
            return await self.told.get()


async def ask(instance: Instance, method: str, name: str, params: dict[str, Any]) -> Outcome:
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    request = ToolRequest(name, b"", json.dumps(params).encode(), method=method)
    instance.call(request, outcome.set_result)
    async with asyncio.timeout(WAIT):
        return await outcome


async def result(instance: Instance, method: str, about: str, /, **params: Any) -> dict[str, Any]:
    outcome = await ask(instance, method, about, params)
    assert outcome.fault is None, outcome.fault
    parsed: dict[str, Any] = json.loads(outcome.payload)
    return parsed


async def write(bench: Bench, instance: Instance, name: str, text: str) -> list[str]:
    said: list[str] = json.loads(await bench.text(instance, "write", {"name": name, "text": text}))
    return said


async def until_said(bench: Bench, instance: Instance, wanted: list[str]) -> None:
    async with asyncio.timeout(WAIT):
        while json.loads(await bench.text(instance, "said", {})) != wanted:
            await asyncio.sleep(0.01)


@KINDS
async def test_all_pages_of_all_lists_are_kept_as_they_were_sent(
    bench: Bench, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol) as instance:
        prompts_resources = await instance.list_prompts_resources(WAIT)
        assert instance.prompts_resources is prompts_resources
    assert [json.loads(each)["name"] for each in prompts_resources.prompts] == [
        "greet",
        "secret_prompt",
        "plain",
    ]
    assert json.loads(prompts_resources.prompts[0])["arguments"] == [
        {"name": "name", "required": True}
    ]
    assert [json.loads(each)["uri"] for each in prompts_resources.resources] == [
        "note://a",
        "note://b",
        "note://secret/x",
    ]
    assert [json.loads(each)["uriTemplate"] for each in prompts_resources.templates] == [
        "note://{name}"
    ]
    assert prompts_resources.gaps == ()


@KINDS
async def test_prompts_resources_and_completions_are_answered(
    bench: Bench, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol) as instance:
        prompt = await result(
            instance, "prompts/get", "greet", name="greet", arguments={"name": "Ada"}
        )
        assert prompt["messages"][0]["content"]["text"] == "greet: hello Ada"
        read = await result(instance, "resources/read", "note://a", uri="note://a")
        assert read["contents"][0]["text"] == "first"
        completed = await result(
            instance,
            "completion/complete",
            "greet",
            ref={"type": "ref/prompt", "name": "greet"},
            argument={"name": "name", "value": "a"},
            context={"arguments": {"tone": "warm"}},
        )
        assert completed["completion"]["values"] == ["ada", "alan", "tone=warm"]
        missing = await ask(instance, "resources/read", "note://none", {"uri": "note://none"})
        assert missing.fault is not None
        assert (missing.fault.reason, missing.fault.started) == (Reason.SERVER_ERROR, "yes")


async def test_a_list_that_fails_costs_that_list_only(bench: Bench) -> None:
    async with offering(bench, "stdio", "auto", "broken=resources") as instance:
        prompts_resources = await instance.list_prompts_resources(WAIT)
        assert list(instance.tools) == ["write", "offer", "said"]
    assert len(prompts_resources.prompts) == 3
    assert prompts_resources.resources == ()
    assert len(prompts_resources.templates) == 1
    assert len(prompts_resources.gaps) == 1
    assert "resources/list" in prompts_resources.gaps[0]
    assert "resources is broken today" in prompts_resources.gaps[0]


async def test_a_server_without_prompts_and_resources_is_not_asked_for_them(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("official_stdio"))
    prompts_resources = await instance.list_prompts_resources(WAIT)
    assert (
        prompts_resources.prompts,
        prompts_resources.resources,
        prompts_resources.templates,
        prompts_resources.gaps,
    ) == ((), (), (), ())


@KINDS
async def test_a_server_that_offers_more_says_so(
    bench: Bench, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol) as instance:
        async with asyncio.timeout(WAIT):
            told = False
            while not told:  # what was said before it listened is lost
                await bench.text(instance, "offer", {})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        told = await bench.changed.get() is instance
        prompts_resources = await instance.list_prompts_resources(WAIT)
    assert len(prompts_resources.prompts) > 3
    assert len(prompts_resources.resources) > 3


@KINDS
async def test_followers_of_one_resource_share_one_subscription(
    bench: Bench, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol) as instance:
        first, second = Follower(instance, "note://a"), Follower(instance, "note://a")
        assert [await first.next(), await second.next()] == ["", ""]
        late = Follower(instance, "note://a")
        assert await late.next() == ""
        await until_told(bench, instance, first, "a")
        first.call.cancel("enough")
        assert [await second.next(), await late.next()] == ["note://a", "note://a"]
        second.call.cancel("enough")
        late.call.cancel("enough")
        await until_said(bench, instance, ["subscribe note://a", "unsubscribe note://a"])
        assert not first.end.done()
        again = Follower(instance, "note://a")
        assert await again.next() == ""
        again.call.cancel("enough")
        await until_said(bench, instance, ["subscribe note://a", "unsubscribe note://a"] * 2)


async def until_told(bench: Bench, instance: Instance, follower: Follower, name: str) -> None:
    """Write until the follower hears: a GET stream may open after the subscription holds."""
    for text in range(300):
        await write(bench, instance, name, str(text))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                assert await follower.told.get() == f"note://{name}"
                return
    pytest.fail("The follower was never told.")


@KINDS
async def test_only_what_is_followed_is_told_and_parts_of_it(
    bench: Bench, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol) as instance:
        whole, other = Follower(instance, "note://secret"), Follower(instance, "note://b")
        assert [await whole.next(), await other.next()] == ["", ""]
        if protocol == "legacy":  # the official package's modern server tells of exact URIs only
            await until_told(bench, instance, whole, "secret/x")
        await until_told(bench, instance, other, "b")
        while not whole.told.empty():
            assert whole.told.get_nowait() == "note://secret/x"


@KINDS
async def test_followers_learn_that_the_instance_has_ended(
    bench: Bench, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol) as instance:
        follower = Follower(instance, "note://a")
        assert await follower.next() == ""
        await instance.close()
        async with asyncio.timeout(WAIT):
            outcome = await follower.end
    assert outcome.fault is not None
    assert (outcome.fault.reason, outcome.fault.started) == (Reason.SERVER_LOST, "yes")
    late = Follower(instance, "note://a")
    async with asyncio.timeout(WAIT):
        assert (await late.end).fault is not None


async def test_a_server_that_tells_of_no_changes_says_what_to_do(bench: Bench) -> None:
    for protocol in ("auto", "legacy"):
        async with offering(bench, "stdio", protocol, "mute") as instance:
            async with asyncio.timeout(WAIT):
                fault = (await Follower(instance, "note://a").end).fault
        assert fault is not None
        assert fault.reason is Reason.SERVER_ERROR
        assert "does not report changes" in fault.message


async def test_npms_reference_server_lists_reads_completes_and_tells(
    bench: Bench, npm_server: ServerCommand
) -> None:
    command, *args = [*npm_server("mcp-server-everything"), "stdio"]
    spec = ServerSpec(VariantKey("everything"), "stdio", command=command, args=tuple(args))
    instance = await bench.start(spec)
    prompts_resources = await instance.list_prompts_resources(WAIT)
    assert prompts_resources.gaps == ()
    prompts = {json.loads(each)["name"]: json.loads(each) for each in prompts_resources.prompts}
    assert prompts
    for name, prompt in prompts.items():
        given = {each["name"]: "1" for each in prompt.get("arguments", ()) if each.get("required")}
        if "resourceType" in given:
            given = {**given, "resourceType": "Text"}
        got = await result(instance, "prompts/get", name, name=name, arguments=given)
        assert got["messages"], name
    assert prompts_resources.resources
    for each in prompts_resources.resources[:10]:
        uri = json.loads(each)["uri"]
        assert (await result(instance, "resources/read", uri, uri=uri))["contents"]
    templates = [json.loads(each)["uriTemplate"] for each in prompts_resources.templates]
    assert templates
    uri = json.loads(prompts_resources.resources[0])["uri"]
    follower = Follower(instance, uri)
    assert await follower.next() == ""
    follower.call.cancel("enough")
