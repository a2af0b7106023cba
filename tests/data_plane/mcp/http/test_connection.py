"""MCP over streamable HTTP: both eras, JSON and event streams, and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench

from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault, Reason

KINDS = [(), ("--sse",), ("--legacy",), ("--legacy", "--sse")]


def ids(options: tuple[str, ...]) -> str:
    return " ".join(option.strip("-") for option in options) or "modern json"


@pytest.fixture(params=KINDS, ids=ids)
async def each(request: pytest.FixtureRequest, bench: Bench) -> AsyncIterator[str]:
    """Return the address of a server of each kind."""
    async with bench.serving("http_raw", *request.param) as address:
        yield address


@pytest.fixture
async def modern(bench: Bench, tmp_path: Path) -> AsyncIterator[str]:
    async with bench.serving("http_raw", "--log", str(tmp_path / "log")) as address:
        yield address


@pytest.fixture
async def legacy(bench: Bench, tmp_path: Path) -> AsyncIterator[str]:
    options = ("--legacy", "--get", "--log", str(tmp_path / "log"))
    async with bench.serving("http_raw", *options) as address:
        yield address


async def state(bench: Bench, address: str) -> dict[str, Any]:
    async with bench.http.get(f"{address}/state") as response:
        return dict(await response.json())


async def until(bench: Bench, address: str, key: str, value: object) -> None:
    async with asyncio.timeout(BOUND):
        while (await state(bench, address))[key] != value:
            await asyncio.sleep(0.005)


async def fault_of(bench: Bench, instance: Any, text: str) -> Fault:
    return await bench.call_fault(instance, "echo", {"text": text})


async def test_every_kind_of_server_is_listed_and_called(bench: Bench, each: str) -> None:
    instance = await bench.start(bench.http_spec(f"{each}/mcp"))
    assert instance.state == "ready"
    assert instance.pid is None
    assert instance.tools["echo"].count(b'"x-unknown"') == 1
    outcome = await bench.call(instance, "echo", {"text": "hé"})
    assert outcome.fault is None
    assert b'"unknown": {"a": 1.0}' in outcome.payload
    texts = [f"call {n}" for n in range(100)]
    answers = (bench.text(instance, "echo", {"text": text}) for text in texts)
    assert await asyncio.gather(*answers) == texts


async def test_modern_requests_carry_their_headers_and_no_session(
    bench: Bench, modern: str, tmp_path: Path
) -> None:
    configured = {
        "Authorization": Value("env", "AUTH"),
        "accept": Value("literal", "application/json"),
        "content-type": Value("literal", "text/event-stream"),
    }
    spec = bench.http_spec(f"{modern}/mcp", headers=configured)
    instance = await bench.start(spec, {"AUTH": "Bearer abc"})
    await bench.text(instance, "echo", meta={"traceparent": "00-ab-cd-01"})
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [entry["body"]["method"] for entry in entries] == [
        "server/discover",
        "tools/list",
        "tools/call",
    ]
    for entry in entries:
        headers = entry["headers"]
        assert headers["mcp-protocol-version"] == "2026-07-28"
        assert headers["mcp-method"] == entry["body"]["method"]
        assert headers["authorization"] == "Bearer abc"
        assert headers["accept"] == "application/json, text/event-stream"
        assert headers["content-type"] == "application/json"
        assert "mcp-session-id" not in headers
    assert entries[-1]["headers"]["mcp-name"] == "echo"
    assert entries[-1]["body"]["params"]["_meta"]["traceparent"] == "00-ab-cd-01"


async def test_arguments_marked_in_the_schema_are_sent_in_headers(
    bench: Bench, modern: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{modern}/mcp"))
    assert await bench.text(instance, "region", {"region": "eu"}) == "eu"
    assert (await bench.text(instance, "region", {"region": "ü"})).startswith("=?base64?")


async def test_a_tool_with_an_invalid_header_is_skipped_in_the_modern_era(
    bench: Bench, modern: str, legacy: str
) -> None:
    assert "impossible" not in (await bench.start(bench.http_spec(f"{modern}/mcp"))).tools
    assert "impossible" in (await bench.start(bench.http_spec(f"{legacy}/mcp"))).tools


async def test_a_legacy_session_is_kept_and_ended(
    bench: Bench, legacy: str, tmp_path: Path
) -> None:
    instance = await bench.start(bench.http_spec(f"{legacy}/mcp"))
    await bench.text(instance, "echo")
    assert instance.mcp_session == "session-1"
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    by_method = {entry["body"]["method"]: entry["headers"] for entry in entries}
    assert "mcp-session-id" not in by_method["initialize"]
    for method in ("notifications/initialized", "tools/list", "tools/call"):
        assert by_method[method]["mcp-session-id"] == "session-1"
        assert by_method[method]["mcp-protocol-version"] == "2025-11-25"
    await instance.close()
    assert (await state(bench, legacy))["deleted"] == ["session-1"]


async def test_a_configured_session_is_sent_from_the_start_and_not_ended(
    bench: Bench, modern: str, tmp_path: Path
) -> None:
    spec = bench.http_spec(f"{modern}/mcp", session_id="given")
    instance = await bench.start(spec)
    assert not instance.mcp_session  # a configured session may be a secret
    await instance.close()
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {entry["headers"]["mcp-session-id"] for entry in entries} == {"given"}
    assert (await state(bench, modern))["deleted"] == []


async def test_progress_and_logs_on_a_stream_reach_its_call(bench: Bench) -> None:
    async with bench.serving("http_raw", "--sse") as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp"))
        reports: list[tuple[float, float | None, str]] = []
        logs: list[str] = []
        _, other = bench.start_call(instance, "echo", {"text": "slow"})
        await bench.text(
            instance,
            "echo",
            on_progress=lambda *report: reports.append(report[:3]),
            on_log=lambda level, _, data, _extra: logs.append(f"{level} {data.decode()}"),
        )
        async with asyncio.timeout(BOUND):
            await other
    assert reports == [(1, 2, "half")]
    assert logs == ['warning "logged"']


async def test_a_cancelled_modern_call_closes_its_stream(bench: Bench, modern: str) -> None:
    instance = await bench.start(bench.http_spec(f"{modern}/mcp"))
    call, outcome = bench.start_call(instance, "echo", {"text": "never"})
    await bench.written(call)
    call.cancel("enough")
    call.cancel("again")
    await until(bench, modern, "disconnected", 1)
    assert (await state(bench, modern))["cancelled"] == []
    assert not outcome.done()


async def test_a_cancelled_legacy_call_sends_a_notification(bench: Bench, legacy: str) -> None:
    instance = await bench.start(bench.http_spec(f"{legacy}/mcp"))
    call, outcome = bench.start_call(instance, "echo", {"text": "never"})
    await bench.written(call)
    call.cancel("enough")
    async with asyncio.timeout(BOUND):
        while not (cancelled := (await state(bench, legacy))["cancelled"]):
            await asyncio.sleep(0.005)
    assert cancelled[0]["reason"] == "enough"
    assert not outcome.done()


async def test_a_broken_connection_affects_its_own_call_only(bench: Bench, each: str) -> None:
    instance = await bench.start(bench.http_spec(f"{each}/mcp"))
    slow = [bench.start_call(instance, "echo", {"text": "slow"})[1] for _ in range(5)]
    fault = await fault_of(bench, instance, "reset")
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "unknown")
    async with asyncio.timeout(BOUND):
        assert [(await outcome).fault for outcome in slow] == [None] * 5
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    assert instance.state == "ready"


@pytest.mark.parametrize(
    ("text", "reason", "started", "words"),
    [
        ("status 500", Reason.SERVER_ERROR, "unknown", "HTTP status 500"),
        ("status 401", Reason.SERVER_ERROR, "yes", "it requires a credential"),
        ("status 429", Reason.SERVER_ERROR, "no", "too many requests"),
        ("status 503", Reason.SERVER_ERROR, "no", "HTTP status 503"),
        ("redirect", Reason.SERVER_ERROR, "no", "http://127.0.0.2:1/mcp"),
        ("nameless error", Reason.SERVER_ERROR, "yes", "error -32600: Bad Request"),
        ("html", Reason.SERVER_ERROR, "yes", "text/html"),
        ("broken json", Reason.SERVER_ERROR, "yes", "a body that is not JSON-RPC"),
        ("broken event", Reason.SERVER_ERROR, "yes", "an event that is not JSON-RPC"),
        ("accepted", Reason.SERVER_ERROR, "yes", "status 202"),
        ("large", Reason.RESULT_TOO_LARGE, "yes", "33554432 bytes"),
        ("cut", Reason.SERVER_LOST, "yes", "before its response was complete"),
    ],
)
async def test_an_invalid_response_fails_only_its_call(
    bench: Bench, modern: str, text: str, reason: Reason, started: str, words: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{modern}/mcp"))
    fault = await fault_of(bench, instance, text)
    assert (fault.reason, fault.started) == (reason, started)
    assert words in fault.message
    if "429" in text or "503" in text:
        assert fault.retry_delay == 2.0
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"


@pytest.mark.parametrize(
    "kind",
    [
        "none",
        "text/plain; charset=utf-8",
        "text/html",
        "text/event-stream",  # a JSON body
        "application/json",  # an event
        "none; event",
    ],
)
async def test_a_response_is_read_whatever_type_it_states(
    bench: Bench, modern: str, kind: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{modern}/mcp"))
    assert await bench.text(instance, "echo", {"text": f"type {kind}"}) == kind


@pytest.mark.parametrize("stray", ['{"type":"heartbeat"}', "keep-alive", "[DONE]", '{"id":999}'])
async def test_an_event_that_is_no_message_is_ignored_and_counted(
    bench: Bench, modern: str, stray: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{modern}/mcp"))
    assert await bench.text(instance, "echo", {"text": f"stray {stray}"}) == "after it"
    assert instance._peer is not None
    assert instance._peer.garbage == 1


async def test_a_redirect_on_the_same_origin_is_followed(bench: Bench, modern: str) -> None:
    instance = await bench.start(bench.http_spec(f"{modern}/mcp"))
    fault = await fault_of(bench, instance, "redirect here")
    assert "redirects that do not end" in fault.message  # /moved redirects, too
    assert instance.state == "ready"


async def test_a_leased_instance_ends_if_the_server_forgets_its_session(
    bench: Bench, legacy: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{legacy}/mcp"))
    call, slow = bench.start_call(instance, "echo", {"text": "never"})
    await bench.written(call)
    await bench.http.post(f"{legacy}/forget")
    fault = await fault_of(bench, instance, "hello")
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    assert "no longer knows its MCP session" in fault.message
    async with asyncio.timeout(BOUND):
        lost = (await slow).fault
        closed, why = await bench.closed.get()
    assert lost is not None
    assert lost.started == "yes"
    assert closed is instance
    assert why is not None
    assert why.reason is Reason.SERVER_LOST
    assert (await bench.call(instance, "echo")).fault is not None


async def test_a_stream_is_resumed_while_it_has_new_events(bench: Bench) -> None:
    async with bench.serving("http_raw", "--legacy", "--sse") as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp"))
        assert await bench.text(instance, "echo", {"text": "resume 5"}) == "resumed"


async def test_a_stream_without_new_events_fails(bench: Bench) -> None:
    async with bench.serving("http_raw", "--legacy", "--sse") as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp"))
        fault = await fault_of(bench, instance, "resume -1")
        assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
        assert "without answering the request" in fault.message


async def test_a_legacy_server_notifies_of_changed_tools_on_its_get_stream(
    bench: Bench, legacy: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{legacy}/mcp"))
    await until(bench, legacy, "streams", 1)
    await bench.http.post(f"{legacy}/change")
    async with asyncio.timeout(BOUND):
        assert await bench.changed.get() is instance


async def test_a_server_without_get_stream_keeps_its_session(bench: Bench) -> None:
    async with bench.serving("http_raw", "--legacy", "--no-get") as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp"))
        for _ in range(3):
            assert await bench.text(instance, "echo", {"text": "on"}) == "on"
        assert instance.state == "ready"


async def test_a_json_rpc_error_with_an_error_status_keeps_its_data(
    bench: Bench, modern: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{modern}/mcp"))
    fault = await fault_of(bench, instance, "rpc error")
    assert (fault.reason, fault.started) == (Reason.SERVER_ERROR, "yes")
    assert fault.metadata["code"] == "-32022"
    assert json.loads(fault.metadata["data"]) == {"supported": ["2031-01-01"]}


async def test_an_invalid_header_is_named_and_its_value_hidden(bench: Bench, modern: str) -> None:
    headers = {"X-Thing": Value("env", "THING")}
    fault = await bench.fails(
        bench.http_spec(f"{modern}/mcp", headers=headers), environment={"THING": "two\nlines"}
    )
    assert fault.metadata["problem"] == "START_FAILED"
    assert "headers.X-Thing" in fault.message
    assert "two" not in fault.message


@pytest.mark.parametrize("protocol", ["auto", "legacy", "2026-07-28"])
async def test_a_wrong_url_or_transport_is_reported_by_its_status(
    bench: Bench, modern: str, protocol: str
) -> None:
    fault = await bench.fails(bench.http_spec(f"{modern}/elsewhere", protocol=protocol))
    assert fault.message == (
        "The server remote answered with HTTP status 404: check its url. It was tried over sse, "
        "too: The server remote answered with HTTP status 404: check its url; is its transport "
        "really streamable_http?"
    )
    assert fault.metadata["http_status"] == "404"


async def test_an_unreachable_server_fails_the_start_with_one_sentence(bench: Bench) -> None:
    fault = await bench.fails(bench.http_spec("http://127.0.0.1:9/mcp?key=hidden"))
    assert fault.metadata["problem"] == "START_FAILED"
    assert "could not be reached at http://127.0.0.1:9" in fault.message
    assert "hidden" not in fault.message


async def test_an_invalid_url_is_named(bench: Bench) -> None:
    fault = await bench.fails(server_spec(VariantKey("odd"), "streamable_http", url="what"))
    assert fault.metadata["problem"] == "START_FAILED"
    assert "odd" in fault.message
