"""Code that runs between two instructions of a synchronous client: signal handlers, `__del__`."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, in_thread, until

from leaseway.sdk import Client
from leaseway.sdk.blocking.loop_thread import LOOP_THREAD, LoopThread


async def answer() -> int:
    return 1


def answer_here(loop_thread: LoopThread) -> int:
    """Call, as a handler of signals may."""
    return loop_thread.run(answer)


def answer_in_a_thread(loop_thread: LoopThread) -> int:
    """Let another thread call and wait for it, as a handler of SIGTERM waits for its threads."""
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(loop_thread.run(answer)), daemon=True)
    caller.start()
    caller.join(BOUND)
    return sum(answers)


def within_bound(work: Callable[[], None]) -> bool:
    """Return whether work ends in time, in a thread that may hang."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(2 * BOUND)
    return not thread.is_alive()


@pytest.mark.parametrize("call", [answer_here, answer_in_a_thread])
def test_a_signal_handler_may_call_where_it_interrupts_the_wake_up_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[LoopThread], int]
) -> None:
    monkeypatch.setattr("leaseway.sdk.blocking.loop_thread._LOOK_INTERVAL", 0.05)
    loop_thread, answers = LoopThread(), []
    loop_thread.run(answer)
    schedule = loop_thread.schedule

    def interrupted(callback: Callable[[], object]) -> bool:
        loop_thread.schedule = schedule  # type: ignore[method-assign]
        answers.append(call(loop_thread))  # as a signal handler would here
        return schedule(callback)

    def work() -> None:
        loop_thread.schedule = interrupted  # type: ignore[method-assign]
        answers.append(loop_thread.run(answer))

    assert within_bound(work)
    assert answers == [1, 1]
    loop_thread._stop()


def test_a_signal_handler_that_interrupts_the_start_of_the_loop_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop_thread, start = LoopThread(), threading.Thread.start
    answers: list[int] = []
    refused: list[str] = []

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "leaseway":
            with pytest.raises(RuntimeError, match="after the handler has returned") as error:
                loop_thread.run(answer)
            refused.append(str(error.value))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert within_bound(lambda: answers.append(loop_thread.run(answer)))
    assert (answers, len(refused)) == ([1], 1)
    loop_thread._stop()


def test_a_signal_handler_may_get_a_session_where_it_interrupts_another_that_is_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client("127.0.0.1:1")
    keys: list[str] = []
    get_session = client._inner._session

    def interrupted(key: str, *rest: Any) -> Any:
        monkeypatch.undo()
        keys.append(client.session("of the handler").key)
        return get_session(key, *rest)

    monkeypatch.setattr(client._inner, "_session", interrupted)
    assert within_bound(lambda: keys.append(client.session("dialog").key))
    assert keys == ["of the handler", "dialog"]


async def test_the_blocks_of_a_generator_that_was_left_end_in_whichever_thread_collects_it(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = hang
    client = Client(plane.address)

    def events() -> Iterator[object]:
        with client.session("dialog") as session, session.stream_tool("desk_open") as stream:
            yield stream
            yield from stream

    def leave() -> None:
        generator = events()
        cycle: list[object] = [generator, next(generator)]
        cycle.append(cycle)

    gc.disable()
    try:
        await in_thread(leave)
        await until(lambda: worker.calls)
        assert worker.leases
        LOOP_THREAD.schedule(partial(gc.collect))
        await until(lambda: worker.cancels)
        await until(lambda: not worker.leases)
    finally:
        gc.enable()
    await in_thread(client.close)


async def hang(*_: object) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError
