"""Calls over pipes: sent messages and results."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.wire.errors import Reason

ERAS = pytest.mark.parametrize("era", [(), ("--legacy",)], ids=["modern", "legacy"])


@ERAS
async def test_a_result_has_the_bytes_that_the_server_sent(
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


async def test_arguments_that_are_not_json_are_rejected_before_they_are_sent(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    fault = await bench.call_fault(instance, "echo", b'{"a":\n')
    assert (fault.reason, fault.started) == (Reason.INVALID_ARGUMENTS, "no")


async def test_empty_arguments_mean_an_empty_object(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    assert await bench.text(instance, "echo", b"") == ""


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


async def test_a_modern_result_of_an_unknown_type_is_an_error(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    fault = await bench.call_fault(instance, "halfway")
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert "unknown resultType 'halfway'" in fault.message


async def test_progress_is_reported_to_its_own_call(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    reports: list[tuple[float, float | None, str]] = []
    _, other = bench.start_call(
        instance, "slow", on_progress=lambda *_: reports.append((9, 9, "no"))
    )
    await bench.text(instance, "progress", on_progress=lambda *report: reports.append(report[:3]))
    assert reports == [(0, 3, "step 0"), (1, 3, "step 1"), (2, 3, "step 2")]
    async with asyncio.timeout(BOUND):
        await other


async def test_logs_of_the_requested_level_reach_the_only_call(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    logs: list[tuple[str, str, bytes]] = []
    await bench.text(instance, "log", on_log=lambda *log: logs.append(log[:3]), log_level="warning")
    assert logs == [("warning", "raw", b'{"said":"warning"}')]


async def test_logs_reach_no_call_if_two_are_in_flight(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    logs: list[str] = []
    bench.start_call(instance, "never", on_log=lambda *log: logs.append(log[0]))
    await bench.text(instance, "log", on_log=lambda *log: logs.append(log[0]))
    assert logs == []


async def test_a_cancelled_call_notifies_the_server_and_has_no_outcome(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    call, outcome = bench.start_call(instance, "never")
    await bench.text(instance, "echo")  # the first call has been written
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
    call, outcome = bench.start_call(instance, "counter")
    assert not call.written
    call.cancel("too late")
    assert await bench.text(instance, "counter") == "1"
    assert json.loads(await bench.text(instance, "cancelled")) == []
    assert not outcome.done()


async def test_a_ping_of_the_server_gets_a_response(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--legacy"))
    assert json.loads(await bench.text(instance, "ping")) == {}


async def test_a_failing_callback_does_not_affect_other_calls(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))

    def explode(outcome: Outcome) -> None:
        raise RuntimeError("a bug of the caller")

    instance.call(ToolRequest("echo", instance.prepare("echo"), b"{}"), explode)
    assert await bench.text(instance, "echo", {"text": "fine"}) == "fine"
