"""Prompts, resources, completions and subscriptions, from name to result over real streams."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from tests.calls import ReceivedCall
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeTool, FakeWorker, never, until

from leaseway.sdk import (
    AsyncClient,
    Client,
    Completion,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    LeaseRevoked,
    LeasewayError,
    PromptResult,
    ResourceResult,
    ServerError,
    ServerLost,
)
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.errors import Fault, Reason

HELLO = {
    "description": "A greeting",
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "one"}},
        {"role": "user", "content": {"type": "image", "data": ""}},
        {"role": "assistant", "content": {"type": "text", "text": "two"}},
    ],
}


@pytest.fixture
async def offers(plane: FakeControlPlane, worker: FakeWorker) -> FakeWorker:
    """A worker whose shared `notes` and leased `desk` have a prompt and a resource each."""
    for server, shared in (("notes", True), ("desk", False)):
        prompt = FakeTool(f"{server}_greet", server, "greet", shared=shared, read_only=True)
        uri = f"{server}://a"
        resource = FakeTool(uri, server, uri, shared=shared, read_only=True)
        plane.tools |= {prompt.name: prompt, uri: resource}
    return worker


def answering(worker: FakeWorker, result: dict[str, Any]) -> None:
    worker.answer = lambda _worker, _call, _params: json.dumps(result).encode()


def accept_subscriptions(worker: FakeWorker) -> list[ReceivedCall]:
    """Make a worker accept subscriptions; return the active ones."""
    subscriptions: list[ReceivedCall] = []

    async def answer(_worker: FakeWorker, call: ReceivedCall, _params: bytes) -> bytes:
        subscriptions.append(call)
        send_update(worker, call, "")
        try:
            await asyncio.Event().wait()
        finally:
            subscriptions.remove(call)
        return b""

    worker.answer = answer
    return subscriptions


def send_update(worker: FakeWorker, call: ReceivedCall, uri: str) -> None:
    for stream in worker._outboxes.values():
        if stream.has(call.id):
            stream.put("updates", execution_pb2.ResourceUpdate(call_id=call.id, uri=uri))


async def test_a_prompt_is_requested_by_its_original_name(
    client: AsyncClient, plane: FakeControlPlane, offers: FakeWorker
) -> None:
    answering(offers, HELLO)
    prompt = await client.get_prompt("notes_greet", {"who": "Ada"}, server="notes", timeout=50)
    assert (prompt.description, prompt.text) == ("A greeting", "one\ntwo")
    assert prompt.raw == HELLO
    assert prompt.new_lease is None
    (call,) = offers.calls
    assert (call.method, call.server_id, call.tool) == ("prompts/get", "notes", "greet")
    assert json.loads(call.arguments) == {"name": "greet", "arguments": {"who": "Ada"}}
    assert 40_000 < call.timeout_ms <= 50_000
    assert plane.meant[-1] == (catalog_pb2.NAME_KIND_PROMPT, "notes")


async def test_inline_media_of_a_prompt_is_requested(
    client: AsyncClient, plane: FakeControlPlane, offers: FakeWorker
) -> None:
    answering(offers, HELLO)
    session = client.session("a")
    await client.get_prompt("notes_greet")
    await client.get_prompt("notes_greet", inline_media=True)
    await session.get_prompt("notes_greet", inline_media=True)

    def work() -> None:
        for roots in (None, ["file:///work"]):
            with Client(plane.address, roots=roots) as synchronous:
                synchronous.get_prompt("notes_greet", inline_media=True)

    async with AsyncClient(plane.address, roots=["file:///work"]) as answering_client:
        await answering_client.get_prompt("notes_greet", inline_media=True)
        await answering_client.get_prompt("notes_greet")
    await asyncio.to_thread(work)
    wanted = [call.inline_media for call in offers.calls]
    assert wanted == [False, True, True, True, False, True, True]
    answered = [list(call.answers) for call in offers.calls]
    assert answered == [[], [], [], ["roots/list"], ["roots/list"], [], ["roots/list"]]


async def test_a_resource_is_read_by_its_uri(
    client: AsyncClient, plane: FakeControlPlane, offers: FakeWorker
) -> None:
    contents = [{"uri": "notes://a", "text": "x"}, {"uri": "notes://a", "blob": "AAE="}]
    answering(offers, {"contents": contents})
    read = await client.read_resource("notes://a")
    assert (read.text, read.blob, read.contents) == ("x", b"\0\1", contents)
    (call,) = offers.calls
    assert (call.method, call.tool) == ("resources/read", "notes://a")
    assert json.loads(call.arguments) == {"uri": "notes://a"}
    assert plane.meant[-1] == (catalog_pb2.NAME_KIND_RESOURCE, "")


async def test_complete_requests_values_for_prompts_and_templates(
    client: AsyncClient, offers: FakeWorker
) -> None:
    answering(offers, {"completion": {"values": ["ada"], "total": 3, "hasMore": True}})
    found = await client.complete("who", "a", prompt="notes_greet", context={"tone": "warm"})
    assert (found.values, found.total, found.has_more) == (["ada"], 3, True)
    await client.complete("id", "", template="notes://a")
    params = [json.loads(call.arguments) for call in offers.calls]
    assert params == [
        {
            "ref": {"type": "ref/prompt", "name": "greet"},
            "argument": {"name": "who", "value": "a"},
            "context": {"arguments": {"tone": "warm"}},
        },
        {
            "ref": {"type": "ref/resource", "uri": "notes://a"},
            "argument": {"name": "id", "value": ""},
        },
    ]


async def test_prompts_and_resources_of_a_leased_server_use_the_sessions_lease(
    client: AsyncClient, offers: FakeWorker
) -> None:
    answering(offers, {"contents": []})
    async with client.session("one") as session:
        first = await session.read_resource("desk://a")
        assert first.new_lease is not None
        assert (await session.get_prompt("desk_greet")).new_lease is None
        assert [call.session for call in offers.calls] == ["one", "one"]
        assert offers.calls[1].lease_id == first.new_lease.id
    assert offers.released == [first.new_lease.id]


async def test_a_read_is_repeated_after_a_lost_server(
    client: AsyncClient, offers: FakeWorker
) -> None:
    answering(offers, {"contents": []})
    offers.faults = [Fault(Reason.SERVER_LOST, "It died.", "yes"), None]
    await client.read_resource("notes://a")
    assert len(offers.calls) == 2
    offers.faults = [Fault(Reason.SERVER_LOST, "It died.", "yes")] * 2
    with pytest.raises(ServerLost):
        await client.read_resource("notes://a")


async def test_invalid_parameters_of_requests_are_rejected_before_sending(
    client: AsyncClient, offers: FakeWorker
) -> None:
    with pytest.raises(TypeError, match="Convert it with str"):
        await client.get_prompt("notes_greet", {"who": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="mapping of texts"):
        await client.get_prompt("notes_greet", ["who"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="uri is a str"):
        await client.read_resource(b"notes://a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="server is a str"):
        await client.read_resource("notes://a", server=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout is a number"):
        client.subscribe_resource("notes://a", timeout="1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="either prompt= or template="):
        await client.complete("a", "", prompt="p", template="t")
    with pytest.raises(InvalidRequest, match="1 to 8192 characters"):
        await client.read_resource("x" * 9000)
    with pytest.raises(InvalidRequest, match="prompt's name"):
        await client.get_prompt("")
    assert offers.calls == []


async def test_a_subscription_lasts_as_long_as_its_block(
    client: AsyncClient, offers: FakeWorker
) -> None:
    subscriptions = accept_subscriptions(offers)
    async with client.subscribe_resource("notes://a") as updates:
        (call,) = subscriptions
        assert (call.method, call.tool) == ("resources/subscribe", "notes://a")
        assert json.loads(call.arguments) == {"uri": "notes://a"}
        with pytest.raises(TimeoutError):
            await updates.next(timeout=0.01)
        for uri in ("notes://a", "notes://a", "notes://a/part", "notes://a"):
            send_update(offers, call, uri)
        assert [await updates.next(timeout=BOUND) for _ in range(2)] == [
            "notes://a",
            "notes://a/part",
        ]
        send_update(offers, call, "notes://a")
        async for uri in updates:
            assert uri == "notes://a"
            break
    await until(lambda: not subscriptions)
    assert len(offers.cancels) == 1
    with pytest.raises(RuntimeError, match="ended with its"):
        await updates.next(timeout=1)
    with pytest.raises(RuntimeError, match="used before"):
        await updates.__aenter__()


async def test_a_rejected_subscription_raises_at_the_start_of_its_block(
    client: AsyncClient, offers: FakeWorker
) -> None:
    offers.faults = [Fault(Reason.SERVER_ERROR, "It tells nothing.", "no", {"code": "-32601"})]
    with pytest.raises(ServerError, match="It tells nothing"):
        async with client.subscribe_resource("notes://a"):
            pytest.fail("It holds nothing.")


async def test_a_subscription_that_times_out_at_its_server_says_so(
    client: AsyncClient, offers: FakeWorker
) -> None:
    offers.faults = [Fault(Reason.DEADLINE_EXCEEDED, "The server did not answer.", "unknown")]
    with pytest.raises(DeadlineExceeded, match="The server did not answer"):
        async with client.subscribe_resource("notes://a"):
            pytest.fail("It holds nothing.")


async def test_an_unconfirmed_subscription_times_out(
    client: AsyncClient, offers: FakeWorker
) -> None:
    answering(offers, {})
    await client.read_resource("notes://a")  # so that the subscription is sent at once
    offers.answer = never
    with pytest.raises(DeadlineExceeded, match=r"within 0\.5 s"):
        async with client.subscribe_resource("notes://a", timeout=0.5):
            pytest.fail("It holds nothing.")
    await until(lambda: offers.cancels)


async def test_a_renewed_subscription_reports_the_resource_as_changed(
    client: AsyncClient, offers: FakeWorker
) -> None:
    subscriptions = accept_subscriptions(offers)
    async with client.subscribe_resource("notes://a") as updates:
        for _ in range(3):
            before = subscriptions[0]
            port = int(offers.ref.address.rpartition(":")[2])
            await offers.stop()
            await offers.start(port=port)
            assert await updates.next(timeout=BOUND) == "notes://a"
            assert subscriptions[0] is not before
    await until(lambda: not subscriptions)


async def test_a_subscription_on_a_lease_ends_with_it(
    client: AsyncClient, offers: FakeWorker
) -> None:
    ended = asyncio.Event()

    async def answer(_worker: FakeWorker, call: ReceivedCall, _params: bytes) -> bytes:
        send_update(offers, call, "")
        await ended.wait()
        raise Fault(Reason.LEASE_REVOKED, "An operator ended it.", "yes")

    offers.answer = answer
    async with client.session("one") as session:
        async with session.subscribe_resource("desk://a") as updates:
            (lease,) = session.leases()
            assert offers.calls[0].lease_id == lease.id  # renewed from the start
            ended.set()
            with pytest.raises(LeaseRevoked, match="An operator ended it"):
                await updates.next(timeout=BOUND)
        with pytest.raises(LeaseRevoked):
            async with session.subscribe_resource("desk://a"):
                pytest.fail("The lease has ended.")
        await session.acquire("desk")
        accept_subscriptions(offers)
        async with session.subscribe_resource("desk://a"):
            assert len(offers.acquires) == 2


async def test_a_subscription_on_a_lease_outlasts_the_call_timeout(
    client: AsyncClient, offers: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leaseway.sdk.client.subscriptions.MAX_CALL_TIMEOUT", 1.5)
    subscriptions = accept_subscriptions(offers)
    async with (
        client.session("one") as session,
        session.subscribe_resource("desk://a") as updates,
    ):
        first = subscriptions[0]
        assert await updates.next(timeout=BOUND) == "desk://a"  # changes may have been missed
        assert subscriptions[0] is not first
        assert subscriptions[0].lease_id == first.lease_id


async def test_a_subscription_on_a_lease_is_not_renewed_after_the_worker_is_lost(
    client: AsyncClient, offers: FakeWorker
) -> None:
    accept_subscriptions(offers)
    async with (
        client.session("one") as session,
        session.subscribe_resource("desk://a") as updates,
    ):
        await offers.stop()
        with pytest.raises(LeasewayError):
            await updates.next(timeout=BOUND)
    assert len(offers.calls) == 1


async def test_unread_changes_are_bounded(client: AsyncClient, offers: FakeWorker) -> None:
    subscriptions = accept_subscriptions(offers)
    async with client.subscribe_resource("notes://a") as updates:
        for part in range(3000):
            send_update(offers, subscriptions[0], f"notes://a/{part}")
        send_update(offers, subscriptions[0], "notes://a/last")
        await until(lambda: "notes://a" in updates._changes._changed)
        assert len(updates._changes._changed) == 1025


def test_incomplete_results_have_empty_properties() -> None:
    prompt = PromptResult(b'{"messages":[1,{"content":"x"}],"description":3}')
    assert (prompt.description, prompt.text, len(prompt.messages)) == ("", "", 1)
    assert (ResourceResult(b"{}").contents, ResourceResult(b"{}").blob) == ([], None)
    empty = Completion(b'{"completion":{"values":[1],"total":true}}')
    assert (empty.values, empty.total, empty.has_more) == ([], None, False)
    assert Completion(b"{}").values == []
    assert repr(prompt) == "PromptResult(48 bytes, description='', messages=1)"
    for payload in (b"[]", b"{", b"\xff"):
        with pytest.raises(InternalError):
            _ = PromptResult(payload).raw
    with pytest.raises(InternalError, match="not base64"):
        _ = ResourceResult(b'{"contents":[{"blob":"x"}]}').blob


def test_a_blob_with_the_alphabet_of_urls_keeps_its_bytes() -> None:
    assert ResourceResult(b'{"contents":[{"blob":"-_8"}]}').blob == b"\xfb\xff"


async def test_the_synchronous_client_uses_prompts_and_resources(
    plane: FakeControlPlane, offers: FakeWorker
) -> None:
    def use() -> None:
        with Client(plane.address) as client:
            answering(offers, HELLO)
            assert client.get_prompt("notes_greet").text == "one\ntwo"
            answering(offers, {"contents": [{"text": "x"}]})
            assert client.session("one").read_resource("desk://a").text == "x"
            answering(offers, {"completion": {"values": ["ada"]}})
            assert client.complete("who", "a", prompt="notes_greet").values == ["ada"]
            subscriptions = accept_subscriptions(offers)
            with client.subscribe_resource("notes://a") as updates:
                with pytest.raises(TimeoutError):
                    updates.next(timeout=0.01)
                loop.call_soon_threadsafe(send_update, offers, subscriptions[0], "notes://a")
                assert next(iter(updates)) == "notes://a"

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(use)


async def test_a_subscription_whose_block_never_ended_warns_without_a_traceback(
    plane: FakeControlPlane, offers: FakeWorker
) -> None:
    accept_subscriptions(offers)
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with AsyncClient(plane.address) as client:
        updates = client.subscribe_resource("notes://a")
        await updates.__aenter__()
    task = updates._task
    assert task is not None
    await asyncio.wait([task])
    with pytest.warns(ResourceWarning, match="'notes://a' was never ended"):
        del task, updates  # the last references
    gc.collect()
    assert errors == []


def test_the_repr_of_results_is_short() -> None:
    prompt = PromptResult(json.dumps({"description": "D" * 500, "messages": [{}]}).encode())
    assert "description='DDD" in repr(prompt)
    assert "messages=1" in repr(prompt)
    resource = ResourceResult(b'{"contents": [{"uri": "notes://a", "text": "long"}]}')
    assert repr(resource) == f"ResourceResult({len(resource.payload)} bytes, uris=['notes://a'])"
    values = [f"value {number}" for number in range(100)]
    completion = Completion(json.dumps({"completion": {"values": values}}).encode())
    assert "values=['value 0', 'value 1'" in repr(completion)
    assert all(len(repr(thing)) < 250 for thing in (prompt, resource, completion))
    assert repr(Completion(b"no JSON")) == "Completion(7 bytes, not readable)"
