"""Whatever can be called on a client works on one of a fake: no method is added to one alone.

A program runs that uses every method with every parameter it takes; what it leaves out is found
by comparison with the clients' own signatures. The same of what results carry.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.sdk.fakes import BOUND
from tests.sdk.testing.surface import Recorded, Seen, Threads, Used, methods

import leaseway.sdk
from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    Client,
    ConfirmationRequired,
    InvalidRequest,
    PermissionDenied,
    Session,
)
from leaseway.sdk.testing import CallContext, FakeLeaseway, Media, Reply
from leaseway.sdk.testing.admin import FakeAdmin
from leaseway.sdk.testing.control import FakeControlPlane
from leaseway.sdk.testing.worker import FakeWorker
from leaseway.v1 import admin_pb2_grpc, catalog_pb2_grpc, execution_pb2_grpc, leases_pb2_grpc

ELICITED = {"action": "accept", "content": {"sure": True}}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}}
ROOTS = ["file:///work"]
PICTURE = Media(b"\x00\x01")
ASKS = ("elicitation/create", "sampling/createMessage", "roots/list")

EMPTY = {
    "ServerInfo": {
        *("description", "exposure_hash", "failures", "launch_hash", "next_try_at", "problem"),
        *("protocol_version", "tenant", "wanted_launch_hash"),
    },
    "InstanceInfo": {"failures", "launch_hash", "next_start_at", "pid"},
    "LeaseInfo": {"launch_hash"},
    "ProblemInfo": {"tenant", "worker"},
    "Prompt": {"extra", "title"},
    "PromptArgument": {"description", "title"},
    "PromptList": {"pending"},
    "Resource": {"extra", "title"},
    "ResourceList": {"pending"},
    "ResourceTemplate": {"extra", "title"},
    "ResourceTemplateList": {"pending"},
    "Status": {"pending", "settling"},
    "Tool": {"extra"},
    "ToolList": {"pending"},
    "WorkerInfo": {"labels", "last_error"},
}
"""What a fake says nothing of: it has nothing of the kind."""


@dataclass
class Surface:
    """A client and a session of it, both of which take note of what they are used for."""

    fake: FakeLeaseway
    client: Any
    session: Any
    kinds: tuple[type, type]
    used: tuple[Used, Used]
    seen: Seen


@pytest.fixture
def offering(fake: FakeLeaseway) -> FakeLeaseway:
    """Add what reports, logs, asks and returns of every kind."""

    async def ask_all(context: CallContext) -> list[str]:
        return [str(await context.ask(method, {"messages": []})) for method in ASKS]

    @fake.tool(output_schema={"type": "object"}, annotations={"readOnlyHint": True})
    async def work(context: CallContext) -> Reply:
        context.progress(1, 2, "half")
        context.log("said", logger="work")
        return Reply([*await ask_all(context), PICTURE], {"done": True}, is_error=True)

    @fake.prompt(completions={"topic": [f"t{number}" for number in range(200)]})
    async def explain(context: CallContext, topic: str) -> Any:
        """Explain something."""
        texts = [{"type": "text", "text": text} for text in (topic, *await ask_all(context))]
        return [{"role": "user", "content": item} for item in (*texts, PICTURE.item)]

    pay = fake.server("bank", prefix="bank_").tool(needs_approval=True)
    pay(_pay)
    fake.resource("note://one", "text", description="A note.")
    fake.resource("note://two", b"\x00", mime_type="image/png")

    @fake.resource_template("note://{name}", completions={"name": ["one"]})
    def note(name: str) -> str:
        """A note by its name."""
        return name

    desk = fake.server("shelf", stateful=True, prefix="shelf_")
    desk.resource("shelf://a", "a")
    desk.prompt(name="greet")(lambda: "hello")
    return fake


@pytest.fixture(params=["asynchronous", "synchronous"])
async def surface(request: pytest.FixtureRequest, offering: FakeLeaseway) -> AsyncIterator[Surface]:
    wanted: dict[str, Any] = {
        "agent": "billing",
        "tenant": "acme",
        "key": "any",
        "on_elicitation": lambda _: ELICITED,
        "on_sampling": lambda _: SAMPLED,
        "roots": ROOTS,
        "on_approval": None,
    }
    used: tuple[Used, Used] = (defaultdict(set), defaultdict(set))
    seen = Seen()
    if request.param == "synchronous":
        blocking = offering.client(**wanted)
        client = Recorded(Threads(blocking, AsyncClient), used[0])
        session = Recorded(Threads(client.session("one"), AsyncSession), used[1])
        yield Surface(offering, client, session, (Client, Session), used, seen)
    else:
        async with offering.async_client(**wanted) as inner:
            client = Recorded(inner, used[0])
            session = Recorded(client.session("one"), used[1])
            yield Surface(offering, client, session, (AsyncClient, AsyncSession), used, seen)


def _pay(amount: int) -> int:
    return amount


def face(value: Any) -> Any:
    """Return what is used as the asynchronous client has it."""
    twin = getattr(leaseway.sdk, f"Async{type(value).__name__}", None)
    return value if twin is None else Threads(value, twin)


async def test_every_method_and_parameter_of_the_clients_works_with_a_fake(
    surface: Surface,
) -> None:
    async with asyncio.timeout(BOUND):
        for caller in (surface.client, surface.session):
            await _use_tools(surface, caller)
            await _use_offers(surface, caller)
            await _use_leases(surface, caller)
        await _list(surface)
        await _watch(surface)
        await _operate(surface)
        await surface.client.close()
    for kind, used in zip(surface.kinds, surface.used, strict=True):
        assert used == methods(kind)
    assert surface.seen.never_filled() == EMPTY


async def _use_tools(surface: Surface, caller: Any) -> None:
    """Call and stream with all options; read the picture that comes back."""
    seen, told = surface.seen, []
    common: dict[str, Any] = {
        "timeout": BOUND,
        "log_level": "info",
        "on_elicitation": lambda _: ELICITED,
        "on_sampling": lambda _: SAMPLED,
        "roots": ROOTS,
    }
    result = seen.look(
        await caller.call_tool(
            "work",
            {},
            on_progress=lambda *report: told.append(report),
            on_log=lambda *log: told.append(log),
            inline_media=False,
            **common,
        )
    )
    assert told == [(1, 2, "half"), ("info", "work", "said")]
    assert [word in result.text for word in ("accept", "assistant", "file:///work")] == [True] * 3
    assert result.structured == {"done": True}
    paid = {"timeout": BOUND, "on_approval": lambda each: bool(seen.look(each))}
    for _ in range(2):  # each agreement is good for one call
        assert (await caller.call_tool("bank__pay", {"amount": 5}, **paid)).text == "5"
    ref = result.media[0].artifact
    assert await face(caller.read_artifact(ref, timeout=BOUND)) == PICTURE.data
    sum_of = await caller.call_tool("add", {"a": 2}, result_type=dict)
    assert sum_of == {"result": 3}
    async with face(caller.stream_tool("work", {}, inline_media=True, **common)) as stream:
        events = [seen.look(event) async for event in stream]
    assert [type(event).__name__ for event in events] == ["Progress", "LogMessage"]
    assert seen.look(stream.result).media[0].data == PICTURE.data


async def _use_offers(surface: Surface, caller: Any) -> None:
    """Get a prompt, read and follow resources, complete."""
    seen, at = surface.seen, {"server": "tools", "timeout": BOUND}
    prompt = seen.look(await caller.get_prompt("explain", {"topic": "t"}, inline_media=True, **at))
    assert [word in prompt.text for word in ("accept", "assistant", "file:///work")] == [True] * 3
    assert prompt.media[0].data == PICTURE.data
    assert seen.look(await caller.read_resource("note://one", **at)).text == "text"
    assert seen.look(await caller.read_resource("note://two", **at)).media[0].data == b"\x00"
    assert (await caller.read_resource("note://three")).text == "three"  # of the template
    topics = await caller.complete("topic", "t", prompt="explain", context={"a": "b"}, **at)
    assert (seen.look(topics).total, topics.has_more) == (200, True)
    names = await caller.complete("name", "o", template="note://{name}", **at)
    assert seen.look(names).values == ["one"]
    async with face(caller.subscribe_resource("note://one", **at)) as updates:
        surface.fake.resource("note://one", "text", description="A note.")
        assert await updates.next(timeout=BOUND) == "note://one"


async def _use_leases(surface: Surface, caller: Any) -> None:
    """Acquire, and be granted, leases; release them."""
    seen = surface.seen
    assert seen.look(await caller.acquire("desk", ttl=30, wait=1)).ttl == 30
    assert await caller.release("desk")
    opened = seen.look(await caller.call_tool("desk_open", {"name": "a"}))
    assert opened.new_lease.server_id == "desk"
    for request in (caller.get_prompt("shelf_greet"), caller.read_resource("shelf://a")):
        assert seen.look(await request).new_lease.server_id == "shelf"
        assert await caller.release("shelf")
    assert seen.look(await caller.complete("a", "", prompt="shelf:greet")).new_lease is not None
    if caller is surface.session:
        held = caller.leases()
        assert [lease.server_id for lease in held] == ["desk", "shelf"]
    await caller.release("shelf")


async def _list(surface: Surface) -> None:
    client, seen = surface.client, surface.seen
    for listed in (
        client.list_tools,
        client.list_prompts,
        client.list_resources,
        client.list_resource_templates,
    ):
        every = seen.look(await listed())
        some = seen.look(await listed(["tools"], timeout=BOUND))
        assert {one.server_id for one in some} == {"tools"}
        assert some.registry_version == every.registry_version
    found = await client.search_tools("add", 2, servers=["tools"], timeout=BOUND)
    assert "add" in [tool.name for tool in found]
    assert (await client.describe_tool("add", timeout=BOUND))["name"] == "add"


async def _watch(surface: Surface) -> None:
    watch = face(surface.client.watch_tools(["tools"]))
    assert "add" in [tool.name for tool in await anext(watch)]
    surface.fake.tool(name="fresh")(lambda: None)
    assert "fresh" in [tool.name for tool in await anext(watch)]


async def _operate(surface: Surface) -> None:
    """Ask all that operators ask."""
    client, seen, soon = surface.client, surface.seen, {"timeout": BOUND}
    await client.report_problem("ODD", "Something is odd.", server="desk", severity="error")
    await client.report_problem("ODD", "Something is odd.", server="desk", severity="error")
    await client.report_refusal(
        "openai", "add is wrong", "add", offered=await client.list_tools(), session="one"
    )
    problems = seen.look(await client.problems(**soon))
    assert [(one.reason, one.count) for one in problems] == [("PROVIDER_REFUSED", 1), ("ODD", 2)]
    assert seen.look(await client.status(**soon)).ready
    assert [one.id for one in seen.look(await client.servers(**soon))] == [
        *("bank", "desk", "shelf", "tools")
    ]
    (worker,) = seen.look(await client.workers(**soon))
    for approves in (True, False):
        with pytest.raises(ConfirmationRequired) as asked:
            await client.call_tool("bank__pay", {"amount": int(approves)})
        decide = client.approve if approves else client.deny
        await decide(asked.value.confirmation_id, "a test")
    with pytest.raises(PermissionDenied):
        await client.call_tool("bank__pay", {"amount": 0})
    approvals = seen.look(await client.approvals(**soon))
    assert [one.state for one in approvals[:3]] == ["denied", "approved", "used"]
    assert await client.logs("desk", 5, **soon) == []
    first, second = [one.id for one in seen.look(await client.leases(**soon))]
    assert await client.find_lease("one", "desk", **soon) in (first, second)
    assert await client.revoke_lease(first, "a test", **soon)
    surface.fake.lose_lease(second)
    assert await client.leases() == []
    ends = await client.lease_ends(**soon)
    assert (ends[first], ends[second]) == ("revoked", "lost")
    assert set(ends.values()) == {"released", "revoked", "lost"}
    with pytest.raises(InvalidRequest, match="cannot be drained"):
        await client.drain_worker(worker.id, **soon)


@pytest.mark.parametrize(
    ("made_by", "kind"),
    [(FakeLeaseway.client, Client), (FakeLeaseway.async_client, AsyncClient)],
)
def test_clients_of_a_fake_are_made_as_all_others_are(made_by: Any, kind: type) -> None:
    theirs = dict(inspect.signature(kind).parameters)
    del theirs["address"]  # which the fake knows
    ours = dict(inspect.signature(made_by).parameters)
    del ours["self"]
    assert ours == theirs


@pytest.mark.parametrize(
    ("base", "ours"),
    [
        (catalog_pb2_grpc.CatalogServiceServicer, FakeControlPlane),
        (leases_pb2_grpc.PlacementServiceServicer, FakeControlPlane),
        (admin_pb2_grpc.AdminServiceServicer, FakeAdmin),
        (execution_pb2_grpc.ExecutionServiceServicer, FakeWorker),
        (leases_pb2_grpc.LeaseServiceServicer, FakeWorker),
    ],
)
def test_a_fake_answers_every_request_of_the_services_that_clients_use(
    base: type, ours: type
) -> None:
    requests = [name for name in vars(base) if not name.startswith("_")]
    assert requests
    for name in requests:
        assert getattr(ours, name) is not getattr(base, name), name
