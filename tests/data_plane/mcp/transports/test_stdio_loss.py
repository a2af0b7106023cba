"""Servers that stop reading or exit: calls fail with the reason, and whether they started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, connection

from leaseway.data_plane.mcp.protocol.stream_connection import MAX_QUEUED
from leaseway.wire import bounds
from leaseway.wire.errors import Reason


async def test_a_server_that_exits_within_a_line_is_lost_with_its_status(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "half_line"))
    fault = await bench.call_fault(instance, "call")
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    assert fault.metadata["exit_status"] == "3"


async def test_calls_are_queued_for_a_full_pipe_up_to_a_limit(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "not_reading"))
    big = {"text": "x" * (bounds.MAX_ARGUMENTS - 100)}
    filling, _ = bench.start_call(instance, "call", big)
    await bench.written(filling)
    waiting, _ = bench.start_call(instance, "call", {"text": "x" * (bounds.MAX_ARGUMENTS - 4096)})
    assert not waiting.written
    outcome = await bench.call(instance, "call", big)
    assert outcome.fault is not None
    assert (outcome.fault.reason, outcome.fault.started) == (Reason.OVERLOADED, "no")
    assert outcome.fault.retry_delay is not None
    assert connection(instance).transport.waiting() <= MAX_QUEUED


async def test_cancelling_does_not_wait_for_a_server_that_does_not_read(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    os.kill(instance.pid or 0, signal.SIGSTOP)
    text = {"text": "x" * 10_000}
    calls = [bench.start_call(instance, "echo", text) for _ in range(200)]
    await bench.written(calls[0][0])
    assert not calls[-1][0].written  # the pipe is full
    for call, _ in calls:
        call.cancel("enough")  # returns at once, or the test hangs here
    assert instance.in_flight == 0
    assert not any(outcome.done() for _, outcome in calls)
    peer = connection(instance)
    assert (
        peer.transport.waiting() < 300_000
    )  # messages that are not in the pipe, and a notification each
    os.kill(instance.pid or 0, signal.SIGCONT)
    cancelled = json.loads(await bench.text(instance, "cancelled"))
    assert len(cancelled) == sum(call.written for call, _ in calls)
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"


async def test_responses_to_a_server_that_does_not_read_are_limited(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "not_reading"))
    filling, _ = bench.start_call(instance, "call", {"text": "x" * 200_000})
    await bench.written(filling)
    peer = connection(instance)
    for _ in range(100):
        peer._respond(b"x" * 100_000)
    assert peer.transport.waiting() <= MAX_QUEUED
    assert caplog.text.count("does not read its input") == 1


@pytest.mark.parametrize(
    ("mode", "status", "how"),
    [("dies", "3", "exited with status 3"), ("killed", "-9", "was killed by SIGKILL")],
)
async def test_when_a_server_exits_all_calls_fail_with_the_reason(
    bench: Bench, mode: str, status: str, how: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", mode))
    _, first = bench.start_call(instance, "call")
    _, second = bench.start_call(instance, "call")
    async with asyncio.timeout(BOUND):
        faults = [(await first).fault, (await second).fault]
    for fault in faults:
        assert fault is not None
        assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
        assert fault.metadata["exit_status"] == status
        assert how in fault.message
    if mode == "dies":
        assert all(fault and fault.metadata["stderr"] == "last words" for fault in faults)
    late = await bench.call_fault(instance, "call")
    assert (late.reason, late.started) == (Reason.SERVER_LOST, "no")
    closed, why = await bench.next_closed()
    assert (closed, closed.state) == (instance, "closed")
    assert why is not None
    assert why.metadata["exit_status"] == status


async def test_a_call_not_written_when_the_server_exits_never_started(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("faulty", "not_reading"))
    big = {"text": "x" * (bounds.MAX_ARGUMENTS - 100)}
    filling, written = bench.start_call(instance, "call", big)
    await bench.written(filling)
    _, queued = bench.start_call(instance, "call", big)
    assert instance.pid is not None
    os.kill(instance.pid, signal.SIGKILL)
    async with asyncio.timeout(BOUND):
        faults = [(await written).fault, (await queued).fault]
    assert [fault.started for fault in faults if fault] == ["yes", "no"]


async def test_a_server_that_closes_its_output_is_lost_and_stopped(
    bench: Bench, leak_guard: None
) -> None:
    instance = await bench.start(bench.stdio("faulty", "closes_stdout"))
    fault = await bench.call_fault(instance, "call")
    assert fault.reason is Reason.SERVER_LOST
    assert "closed its end" in fault.message
    await bench.next_closed()


async def test_a_call_failed_by_the_end_of_its_connection_is_never_written(
    bench: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    instance = await bench.start(bench.stdio("echo_raw", "--log", str(log)))
    call, outcome = bench.start_call(instance, "counter")
    assert not call.written
    async with asyncio.timeout(BOUND):
        await connection(instance).aclose()
        fault = (await outcome).fault
    assert fault is not None
    assert fault.started == "no"
    assert "counter" not in log.read_text()
