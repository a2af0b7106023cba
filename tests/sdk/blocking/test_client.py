"""The synchronous client: many threads, one event loop."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from tests.calls import ReceivedCall
from tests.sdk.fakes import (
    BOUND,
    FakeControlPlane,
    FakeWorker,
    Gate,
    in_thread,
    text_result,
    until,
)

from leaseway.sdk import AsyncSession, Client, Session, ToolNotFound
from leaseway.sdk.blocking.loop_thread import LOOP_THREAD, LoopThread, run_in_thread
from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.manager import LeaseManager


async def test_the_synchronous_client_has_all_methods(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    def work() -> None:
        with Client(plane.address, agent="billing") as client:
            assert len(client.list_tools()) == 2
            assert client.call_tool("time_now", {"a": 1}, timeout=BOUND).text == '{"a":1}'
            with client.session("dialog") as session:
                assert client.session("dialog") is session
                assert session.call_tool("desk_open").reminder
                lease = session.acquire("desk", ttl=30, wait=1)
                assert session.leases() == [lease]
                assert [info.id for info in client.leases()] == [lease.id]
                assert session.release(lease)
                session.acquire("desk")
            assert client.status().ready
            assert [server.id for server in client.servers()] == ["desk", "time"]
            assert [info.id for info in client.workers()] == ["w1"]
            client.report_problem("X", "Y")
            assert client.problems()[0].reason == "X"
            assert client.logs("time")[0].lines == ("a", "b")
            with pytest.raises(ToolNotFound):
                client.call_tool("nope")

    await in_thread(work)
    assert len(worker.released) == 2
    assert worker.calls[0].agent == "billing"


async def test_many_threads_share_one_client_and_each_gets_its_own_result(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    def work() -> None:
        with Client(plane.address) as client, ThreadPoolExecutor(16) as threads:
            results = threads.map(lambda n: client.call_tool("time_now", {"n": n}).text, range(400))
            assert list(results) == [f'{{"n":{n}}}' for n in range(400)]

    await in_thread(work)
    assert worker.streams == 1


async def answer() -> int:
    return 1


def assert_answers(loop_thread: LoopThread) -> None:
    """Assert that a call of another thread is answered, and stop the loop."""
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(loop_thread.run(answer)), daemon=True)
    caller.start()
    caller.join(BOUND)
    assert answers == [1]
    loop_thread._stop()


def test_the_loop_starts_with_the_next_call_after_the_system_has_refused_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop_thread = LoopThread()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop_thread.run(answer)
    assert_answers(loop_thread)


@pytest.mark.parametrize(
    "step",
    [(asyncio, "new_event_loop"), (threading.Thread, "__init__"), (threading.Thread, "start")],
)
def test_the_loop_starts_with_the_next_call_after_an_interrupt_of_its_start(
    monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    loop_thread = LoopThread()
    with monkeypatch.context() as patch:
        patch.setattr(*step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop_thread.run(answer)
    assert_answers(loop_thread)


async def test_a_cancellation_before_the_loop_has_started_cancels_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cold = LoopThread()
    monkeypatch.setattr("leaseway.sdk.blocking.loop_thread.LOOP_THREAD", cold)
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        started.set()
        go_on.wait(BOUND)
        try:
            cold.run(partial(asyncio.sleep, 2 * BOUND))
        except asyncio.CancelledError:
            ended.set()

    calling = asyncio.create_task(run_in_thread(call))
    assert await asyncio.to_thread(started.wait, BOUND)
    calling.cancel()
    await asyncio.wait([calling])
    go_on.set()
    assert await asyncio.to_thread(ended.wait, BOUND)
    cold._stop()


async def test_leases_are_only_used_in_the_loop_thread(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    held, reopen = LeaseBook.held_leases, LeaseManager.reopen_session

    def held_noted(book: LeaseBook, session: str | None = None) -> list[ClientLease]:
        threads.add(threading.current_thread().name)
        return held(book, session)

    def reopen_noted(desk: LeaseManager, session: str) -> None:
        threads.add(threading.current_thread().name)
        reopen(desk, session)

    monkeypatch.setattr(LeaseBook, "held_leases", held_noted)
    monkeypatch.setattr(LeaseManager, "reopen_session", reopen_noted)

    def work() -> None:
        with Client(plane.address) as client:
            with client.session("dialog") as session:
                session.acquire("desk")
                assert len(session.leases()) == 1
            with pytest.raises(RuntimeError, match="is closed"):
                session.call_tool("desk_open")
            again = client.session("dialog")
            assert again is session
            assert again.leases() == []
            again.call_tool("desk_open")
            assert len(again.leases()) == 1

    await in_thread(work)
    assert threads == {"leaseway"}


async def test_clients_share_one_thread(plane: FakeControlPlane) -> None:
    def work() -> None:
        with Client(plane.address) as first, Client(plane.address) as second:
            first.call_tool("time_now")
            second.call_tool("time_now")

    before = {thread.name for thread in threading.enumerate()}
    await in_thread(work)
    ours = [thread for thread in threading.enumerate() if thread.name == "leaseway"]
    assert len(ours) == 1
    assert ours[0].daemon
    assert "leaseway" in before | {ours[0].name}


async def test_a_closed_client_says_so(plane: FakeControlPlane) -> None:
    def work() -> None:
        client = Client(plane.address)
        client.close()
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.call_tool("time_now")

    await in_thread(work)


async def test_a_client_closes_while_another_thread_gets_a_session(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    class Asked(AsyncSession):
        @property
        def _entered(self) -> int:
            others.append(client.session(f"dialog-{len(others)}"))  # as a thread may, meanwhile
            return 0

        @_entered.setter
        def _entered(self, _: int) -> None: ...

    client, others = Client(plane.address), list[Session]()
    first, last = Asked(client._inner, "first"), Asked(client._inner, "last")
    client._inner._sessions.update(first=first, last=last)
    await in_thread(partial(client.call_tool, "time_now"))
    await in_thread(client.close)
    assert len(others) == 2
    await until(lambda: worker.open_streams == 0)


async def test_calls_of_waiting_threads_are_sent_in_batches(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = gate = Gate()

    def work() -> None:
        with Client(plane.address) as client, ThreadPoolExecutor(32) as threads:
            list(threads.map(lambda _: client.call_tool("time_now"), range(32)))

    running = asyncio.create_task(in_thread(work))
    await until(lambda: len(worker.calls) == 32)
    gate.open()
    await running
    assert sum(1 for batch in worker.batches if batch.calls) < 32


def test_a_call_in_the_loop_thread_is_rejected() -> None:
    async def inside() -> None:
        Client("127.0.0.1:1").call_tool("time_now")

    with pytest.raises(RuntimeError, match="its own event loop"):
        LOOP_THREAD.run(inside)


SCRIPT = """
import os, sys
from leaseway.sdk import Client
client = Client(sys.argv[1])
print(client.call_tool("time_now").text, flush=True)
{rest}
"""


async def script(address: str, rest: str) -> tuple[list[str], str, int]:
    """Run a program that uses a client; return its lines, its stderr and its exit status."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT.format(rest=rest), address],
            capture_output=True,
            text=True,
            timeout=3 * BOUND,
            check=False,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )

    done = await asyncio.to_thread(run)
    return done.stdout.split("\n")[:-1], done.stderr, done.returncode


