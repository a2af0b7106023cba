"""Server requests of real servers, in both eras and over both transports.

The raw servers are in tests/servers/asking.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import fault_of

from leaseway.data_plane.core.calls.call import SERVER_METHODS, Ask, Outcome, answerable
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.wire.clients.greeting import LEGACY as FOR_OLDER_CLIENTS
from leaseway.wire.clients.greeting import Greeting
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, ROOTS_CHANGED, SAMPLE

Bench = Any
NAME = {"method": ELICIT, "params": {"message": "Name?", "x-unknown": {"kept": 1.0}}}
MODEL = {"method": SAMPLE, "params": {"messages": [], "maxTokens": 1}}
FOLDERS = {"method": ROOTS}
LEGACY = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": False}}


class Asked:
    """A caller that answers each request with its method, or leaves that to the test."""

    def __init__(self, *methods: str, holds: bool = False) -> None:
        self.asks: asyncio.Queue[Ask] = asyncio.Queue()
        self.request = {"on_ask": self.on_ask, "answers": answerable(methods or SERVER_METHODS)}
        self.holds = holds

    def on_ask(self, ask: Ask) -> None:
        """Handle a server request."""
        self.asks.put_nowait(ask)
        if not self.holds:
            ask.answer(json.dumps({"said": ask.method, "unknown": 1.0}).encode())

    async def next(self) -> Ask:
        """Return the next server request."""
        async with asyncio.timeout(BOUND):
            return await self.asks.get()


@contextlib.asynccontextmanager
async def asking(
    bench: Bench,
    how: str,
    client: McpClient | None = None,
    greeting: Greeting | None = None,
    **spec: Any,
) -> AsyncIterator[Instance]:
    """Start a server that sends requests; `how` is its transport and era."""
    greeting = greeting or Greeting.of(client)
    transport, _, era = how.partition(" ")
    options = ["--legacy"] if era.startswith("legacy") else []
    if transport == "stdio":
        yield await bench.start(bench.stdio("asking_stdio", *options, **spec), greeting=greeting)
        return
    if era.endswith("by GET"):
        options.append("--get")
    async with bench.serving("asking_http", *options) as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp", **spec), greeting=greeting)
        yield instance
        await instance.close()


async def call_tool(
    bench: Bench, instance: Instance, tool: str, arguments: Any, **request: Any
) -> Any:
    """Call a tool; return its text, parsed."""
    return json.loads(await bench.text(instance, tool, arguments, **request))


async def eventually_replies(bench: Bench, instance: Instance, count: int) -> list[Any]:
    """Wait until the server has got so many replies; return them."""
    async with asyncio.timeout(BOUND):
        while True:
            replies = (await call_tool(bench, instance, "seen", {}))["replies"]
            if len(replies) >= count:
                return list(replies)


LEGACY_SERVERS = ["stdio legacy", "http legacy", "http legacy by GET"]
MODERN_SERVERS = ["stdio modern", "http modern"]


@pytest.mark.parametrize("how", LEGACY_SERVERS)
async def test_a_legacy_server_gets_its_callers_answers_unchanged(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        caller = Asked()
        replies = await call_tool(
            bench, instance, "ask", {"questions": [NAME, MODEL, FOLDERS]}, **caller.request
        )
        assert replies == [{"said": call, "unknown": 1.0} for call in (ELICIT, SAMPLE, ROOTS)]
        assert json.loads((await caller.next()).params) == NAME["params"]


@pytest.mark.parametrize("how", MODERN_SERVERS)
async def test_a_modern_server_gets_all_answers_of_each_round(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        caller = Asked()
        arguments = {"questions": [NAME, MODEL, FOLDERS], "rounds": 3}
        given = await call_tool(bench, instance, "ask", arguments, **caller.request)
        assert len(given) == 9
        assert given["r3.1"] == {"said": SAMPLE, "unknown": 1.0}
        seen = await call_tool(bench, instance, "seen", {})
        assert len(set(seen["ids"])) == 5, "each round is a separate request"


@pytest.mark.parametrize("how", MODERN_SERVERS)
async def test_a_modern_server_has_ten_input_rounds(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        caller = Asked()
        ten = {"questions": [FOLDERS], "rounds": 10}
        assert len(await call_tool(bench, instance, "ask", ten, **caller.request)) == 10
        outcome = await bench.call(instance, "endless", {"questions": [FOLDERS]}, **caller.request)
        assert outcome.fault.reason is Reason.SERVER_ERROR
        assert "11th" in outcome.fault.message
        assert instance.in_flight == 0


@pytest.mark.parametrize("how", MODERN_SERVERS)
async def test_other_methods_than_tools_call_may_ask_too(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        params = {"name": "ask", "arguments": {"questions": [FOLDERS], "rounds": 2}}
        request = {**Asked().request, "method": "prompts/get"}
        outcome = await bench.call(instance, "ask", params, **request)
        given = json.loads(json.loads(outcome.payload)["content"][0]["text"])
        assert given.keys() == {"r1.0", "r2.0"}


@pytest.mark.parametrize("how", MODERN_SERVERS)
async def test_an_unanswered_modern_request_names_the_parameter_to_pass(
    bench: Bench, how: str
) -> None:
    async with asking(bench, how) as instance:
        wanted = {"questions": [FOLDERS, MODEL]}
        outcome = await bench.call(instance, "ask", wanted, **Asked(ROOTS).request)
        assert outcome.fault.reason is Reason.INPUT_REQUIRED
        assert outcome.fault.metadata["method"] == SAMPLE
        assert "on_sampling=" in outcome.fault.message
        assert outcome.fault.started == "yes"
        demanded = await bench.call(instance, "demand", {"capabilities": {"elicitation": {}}})
        assert demanded.fault.reason is Reason.INPUT_REQUIRED
        assert demanded.fault.metadata["method"] == ELICIT
        assert instance.in_flight == 0


@pytest.mark.parametrize("how", ["stdio legacy", "http legacy"])
async def test_a_url_is_elicited_once_and_the_call_sent_again(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        unasked = await bench.call(instance, "visit", {"times": 1}, **Asked(ROOTS).request)
        assert unasked.fault.reason is Reason.INPUT_REQUIRED
        assert "http://127.0.0.1/1" in unasked.fault.metadata["data"]
        host = {"client": McpClient("2025-11-25", {}), "answers": answerable([])}
        shown = await bench.call(instance, "visit", {"times": 2}, **host)
        assert (shown.fault.reason, shown.fault.metadata["code"]) == (Reason.SERVER_ERROR, "-32042")
        assert "http://127.0.0.1/2" in shown.fault.metadata["data"]
        caller = Asked(ELICIT, holds=True)
        _, outcome = bench.start_call(instance, "visit", {"times": 3}, **caller.request)
        ask = await caller.next()
        assert json.loads(ask.params)["url"] == "http://127.0.0.1/3"
        ask.answer(b'{"action":"accept"}')
        async with asyncio.timeout(BOUND):
            assert b"visited" in (await outcome).payload
        _, outcome = bench.start_call(instance, "visit", {"times": 9}, **caller.request)
        (await caller.next()).answer(b'{"action":"accept"}')
        again = await fault_of(outcome)
        assert (again.reason, again.metadata["code"]) == (Reason.SERVER_ERROR, "-32042")
        assert caller.asks.empty()


@pytest.mark.parametrize(
    ("how", "spec", "announced"),
    [
        ("stdio legacy", {}, LEGACY),
        ("stdio legacy", {"truely_stateless": True}, {}),
        ("http legacy", {}, LEGACY),
        ("http legacy", {"truely_stateless": True}, LEGACY),
    ],
)
async def test_capabilities_are_announced_to_a_legacy_server_that_can_reach_callers(
    bench: Bench, how: str, spec: Any, announced: Any
) -> None:
    async with asking(bench, how, **spec) as instance:
        assert await call_tool(bench, instance, "capabilities", {}) == announced


@pytest.mark.parametrize(
    ("how", "spec", "why"),
    [
        ("stdio legacy", {}, "on_elicitation="),
        ("http legacy", {"truely_stateless": True}, "on_elicitation="),
        ("stdio legacy", {"truely_stateless": True}, "Several callers share this connection"),
        ("http legacy by GET", {"truely_stateless": True}, "Several callers share"),
    ],
)
async def test_a_legacy_request_without_a_caller_is_rejected_with_the_reason(
    bench: Bench, how: str, spec: Any, why: str
) -> None:
    async with asking(bench, how, **spec) as instance:
        answers = Asked(ROOTS) if "on_" in why else Asked()
        (refusal,) = await call_tool(
            bench, instance, "ask", {"questions": [NAME]}, **answers.request
        )
        assert refusal["code"] == -32601
        assert why in refusal["message"]
        assert answers.asks.empty()


@pytest.mark.parametrize("how", ["stdio legacy", "http legacy by GET"])
async def test_older_clients_of_a_shared_server_are_asked_for_the_only_call_in_flight(
    bench: Bench, how: str
) -> None:
    caller, other = Asked(), Asked(holds=True)
    question = {"questions": [NAME]}
    async with asking(bench, how, greeting=FOR_OLDER_CLIENTS, truely_stateless=True) as instance:
        (answer,) = await call_tool(bench, instance, "ask", question, **caller.request)
        assert answer == {"said": ELICIT, "unknown": 1.0}
        call, _ = bench.start_call(instance, "ask", question, **other.request)
        await other.next()
        (refusal,) = await call_tool(bench, instance, "ask", question, **caller.request)
        assert "Several callers share" in refusal["message"]
        call.cancel("no longer wanted")  # the server may still ask for it
        (refusal,) = await call_tool(bench, instance, "ask", question, **caller.request)
        assert "Several callers share" in refusal["message"]


async def test_a_request_after_its_calls_end_is_rejected(bench: Bench) -> None:
    async with asking(bench, "stdio legacy") as instance:
        caller = Asked()
        await bench.call(instance, "later", {}, **caller.request)
        async with asyncio.timeout(BOUND):
            while not (seen := await call_tool(bench, instance, "seen", {}))["replies"]:
                pass
        why = seen["replies"][0]["message"]
        assert "during their calls" in why or "roots=" in why  # `seen` may be in flight or not
        assert caller.asks.empty()


@pytest.mark.parametrize("how", ["http legacy", "http modern"])
async def test_callers_of_a_shared_server_are_asked_for_their_own_calls_only(
    bench: Bench, how: str
) -> None:
    async with asking(bench, how, truely_stateless=True) as instance:
        callers = [Asked(holds=True) for _ in range(8)]
        started = [
            bench.start_call(instance, "ask", {"questions": [_question(n)]}, **caller.request)[1]
            for n, caller in enumerate(callers)
        ]
        for number in (3, 0, 7, 1, 6, 2, 5, 4):
            ask = await callers[number].next()
            assert json.loads(ask.params)["message"] == f"question {number}"
            ask.answer(b'{"answer":%d}' % number)
        async with asyncio.timeout(BOUND):
            outcomes = [await call for call in started]
        for number, outcome in enumerate(outcomes):
            assert f'\\"answer\\": {number}' in outcome.payload.decode()


def _question(number: int) -> Any:
    return {"method": ELICIT, "params": {"message": f"question {number}"}}


@pytest.mark.parametrize("how", LEGACY_SERVERS + MODERN_SERVERS)
async def test_a_call_can_be_cancelled_while_its_caller_is_asked(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        caller = Asked(holds=True)
        call, outcome = bench.start_call(instance, "ask", {"questions": [NAME]}, **caller.request)
        ask = await caller.next()
        assert instance.in_flight == 1
        call.cancel("no longer wanted")
        assert instance.in_flight == 0
        ask.answer(b'{"too":"late"}')
        seen = await call_tool(bench, instance, "seen", {})
        if how == "stdio legacy":
            assert len(seen["cancelled"]) == 1
        if "modern" in how:
            assert (seen["cancelled"], len(seen["ids"])) == ([], 2)  # not at the server
        assert not outcome.done()


@pytest.mark.parametrize("how", ["stdio legacy", "http legacy"])
async def test_a_request_that_the_server_cancels_is_withdrawn(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        caller = Asked(holds=True)
        withdrawn = asyncio.Event()
        plain = caller.on_ask

        def take(ask: Ask) -> None:
            ask.withdrawn.connect(withdrawn.set)
            plain(ask)

        caller.request["on_ask"] = take
        assert (
            await call_tool(bench, instance, "withdraw", {"questions": [NAME]}, **caller.request)
            == "done"
        )
        async with asyncio.timeout(BOUND):
            await withdrawn.wait()
        ask = await caller.next()
        assert not ask.is_open
        ask.answer(b"{}")
        seen = await call_tool(bench, instance, "seen", {})
        assert seen["replies"] == []


@pytest.mark.parametrize("how", ["stdio legacy", "stdio modern"])
async def test_a_lost_server_fails_the_call_whose_caller_is_asked(bench: Bench, how: str) -> None:
    async with asking(bench, how) as instance:
        caller = Asked(holds=True)
        _, outcome = bench.start_call(instance, "ask", {"questions": [NAME]}, **caller.request)
        ask = await caller.next()
        await instance.close()
        fault = await fault_of(outcome)
        assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
        ask.answer(b"{}")


async def test_a_slow_answer_of_a_person_does_not_fail_health_checks(
    bench: Bench,
) -> None:
    async def wait_for_answer(*options: str) -> None:
        # More than a busy machine delays a server.
        patience = Patience(0.02, 6.0, 0.02)
        instance = await bench.start(bench.stdio("asking_stdio", *options), patience=patience)
        caller = Asked(holds=True)
        _, outcome = bench.start_call(instance, "ask", {"questions": [NAME]}, **caller.request)
        ask = await caller.next()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(6.5):
                await asyncio.shield(outcome)
        assert instance.state == "ready"
        ask.answer(b'{"action":"accept"}')
        async with asyncio.timeout(BOUND):
            assert (await outcome).fault is None
        assert bench.disconnected == []

    await asyncio.gather(wait_for_answer("--legacy"), wait_for_answer())


@pytest.mark.parametrize("how", ["stdio legacy", "http legacy by GET"])
async def test_a_server_that_is_told_of_changed_roots_may_ask_for_them(
    bench: Bench, how: str
) -> None:
    client = McpClient("2025-11-25", {"roots": {"listChanged": True}})
    async with asking(bench, how, client) as instance:
        caller = Asked(ROOTS)
        outcome = await bench.call(instance, "", method=ROOTS_CHANGED, **caller.request)
        assert outcome == Outcome(b"{}")
        assert caller.asks.qsize() == 1
        assert (await call_tool(bench, instance, "seen", {}))["replies"] == [
            {"said": ROOTS, "unknown": 1.0}
        ]
        await call_tool(bench, instance, "later", {})
        replies = await eventually_replies(bench, instance, 2)
        assert "in flight" in replies[1]["message"], "the notice has ended"


@pytest.mark.parametrize("how", ["stdio legacy", "stdio modern"])
async def test_a_server_is_told_only_of_changes_that_its_client_declared(
    bench: Bench, how: str
) -> None:
    legacy = McpClient("2025-11-25", {"roots": {}})
    modern = McpClient("2026-07-28", {"roots": {"listChanged": True}})
    async with asking(bench, how, legacy if how.endswith("legacy") else modern) as instance:
        caller = Asked(ROOTS)
        outcome = await bench.call(instance, "", method=ROOTS_CHANGED, **caller.request)
        assert outcome == Outcome(b"{}")
        await call_tool(bench, instance, "echo", {})
        assert caller.asks.empty()
