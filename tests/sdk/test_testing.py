"""The fake for users' tests: true clients meet true rules, and a test decides what happens."""

from __future__ import annotations

import asyncio
import doctest
import enum
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tests.sdk.fakes import BOUND, until

import leaseway.sdk.testing
from leaseway.sdk import (
    AsyncClient,
    Capacity,
    Client,
    DeadlineExceeded,
    Draining,
    InputRequired,
    InvalidArguments,
    LeaseExpired,
    LeaseLost,
    LeaseReleased,
    LeaseRevoked,
    LogMessage,
    NotLeasable,
    PermissionDenied,
    Progress,
    RateLimited,
    ServerError,
    ServerLost,
    ToolNotFound,
)
from leaseway.sdk.testing import CallContext, FakeLeaseway, Media, Reply


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """Serve `add` and `echo`, shared, and `desk_open` and `desk_read`, leased."""
    with FakeLeaseway() as made:

        @made.tool
        def add(a: int, b: int = 1) -> int:
            """Add two numbers."""
            return a + b

        @made.tool
        async def echo(text: str) -> str:
            return text

        desk = made.server("desk", stateful=True, prefix="desk_")

        @desk.tool(name="open")
        def open_file(name: str, context: CallContext) -> str:
            context.state["open"] = name
            return f"opened {name}"

        @desk.tool
        def read(context: CallContext) -> str:
            return str(context.state.get("open"))

        yield made


def test_the_documented_example_works() -> None:
    failures, examples = doctest.testmod(leaseway.sdk.testing)
    assert failures == 0
    assert examples >= 3


async def test_both_clients_work_in_one_test(fake: FakeLeaseway) -> None:
    async with fake.async_client(agent="billing", tenant="acme") as client:
        assert (await client.call_tool("add", {"a": 2, "b": 3})).text == "5"
        assert (await client.call_tool("tools:add", {"a": 2})).structured == {"result": 3}
    assert fake.client().call_tool("echo", {"text": "so"}).text == "so"
    first, _, third = fake.calls
    assert (first.tool, first.server_id, first.arguments) == ("add", "tools", {"a": 2, "b": 3})
    assert (first.agent, first.tenant) == ("billing", "acme")
    assert (third.agent, third.tenant, third.lease_id) == ("", "default", "")


async def test_one_fake_serves_clients_of_several_loops_and_threads(fake: FakeLeaseway) -> None:
    client = fake.client()

    async def use() -> str:
        async with fake.async_client() as own:
            return (await own.call_tool("add", {"a": 1})).text

    def work() -> tuple[str, str]:
        return asyncio.run(use()), client.call_tool("add", {"a": 1}).text

    async with asyncio.timeout(BOUND):
        answers = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    assert answers == [("2", "2")] * 4


