"""Calls over pipes: what reaches the server, what comes back, and what a bad server does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.core.calls import Outcome, ToolRequest
from leaseway.data_plane.mcp.stream_peer import MAX_QUEUED, StreamPeer
from leaseway.wire import bounds
from leaseway.wire.reasons import Reason

if TYPE_CHECKING:
    from .conftest import Bench

ERAS = pytest.mark.parametrize("era", [(), ("--legacy",)], ids=["modern", "legacy"])


def connection(instance: object) -> StreamPeer:
    peer = instance._peer  # type: ignore[attr-defined]
    assert isinstance(peer, StreamPeer)
    return peer


@ERAS
async def test_a_result_arrives_as_the_very_bytes_that_the_server_sent(
    bench: Bench, era: tuple[str, ...]
) -> None:
    instance = await bench.start(bench.stdio("echo_raw", *era))
    outcome = await bench.call(instance, "echo", {"text": "hé"})
    stamp = b"" if era else b',"resultType":"complete"'
    assert outcome == Outcome(
        b'{"content":[{"type":"text","text":"h\\u00e9"}],"isError":false,"unknown":{"a":1.0}'
        + stamp
        + b"}"
    )


async def test_arguments_with_raw_newlines_stay_one_message(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    arguments = b'{\n  "text": "a\\nb",\r\n  "n": 1.0\n}'
    assert await bench.text(instance, "echo", arguments) == "a\nb"


async def test_arguments_that_are_no_json_are_refused_before_they_are_sent(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    fault = (await bench.call(instance, "echo", b'{"a":\n')).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.INVALID_ARGUMENTS, "no")


async def test_empty_arguments_mean_an_empty_object(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    assert await bench.text(instance, "echo", b"") == ""


async def test_the_callers_meta_reaches_the_server(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--legacy"))
    meta = {"traceparent": "00-ab-cd-01", "tracestate": "a=b"}
    assert json.loads(await bench.text(instance, "meta", meta=meta)) == meta
    assert json.loads(await bench.text(instance, "meta")) is None


async def test_a_modern_call_carries_version_client_and_capabilities(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    meta = json.loads(await bench.text(instance, "meta", meta={"traceparent": "00-ab-cd-01"}))
    prefix = "io.modelcontextprotocol/"
    assert meta.pop(f"{prefix}clientInfo")["name"] == "leaseway"
    assert meta == {
        f"{prefix}protocolVersion": "2026-07-28",
        f"{prefix}clientCapabilities": {},
        "traceparent": "00-ab-cd-01",
    }


async def test_a_tool_that_fails_is_a_result(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    outcome = await bench.call(instance, "fail")
    assert outcome.is_error
    assert outcome.fault is None
    assert b"it went wrong" in outcome.payload


async def test_a_json_rpc_error_keeps_code_message_and_data(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    fault = (await bench.call(instance, "error")).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert fault.metadata["code"] == "-32602"
    assert fault.metadata["message"] == "no such thing"
    assert json.loads(fault.metadata["data"]) == {"why": "because"}


async def test_a_modern_result_of_a_kind_that_nobody_knows_is_an_error(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    fault = (await bench.call(instance, "halfway")).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert "'halfway' (resultType)" in fault.message


async def test_a_legacy_result_has_no_kind_and_passes(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--legacy"))
    assert b'"resultType":"halfway"' in (await bench.call(instance, "halfway")).payload


async def test_progress_goes_to_the_call_that_asked_for_it(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    reports: list[tuple[float, float | None, str]] = []
    _, other = bench.begin(instance, "slow", on_progress=lambda *_: reports.append((9, 9, "no")))
    await bench.text(instance, "progress", on_progress=lambda *report: reports.append(report))
    assert reports == [(0, 3, "step 0"), (1, 3, "step 1"), (2, 3, "step 2")]
    async with asyncio.timeout(BOUND):
        await other


async def test_logs_reach_the_only_call_from_its_level_on(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    said: list[tuple[str, str, bytes]] = []
    await bench.text(instance, "log", on_log=lambda *log: said.append(log), log_level="warning")
    assert said == [("warning", "raw", b'{"said":"warning"}')]


async def test_logs_are_given_to_nobody_when_two_calls_could_own_them(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    said: list[str] = []
    bench.begin(instance, "never", on_log=lambda *log: said.append(log[0]))
    await bench.text(instance, "log", on_log=lambda *log: said.append(log[0]))
    assert said == []


async def test_many_calls_in_flight_get_their_own_answers(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    texts = [f"call {n}" for n in range(200)]
    answers = await asyncio.gather(
        *(bench.text(instance, "echo", {"text": text}) for text in texts)
    )
    assert answers == texts
    assert instance.in_flight == 0


async def test_a_cancelled_call_is_told_to_the_server_and_never_done(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    call, outcome = bench.begin(instance, "never")
    await bench.text(instance, "echo")  # the first call is on the wire by now
    assert call.written
    call.cancel("enough")
    call.cancel("twice changes nothing")
    cancelled = json.loads(await bench.text(instance, "cancelled"))
    assert [(c["reason"], type(c["requestId"])) for c in cancelled] == [("enough", int)]
    assert not outcome.done()
    assert instance.in_flight == 0


async def test_a_call_cancelled_before_it_was_written_never_reaches_the_server(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    call, outcome = bench.begin(instance, "counter")
    assert not call.written
    call.cancel("too late")
    assert await bench.text(instance, "counter") == "1"
    assert json.loads(await bench.text(instance, "cancelled")) == []
    assert not outcome.done()


async def test_a_server_that_pings_gets_an_answer(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--legacy"))
    assert json.loads(await bench.text(instance, "ping")) == {}


async def test_a_server_request_that_we_do_not_offer_is_refused(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--legacy"))
    refusal = json.loads(await bench.text(instance, "sample"))
    assert refusal["code"] == -32601
    assert "on_sampling=" in refusal["message"]


async def test_garbage_on_standard_output_is_counted_and_survived(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "garbage"))
    assert await bench.text(instance, "call") == "still here"
    assert connection(instance).garbage == 1 + 3 * 4
    assert caplog.text.count("no JSON-RPC messages") == 1


async def test_second_and_stray_answers_are_dropped_and_counted(
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


async def test_an_answer_to_a_cancelled_call_is_dropped(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "late"))
    call, outcome = bench.begin(instance, "call")
    await bench.written(call)
    call.cancel("enough")
    assert (await bench.text(instance, "call")).startswith("late")
    assert not outcome.done()
    assert connection(instance).late_replies == 1


async def test_an_id_that_comes_back_as_a_string_finds_its_call(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "string_ids"))
    assert await bench.text(instance, "call") == "by a string"


@pytest.mark.parametrize("mode", ["invalid_utf8", "no_object"])
async def test_a_result_that_is_none_fails_that_call_only(bench: Bench, mode: str) -> None:
    instance = await bench.start(bench.stdio("faulty", mode))
    for _ in range(2):
        fault = (await bench.call(instance, "call")).fault
        assert fault is not None
        assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
        assert "no MCP result" in fault.message


async def test_a_flood_of_notifications_does_not_stall_answers(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "notes"))
    assert await bench.text(instance, "call") == "noted"


async def test_stderr_never_fills_up_and_its_tail_is_bounded(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "flood"))
    assert await bench.text(instance, "call") == "flooded"
    lines = instance.stderr.lines()
    assert len(lines) <= bounds.STDERR_LINES + 1
    assert max(len(line.encode()) for line in lines) <= bounds.STDERR_LINE_BYTES


async def test_a_result_at_the_bound_passes_and_one_above_fails_alone(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "large"))
    frame = len('{"content": [{"type": "text", "text": ""}]}')
    fits = await bench.call(instance, "call", {"size": bounds.MAX_RESULT - frame})
    assert len(fits.payload) == bounds.MAX_RESULT
    fault = (await bench.call(instance, "call", {"size": bounds.MAX_RESULT - frame + 1})).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.RESULT_TOO_LARGE, "yes")
    assert await bench.text(instance, "call", {"size": 1}) == "x"


@pytest.mark.parametrize("order", ["id first", "id last"])
async def test_a_line_above_the_bound_fails_the_call_that_it_answers_alone(
    bench: Bench, order: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", "oversize"))
    call, other = bench.begin(instance, "call", {"how": "never"})
    await bench.written(call)
    fault = (await bench.call(instance, "call", {"how": order, "mib": 64})).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.RESULT_TOO_LARGE, "yes")
    assert str(64 << 20) not in fault.message  # its frame counts, too
    assert await bench.text(instance, "call", {"how": "small"}) == "small"
    assert not other.done()
    assert instance.state == "ready"


async def test_a_line_above_the_bound_that_answers_nothing_ends_the_connection(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("faulty", "oversize"))
    fault = (await bench.call(instance, "call", {"how": "nobody", "mib": 33})).fault
    assert fault is not None
    assert fault.reason is Reason.SERVER_LOST
    assert "32 MiB" in fault.message
    async with asyncio.timeout(BOUND):
        closed, why = await bench.closed.get()
    assert closed is instance
    assert why is not None
    assert "32 MiB" in why.message


@pytest.mark.parametrize("how", ["broken_line", "deep_line"])
async def test_a_broken_line_fails_the_call_that_it_names(bench: Bench, how: str) -> None:
    instance = await bench.start(bench.stdio("faulty", how))
    fault = (await bench.call(instance, "call")).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert instance.state == "ready"


async def test_half_a_line_and_death_is_a_loss_with_its_status(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "half_line"))
    fault = (await bench.call(instance, "call")).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    assert fault.metadata["exit_status"] == "3"


async def test_a_flood_of_log_lines_on_standard_output_stalls_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "chatter"))
    for _ in range(3):
        assert await bench.text(instance, "call") == "through"
    assert connection(instance).garbage >= 60_000
    assert caplog.text.count("no JSON-RPC messages") == 1


async def test_calls_wait_for_a_full_pipe_and_beyond_the_bound_are_refused(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "not_reading"))
    big = {"text": "x" * (bounds.MAX_ARGUMENTS - 100)}
    filling, _ = bench.begin(instance, "call", big)
    await bench.written(filling)
    waiting, _ = bench.begin(instance, "call", {"text": "x" * (bounds.MAX_ARGUMENTS - 4096)})
    assert not waiting.written
    outcome = await bench.call(instance, "call", big)
    assert outcome.fault is not None
    assert (outcome.fault.reason, outcome.fault.started) == (Reason.OVERLOADED, "no")
    assert outcome.fault.retry_delay is not None
    assert connection(instance).transport.waiting() <= MAX_QUEUED


async def test_cancelling_never_waits_for_a_server_that_does_not_read(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    os.kill(instance.pid or 0, signal.SIGSTOP)
    text = {"text": "x" * 10_000}
    calls = [bench.begin(instance, "echo", text) for _ in range(200)]
    await bench.written(calls[0][0])
    assert not calls[-1][0].written  # the pipe is full
    for call, _ in calls:
        call.cancel("enough")  # returns at once, or the test would hang here
    assert instance.in_flight == 0
    assert not any(outcome.done() for _, outcome in calls)
    peer = connection(instance)
    assert peer.transport.waiting() < 300_000  # what the pipe did not take, and a notification each
    os.kill(instance.pid or 0, signal.SIGCONT)
    told = json.loads(await bench.text(instance, "cancelled"))
    assert len(told) == sum(call.written for call, _ in calls)
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"


async def test_what_a_server_that_does_not_read_is_to_be_told_is_bounded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(bench.stdio("faulty", "not_reading"))
    filling, _ = bench.begin(instance, "call", {"text": "x" * 200_000})
    await bench.written(filling)
    peer = connection(instance)
    for _ in range(100):
        peer._answer(b"x" * 100_000)
    assert peer.transport.waiting() <= MAX_QUEUED
    assert caplog.text.count("does not read its input") == 1


async def test_the_callback_of_one_call_can_fail_without_harm(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))

    def explode(outcome: Outcome) -> None:
        raise RuntimeError("a bug of the caller")

    instance.call(ToolRequest("echo", instance.prepare("echo"), b"{}"), explode)
    assert await bench.text(instance, "echo", {"text": "fine"}) == "fine"


@pytest.mark.parametrize(
    ("mode", "status", "how"),
    [("dies", "3", "exited with status 3"), ("killed", "-9", "was killed by SIGKILL")],
)
async def test_when_a_server_dies_every_waiter_learns_how_at_once(
    bench: Bench, mode: str, status: str, how: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", mode))
    _, first = bench.begin(instance, "call")
    _, second = bench.begin(instance, "call")
    async with asyncio.timeout(BOUND):
        faults = [(await first).fault, (await second).fault]
    for fault in faults:
        assert fault is not None
        assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
        assert fault.metadata["exit_status"] == status
        assert how in fault.message
    if mode == "dies":
        assert all(fault and fault.metadata["stderr"] == "last words" for fault in faults)
    late = (await bench.call(instance, "call")).fault
    assert late is not None
    assert (late.reason, late.started) == (Reason.SERVER_LOST, "no")
    async with asyncio.timeout(BOUND):
        closed, why = await bench.closed.get()
    assert (closed, closed.state) == (instance, "closed")
    assert why is not None
    assert why.metadata["exit_status"] == status


async def test_a_call_that_was_not_written_when_the_server_died_never_started(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("faulty", "not_reading"))
    big = {"text": "x" * (bounds.MAX_ARGUMENTS - 100)}
    filling, written = bench.begin(instance, "call", big)
    await bench.written(filling)
    _, queued = bench.begin(instance, "call", big)
    assert instance.pid is not None
    os.kill(instance.pid, signal.SIGKILL)
    async with asyncio.timeout(BOUND):
        faults = [(await written).fault, (await queued).fault]
    assert [fault.started for fault in faults if fault] == ["yes", "no"]


async def test_a_server_that_closes_its_output_is_lost_and_ended(
    bench: Bench, leak_guard: None
) -> None:
    instance = await bench.start(bench.stdio("faulty", "closes_stdout"))
    fault = (await bench.call(instance, "call")).fault
    assert fault is not None
    assert fault.reason is Reason.SERVER_LOST
    assert "closed its end" in fault.message
    async with asyncio.timeout(BOUND):
        await bench.closed.get()


async def test_a_call_that_the_end_of_its_connection_failed_is_never_written(
    bench: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    instance = await bench.start(bench.stdio("echo_raw", "--log", str(log)))
    call, outcome = bench.begin(instance, "counter")
    assert not call.written
    async with asyncio.timeout(BOUND):
        await connection(instance).aclose()
        fault = (await outcome).fault
    assert fault is not None
    assert fault.started == "no"
    assert "counter" not in log.read_text()
