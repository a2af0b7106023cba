"""The same calls over every transport have the same results, errors, progress and cancellations.

The server uses the official package (tests/servers/script_tools.py), over http and sse also its
transports. The in-memory transports are registered by another package.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import fault_of, peer_of, serving

from leaseway.data_plane.core.calls.call import SERVER_METHODS, Ask, answerable
from leaseway.data_plane.mcp.instance import Instance
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Reason

Bench = Any
NAMES = ["echo", "fail", "error", "progress", "log", "ask", "hold", "cancelled", "change", "big"]
EVERY = pytest.mark.parametrize(
    "transport", ["stdio", "streamable_http", "sse", "websocket", "memory", "queues"]
)
STREAMS = pytest.mark.parametrize("transport", ["sse", "websocket", "memory", "queues"])
ERAS = pytest.mark.parametrize(
    ("protocol", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")]
)


@pytest.fixture(scope="module")
async def urls() -> AsyncIterator[dict[str, str]]:
    """Run the server once over each network transport; yield its URLs."""
    async with (
        serving("script_server", "http") as http,
        serving("script_server", "sse") as sse,
        serving("script_server", "websocket") as websocket,
    ):
        yield {
            "streamable_http": f"{http}/mcp",
            "sse": f"{sse}/sse",
            "websocket": f"{websocket}/ws".replace("http", "ws"),
        }


Script = Callable[..., contextlib.AbstractAsyncContextManager[Instance]]


@pytest.fixture
def script(bench: Bench, carriers: None, urls: dict[str, str]) -> Script:
    """Return a function that connects to the server over one transport."""
    return partial(connected, bench, urls)


@contextlib.asynccontextmanager
async def connected(
    bench: Bench, urls: dict[str, str], transport: str, **spec: Any
) -> AsyncIterator[Instance]:
    if transport == "stdio":
        yield await bench.start(bench.forked("script_server", "stdio", **spec))
    elif transport in urls:
        yield await bench.start(bench.at(transport, urls[transport], **spec))
    else:
        instance = await bench.start(server_spec(VariantKey("own"), transport, **spec))
        yield instance
        await instance.close()


async def results_of(bench: Bench, instance: Instance) -> list[object]:
    """Run the script; return all that a caller receives."""
    seen: list[object] = [list(instance.tools)]
    calls = [
        ("echo", {"text": "hé\n\u2028"}),
        ("echo", {}),
        ("fail", {}),
        ("big", {"size": 300_000}),
    ]
    for tool, arguments in calls:
        outcome = await bench.call(instance, tool, arguments)
        result = json.loads(outcome.payload)
        result.pop("_meta", None)
        seen.append((outcome.fault, outcome.is_error, result))
    fault = (await bench.call(instance, "error")).fault
    seen.append((fault.reason, fault.started, fault.message, fault.metadata))
    reports: list[object] = []
    await bench.text(instance, "progress", on_progress=lambda *report: reports.append(report[:3]))
    logs: list[object] = []
    await bench.text(instance, "log", on_log=lambda *log: logs.append(log[:3]))
    return [*seen, reports, logs, await cancel(bench, instance)]


async def cancel(bench: Bench, instance: Instance) -> int:
    """Cancel a call; return how many cancellations the server received."""
    before = int(await bench.text(instance, "cancelled"))
    call, outcome = bench.start_call(instance, "hold")
    await bench.written(call)
    await bench.text(instance, "echo", {"text": "after it"})
    call.cancel("enough")
    async with asyncio.timeout(BOUND):
        while int(await bench.text(instance, "cancelled")) == before:
            await asyncio.sleep(0.01)
    assert not outcome.done()
    return int(await bench.text(instance, "cancelled")) - before


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("meant", "spoken"), [("streamable_http", "sse"), ("sse", "streamable_http")]
)
async def test_a_server_of_another_transport_is_found_at_any_url(
    bench: Bench, urls: dict[str, str], protocol: str, meant: str, spoken: str
) -> None:
    instance = await bench.start(bench.at(meant, urls[spoken], protocol=protocol))
    assert list(instance.tools) == NAMES
    assert peer_of(instance).transport_type == spoken
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"


@EVERY
@ERAS
async def test_the_script_has_the_same_results_over_every_transport(
    bench: Bench, script: Script, transport: str, protocol: str, version: str
) -> None:
    async with script(transport, protocol=protocol) as instance:
        assert instance.protocol_version == version
        seen = await results_of(bench, instance)
    modern = {"resultType": "complete"} if version == "2026-07-28" else {}
    echoed = [
        (None, False, {"content": [{"type": "text", "text": text}], "isError": False, **modern})
        for text in ("hé\n\u2028", "")
    ]
    text = {"content": [{"type": "text", "text": "it went wrong"}], "isError": True, **modern}
    big = {"content": [{"type": "text", "text": "x" * 300_000}], "isError": False, **modern}
    server = instance.spec.key.server_id
    error = {"server": server, "code": "-32602", "message": "no such thing"}
    assert seen == [
        NAMES,
        *echoed,
        (None, True, text),
        (None, False, big),
        (
            Reason.SERVER_ERROR,
            "yes",
            f"The server {server} answered with error -32602: no such thing",
            error | {"data": '{"why":"because"}'},
        ),
        [(0.0, 3.0, "step 0"), (1.0, 3.0, "step 1"), (2.0, 3.0, "step 2")],
        [("warning", "script", b'{"said":"it"}')],
        1,
    ]


@EVERY
async def test_server_requests_reach_the_caller_over_every_transport(
    bench: Bench, script: Script, transport: str
) -> None:
    def answer(ask: Ask) -> None:
        ask.answer(b'{"action":"accept","content":{"name":"Ann"}}')

    async with script(transport, protocol="legacy") as instance:
        answering = {"on_ask": answer, "answers": answerable(SERVER_METHODS)}
        assert await bench.text(instance, "ask", **answering) == "accept {'name': 'Ann'}"
        refused = await bench.call_fault(instance, "ask")
        assert "on_elicitation=" in refused.message


@EVERY
async def test_changed_tools_are_reported_over_every_transport(
    bench: Bench, script: Script, transport: str
) -> None:
    async with script(transport, protocol="legacy") as instance:
        await bench.text(instance, "change")
        async with asyncio.timeout(BOUND):
            assert await bench.changed.get() is instance


@EVERY
async def test_many_calls_in_flight_get_their_own_results(
    bench: Bench, script: Script, transport: str
) -> None:
    async with script(transport) as instance:
        texts = [bench.text(instance, "echo", {"text": str(number)}) for number in range(100)]
        async with asyncio.timeout(BOUND):
            assert await asyncio.gather(*texts) == [str(number) for number in range(100)]
        assert instance.in_flight == 0
        assert instance.late_replies == 0


@STREAMS
async def test_a_result_above_the_limit_fails_only_its_call(
    bench: Bench, script: Script, transport: str
) -> None:
    async with script(transport) as instance:
        fault = await bench.call_fault(instance, "big", {"size": bounds.MAX_RESULT})
        assert (fault.reason, fault.started) == (Reason.RESULT_TOO_LARGE, "yes")
        assert await bench.text(instance, "big", {"size": 1}) == "x"


@EVERY
async def test_closing_ends_the_connection_and_calls_in_flight(
    bench: Bench, script: Script, transport: str
) -> None:
    async with script(transport) as instance:
        call, outcome = bench.start_call(instance, "hold")
        await bench.written(call)
        async with asyncio.timeout(BOUND):
            await instance.close()
        fault = await fault_of(outcome)
        assert fault.reason is Reason.SERVER_LOST
        assert await bench.closed.get() == (instance, None)