def test_tools_are_listed_with_the_schema_of_their_parameters(fake: FakeLeaseway) -> None:
    tools = fake.client().list_tools()
    assert [tool.name for tool in tools] == ["add", "desk_open", "desk_read", "echo", "mcp_release"]
    assert tools[0].description == "Add two numbers."
    assert tools[0].input_schema == {
        "type": "object",
        "properties": {
            "a": {"title": "A", "type": "integer"},
            "b": {"title": "B", "type": "integer", "default": 1},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert tools[0].shared
    assert not tools[1].shared
    assert list(tools) == fake.tools


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"a": "one"}, "$.a"), ({}, "$"), ({"a": 1, "c": 2}, "$"), ({"a": 1.5}, "$.a")],
)
def test_arguments_that_break_the_schema_never_reach_the_tool(
    fake: FakeLeaseway, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        fake.client().call_tool("add", arguments)
    assert [one.field for one in caught.value.violations] == [field]
    assert "one" not in str(caught.value.violations)
    assert fake.calls == []


def test_an_unknown_tool_names_the_nearest(fake: FakeLeaseway) -> None:
    with pytest.raises(ToolNotFound, match="Did you mean 'desk_read'"):
        fake.client().call_tool("desk_red")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


class Shape(BaseModel):
    name: Annotated[str, Field(min_length=2)]
    at: Point


def test_tools_get_arguments_as_the_types_that_they_name(fake: FakeLeaseway) -> None:
    class Local(BaseModel):
        depth: int

    seen: list[Any] = []

    @fake.tool
    def draw(
        shape: Shape, colour: Colour, local: Local, mode: Literal["a", "b"] = "a", **rest: int
    ) -> Point:
        seen.append((shape, colour, local, mode, rest))
        return shape.at

    shape = {"name": "box", "at": {"x": 1, "y": 2}}
    given = {"shape": shape, "colour": "red", "local": {"depth": 3}, "more": 7}
    result = fake.client().call_tool("draw", given)
    box = Shape(name="box", at=Point(1, 2))
    assert seen == [(box, Colour.RED, Local(depth=3), "a", {"more": 7})]
    assert result.structured == {"x": 1, "y": 2}
    with pytest.raises(InvalidArguments) as caught:
        fake.client().call_tool("draw", {**given, "shape": {"name": "b", "at": {"x": 1}}})
    assert sorted(one.field for one in caught.value.violations) == ["$.shape.at", "$.shape.name"]


def test_a_schema_of_ones_own_gives_the_tool_its_arguments_as_they_are(fake: FakeLeaseway) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}}

    @fake.tool(
        name="thrice", description="Counts.", schema=schema, annotations={"idempotentHint": True}
    )
    def anything(**arguments: Any) -> str:
        return str(arguments)

    client = fake.client()
    assert client.call_tool("thrice", {"n": 6, "free": [1]}).text == "{'n': 6, 'free': [1]}"
    with pytest.raises(InvalidArguments):
        client.call_tool("thrice", {"n": 7})
    listed = next(tool for tool in fake.tools if tool.name == "thrice")
    assert (listed.input_schema, listed.description) == (schema, "Counts.")


def test_functions_that_can_be_no_tools_are_told_why(fake: FakeLeaseway) -> None:
    with pytest.raises(ValueError, match="is no name for a tool"):
        fake.tool(name="a b")(lambda: None)
    with pytest.raises(TypeError, match="'_hidden' of tool 'f'"):
        fake.tool(name="f")(lambda _hidden: None)
    with pytest.raises(TypeError, match="cannot be an argument"):
        fake.tool(name="f")(lambda *many: None)
    with pytest.raises(TypeError, match="No JSON Schema can be made for tool 'locked'"):

        @fake.tool
        def locked(done: Callable[[], None]) -> None: ...

    with pytest.raises(ValueError, match="has a tool 'add' already"):
        fake.server("other").tool(name="add")(lambda: None)
    with pytest.raises(ValueError, match="a server 'desk' already"):
        fake.server("desk")
    with pytest.raises(ValueError, match="no id"):
        fake.server("mcp_admin")


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        (None, "", None),
        ("text", "text", None),
        ({"a": [1]}, '{"a": [1]}', {"a": [1]}),
        ([], "[]", {"result": []}),
        (Point(1, 2), '{"x": 1, "y": 2}', {"x": 1, "y": 2}),
        (Reply(["a", {"type": "text", "text": "b"}], structured={"n": 1}), "a\nb", {"n": 1}),
    ],
)
def test_what_a_tool_returns_becomes_its_result(
    fake: FakeLeaseway, value: Any, text: str, structured: Any
) -> None:
    fake.tool(name="give")(lambda: value)
    result = fake.client().call_tool("give")
    assert (result.text, result.structured, result.is_error) == (text, structured, False)


def test_what_json_cannot_hold_is_a_fault_of_the_test(fake: FakeLeaseway) -> None:
    fake.tool(name="give")(lambda: object())
    with pytest.raises(Exception, match="which JSON cannot hold"):
        fake.client().call_tool("give")


def test_an_exception_of_a_tool_is_a_result_and_a_leaseway_error_is_that_error(
    fake: FakeLeaseway,
) -> None:
    @fake.tool
    def fail(kind: str) -> Reply:
        if kind == "plain":
            raise KeyError("no such thing")
        if kind == "reply":
            return Reply(["went wrong"], is_error=True)
        raise PermissionDenied("Not you.", metadata={"tool": "fail"})

    client = fake.client()
    assert client.call_tool("fail", {"kind": "plain"}).is_error
    assert "no such thing" in client.call_tool("fail", {"kind": "plain"}).text
    reply = client.call_tool("fail", {"kind": "reply"})
    assert (reply.is_error, reply.text) == (True, "went wrong")
    with pytest.raises(PermissionDenied, match="Not you") as caught:
        client.call_tool("fail", {"kind": "error"})
    assert caught.value.metadata["tool"] == "fail"


