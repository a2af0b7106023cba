"""What calls that wait for their callers may hold, and how long the end of a worker waits."""

from __future__ import annotations

import asyncio

import pytest
from tests.data_plane.conftest import Bench
from tests.data_plane.services.test_continuations import Reply, call_of, parked, refused, reply_of

from leaseway.data_plane.services.continuations import Continuations
from leaseway.data_plane.testing.servers import MemoryCall
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ELICIT


@pytest.fixture
async def held(bench: Bench) -> Bench:
    """A worker with one shared server, whose calls wait."""
    await bench.hold("db")
    return bench


def text_result(size: int) -> bytes:
    """Return a result of so many bytes."""
    around = len(b'{"content":[{"type":"text","text":""}]}')
    return b'{"content":[{"type":"text","text":"%b"}]}' % (b"x" * (size - around))


async def _called(bench: Bench, count: int) -> None:
    """Wait until so many calls are under way at the first instance."""
    await bench.until(lambda: bench.servers.opened and len(bench.servers.opened[0].calls) >= count)


async def several_parked(bench: Bench, count: int) -> tuple[list[Reply], list[MemoryCall]]:
    """Begin calls that wait one after the other; return their responses and servers' sides."""
    responses: list[Reply] = []
    calls: list[MemoryCall] = []
    for number in range(count):
        reply = asyncio.ensure_future(reply_of(bench))
        await _called(bench, number + 1)
        calls.append(bench.servers.opened[0].calls[number])
        calls[number].ask(ELICIT)
        responses.append(await reply)
    return responses, calls


async def test_suspended_calls_beyond_the_memory_limit_discard_the_oldest(
    held: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=3000)
    responses, calls = await several_parked(held, 3)
    for call in (calls[1], calls[0]):
        call.answer(text_result(1200))
    assert len(held.worker.execution.continuations) == 3
    calls[2].answer(text_result(1200))
    await held.until(lambda: len(held.worker.execution.continuations) == 2)
    fault = await refused(held, request_state=responses[0].request_state)
    assert (fault.reason, fault.started) == (Reason.OVERLOADED, "yes")
    assert "Its result was dropped: calls that wait for their callers hold more" in fault.message
    assert "call of db:echo without an exchange: its result was dropped" in caplog.text
    for response in responses[1:]:
        ended = await reply_of(held, request_state=response.request_state)
        assert ended.content[0].text.startswith("xxx")


async def test_a_discarded_call_without_a_result_is_cancelled(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=1000)
    responses, calls = await several_parked(held, 2)
    calls[1].answer(text_result(950))
    await held.until(lambda: calls[0].cancelled)
    fault = await refused(held, request_state=responses[0].request_state)
    assert "It was cancelled: calls that wait" in fault.message
    assert (await reply_of(held, request_state=responses[1].request_state)).content


async def test_questions_count_as_memory_of_suspended_calls(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=5000)
    _response, _ = await parked(held, ELICIT)
    call = call_of(held)
    for _ in range(15):
        call.ask(ELICIT, {"message": "x" * 100}).withdraw()
    sink = next(iter(held.worker.execution.continuations._suspended.values())).sink
    assert sink.held_bytes < 500, "what was taken back is not kept"
    call.ask(ELICIT, {"message": "x" * 5000})
    await held.until(lambda: call.cancelled)


async def test_another_tenant_does_not_learn_of_a_discarded_call(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=10)
    response, _ = await parked(held, ELICIT)
    await held.until(lambda: call_of(held).cancelled)
    fault = await refused(held, request_state=response.request_state, tenant="other")
    assert "continued already" in fault.message
    mine = await refused(held, request_state=response.request_state)
    assert mine.reason is Reason.OVERLOADED


async def test_a_drain_shortens_the_timeout_of_suspended_calls(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", drain_timeout=0.05)
    (asked, _with_result), calls = await several_parked(held, 2)
    calls[1].answer(text_result(100))
    caller = held.caller()
    in_flight = await caller.begin("db")
    await held.wait_for_calls(2)
    going_on = held.servers.opened[0].calls[1]
    held.shutdown.request("a test wants it")
    await held.until(lambda: calls[0].cancelled and not len(held.worker.execution.continuations))
    fault = await refused(held, request_state=asked.request_state)
    assert fault.reason is Reason.DRAINING
    assert "worker w1 is draining and its caller did not answer within 0.05 s" in fault.message
    going_on.answer(b"{}")
    assert (await caller.result(in_flight)).payload == b"{}"
    await held.until(lambda: not held.servers.live)


async def test_a_draining_worker_still_returns_the_result_of_a_suspended_call(
    held: Bench,
) -> None:
    response, _ = await parked(held, ELICIT)
    call_of(held).answer(text_result(100))
    held.shutdown.request("a test wants it")
    await held.plane.expect_report(lambda report: report.draining)
    ended = await reply_of(held, request_state=response.request_state)
    assert ended.content[0].text.startswith("xxx")
    await held.until(lambda: not held.servers.live)
