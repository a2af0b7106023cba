"""Calls over pipes: what reaches the server, and what comes back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.wire.errors import Reason

if TYPE_CHECKING:
    from tests.data_plane.mcp.conftest import Bench

ERAS = pytest.mark.parametrize("era", [(), ("--legacy",)], ids=["modern", "legacy"])


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
    _, other = bench.start_call(
        instance, "slow", on_progress=lambda *_: reports.append((9, 9, "no"))
    )
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
    bench.start_call(instance, "never", on_log=lambda *log: said.append(log[0]))
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
    call, outcome = bench.start_call(instance, "never")
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
    call, outcome = bench.start_call(instance, "counter")
    assert not call.written
    call.cancel("too late")
    assert await bench.text(instance, "counter") == "1"
    assert json.loads(await bench.text(instance, "cancelled")) == []
    assert not outcome.done()


async def test_a_server_that_pings_gets_an_answer(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--legacy"))
    assert json.loads(await bench.text(instance, "ping")) == {}


async def test_the_callback_of_one_call_can_fail_without_harm(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))

    def explode(outcome: Outcome) -> None:
        raise RuntimeError("a bug of the caller")

    instance.call(ToolRequest("echo", instance.prepare("echo"), b"{}"), explode)
    assert await bench.text(instance, "echo", {"text": "fine"}) == "fine"