def test_a_leased_server_remembers_per_session_and_says_to_release(fake: FakeLeaseway) -> None:
    client = fake.client()
    first, second = client.session("one"), client.session("two")
    opened = first.call_tool("desk_open", {"name": "a"})
    assert opened.new_lease is not None
    assert "mcp_release" in str(opened.reminder)
    assert first.call_tool("desk_read").new_lease is None
    second.call_tool("desk_open", {"name": "b"})
    assert [s.call_tool("desk_read").text for s in (first, second)] == ["a", "b"]
    assert [(one.session, one.server_id) for one in fake.leases] == [
        ("one", "desk"),
        ("two", "desk"),
    ]
    assert first.release("desk")
    assert first.call_tool("desk_read").text == "None"
    assert fake.calls[0].lease_id == opened.new_lease.id


def test_a_model_can_release_by_the_tool_for_it(fake: FakeLeaseway) -> None:
    session = fake.client().session("one")
    session.call_tool("desk_open", {"name": "a"})
    assert "Released" in session.call_tool("mcp_release", {"serverId": "desk"}).text
    assert fake.leases == []
    assert session.call_tool("mcp_release", {"serverId": "desk"}).is_error


def test_a_shared_server_cannot_be_leased(fake: FakeLeaseway) -> None:
    with pytest.raises(NotLeasable):
        fake.client().session("one").acquire("tools")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("expire_lease", LeaseExpired),
        ("revoke_lease", LeaseRevoked),
        ("lose_lease", LeaseLost),
    ],
)
def test_a_lease_that_a_test_ends_fails_until_it_is_acquired_anew(
    fake: FakeLeaseway, end: str, error: type[Exception]
) -> None:
    session = fake.client().session("one")
    lease = session.acquire("desk")
    getattr(fake, end)(lease)
    for _ in range(2):
        with pytest.raises(error):
            session.call_tool("desk_read")
    session.acquire("desk")
    assert session.call_tool("desk_read").text == "None"
    getattr(fake, end)(fake.leases[0])
    getattr(fake, end)("no-such-lease")
    assert fake.leases == []


def test_a_lease_expires_by_the_clock_of_the_test(fake: FakeLeaseway) -> None:
    session = fake.client().session("one")
    session.acquire("desk", ttl=120)
    fake.advance(119)
    assert session.call_tool("desk_read").text == "None"  # which renews it
    fake.advance(119)
    assert len(fake.leases) == 1
    fake.advance(2)
    with pytest.raises(LeaseExpired):
        session.call_tool("desk_read")


def test_what_other_clients_release_is_released_for_all(fake: FakeLeaseway) -> None:
    first, second = fake.client().session("one"), fake.client().session("one")
    assert first.acquire("desk") == second.acquire("desk")
    first.release("desk")
    with pytest.raises(LeaseReleased):
        second.call_tool("desk_read")


