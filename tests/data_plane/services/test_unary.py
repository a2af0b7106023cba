"""Unary and streaming calls, typed content and logs."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any

import msgspec
import pytest
from google.protobuf.json_format import MessageToDict
from tests.conftest import BOUND
from tests.data_plane.conftest import rpc_fault

from leaseway.data_plane.services import unary
from leaseway.data_plane.services.unary import arguments_from_struct, typed_result
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

Bench = Any


def request(**fields: Any) -> execution_pb2.CallToolRequest:
    fields.setdefault("arguments", {"text": "hi"})
    return execution_pb2.CallToolRequest(**fields)


async def test_a_call_by_server_or_by_exposed_name_has_typed_content(bench: Bench) -> None:
    await bench.serve("time")
    by_server = await bench.execution.CallTool(request(server_id="time", tool="echo"))
    by_name = await bench.execution.CallTool(request(tool="time_echo"))
    assert by_server == by_name
    assert by_server.content[0].text == '{"text":"hi"}'


async def test_an_unknown_exposed_name_names_the_nearest(bench: Bench) -> None:
    await bench.serve("time")
    fault = await rpc_fault(bench.execution.CallTool(request(tool="time_ecko")))
    assert fault.reason is Reason.TOOL_NOT_FOUND
    assert fault.metadata["nearest"] == "time_echo"


async def test_a_leased_server_requires_a_session(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    call = bench.execution.CallTool(request(server_id="db", tool="echo"))
    assert (await rpc_fault(call)).reason is Reason.SESSION_REQUIRED
    response = await bench.execution.CallTool(request(server_id="db", tool="echo", session="s1"))
    assert response.new_lease.session == "s1"


async def test_invalid_names_of_callers_are_refused(bench: Bench) -> None:
    await bench.serve("time")
    for wrong in ({"session": "x" * 257}, {"tenant": "a\nb"}, {"client": {"agent": "a\tb"}}):
        call = bench.execution.CallTool(request(server_id="time", tool="echo", **wrong))
        assert (await rpc_fault(call)).reason is Reason.INVALID_REQUEST


async def test_a_cancelled_rpc_cancels_its_call(bench: Bench) -> None:
    await bench.hold("time")
    call = bench.execution.CallTool(request(tool="time_echo"))
    waiting = asyncio.ensure_future(_settled(call))
    await bench.wait_for_calls()
    call.cancel()
    await bench.until(lambda: bench.servers.opened[0].calls[0].cancelled)
    await waiting


async def _settled(call: Any) -> None:
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_result_too_large_for_one_message_is_refused_with_advice(bench: Bench) -> None:
    await bench.hold("time")
    call = asyncio.ensure_future(rpc_fault(bench.execution.CallTool(request(tool="time_echo"))))
    await bench.wait_for_calls()
    text = "x" * bounds.MAX_GRPC_MESSAGE
    payload = msgspec.json.encode({"content": [{"type": "text", "text": text}]})
    bench.servers.opened[0].calls[0].answer(payload)
    fault = await call
    assert (fault.reason, fault.started) == (Reason.RESULT_TOO_LARGE, "yes")
    assert "exchange" in fault.message


async def test_large_arguments_and_results_are_converted_in_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[threading.Thread] = []

    def seen(work: Any) -> Any:
        def run(*args: Any) -> Any:
            workers.append(threading.current_thread())
            return work(*args)

        return run

    monkeypatch.setattr(unary, "typed_result", seen(typed_result))
    monkeypatch.setattr(unary, "arguments_from_struct", seen(arguments_from_struct))
    await bench.serve("time")
    long = request(server_id="time", tool="echo", arguments={"text": "hi", "more": [1] * 5_000})
    answer = await bench.execution.CallTool(long)
    assert len(answer.content[0].text) > 5_000
    assert len(workers) == 2
    assert threading.main_thread() not in workers


async def test_a_result_with_too_many_values_is_refused_before_conversion(bench: Bench) -> None:
    await bench.hold("time")
    call = bench.execution.CallTool(request(server_id="time", tool="echo"))
    await bench.wait_for_calls()
    many = b"[" + b"1," * bounds.MAX_VALUES + b"1]"
    bench.servers.opened[0].calls[0].answer(b'{"content":[],"structuredContent":{"x":%b}}' % many)
    fault = await rpc_fault(call)
    assert fault.reason is Reason.RESULT_TOO_LARGE
    assert "over an exchange" in fault.message


async def test_arguments_too_large_for_one_message_are_refused(
    bench: Bench,
) -> None:
    await bench.serve("time")
    text = "x" * (bounds.MAX_GRPC_MESSAGE + bounds.MIB)
    call = bench.execution.CallTool(request(tool="time_echo", arguments={"text": text}))
    fault = await rpc_fault(call)
    assert (fault.reason, fault.started) == (Reason.INVALID_ARGUMENTS, "no")
    assert "4 MiB" in fault.message


async def test_progress_and_logs_come_before_the_result(bench: Bench) -> None:
    await bench.hold("time")
    stream = bench.execution.CallToolStreaming(
        execution_pb2.CallToolStreamingRequest(call=request(tool="time_echo"), log_level="info")
    )
    events = asyncio.ensure_future(_all(stream))
    (call,) = await bench.wait_for_calls()
    call.request.callbacks.on_progress(1.0, 2.0, "half")
    call.request.callbacks.on_log("info", "", b'"hello"')
    call.answer(b'{"content":[]}')
    kinds = [event.WhichOneof("event") for event in await events]
    assert kinds == ["progress", "log", "result"]


async def test_unread_events_are_limited_to_the_newest(bench: Bench) -> None:
    await bench.hold("time")
    stream = bench.execution.CallToolStreaming(
        execution_pb2.CallToolStreamingRequest(call=request(tool="time_echo"), log_level="info")
    )
    events = asyncio.ensure_future(_all(stream))
    (call,) = await bench.wait_for_calls()
    for number in range(40):  # in one turn of the loop, so that nobody can read meanwhile
        call.request.callbacks.on_log("info", str(number), b'"' + b"x" * 200_000 + b'"')
    for step in range(1010):
        call.request.callbacks.on_progress(float(step), None, "")
    call.answer(b'{"content":[]}')
    *kept, end = await events
    assert end.WhichOneof("event") == "result"
    logs = [event.log.logger for event in kept if event.WhichOneof("event") == "log"]
    assert logs == [str(number) for number in range(26, 40)]  # of 20 that fit, 6 over the count
    assert len(kept) == 1024


async def _all(stream: Any) -> list[Any]:
    async with asyncio.timeout(BOUND):
        return [event async for event in stream]


async def test_a_streaming_call_that_cannot_run_ends_with_the_fault(bench: Bench) -> None:
    stream = bench.execution.CallToolStreaming(
        execution_pb2.CallToolStreamingRequest(call=request(tool="nothing"))
    )
    assert (await rpc_fault(_all(stream))).reason is Reason.TOOL_NOT_FOUND


async def test_logs_of_live_and_ended_instances_can_be_read(bench: Bench) -> None:
    await bench.serve("time")
    await bench.until(lambda: bench.servers.live and bench.servers.live[0].state == "ready")
    bench.servers.opened[0].stderr.written += ["one", "two", "three"]
    bench.servers.opened[0].crash("exit status 1")
    await bench.until(lambda: len(bench.servers.live) == 1)
    bench.servers.opened[1].stderr.written += ["again"]
    logs = await bench.execution.ReadLogs(execution_pb2.ReadLogsRequest(server_id="time", lines=2))
    assert [(log.state, list(log.lines)) for log in logs.instances] == [
        ("exit status 1", ["two", "three"]),
        ("running", ["again"]),
    ]
    wanted = execution_pb2.ReadLogsRequest(server_id="time", page_size=1)
    first = await bench.execution.ReadLogs(wanted)
    wanted.page_token = first.next_page_token
    second = await bench.execution.ReadLogs(wanted)
    assert [log.state for log in (*first.instances, *second.instances)] == [
        "exit status 1",
        "running",
    ]
    assert not second.next_page_token
    wanted.page_token = "time-1"
    assert (await rpc_fault(bench.execution.ReadLogs(wanted))).reason is Reason.INVALID_REQUEST
    unknown = bench.execution.ReadLogs(execution_pb2.ReadLogsRequest(server_id="tme"))
    assert (await rpc_fault(unknown)).reason is Reason.TOOL_NOT_FOUND


def test_every_kind_of_content_is_typed() -> None:
    sound = base64.b64encode(b"\x00\x01").decode()
    response = typed_result(
        msgspec.json.encode(
            {
                "content": [
                    {"type": "text", "text": "t"},
                    {"type": "image", "data": sound, "mimeType": "image/png"},
                    {"type": "audio", "data": sound, "mimeType": "audio/wav"},
                    {"type": "image", "data": "not base64!"},
                    {"type": "image", "artifact": "x", "byteLength": True},
                    {"type": "resource_link", "uri": "x:y"},
                    {"type": "resource", "resource": {"uri": "x:y"}},
                    {"type": "hologram", "depth": 3},
                    "nonsense",
                ],
                "structuredContent": {"n": [1, None, True]},
                "isError": True,
                "_meta": {"k": "v"},
            }
        ),
        True,
    )
    kinds = [content.WhichOneof("kind") for content in response.content]
    assert kinds == [
        "text",
        "image",
        "audio",
        "other",
        "other",
        "resource_link",
        "resource",
        "other",
        "other",
    ]
    assert response.content[1].image.data == b"\x00\x01"
    assert response.content[2].audio.byte_length == 2
    assert MessageToDict(response.structured) == {"n": [1.0, None, True]}
    assert MessageToDict(response.extra) == {"_meta": {"k": "v"}}
    assert response.is_error


def test_whole_numbers_in_arguments_become_integers() -> None:
    message = request(arguments={"n": 3, "x": 1.5, "deep": {"m": [2]}})
    arguments = msgspec.json.decode(arguments_from_struct(message.arguments))
    assert arguments == {"n": 3, "x": 1.5, "deep": {"m": [2]}}
    assert isinstance(arguments["n"], int)


def test_a_result_that_is_no_object_is_a_server_error() -> None:
    with pytest.raises(Fault) as fault:
        typed_result(b"[]", False)
    assert fault.value.reason is Reason.SERVER_ERROR


async def test_a_caller_with_an_unsupported_protocol_version_is_refused(bench: Bench) -> None:
    await bench.serve("time")
    other = catalog_pb2.ClientInfo(protocol_version=99, package_version="leaseway-go/9")
    call = request(server_id="time", tool="echo", client=other)
    fault = await rpc_fault(bench.execution.CallTool(call))
    assert fault.reason is Reason.INCOMPATIBLE_VERSION
    assert "leaseway-go/9" in fault.message


async def test_an_unknown_log_level_is_refused_before_the_call_is_sent(bench: Bench) -> None:
    await bench.serve("time")
    streaming = execution_pb2.CallToolStreamingRequest(
        call=request(server_id="time", tool="echo"), log_level="loud"
    )

    async def read() -> None:
        async for _ in bench.execution.CallToolStreaming(streaming):
            pass

    fault = await rpc_fault(read())
    assert (fault.reason, fault.started) == (Reason.INVALID_REQUEST, "no")
    assert "warning" in fault.message
    assert not bench.servers.opened[0].calls


@pytest.mark.parametrize(
    "payload",
    [
        b'{"structuredContent":{"n":%b}}' % (b"9" * 400),
        b'{"content":[{"type":"x","n":%b}]}' % (b"9" * 5000),
        b'{"structuredContent":%b}' % (b"[" * 200 + b"]" * 200),
        b'{"structuredContent":%b1%b}' % (b'{"a":' * 40, b"}" * 40),
        b'{"content":[{"type":"x","a":%b1%b}]}' % (b'{"a":' * 40, b"}" * 40),
        b'{"more":%b}' % (b"[" * 60 + b"]" * 60),
        b'{"more":%b}' % (b'{"a":' * 32 + b"{}" + b"}" * 32),  # too deep for a stream alone
        b'{"more":%b}' % (b"[" * 980 + b"]" * 980),
    ],
)
def test_a_result_that_does_not_fit_typed_content_is_a_fault(payload: bytes) -> None:
    with pytest.raises(Fault) as caught:
        typed_result(payload, False)
    assert (caught.value.reason, caught.value.started) == (Reason.SERVER_ERROR, "yes")


def test_a_nested_result_that_fits_is_typed() -> None:
    payload = b'{"structuredContent":%b1%b}' % (b'{"a":' * 25, b"}" * 25)
    response = typed_result(payload, False)
    read = execution_pb2.CallToolResponse.FromString(response.SerializeToString())
    assert MessageToDict(read.structured) == msgspec.json.decode(payload)["structuredContent"]
