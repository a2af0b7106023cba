"""A whole worker with real servers starts, serves, and leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.app import run
from leaseway.data_plane.references.vault import WorkerVault
from leaseway.data_plane.worker import WorkerOptions
from leaseway.wire.channels.endpoint import Endpoint, Endpoints
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status

Bench = Any
SERVERS = Path(__file__).resolve().parents[1] / "servers"


def text(result: Any) -> str:
    assert not result.HasField("status"), result.status.message
    found: str = json.loads(result.payload)["content"][0]["text"]
    return found


def spec(bench: Bench, server_id: str, *, shared: bool = True, **fields: Any) -> Any:
    fields.setdefault("args", (str(SERVERS / "echo_raw.py"),))
    return bench.spec(server_id, shared=shared, command=sys.executable, protocol="legacy", **fields)


@pytest.mark.usefixtures("leak_guard")
async def test_a_probed_server_takes_calls_and_its_results_pass_whole(running: Bench) -> None:
    await running.probe(spec(running, "echo"))
    result = await running.caller().call("echo", arguments=b'{"text": "hi"}')
    assert text(result) == "hi"
    assert json.loads(result.payload)["unknown"] == {"a": 1.0}


async def test_sessions_keep_their_own_state(running: Bench) -> None:
    await running.probe(spec(running, "echo", shared=False))
    caller = running.caller()
    first = await caller.call("echo", "counter", session="a", arguments=b"{}")
    lease = first.lease.id
    second = await caller.call("echo", "counter", session="a", lease_id=lease, arguments=b"{}")
    other = await caller.call("echo", "counter", session="b", arguments=b"{}")
    assert text(first) == text(other) != text(second)


@pytest.mark.usefixtures("leak_guard")
async def test_a_server_that_is_killed_during_a_call_is_restarted(running: Bench) -> None:
    await running.probe(spec(running, "echo"))
    caller = running.caller()
    pid = int(text(await caller.call("echo", "pid", arguments=b"{}")))
    waiting = await caller.begin("echo", "never", arguments=b"{}")
    await caller.call("echo", arguments=b'{"text": "behind it"}')
    os.kill(pid, signal.SIGKILL)
    fault = fault_from_status((await caller.result(waiting)).status)
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    # Whether the loss is still open or mended when it is reported depends on how fast it returns.
    report = await running.plane.expect_report(lambda report: report.problems or report.cleared)
    assert [problem.reason for problem in (*report.problems, *report.cleared)] == ["SERVER_LOST"]
    async with asyncio.timeout(BOUND):
        while (result := await caller.call("echo", "pid", arguments=b"{}")).HasField("status"):
            refused = fault_from_status(result.status)
            assert (refused.reason, refused.started) == (Reason.SERVER_LOST, "no")
    assert int(text(result)) != pid


async def test_a_drain_from_the_control_plane_ends_the_worker(running: Bench) -> None:
    await running.probe(spec(running, "echo"))
    running.plane.send(drain={"reason": "a test wants it"})
    async with asyncio.timeout(BOUND):
        assert await running.exit == 0


async def test_listening_to_other_machines_without_a_key_is_rejected() -> None:
    options = WorkerOptions(Endpoints(Endpoint("127.0.0.1", 1)), Endpoint("0.0.0.0", 0))
    with pytest.raises(ValueError, match="LEASEWAY_KEY"):
        await run(options, ready=lambda _: None)


async def test_a_worker_logs_that_it_waits_for_its_control_plane(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listening = asyncio.Event()
    options = WorkerOptions(
        Endpoints(Endpoint("127.0.0.1", 1)), Endpoint("127.0.0.1", 0), id="early"
    )
    worker = asyncio.create_task(run(options, ready=lambda _: listening.set()))
    async with asyncio.timeout(BOUND):
        await listening.wait()
        while "waits for the control plane" not in caplog.text:
            await asyncio.sleep(0.01)
    worker.cancel()
    await asyncio.wait([worker])
    records = [
        record for record in caplog.records if "waits for the control" in record.getMessage()
    ]
    assert [record.levelname for record in records if record.levelno >= logging.WARNING] == [
        "WARNING"
    ]
    assert "127.0.0.1:1; worker early waits" in records[0].getMessage()


async def test_a_worker_without_tls_is_told_of_it_by_a_control_plane_that_closes_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as secured:
        port = secured.sockets[0].getsockname()[1]
        options = WorkerOptions(
            Endpoints(Endpoint("127.0.0.1", port)), Endpoint("127.0.0.1", 0), id="open"
        )
        worker = asyncio.create_task(run(options, ready=lambda _: None))
        async with asyncio.timeout(BOUND):
            while "worker open" not in caplog.text:
                await asyncio.sleep(0.01)
        worker.cancel()
        await asyncio.wait([worker])
    assert "if it uses TLS, set LEASEWAY_TLS_CA" in caplog.text
    assert "Nothing answers" not in caplog.text


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = Endpoint("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match=str(endpoint)):
            await run(
                WorkerOptions(Endpoints(Endpoint("127.0.0.1", 1)), endpoint), ready=lambda _: None
            )


async def test_diagnostics_work_before_the_worker_is_built(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refresh = WorkerVault.refresh

    def ask_first(vault: WorkerVault) -> None:
        # The vault of a worker that has ended may be read late: then nobody handles the signal.
        if signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGUSR1)
        refresh(vault)

    monkeypatch.setattr(WorkerVault, "refresh", ask_first)
    options = WorkerOptions(
        Endpoints(Endpoint("127.0.0.1", 1)),
        Endpoint("127.0.0.1", 0),
        id="early",
        artifacts=tmp_path,
    )
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with caplog.at_level(logging.INFO):
        worker = asyncio.create_task(run(options, ready=listening.set_result))
        async with asyncio.timeout(BOUND):
            await listening
            while "Now: threads=" not in caplog.text:
                await asyncio.sleep(0.001)
            os.kill(os.getpid(), signal.SIGUSR1)
            while "Now: leases=0" not in caplog.text:
                await asyncio.sleep(0.001)
    worker.cancel()
    await asyncio.wait([worker], timeout=BOUND)