async def test_a_call_ends_with_its_lease(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client:
        session = client.session("one")
        lease = await session.acquire("desk")
        with fake.hold("desk_read") as held:
            call = asyncio.create_task(session.call_tool("desk_read"))
            await asyncio.to_thread(held.wait)
            fake.revoke_lease(lease, "the house is closing")
            with pytest.raises(LeaseRevoked, match="closing") as caught:
                await call
    assert caught.value.started == "yes"


async def test_room_is_bounded_and_waited_for() -> None:
    with FakeLeaseway(capacity=1) as fake:
        fake.server("desk", stateful=True).tool(name="read")(lambda: "x")
        async with fake.async_client() as client:
            await client.session("one").acquire("desk")
            with pytest.raises(Capacity):
                await client.session("two").acquire("desk")
            waiting = asyncio.create_task(client.session("two").acquire("desk", wait=BOUND))
            await asyncio.sleep(0)
            await client.session("one").release("desk")
            assert (await waiting).session == "two"


@pytest.mark.parametrize(
    "error",
    [
        ServerLost("It died.", metadata={"exit_status": "137", "stderr": "oh"}),
        ServerError("No.", metadata={"code": "-32000", "data": '{"a": 1}'}),
        RateLimited("Slower.", retry_after=3.5),
        DeadlineExceeded("Late."),
        PermissionDenied("No.", started="unknown"),
    ],
)
def test_an_injected_error_arrives_as_it_was_made(fake: FakeLeaseway, error: Any) -> None:
    client = fake.client()
    fake.fail_next("add", error)
    with pytest.raises(type(error)) as caught:
        client.call_tool("add", {"a": 1})
    assert caught.value.message == error.message
    assert caught.value.retry_after == error.retry_after
    assert dict(caught.value.metadata) == dict(error.metadata)
    assert client.call_tool("add", {"a": 1}).text == "2"
    assert len(fake.calls) == 2


def test_what_is_safe_to_repeat_is_repeated_as_ever(fake: FakeLeaseway) -> None:
    fake.fail_next("add", Draining("Going."), times=2)
    assert fake.client().call_tool("add", {"a": 1}).text == "2"
    assert len(fake.calls) == 3


def test_a_leased_server_that_is_lost_loses_the_lease(fake: FakeLeaseway) -> None:
    session = fake.client().session("one")
    session.call_tool("desk_open", {"name": "a"})
    fake.fail_next("desk_read", ServerLost("It died."))
    with pytest.raises(ServerLost):
        session.call_tool("desk_read")
    assert fake.leases == []
    with pytest.raises(LeaseLost):
        session.call_tool("desk_read")


def test_a_late_call_meets_the_timeout_of_its_caller(fake: FakeLeaseway) -> None:
    client = fake.client()
    client.list_tools()
    fake.delay_next("add", 30)
    with pytest.raises(DeadlineExceeded):
        client.call_tool("add", {"a": 1}, timeout=0.2)
    assert client.call_tool("add", {"a": 1}, timeout=BOUND).text == "2"


def test_behaviour_of_an_unknown_tool_is_a_mistake_of_the_test(fake: FakeLeaseway) -> None:
    for use in (
        lambda: fake.fail_next("ad", ServerLost("x")),
        lambda: fake.delay_next("ad", 1),
        lambda: fake.hold("ad"),
        lambda: fake.remove_tool("ad"),
    ):
        with pytest.raises(ValueError, match="Did you mean 'add'"):
            use()


async def test_a_cancelled_call_cancels_the_tool(fake: FakeLeaseway) -> None:
    ended = threading.Event()
    begun = threading.Event()

    @fake.tool
    async def forever() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with fake.async_client() as client:
        call = asyncio.create_task(client.call_tool("forever"))
        await asyncio.to_thread(begun.wait, BOUND)
        call.cancel()
        assert await asyncio.to_thread(ended.wait, BOUND)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_progress_and_logs_come_in_order_before_the_result(
    fake: FakeLeaseway, kind: str
) -> None:
    def say(context: CallContext) -> str:
        context.progress(1, 2, "half")
        context.log({"n": 1}, "warning", "builder")
        context.log("too little", "debug")
        context.progress(2)
        return "built"

    async def say_async(context: CallContext) -> str:
        return say(context)

    fake.tool(name="build")(say if kind == "plain" else say_async)
    seen: list[Progress | LogMessage] = []
    async with (
        fake.async_client() as client,
        client.stream_tool("build", log_level="info") as stream,
    ):
        seen = [event async for event in stream]
        assert stream.result.text == "built"
        assert (await client.call_tool("build")).text == "built"
    logs = [event for event in seen if isinstance(event, LogMessage)]
    steps = [event.progress for event in seen if isinstance(event, Progress)]
    assert [(one.level, one.logger, one.data) for one in logs] == [("warning", "builder", {"n": 1})]
    assert steps == [1, 2]


async def test_a_tool_asks_its_caller(fake: FakeLeaseway) -> None:
    @fake.tool
    async def order(context: CallContext) -> str:
        answer = await context.ask("elicitation/create", {"message": "Sure?"})
        return str(answer["action"])

    def agree(params: dict[str, Any]) -> dict[str, Any]:
        assert params == {"message": "Sure?"}
        return {"action": "decline"}

    async with fake.async_client() as client:
        assert (await client.call_tool("order", on_elicitation=agree)).text == "decline"
        with pytest.raises(InputRequired, match="elicitation/create"):
            await client.call_tool("order")


async def test_media_come_by_reference_unless_they_are_wanted_in_place(fake: FakeLeaseway) -> None:
    @fake.tool
    def shoot() -> list[Any]:
        return ["here", Media(b"\x89PNG...", "image/png"), Media(b"RIFF", "audio/wav")]

    async with fake.async_client() as client:
        content = (await client.call_tool("shoot")).content
        assert [item["type"] for item in content] == ["text", "image", "audio"]
        assert "data" not in content[1]
        assert (content[1]["mimeType"], content[1]["byteLength"]) == ("image/png", 7)
        assert content[1]["artifact"].startswith("artifacts/mcp/tools/shoot/")


async def test_watchers_see_tools_come_and_go(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client, asyncio.timeout(BOUND):
        watch = client.watch_tools(["tools"])
        assert [tool.name for tool in await anext(watch)] == ["add", "echo"]
        fake.tool(name="zip")(lambda: "z")
        assert [tool.name for tool in await anext(watch)] == ["add", "echo", "zip"]
        assert (await client.call_tool("zip")).text == "z"
        fake.remove_tool("zip")
        assert [tool.name for tool in await anext(watch)] == ["add", "echo"]
        with pytest.raises(ToolNotFound):
            await client.call_tool("zip")


def test_operators_questions_are_answered(fake: FakeLeaseway) -> None:
    client = fake.client()
    client.session("one").acquire("desk")
    client.report_problem("ODD", "Something is odd.", server="desk")
    assert client.status().ready
    assert [server.id for server in client.servers()] == ["desk", "tools"]
    assert [worker.id for worker in client.workers()] == ["fake-worker"]
    assert client.find_lease("one", "desk") == client.leases()[0].id
    assert client.revoke_lease(client.leases()[0].id)
    assert client.leases() == []
    assert client.logs("desk") == []
    assert [problem.reason for problem in fake.problems] == ["ODD"]
    assert client.problems()[0].message == "Something is odd."
    assert {tool.server_id for tool in client.list_tools(["desk"])} == {"desk"}


async def test_a_large_result_and_large_arguments_pass(fake: FakeLeaseway) -> None:
    text = "x" * 3_000_000
    async with fake.async_client() as client:
        assert (await client.call_tool("echo", {"text": text})).text == text


def test_tools_may_be_added_before_it_runs_and_it_says_when_it_does_not() -> None:
    fake = FakeLeaseway()
    fake.tool(name="early")(lambda: "bird")
    with pytest.raises(RuntimeError, match="does not run"):
        fake.client()
    with fake:
        assert fake.client().call_tool("early").text == "bird"
    with pytest.raises(RuntimeError, match="does not run"):
        fake.async_client()


async def test_a_fake_that_ends_leaves_nothing_behind() -> None:
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        with FakeLeaseway() as fake:
            fake.tool(name="nothing")(lambda: None)
            fake.client().call_tool("nothing")
            async with AsyncClient(fake.address) as client:
                await client.call_tool("nothing")

    def left() -> set[str]:
        names = {thread.name for thread in threading.enumerate()} - before
        return {name for name in names if "fake" in name}

    await until(lambda: not left())


def test_clients_that_were_not_closed_are_closed_with_the_fake() -> None:
    with FakeLeaseway() as fake:
        client: Client = fake.client()
        client.list_tools()
    with pytest.raises(RuntimeError, match="closed"):
        client.list_tools()


async def test_a_tool_may_steer_its_own_fake(fake: FakeLeaseway) -> None:
    @fake.tool
    async def grow() -> int:
        fake.tool(name="grown")(lambda: "new")
        return len(fake.calls)

    @fake.tool
    def call_on() -> str:
        return fake.client().call_tool("grown").text

    client = fake.client()
    assert client.call_tool("grow").text == "1"
    assert client.call_tool("call_on").text == "new"


def test_without_its_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['pydantic'] = None; import leaseway.sdk.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'leaseway[testing]'" in done.stderr
