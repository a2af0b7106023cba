"""Deadlines, backoff and the conversion of times."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.fakes import BOUND

from leaseway.wire.timing.backoff import Backoff
from leaseway.wire.timing.deadlines import Deadlines
from leaseway.wire.timing.durations import duration, seconds, timestamp
from leaseway.wire.timing.retry_after import retry_delay
from leaseway.wire.timing.stop_signals import handle_stop_signals, stop_signals


async def test_calls_expire_in_the_order_of_their_deadlines() -> None:
    loop = asyncio.get_running_loop()
    live: dict[int, None] = {}
    done = asyncio.Event()
    expired: list[int] = []

    def expire(call_id: int) -> None:
        del live[call_id]
        expired.append(call_id)
        if not live:
            done.set()

    deadlines = Deadlines(loop, live, expire)
    now = loop.time()
    for call_id, delay in ((1, 0.02), (2, 0.0), (3, 0.01)):
        live[call_id] = None
        deadlines.add(now + delay, call_id)
    async with asyncio.timeout(BOUND):
        await done.wait()
    assert expired == [2, 3, 1]
    assert loop.time() >= now + 0.02


async def test_ended_calls_do_not_expire_and_are_not_kept() -> None:
    loop = asyncio.get_running_loop()
    live: dict[int, None] = {}
    expired: list[int] = []
    deadlines = Deadlines(loop, live, expired.append)
    for call_id in range(10_000):
        live[call_id] = None
        deadlines.add(loop.time() + 3600, call_id)
        del live[call_id]
    assert len(deadlines._heap) <= 1025
    deadlines.close()
    assert expired == []


def test_ceilings_double_up_to_the_maximum() -> None:
    backoff = Backoff(initial=0.2, maximum=1.0)
    assert [backoff.ceiling(n) for n in range(4)] == pytest.approx([0.2, 0.4, 0.8, 1.0])


@given(st.integers(0, 10**9))
def test_a_delay_is_between_zero_and_the_ceiling(attempt: int) -> None:
    backoff = Backoff()
    assert 0.0 <= backoff.delay(attempt) <= backoff.ceiling(attempt) <= 30.0


def test_the_delay_has_full_jitter() -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return 0.123

    assert Backoff(initial=0.5).delay(0, draw) == 0.123
    assert drawn == [(0.0, 0.5)]


def test_the_multiplier_is_configurable() -> None:
    assert Backoff(initial=1.0, maximum=100.0, multiplier=3.0).ceiling(2) == 9.0


@given(st.floats(0, 1e8))
def test_seconds_survive_the_conversion_to_a_duration(value: float) -> None:
    assert abs(seconds(duration(value)) - value) < 1e-6


def test_fractions_of_a_second_are_kept() -> None:
    assert (duration(1.5).seconds, duration(1.5).nanos) == (1, 500_000_000)
    assert timestamp(1.25).nanos == 250_000_000
    assert abs(seconds(timestamp(1_700_000_000.25)) - 1_700_000_000.25) < 1e-6


def test_a_closed_terminal_stops_a_process_unless_it_is_to_outlive_it() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert set(stop_signals()) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
        assert set(stop_signals()) == {signal.SIGINT, signal.SIGTERM}
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("9" * 5_000, 3_600),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0),
        ("Mon, 06 Nov 2034 08:49:37 GMT", 3_600),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("\udcff", None),
        ("\u0667", None),
    ],
)
def test_a_response_asks_to_wait_for_seconds_or_until_a_date(
    text: str, delay: float | None
) -> None:
    headers = {"retry-after": text, "date": "Sun, 06 Nov 1994 08:49:37 GMT"}
    assert retry_delay(headers) == delay


async def test_signals_within_a_second_are_one_request_to_stop() -> None:
    handled: list[str] = []
    times = [10.0, 10.9, 11.0]
    received = asyncio.Event()

    def clock() -> float:
        received.set()
        return times.pop(0)

    remove = handle_stop_signals(handled.append, clock)
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            received.clear()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(received.wait(), BOUND)
    finally:
        remove()
    assert handled == ["it received SIGTERM"] * 2
    assert times == []
