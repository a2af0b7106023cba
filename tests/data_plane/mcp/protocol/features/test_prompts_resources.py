"""Prompts, resources, completions and subscriptions of real servers, in both eras."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conftest import BOUND, ServerCommand
from tests.data_plane.mcp.conftest import Bench, serving

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.mcp.instance import Instance
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Reason

KINDS = pytest.mark.parametrize(
    ("transport", "protocol"),
    [("stdio", "auto"), ("stdio", "legacy"), ("http", "auto"), ("http", "legacy")],
)


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[str]:
    """Run an HTTP server for tests that do not depend on its state; yield its address."""
    async with serving("offering_http") as address:
        yield address


@contextlib.asynccontextmanager
async def offering(
    bench: Bench, transport: str, protocol: str, *words: str, address: str = ""
) -> AsyncIterator[Instance]:
    """Start a server with prompts and resources, or use the HTTP server at an address."""
    async with contextlib.AsyncExitStack() as stack:
        if transport == "stdio":
            spec = bench.forked("offering_stdio", *words, protocol=protocol)
        else:
            if not address:
                address = await stack.enter_async_context(serving("offering_http", *words))
            spec = bench.http_spec(f"{address}/mcp", protocol=protocol)
        instance = await bench.start(spec)
        yield instance
        await instance.close()


class Subscriber:
    """Subscribes to a resource and records the updates."""

    def __init__(self, instance: Instance, uri: str) -> None:
        self.updates: asyncio.Queue[str] = asyncio.Queue()
        self.end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.call = instance.follow(uri, self.updates.put_nowait, self.end.set_result)

    async def next(self) -> str:
        """Return the next update."""
        async with asyncio.timeout(BOUND):
            return await self.updates.get()


async def ask(instance: Instance, method: str, name: str, params: dict[str, Any]) -> Outcome:
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    request = ToolRequest(name, b"", json.dumps(params).encode(), method=method)
    instance.call(request, outcome.set_result)
    async with asyncio.timeout(BOUND):
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
    async with asyncio.timeout(BOUND):
        while json.loads(await bench.text(instance, "said", {})) != wanted:
            await asyncio.sleep(0.01)


@KINDS
async def test_all_pages_of_all_lists_are_kept_unchanged(
    bench: Bench, shared: str, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol, address=shared) as instance:
        prompts_resources = await instance.list_prompts_resources(BOUND)
        assert instance.prompts_resources is prompts_resources
    assert [json.loads(prompt)["name"] for prompt in prompts_resources.prompts] == [
        "greet",
        "secret_prompt",
        "plain",
    ]
    assert json.loads(prompts_resources.prompts[0])["arguments"] == [
        {"name": "name", "required": True}
    ]
    assert [json.loads(resource)["uri"] for resource in prompts_resources.resources] == [
        "note://a",
        "note://b",
        "note://secret/x",
    ]
    assert [json.loads(template)["uriTemplate"] for template in prompts_resources.templates] == [
        "note://{name}"
    ]
    assert prompts_resources.gaps == ()


@KINDS
async def test_prompts_resources_and_completions_are_requested(
    bench: Bench, shared: str, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol, address=shared) as instance:
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


async def test_a_list_that_fails_does_not_affect_the_others(bench: Bench) -> None:
    async with offering(bench, "stdio", "auto", "broken=resources") as instance:
        prompts_resources = await instance.list_prompts_resources(BOUND)
        assert list(instance.tools) == ["write", "offer", "said"]
    assert len(prompts_resources.prompts) == 3
    assert prompts_resources.resources == ()
    assert len(prompts_resources.templates) == 1
    assert len(prompts_resources.gaps) == 1
    assert "resources/list" in prompts_resources.gaps[0]
    assert "resources is broken today" in prompts_resources.gaps[0]


async def test_a_server_without_prompts_and_resources_has_empty_lists(bench: Bench) -> None:
    instance = await bench.start(bench.forked("official_stdio"))
    prompts_resources = await instance.list_prompts_resources(BOUND)
    assert (
        prompts_resources.prompts,
        prompts_resources.resources,
        prompts_resources.templates,
        prompts_resources.gaps,
    ) == ((), (), (), ())


@KINDS
async def test_changed_lists_are_reported(bench: Bench, transport: str, protocol: str) -> None:
    async with offering(bench, transport, protocol) as instance:
        await bench.text(instance, "offer", {})
        async with asyncio.timeout(BOUND):
            assert await bench.changed.get() is instance
        prompts_resources = await instance.list_prompts_resources(BOUND)
    assert len(prompts_resources.prompts) > 3
    assert len(prompts_resources.resources) > 3


@KINDS
async def test_subscribers_of_one_resource_share_one_subscription(
    bench: Bench, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol) as instance:
        first, second = Subscriber(instance, "note://a"), Subscriber(instance, "note://a")
        assert [await first.next(), await second.next()] == ["", ""]
        late = Subscriber(instance, "note://a")
        assert await late.next() == ""
        await until_updated(bench, instance, first, "a")
        first.call.cancel("enough")
        assert [await second.next(), await late.next()] == ["note://a", "note://a"]
        second.call.cancel("enough")
        late.call.cancel("enough")
        await until_said(bench, instance, ["subscribe note://a", "unsubscribe note://a"])
        assert not first.end.done()
        again = Subscriber(instance, "note://a")
        assert await again.next() == ""
        again.call.cancel("enough")
        await until_said(bench, instance, ["subscribe note://a", "unsubscribe note://a"] * 2)


async def until_updated(
    bench: Bench, instance: Instance, subscriber: Subscriber, name: str
) -> None:
    """Write until an update arrives: a GET stream may open after the subscription is confirmed."""
    for text in range(300):
        await write(bench, instance, name, str(text))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                assert await subscriber.updates.get() == f"note://{name}"
                return
    pytest.fail("The subscriber got no update.")


@KINDS
async def test_updates_are_of_the_subscribed_resource_or_its_parts(
    bench: Bench, shared: str, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol, address=shared) as instance:
        whole, other = Subscriber(instance, "note://secret"), Subscriber(instance, "note://b")
        assert [await whole.next(), await other.next()] == ["", ""]
        if protocol == "legacy":  # the official modern server notifies of exact URIs only
            await until_updated(bench, instance, whole, "secret/x")
        await until_updated(bench, instance, other, "b")
        while not whole.updates.empty():
            assert whole.updates.get_nowait() == "note://secret/x"


@KINDS
async def test_subscribers_are_notified_of_the_instances_end(
    bench: Bench, shared: str, transport: str, protocol: str
) -> None:
    async with offering(bench, transport, protocol, address=shared) as instance:
        subscriber = Subscriber(instance, "note://a")
        assert await subscriber.next() == ""
        await instance.close()
        async with asyncio.timeout(BOUND):
            outcome = await subscriber.end
    assert outcome.fault is not None
    assert (outcome.fault.reason, outcome.fault.started) == (Reason.SERVER_LOST, "yes")
    late = Subscriber(instance, "note://a")
    async with asyncio.timeout(BOUND):
        assert (await late.end).fault is not None


async def test_a_server_without_subscriptions_fails_with_advice(bench: Bench) -> None:
    for protocol in ("auto", "legacy"):
        async with offering(bench, "stdio", protocol, "mute") as instance:
            async with asyncio.timeout(BOUND):
                fault = (await Subscriber(instance, "note://a").end).fault
        assert fault is not None
        assert fault.reason is Reason.SERVER_ERROR
        assert "does not support subscriptions" in fault.message


async def test_npms_reference_server_lists_reads_completes_and_notifies(
    bench: Bench, npm_server: ServerCommand
) -> None:
    command, *args = [*npm_server("mcp-server-everything"), "stdio"]
    spec = server_spec(VariantKey("everything"), "stdio", command=command, args=tuple(args))
    instance = await bench.start(spec)
    prompts_resources = await instance.list_prompts_resources(BOUND)
    assert prompts_resources.gaps == ()
    prompts = {
        json.loads(each_prompt)["name"]: json.loads(each_prompt)
        for each_prompt in prompts_resources.prompts
    }
    assert prompts
    for name, prompt in prompts.items():
        given = {
            argument["name"]: "1"
            for argument in prompt.get("arguments", ())
            if argument.get("required")
        }
        if "resourceType" in given:
            given = {**given, "resourceType": "Text"}
        got = await result(instance, "prompts/get", name, name=name, arguments=given)
        assert got["messages"], name
    assert prompts_resources.resources
    for resource in prompts_resources.resources[:10]:
        uri = json.loads(resource)["uri"]
        assert (await result(instance, "resources/read", uri, uri=uri))["contents"]
    templates = [json.loads(template)["uriTemplate"] for template in prompts_resources.templates]
    assert templates
    uri = json.loads(prompts_resources.resources[0])["uri"]
    subscriber = Subscriber(instance, uri)
    assert await subscriber.next() == ""
    subscriber.call.cancel("enough")
