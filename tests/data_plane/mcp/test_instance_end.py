"""The end of an instance leaves no process, for any reason of the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, is_alive, until, until_exited

from leaseway.data_plane.kinds.process import stdio
from leaseway.data_plane.kinds.process.process import ServerProcess
from leaseway.data_plane.mcp import instance as instances
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.wire.errors import Fault, Reason

pytestmark = pytest.mark.usefixtures("leak_guard")


def process_of(instance: Instance) -> ServerProcess:
    assert isinstance(instance._peer, StreamPeer)
    process = instance._peer.transport._process  # type: ignore[attr-defined]
    assert isinstance(process, ServerProcess)
    return process


async def child_of(path: Path) -> int:
    await until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


async def test_a_start_cancelled_while_mcp_is_imported_ends_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, proceed = threading.Event(), threading.Event()
    import_mcp = instances._import_mcp

    def load_slowly() -> object:
        loads.set()
        assert proceed.wait(BOUND)
        return import_mcp()

    monkeypatch.setattr(instances, "_import_mcp", load_slowly)
    instance = bench.make(bench.stdio("echo_raw"))
    try:
        starting = asyncio.create_task(instance.start())
        assert await asyncio.to_thread(loads.wait, BOUND)
        outcome = await bench.call(instance, "echo")
        async with asyncio.timeout(BOUND):
            await instance.close()
            with pytest.raises(Fault, match=r"did not open a connection: the start was cancelled"):
                await starting
    finally:
        proceed.set()
    assert outcome.fault is not None
    assert "is starting" in outcome.fault.message
    assert instance.pid is None


async def test_a_failed_import_of_mcp_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> object:
        raise ImportError("no module named mcp")

    monkeypatch.setattr(instances, "_import_mcp", load)
    fault = await bench.fails(bench.stdio("echo_raw"))

    assert fault.reason is Reason.SERVER_NOT_READY
    assert fault.metadata["problem"] == "START_FAILED"
    assert "the worker failed (ImportError('no module named mcp'))" in fault.message


async def test_closing_from_another_task_works(bench: Bench) -> None:
    instance = await asyncio.create_task(bench.start(bench.stdio("echo_raw")))
    await asyncio.create_task(instance.close())
    assert instance.state == "closed"
    assert not is_alive(instance.pid or 0)
    assert await bench.closed.get() == (instance, None)


async def test_closing_repeatedly_and_from_many_tasks_closes_once(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    await asyncio.gather(*(instance.close() for _ in range(5)))
    await instance.close()
    assert bench.closed.qsize() == 1


async def test_close_fails_calls_in_flight_and_rejects_new_ones(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    call, never = bench.start_call(instance, "never")
    await bench.written(call)
    async with asyncio.timeout(BOUND):
        closing = asyncio.create_task(instance.close())
        await asyncio.sleep(0)
        refused = await bench.call_fault(instance, "echo")
        await closing
        fault = (await never).fault
    assert (refused.reason, refused.started) == (Reason.SERVER_LOST, "no")
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")


async def test_a_cancelled_close_completes(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "ignores_eof"))
    closing = asyncio.create_task(instance.close())
    await asyncio.sleep(0)  # it has started
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until_exited(instance.pid or 0)
    assert await bench.next_closed() == (instance, None)


async def test_repeated_cancellation_of_the_owner_does_not_leak_the_process(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "ignores_eof"))
    owner = instance._owner
    assert owner is not None
    for _ in range(5):
        owner.cancel()
        for _ in range(3):  # let it proceed by a step
            await asyncio.sleep(0)
    await until_exited(instance.pid or 0)
    await asyncio.wait([owner], timeout=BOUND)
    assert owner.done()


@pytest.mark.parametrize(
    ("mode", "number"), [("ignores_eof", signal.SIGTERM), ("stubborn", signal.SIGKILL)]
)
async def test_a_server_that_ignores_the_end_of_input_gets_sigterm_then_sigkill(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mode: str, number: signal.Signals
) -> None:
    monkeypatch.setattr(stdio, "STOP_GRACE", 0.2)
    instance = await bench.start(bench.stdio("faulty", mode))
    process = process_of(instance)
    await instance.close()
    assert process.exited.result() == -number
    assert not is_alive(instance.pid or 0)


async def test_children_do_not_survive_a_clean_exit(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "STOP_GRACE", 2 * BOUND)
    instance = await bench.start(bench.stdio("faulty", "child", str(tmp_path / "pid")))
    child = await child_of(tmp_path / "pid")
    assert is_alive(child)
    async with asyncio.timeout(BOUND):  # the server exits at the end of its input
        await instance.close()
    await until_exited(child)


@pytest.mark.parametrize("mode", ["escaped_child", "bare_child"])
async def test_children_that_left_the_process_group_do_not_survive(
    bench: Bench, tmp_path: Path, mode: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", mode, str(tmp_path / "pid")))
    child = await child_of(tmp_path / "pid")
    assert os.getpgid(child) != instance.pid
    await instance.close()
    await until_exited(child)


async def test_children_do_not_survive_a_killed_server(bench: Bench, tmp_path: Path) -> None:
    instance = await bench.start(bench.stdio("faulty", "child", str(tmp_path / "pid")))
    child = await child_of(tmp_path / "pid")
    os.kill(instance.pid or 0, signal.SIGKILL)
    await until_exited(child)
    closed, fault = await bench.next_closed()
    assert closed is instance
    assert fault is not None
    assert fault.metadata["exit_status"] == "-9"


async def test_the_exit_of_an_idle_server_is_noticed(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    os.kill(instance.pid or 0, signal.SIGTERM)
    closed, fault = await bench.next_closed()
    assert closed.state == "closed"
    assert fault is not None
    assert "SIGTERM" in fault.message


async def test_one_of_many_instances_can_close_while_others_work(bench: Bench) -> None:
    spec = bench.stdio("echo_raw")
    instances = await asyncio.gather(*(bench.start(spec) for _ in range(5)))
    await instances[0].close()
    texts = await asyncio.gather(*(bench.text(i, "echo", {"text": "on"}) for i in instances[1:]))
    assert texts == ["on"] * 4


async def test_without_pidfd_a_thread_notices_the_exit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    first = await bench.start(bench.stdio("echo_raw"))
    second = await bench.start(bench.stdio("faulty", "dies"))
    await first.close()
    assert not is_alive(first.pid or 0)
    fault = await bench.call_fault(second, "call")
    assert fault.metadata["exit_status"] == "3"


async def test_a_server_that_failed_to_start_is_stopped_quickly(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "STOP_GRACE", 2 * BOUND)
    instance = bench.make(bench.stdio("faulty", "mute", startup_timeout=0.3))
    with pytest.raises(Fault):
        await instance.start()
    async with asyncio.timeout(BOUND):
        await instance.close()
    assert not is_alive(instance.pid or 0)


async def test_an_error_of_ours_ends_the_instance_and_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(instance: object) -> None:
        raise RuntimeError("a bug")

    instance = bench.make(bench.stdio("echo_raw"))
    monkeypatch.setattr(bench, "on_tools_changed", explode)
    instance._changed_early = True
    await instance.start()
    closed, fault = await bench.next_closed()
    assert (closed, closed.state) == (instance, "closed")
    assert fault is not None
    assert "inside the worker" in fault.message
    assert fault.metadata == {"server": "echo_raw"}
    assert "a bug" in caplog.text


async def test_instances_that_start_and_close_do_not_affect_others(bench: Bench) -> None:
    # Descriptors are reused at once: closing one too early would hit a new instance.
    spec = bench.stdio("counter")
    steady = await bench.start(spec)

    async def start_and_close() -> None:
        for _ in range(3):
            instance = await bench.start(spec)
            assert await bench.text(instance, "next") == "1"
            await instance.close()

    await asyncio.gather(*(start_and_close() for _ in range(5)))
    assert await bench.text(steady, "next") == "1"
    assert steady.state == "ready"