async def test_a_program_exits_without_closing_its_client(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    lines, stderr, status = await script(plane.address, "")
    assert (lines, stderr, status) == (["{}"], "", 0)
    await until(lambda: worker.open_streams == 0)


async def test_objects_that_close_clients_when_the_process_ends_report_nothing(
    plane: FakeControlPlane,
) -> None:
    rest = """
class Owner:
    def __del__(self):
        client.close()
        print("closed")
owner = Owner()
owner.itself = owner
"""
    lines, stderr, status = await script(plane.address, rest)
    assert (lines[1:], stderr, status) == (["closed"], "", 0)


async def test_an_interrupt_cancels_the_call_and_leaves_the_client_usable(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    rest = """
print("asking", flush=True)
try:
    client.session("slow").call_tool("time_now", {"slow": True})
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(client.call_tool("time_now").text, flush=True)
client.close()
"""

    async def slow(fake: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        if b"slow" in arguments:
            await asyncio.Event().wait()
        return text_result("quick")

    worker.answer = slow
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT.format(rest=rest),
        plane.address,
        stdout=asyncio.subprocess.PIPE,
    )
    await until(lambda: len(worker.calls) == 2)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(BOUND):
        out, _ = await process.communicate()
    assert out.decode().split() == ["quick", "asking", "interrupted", "quick"]
    await until(lambda: worker.cancels)


class TimeLimit(Exception):
    """What a task queue raises in the thread of a job."""


def test_what_another_thread_raises_in_the_waiting_one_cancels_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leaseway.sdk.blocking.loop_thread._LOOK_INTERVAL", 0.05)
    started, ended, limited = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def job() -> None:
        try:
            LOOP_THREAD.run(work)
        except TimeLimit:
            limited.set()

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    assert started.wait(BOUND)
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(TimeLimit)
    )
    assert ended.wait(BOUND)
    assert limited.wait(BOUND)


async def test_a_block_that_an_interrupt_ends_leaves_no_lease_to_a_process_that_exits(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    rest = """
with client.session("job") as session:
    session.call_tool("desk_open", {"slow": True})
"""

    async def slow(fake: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        if b"slow" in arguments:
            await asyncio.Event().wait()
        return text_result("quick")

    worker.answer = slow
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT.format(rest=rest),
        plane.address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: len(worker.leases) == 1)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(BOUND):
        _, err = await process.communicate()
    assert err.decode().splitlines()[-1] == "KeyboardInterrupt"
    assert not worker.leases
