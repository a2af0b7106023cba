"""Faults of stdio servers fail one call at most, or end the connection at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.data_plane.mcp.conftest import Bench, connection

from leaseway.data_plane.kinds.process.process import ServerProcess
from leaseway.data_plane.kinds.process.stdio import StdioTransport
from leaseway.data_plane.mcp.protocol.messages.reading import LineSplitter
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.wire import bounds
from leaseway.wire.errors import Reason


@pytest.mark.parametrize("era", [(), ("--legacy",)])
async def test_a_server_request_in_the_modern_era_is_warned_of_once(
    bench: Bench, era: tuple[str, ...]
) -> None:
    instance = await bench.start(bench.stdio("echo_raw", *era))
    for _ in range(2):
        assert "no back-channel" in await bench.text(instance, "backless")
    if era:  # the legacy era has server requests
        assert not bench.warned
    else:
        [(reason, text)] = bench.warned
        assert reason == "NO_BACK_CHANNEL"
        assert "Set protocol: legacy" in text


async def test_a_response_without_result_and_error_fails_its_call(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    fault = await bench.call_fault(instance, "nothing")
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert "not an MCP result" in fault.message
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"


async def test_garbage_on_standard_output_is_counted_and_ignored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "garbage"))
    assert await bench.text(instance, "call") == "still here"
    assert connection(instance).garbage == 1 + 3 * 4
    assert caplog.text.count("that are not JSON-RPC") == 1


async def test_duplicate_and_stray_responses_are_dropped_and_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "twice"))
    for _ in range(10):
        assert await bench.text(instance, "call") == "first"
    peer = connection(instance)
    assert peer.late_replies >= 9
    assert peer.stray_replies >= 9
    assert instance.late_replies == peer.late_replies + peer.stray_replies
    assert caplog.text.count("never sent") == 1


async def test_a_response_to_a_cancelled_call_is_dropped(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "late"))
    call, outcome = bench.start_call(instance, "call")
    await bench.written(call)
    call.cancel("enough")
    assert (await bench.text(instance, "call")).startswith("late")
    assert not outcome.done()
    assert connection(instance).late_replies == 1


async def test_an_id_returned_as_a_string_finds_its_call(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "string_ids"))
    assert await bench.text(instance, "call") == "by a string"


async def test_bytes_that_are_not_utf8_become_replacement_characters(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "invalid_utf8"))
    for _ in range(2):
        outcome = await bench.call(instance, "call")
        assert outcome.payload.decode() == '{"content":[],"x":"\ufffd\ufffd"}'


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_result_without_content_gets_what_official_clients_require(
    bench: Bench, size: int
) -> None:
    instance = await bench.start(bench.stdio("faulty", "no_content"))
    result = json.loads((await bench.call(instance, "call", {"size": size})).payload)
    (item,) = result["content"]
    assert json.loads(item["text"]) == result["structuredContent"] == {"said": "x" * size}


@pytest.mark.parametrize("mode", ["no_object", "endless_integer", "endless_nesting"])
async def test_an_invalid_result_fails_only_its_call(bench: Bench, mode: str) -> None:
    instance = await bench.start(bench.stdio("faulty", mode))
    for _ in range(2):
        fault = await bench.call_fault(instance, "call")
        assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
        assert "not an MCP result" in fault.message


async def test_a_flood_of_notifications_does_not_delay_responses(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "notes"))
    assert await bench.text(instance, "call") == "noted"


async def test_malformed_notifications_are_not_logged_with_what_they_say(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "odd_notes"))
    assert await bench.text(instance, "call") == "noted"
    assert caplog.records == []


async def test_stderr_is_always_read_and_its_tail_is_limited(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "flood"))
    assert await bench.text(instance, "call") == "flooded"
    lines = instance.stderr.lines()
    assert len(lines) <= bounds.STDERR_LINES + 1
    assert max(len(line.encode()) for line in lines) <= bounds.STDERR_LINE_BYTES


async def test_a_result_at_the_limit_passes_and_a_larger_one_fails_only_its_call(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("faulty", "large"))
    frame = len('{"content": [{"type": "text", "text": ""}]}')
    fits = await bench.call(instance, "call", {"size": bounds.MAX_RESULT - frame})
    assert len(fits.payload) == bounds.MAX_RESULT
    fault = await bench.call_fault(instance, "call", {"size": bounds.MAX_RESULT - frame + 1})
    assert (fault.reason, fault.started) == (Reason.RESULT_TOO_LARGE, "yes")
    assert await bench.text(instance, "call", {"size": 1}) == "x"


@pytest.mark.parametrize("order", ["id first", "id last"])
async def test_a_line_above_the_limit_fails_only_the_call_that_it_answers(
    bench: Bench, order: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", "oversize"))
    call, other = bench.start_call(instance, "call", {"how": "never"})
    await bench.written(call)
    fault = await bench.call_fault(instance, "call", {"how": order, "mib": 64})
    assert (fault.reason, fault.started) == (Reason.RESULT_TOO_LARGE, "yes")
    assert str(64 << 20) not in fault.message  # its frame counts, too
    assert await bench.text(instance, "call", {"how": "small"}) == "small"
    assert not other.done()
    assert instance.state == "ready"


async def test_a_line_above_the_limit_that_answers_nothing_ends_the_connection(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("faulty", "oversize"))
    fault = await bench.call_fault(instance, "call", {"how": "nobody", "mib": 33})
    assert fault.reason is Reason.SERVER_LOST
    assert "32 MiB" in fault.message
    closed, why = await bench.next_closed()
    assert closed is instance
    assert why is not None
    assert "32 MiB" in why.message


async def test_garbage_is_logged_once_for_all_instances_of_a_server(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        instance = await bench.start(bench.stdio("faulty", "garbage"))
        assert await bench.text(instance, "call") == "still here"
    assert caplog.text.count("that are not JSON-RPC") == 1


@pytest.mark.parametrize("how", ["broken_line", "deep_line"])
async def test_a_broken_line_fails_the_call_that_it_names(bench: Bench, how: str) -> None:
    instance = await bench.start(bench.stdio("faulty", how))
    fault = await bench.call_fault(instance, "call")
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert instance.state == "ready"


async def test_a_flood_of_log_lines_on_standard_output_does_not_delay_calls(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "chatter"))
    for _ in range(3):
        assert await bench.text(instance, "call") == "through"
    assert connection(instance).garbage >= 60_000
    assert caplog.text.count("that are not JSON-RPC") == 1


class Received:
    """Counts lines, and what reads them."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.is_paused = False

    def receive(self, messages: Sequence[bytes]) -> None:
        self.lines += messages

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return False


async def test_between_the_lines_of_a_flood_others_have_their_turn() -> None:
    received: Any = Received()
    transport = StdioTransport("s", cast("ServerProcess", None), StderrTail())
    transport._receiver = received
    transport._lines = LineSplitter(1000, lambda *_: None, 1000)
    transport.output_begins(received)
    flood = b"".join(b"%d\n" % number for number in range(1_000))
    transport.received(flood)
    assert len(received.lines) < 300
    assert received.is_paused
    for _ in range(5):
        await asyncio.sleep(0)
    assert not received.is_paused
    transport.received(b"last\n")
    assert b"\n".join(received.lines) == flood + b"last"
