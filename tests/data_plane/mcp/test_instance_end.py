"""How an instance ends: nothing of it is left, whoever ends it and however."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.mcp import instance as instances
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.process.process import ServerProcess
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.data_plane.mcp.transports import stdio
from leaseway.wire.errors import Fault, Reason

if TYPE_CHECKING:
    from .conftest import Bench

pytestmark = pytest.mark.usefixtures("leak_guard")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def process_of(instance: Instance) -> ServerProcess:
    assert isinstance(instance._peer, StreamPeer)
    process = instance._peer.transport._process  # type: ignore[attr-defined]
    assert isinstance(process, ServerProcess)
    return process


async def gone(pid: int) -> None:
    async with asyncio.timeout(BOUND):
        while alive(pid):
            await asyncio.sleep(0.005)


async def child_of(path: Path) -> int:
    async with asyncio.timeout(BOUND):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.005)
    return int(path.read_text())


async def test_a_start_that_ends_while_mcp_is_loaded_waits_for_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, go_on = threading.Event(), threading.Event()
    speaking = instances._speaking

    def load_slowly() -> object:
        loads.set()
        assert go_on.wait(BOUND)
        return speaking()

    monkeypatch.setattr(instances, "_speaking", load_slowly)
    instance = bench.make(bench.stdio("echo_raw"))
    try:
        starting = asyncio.create_task(instance.start())
        assert await asyncio.to_thread(loads.wait, BOUND)
        outcome = await bench.call(instance, "echo")
        async with asyncio.timeout(BOUND):
            await instance.close()
            with pytest.raises(Fault, match=r"did not open a connection: the start was called off"):
                await starting
    finally:
        go_on.set()
    assert outcome.fault is not None
    assert "is starting" in outcome.fault.message
    assert instance.pid is None


async def test_a_worker_that_cannot_load_mcp_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> object:
        raise ImportError("no module named mcp")

    monkeypatch.setattr(instances, "_speaking", load)
    fault = await bench.fails(bench.stdio("echo_raw"))

    assert fault.reason is Reason.SERVER_NOT_READY
    assert fault.metadata["problem"] == "START_FAILED"
    assert "the worker failed (ImportError('no module named mcp'))" in fault.message


async def test_closing_from_another_task_works(bench: Bench) -> None:
    instance = await asyncio.create_task(bench.start(bench.stdio("echo_raw")))
    await asyncio.create_task(instance.close())
    assert instance.state == "closed"
    assert not alive(instance.pid or 0)
    assert await bench.closed.get() == (instance, None)


async def test_closing_twice_and_from_many_tasks_is_one_end(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    await asyncio.gather(*(instance.close() for _ in range(5)))
    await instance.close()
    assert bench.closed.qsize() == 1


async def test_close_waits_for_calls_in_flight_and_refuses_new_ones(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    _, slow = bench.start_call(instance, "slow", {"seconds": 0.2})
    closing = asyncio.create_task(instance.close(grace=BOUND))
    await asyncio.sleep(0)
    refused = (await bench.call(instance, "echo")).fault
    assert refused is not None
    assert (refused.reason, refused.started) == (Reason.SERVER_LOST, "no")
    async with asyncio.timeout(BOUND):
        assert (await slow).fault is None
        await closing


async def test_calls_that_outlast_the_grace_learn_that_it_closed(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    call, never = bench.start_call(instance, "never")
    await bench.written(call)
    async with asyncio.timeout(BOUND):
        await instance.close(grace=0.05)
        fault = (await never).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")


async def test_a_cancelled_close_still_reaches_its_end(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "ignores_eof"))
    closing = asyncio.create_task(instance.close())
    await asyncio.sleep(0)  # it has begun
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await gone(instance.pid or 0)
    async with asyncio.timeout(BOUND):
        assert await bench.closed.get() == (instance, None)


async def test_a_second_cancel_during_the_end_does_not_leak_the_process(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "ignores_eof"))
    owner = instance._owner
    assert owner is not None
    for _ in range(5):
        owner.cancel()
        for _ in range(3):  # let it get a step further each time
            await asyncio.sleep(0)
    await gone(instance.pid or 0)
    await asyncio.wait([owner], timeout=BOUND)
    assert owner.done()


async def test_a_server_that_ignores_the_end_of_input_is_terminated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "PATIENCE", 0.2)
    instance = await bench.start(bench.stdio("faulty", "ignores_eof"))
    process = process_of(instance)
    await instance.close()
    assert process.exited.result() == -signal.SIGTERM
    assert not alive(instance.pid or 0)


async def test_a_server_that_ignores_sigterm_too_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "PATIENCE", 0.2)
    instance = await bench.start(bench.stdio("faulty", "stubborn"))
    process = process_of(instance)
    await instance.close()
    assert process.exited.result() == -signal.SIGKILL
    assert not alive(instance.pid or 0)


async def test_children_do_not_survive_a_clean_exit(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "PATIENCE", 2 * BOUND)
    instance = await bench.start(bench.stdio("faulty", "child", str(tmp_path / "pid")))
    child = await child_of(tmp_path / "pid")
    assert alive(child)
    async with asyncio.timeout(BOUND):  # the server itself ends on the end of its input
        await instance.close()
    await gone(child)


@pytest.mark.parametrize("mode", ["escaped_child", "bare_child"])
async def test_children_that_left_the_group_do_not_survive_either(
    bench: Bench, tmp_path: Path, mode: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", mode, str(tmp_path / "pid")))
    child = await child_of(tmp_path / "pid")
    assert os.getpgid(child) != instance.pid
    await instance.close()
    await gone(child)


async def test_children_do_not_survive_their_servers_death(bench: Bench, tmp_path: Path) -> None:
    instance = await bench.start(bench.stdio("faulty", "child", str(tmp_path / "pid")))
    child = await child_of(tmp_path / "pid")
    os.kill(instance.pid or 0, signal.SIGKILL)
    await gone(child)
    async with asyncio.timeout(BOUND):
        closed, fault = await bench.closed.get()
    assert closed is instance
    assert fault is not None
    assert fault.metadata["exit_status"] == "-9"


async def test_a_dead_idle_server_is_noticed_without_a_call(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw"))
    os.kill(instance.pid or 0, signal.SIGTERM)
    async with asyncio.timeout(BOUND):
        closed, fault = await bench.closed.get()
    assert closed.state == "closed"
    assert fault is not None
    assert "SIGTERM" in fault.message


async def test_one_instance_of_many_can_end_while_others_work(bench: Bench) -> None:
    spec = bench.stdio("echo_raw")
    instances = await asyncio.gather(*(bench.start(spec) for _ in range(5)))
    await instances[0].close()
    texts = await asyncio.gather(*(bench.text(i, "echo", {"text": "on"}) for i in instances[1:]))
    assert texts == ["on"] * 4


async def test_without_process_descriptors_a_thread_sees_the_exit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    first = await bench.start(bench.stdio("echo_raw"))
    second = await bench.start(bench.stdio("faulty", "dies"))
    await first.close()
    assert not alive(first.pid or 0)
    fault = (await bench.call(second, "call")).fault
    assert fault is not None
    assert fault.metadata["exit_status"] == "3"


async def test_a_server_that_did_not_come_up_is_gone_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "PATIENCE", 2 * BOUND)
    instance = bench.make(bench.stdio("faulty", "mute", startup_timeout=0.3))
    with pytest.raises(Fault):
        await instance.start()
    async with asyncio.timeout(BOUND):
        await instance.close()
    assert not alive(instance.pid or 0)


async def test_a_fault_of_our_own_ends_the_instance_and_is_said(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(instance: object) -> None:
        raise RuntimeError("a bug")

    instance = bench.make(bench.stdio("echo_raw"))
    monkeypatch.setattr(bench, "on_tools_changed", explode)
    instance._changed_early = True
    await instance.start()
    async with asyncio.timeout(BOUND):
        closed, fault = await bench.closed.get()
    assert (closed, closed.state) == (instance, "closed")
    assert fault is not None
    assert "inside the worker" in fault.message
    assert "a bug" in caplog.text


async def test_instances_that_come_and_go_do_not_disturb_one_another(bench: Bench) -> None:
    # Descriptors are reused at once: an end that closes one too early would hit a newcomer.
    spec = bench.stdio("counter")
    steady = await bench.start(spec)

    async def come_and_go() -> None:
        for _ in range(3):
            instance = await bench.start(spec)
            assert await bench.text(instance, "next") == "1"
            await instance.close()

    await asyncio.gather(*(come_and_go() for _ in range(5)))
    assert await bench.text(steady, "next") == "1"
    assert steady.state == "ready"
