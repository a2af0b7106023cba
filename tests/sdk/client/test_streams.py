"""Progress and log messages of calls, passed to callbacks and read as streams, over real gRPC."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from tests.calls import ReceivedCall
from tests.sdk.fakes import (
    BOUND,
    Answer,
    FakeControlPlane,
    FakeWorker,
    in_thread,
    never,
    text_result,
    until,
)

from leaseway.sdk import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    LogMessage,
    Progress,
    ServerError,
)
from leaseway.sdk.transport.events import BufferedEvents
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason


def reporting(count: int, *, then: Answer | None = None, logs: int = 0) -> Answer:
    """Return an answer that first reports progress and log messages."""

    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        for step in range(1, count + 1):
            message = f"step {step}" if step > 1 else ""
            worker.say(call, execution_pb2.Progress(progress=step, total=count, message=message))
        for number in range(logs):
            data = b'{"number": %d}' % number
            worker.say(call, execution_pb2.LogMessage(level="warning", logger="db", data=data))
        outcome = then(worker, call, arguments) if then is not None else text_result("done")
        return outcome if isinstance(outcome, bytes) else await outcome

    return answer


async def fails(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
    raise Fault(Reason.SERVER_ERROR, "It broke.", "yes")


async def test_progress_is_reported_in_order_before_the_result(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(3)
    reported: list[tuple[float, float | None, str | None]] = []
    result = await client.call_tool("time_now", on_progress=lambda *seen: reported.append(seen))
    assert reported == [(1, 3, None), (2, 3, "step 2"), (3, 3, "step 3")]
    assert result.text == "done"
    assert worker.calls[0].wants_progress
    assert not worker.calls[0].log_level
    assert (await client.call_tool("time_now")).text == "done"
    assert not worker.calls[1].wants_progress


async def test_callbacks_may_be_async_and_never_overlap(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(5)
    inside, reported = 0, []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        reported.append(progress)
        inside -= 1

    session = client.session("dialog")
    await session.call_tool("desk_open", on_progress=on_progress)
    assert reported == [1, 2, 3, 4, 5]
    assert worker.calls[0].session == "dialog"


async def test_on_log_receives_level_logger_and_data(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(0, logs=2)
    reported: list[tuple[str, str | None, Any]] = []
    await client.call_tool(
        "time_now", on_log=lambda *message: reported.append(message), log_level="debug"
    )
    assert reported == [("warning", "db", {"number": 0}), ("warning", "db", {"number": 1})]
    assert worker.calls[0].log_level == "debug"
    assert not worker.calls[0].wants_progress


async def test_an_error_of_a_callback_cancels_the_call_and_is_raised(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(1, then=never)

    def on_progress(*_: object) -> None:
        raise ZeroDivisionError

    async with asyncio.timeout(BOUND):
        with pytest.raises(ZeroDivisionError):
            await client.call_tool("time_now", on_progress=on_progress)
        await until(lambda: worker.cancels)


async def test_progress_is_reported_before_a_failure(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(2, then=fails)
    reported: list[float] = []
    with pytest.raises(ServerError, match="It broke"):
        await client.call_tool(
            "time_now", on_progress=lambda progress, *_: reported.append(progress)
        )
    assert reported == [1, 2]


async def test_a_slow_callback_delays_no_other_call_and_misses_only_old_events(
    client: AsyncClient, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker.answer = reporting(1000)
    entered, go, reported = asyncio.Event(), asyncio.Event(), []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)
        entered.set()
        await go.wait()

    async with asyncio.timeout(BOUND):
        slow = asyncio.create_task(client.call_tool("time_now", on_progress=on_progress))
        await entered.wait()
        worker.answer = reporting(0)
        assert (await client.call_tool("time_now")).text == "done"
        go.set()
        with caplog.at_level(logging.WARNING, "leaseway.sdk"):
            assert (await slow).text == "done"
    assert reported[-1] == 1000
    assert reported == sorted(reported)
    assert len(reported) < 1000
    assert f"{1000 - len(reported)} progress reports" in caplog.text


async def test_the_deadline_cancels_a_hanging_callback_and_keeps_the_result(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def on_progress(*_: object) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(BOUND):
        await client.call_tool("time_now")  # so that the next call resolves no name
        worker.answer = reporting(1)
        call = client.call_tool("time_now", timeout=1.5, on_progress=on_progress)
        assert (await call).text == "done"
        worker.answer = reporting(1, then=never)
        with pytest.raises(DeadlineExceeded):
            await client.call_tool("time_now", timeout=1.5, on_progress=on_progress)


async def test_a_cancelled_call_with_callbacks_is_cancelled_at_the_worker(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(1, then=never)
    entered = asyncio.Event()
    call = client.call_tool("time_now", on_progress=lambda *_: entered.set())
    task = asyncio.create_task(call)
    async with asyncio.timeout(BOUND):
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: worker.cancels)


async def test_a_stream_yields_events_and_then_has_the_result(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(2, logs=1)
    async with client.stream_tool("time_now", {"zone": "UTC"}, log_level="info") as stream:
        events = [event async for event in stream]
    assert events == [
        Progress(1, 2, None),
        Progress(2, 2, "step 2"),
        LogMessage("warning", "db", {"number": 0}),
    ]
    assert stream.result.text == "done"
    assert stream.dropped == 0


async def test_leaving_a_stream_early_cancels_its_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(1, then=never)
    async with asyncio.timeout(BOUND):
        async with client.session("dialog").stream_tool("time_now") as stream:
            assert await stream.next_event() == Progress(1, 1, None)
        await until(lambda: worker.cancels)
    with pytest.raises(RuntimeError, match="no result"):
        _ = stream.result


async def test_a_stream_raises_the_error_of_its_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = reporting(1, then=fails)
    async with client.stream_tool("time_now") as stream:
        assert await stream.next_event() == Progress(1, 1, None)
        with pytest.raises(ServerError, match="It broke"):
            await stream.next_event()
    with pytest.raises(ServerError):
        _ = stream.result


async def test_a_stream_can_be_used_once_and_only_inside_its_block(client: AsyncClient) -> None:
    stream = client.stream_tool("time_now")
    with pytest.raises(RuntimeError, match="inside"):
        await stream.next_event()
    async with stream:
        assert [event async for event in stream] == []
    with pytest.raises(RuntimeError, match="used before"):
        async with stream:
            pass


async def test_synchronous_callbacks_run_in_the_calling_thread_and_may_call_tools(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = reporting(2)
    reported: list[tuple[float, bool, str]] = []

    def work() -> str:
        thread = threading.get_ident()
        with Client(plane.address) as client:

            def on_progress(progress: float, total: float | None, message: str | None) -> None:
                here = threading.get_ident() == thread
                reported.append((progress, here, client.call_tool("time_now").text))

            return client.session("a").call_tool("time_now", on_progress=on_progress).text

    assert await in_thread(work) == "done"
    assert reported == [(1, True, "done"), (2, True, "done")]


async def test_an_error_of_a_synchronous_callback_cancels_the_call(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = reporting(1, then=never)

    def on_progress(*_: object) -> None:
        raise ZeroDivisionError

    client = Client(plane.address)

    def work() -> None:
        with pytest.raises(ZeroDivisionError):
            client.call_tool("time_now", on_progress=on_progress)

    await in_thread(work)
    await until(lambda: worker.cancels)  # a client that is closed may send no cancellation
    await in_thread(client.close)


async def test_a_synchronous_stream_is_iterated_with_for(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = reporting(2, logs=1)

    def work() -> None:
        with Client(plane.address) as client:
            with client.stream_tool("time_now", log_level="info") as stream:
                kinds = [type(event) for event in stream]
            assert kinds == [Progress, Progress, LogMessage]
            assert stream.result.text == "done"
            assert stream.dropped == 0

    await in_thread(work)


async def test_unread_events_are_dropped_oldest_first_above_the_limits() -> None:
    events = BufferedEvents(wants_progress=True, log_level="info")
    for number in range(100):
        events.handle_progress(execution_pb2.Progress(progress=number))
    for _ in range(10):
        log = execution_pb2.LogMessage(level="info", data=b'"' + b"x" * 200_000 + b'"')
        events.handle_log(log)
    events.end()
    kept = [event async for event in drain(events)]
    reports = [event.progress for event in kept if isinstance(event, Progress)]
    assert reports == list(range(36, 100))
    assert len(kept) - len(reports) == 5  # messages of 200 kB that fit into 1 MiB
    assert events.dropped == 36 + 5


async def test_a_log_message_that_is_not_json_is_decoded_as_text() -> None:
    events = BufferedEvents(wants_progress=False, log_level="info")
    events.handle_log(execution_pb2.LogMessage(level="info", data=b"plain \xff"))
    assert await events.next() == LogMessage("info", None, "plain \ufffd")


async def drain(events: BufferedEvents) -> Any:
    while (event := await events.next()) is not None:
        yield event
