"""Health checks notice an unresponsive server when it is idle, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, fault_of, until
from tests.ports import free_port

from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.features.health import Patience, default_patience
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

SOON = Patience(idle=0.05, answer=30.0)
STRICT = Patience(idle=0.05, answer=0.5)
PROMPT = Patience(idle=600.0, answer=0.5)
"""Pings only doubtful servers."""
LENIENT = Patience(idle=600.0, answer=30.0)
"""The same, for a server that must answer even on a busy machine."""

ERAS = pytest.mark.parametrize("era", [(), ("--legacy",)], ids=["modern", "legacy"])


@pytest.fixture(autouse=True)
def wake_the_stopped(leak_guard: None, bench: Bench) -> Iterator[None]:
    """Continue stopped servers, so that they exit quickly."""
    yield
    for instance in bench.instances:
        if instance.pid is not None and instance.state == "ready":
            with contextlib.suppress(ProcessLookupError):
                os.kill(instance.pid, signal.SIGCONT)


def stop(instance: Instance) -> None:
    assert instance.pid is not None
    os.kill(instance.pid, signal.SIGSTOP)


def in_doubt(instance: Instance) -> bool:
    assert instance._peer is not None
    return instance._peer.liveness.in_doubt


def may_be_silent(instance: Instance) -> bool:
    assert instance._peer is not None
    return instance._peer.may_be_silent


async def lost(bench: Bench) -> Fault:
    closed, fault = await bench.next_closed()
    assert closed.state == "closed"
    assert fault is not None
    return fault


def pings(log: Path) -> list[str]:
    lines = log.read_text().splitlines()
    methods = [json.loads(line).get("method") for line in lines]
    return [method for method in methods[1:] if method in ("ping", "server/discover")]


async def until_pinged(log: Path, times: int) -> None:
    await until(lambda: len(pings(log)) >= times)


def test_the_default_patience_is_as_documented() -> None:
    assert (Patience().idle, Patience().answer) == (30.0, 10.0)
    assert (bounds.HEALTH_INTERVAL, bounds.HEALTH_PATIENCE) == (30.0, 10.0)


def test_a_leased_server_gets_its_call_timeout_after_an_abandoned_call() -> None:
    leased = server_spec(VariantKey("db"), "stdio", command="db", call_timeout=90)
    assert default_patience(leased) == Patience(30.0, 10.0, doubt=90)
    assert default_patience(replace(leased, truely_stateless=True)) == Patience(30.0, 10.0, doubt=0)


async def test_a_leased_server_that_works_on_an_abandoned_call_is_not_disconnected(
    bench: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    patience = Patience(idle=1.5, answer=1.0, doubt=600)
    instance = await bench.start(bench.stdio("echo_raw", "--log", str(log)), patience=patience)
    call, _ = bench.start_call(instance, "never")
    await bench.written(call)
    stop(instance)  # like a single-threaded server
    call.cancel("enough")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.5):  # longer than an idle server may be silent
            await bench.closed.get()
    os.kill(instance.pid or 0, signal.SIGCONT)
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    assert instance.state == "ready"


@ERAS
async def test_an_idle_server_is_pinged_repeatedly_in_the_way_of_its_era(
    bench: Bench, era: tuple[str, ...], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    instance = await bench.start(bench.stdio("echo_raw", *era, "--log", str(log)), patience=SOON)
    await until_pinged(log, 3)
    assert set(pings(log)) == {"ping" if era else "server/discover"}
    assert instance.state == "ready"
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"


@ERAS
async def test_an_unresponsive_idle_server_is_disconnected_and_its_processes_exit(
    bench: Bench, era: tuple[str, ...]
) -> None:
    instance = await bench.start(bench.stdio("echo_raw", *era), patience=STRICT)
    stop(instance)
    fault = await lost(bench)
    assert fault.reason is Reason.SERVER_LOST
    assert "has not answered a ping for 0.5 s" in fault.message
    assert bench.disconnected == ["disconnected"]


async def test_an_error_response_to_a_ping_is_a_sign_of_life(bench: Bench) -> None:
    spec = bench.stdio("echo_raw", "--legacy", protocol="legacy")
    instance = await bench.start(spec, patience=SOON)
    peer = instance._peer
    assert peer is not None
    answers: list[str] = []
    ping = peer.ping

    async def odd_ping() -> None:
        try:
            await peer._request_in_era("no/such/method", None)
        except Exception as error:
            answers.append(type(error).__name__)
            raise

    peer.ping = odd_ping  # type: ignore[method-assign]
    await until(lambda: len(answers) >= 3)
    assert set(answers) == {"MCPError"}
    assert instance.state == "ready"
    await ping()


async def test_a_server_without_ping_stays_connected_while_it_sends_anything(bench: Bench) -> None:
    patience = Patience(idle=0.05, answer=6.0)  # the machine may give the server no time for some
    instance = await bench.start(
        bench.stdio("faulty", "discreet"), patience=patience, known_version="2025-11-25"
    )
    loop = asyncio.get_running_loop()
    end = loop.time() + patience.idle + patience.answer + 1
    while loop.time() < end:
        await bench.text(instance, "call")
        await asyncio.sleep(0.05)
    assert instance.state == "ready"


async def test_an_idle_server_that_ignores_pings_stays_connected(bench: Bench) -> None:
    patience = Patience(idle=0.05, answer=4.0)
    instance = await bench.start(
        bench.stdio("faulty", "discreet"), patience=patience, known_version="2025-11-25"
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(patience.answer + 1):
            await bench.closed.get()
    assert instance.state == "ready"


async def test_a_server_that_works_on_a_call_is_not_pinged(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "log"
    spec = bench.stdio("echo_raw", "--legacy", "--log", str(log))
    patience = Patience(idle=0.02, answer=0.05)
    instance = bench.make(spec, patience=patience)
    async with asyncio.timeout(BOUND):
        await instance.start()
        call, outcome = bench.start_call(instance, "slow", {"seconds": 1})
        await bench.written(call)
        before = len(pings(log))
        stop(instance)
        resumed = asyncio.get_running_loop().call_later(
            0.5, os.kill, instance.pid or 0, signal.SIGCONT
        )
        assert (await outcome).fault is None
    resumed.cancel()
    assert len(pings(log)) <= before + 1  # one may be in flight when the call starts
    assert instance.state == "ready"


@ERAS
async def test_a_hung_server_is_noticed_when_a_call_is_abandoned(
    bench: Bench, era: tuple[str, ...]
) -> None:
    instance = await bench.start(bench.stdio("echo_raw", *era), patience=PROMPT)
    stop(instance)
    call, outcome = bench.start_call(instance, "echo")
    await bench.written(call)
    call.cancel("the deadline has passed")
    fault = await lost(bench)
    assert "has not answered a ping" in fault.message
    assert not outcome.done()


async def test_a_hung_server_is_noticed_despite_new_calls(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"), patience=PROMPT)
    stop(instance)
    early, _ = bench.start_call(instance, "echo")
    older, _ = bench.start_call(instance, "echo")
    await bench.written(older)
    early.cancel("the deadline has passed")
    assert may_be_silent(instance)  # it may work on the older call
    _, newer = bench.start_call(instance, "echo")
    older.cancel("the deadline has passed")
    assert not may_be_silent(instance)
    fault = await fault_of(newer)
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    await lost(bench)


async def test_a_cancelled_call_of_a_healthy_server_costs_one_ping(
    bench: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    instance = await bench.start(bench.stdio("echo_raw", "--log", str(log)), patience=LENIENT)
    call, _ = bench.start_call(instance, "never")
    await bench.written(call)
    call.cancel("enough")
    await until_pinged(log, 1)
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    assert instance.state == "ready"


async def test_calls_of_an_unresponsive_server_fail_as_started_and_later_ones_as_not(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("echo_raw"), patience=PROMPT)
    stop(instance)
    first, _ = bench.start_call(instance, "echo")
    await bench.written(first)
    first.cancel("enough")
    second, outcome = bench.start_call(instance, "echo")
    await bench.written(second)
    fault = await fault_of(outcome)
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    assert "has not answered a ping" in fault.message
    refused = await bench.call_fault(instance, "echo")
    assert (refused.reason, refused.started) == (Reason.SERVER_LOST, "no")
    await lost(bench)


async def test_an_unresponsive_http_server_is_disconnected(bench: Bench) -> None:
    for options in ((), ("--legacy",)):
        async with bench.serving("http_raw", *options) as address:
            await bench.start(bench.http_spec(f"{address}/mcp"), patience=STRICT)
            await bench.http.post(f"{address}/mute")
            fault = await lost(bench)
    assert "has not answered a ping for 0.5 s" in fault.message
    assert bench.disconnected == ["disconnected"] * 2


async def test_a_stopped_http_server_is_disconnected_with_the_reason(bench: Bench) -> None:
    async with bench.serving("http_raw") as address:
        await bench.start(bench.http_spec(f"{address}/mcp"), patience=STRICT)
    fault = await lost(bench)
    assert "has not answered a ping for 0.5 s" in fault.message
    assert "could not be reached at http://127.0.0.1" in fault.message


async def test_an_http_server_that_restarts_in_time_stays_connected(bench: Bench) -> None:
    patience = Patience(idle=600.0, answer=40.0)
    port = str(free_port())
    async with bench.serving("http_raw", "--port", port) as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp"), patience=patience)
    assert (await bench.call(instance, "echo")).fault is not None
    assert in_doubt(instance)
    async with bench.serving("http_raw", "--port", port):
        await until(lambda: not in_doubt(instance))
        assert await bench.text(instance, "echo", {"text": "back"}) == "back"
    assert instance.state == "ready"


async def test_closing_an_unresponsive_server_does_not_report_a_loss(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"), patience=Patience(idle=0.01, answer=60))
    stop(instance)
    async with asyncio.timeout(BOUND):
        await instance.close()
    assert await bench.closed.get() == (instance, None)
    assert bench.disconnected == []


async def test_a_legacy_server_that_ignores_discover_starts_under_auto_in_time(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    started = asyncio.get_running_loop().time()
    instance = await bench.start(bench.stdio("faulty", "discreet", startup_timeout=8))
    assert instance.protocol_version == "2025-11-25"
    assert 3.9 < asyncio.get_running_loop().time() - started < 8
    assert "faulty has not answered server/discover for 4 s" in caplog.text
