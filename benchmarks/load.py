"""Closed loops of calls: a number of callers, each with one call in flight."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from benchmarks.figures import Load, percentile
from benchmarks.usage import cpu_of, own_cpu

__all__ = ["WARM_UP", "AsyncDriver", "Driver", "Meter", "ThreadDriver"]

WARM_UP = 0.5
"""Seconds of calls before the measured ones, at most."""


class Driver(Protocol):
    """Drives one row's calls."""

    pids: Sequence[int]

    async def load(self, in_flight: int, seconds: float) -> Load:
        """Run callers for a number of seconds and measure their calls."""


class AsyncDriver:
    """Calls from tasks of this process.

    Args:
        call: Makes one call for the caller with this number; raises if the result is wrong.
        pids: The processes between caller and server.
    """

    def __init__(self, call: Callable[[int], Awaitable[None]], pids: Sequence[int] = ()) -> None:
        self._call = call
        self.pids = pids

    async def load(self, in_flight: int, seconds: float) -> Load:
        """Run callers for a number of seconds and measure their calls."""
        await self._run(in_flight, min(WARM_UP, seconds))
        meter = Meter(in_flight, self.pids)
        return meter.read(await self._run(in_flight, seconds))

    async def _run(self, in_flight: int, seconds: float) -> list[float]:
        durations: list[float] = []
        clock = time.perf_counter
        end = clock() + seconds

        async def caller(number: int) -> None:
            start = clock()
            while start < end:
                await self._call(number)
                now = clock()
                durations.append(now - start)
                start = now

        async with asyncio.TaskGroup() as group:
            for number in range(in_flight):
                group.create_task(caller(number))
        return durations


class ThreadDriver:
    """Calls from threads of this process; see `AsyncDriver`."""

    def __init__(self, call: Callable[[int], None], pids: Sequence[int] = ()) -> None:
        self._call = call
        self.pids = pids

    async def load(self, in_flight: int, seconds: float) -> Load:
        """Run callers for a number of seconds and measure their calls."""
        await asyncio.to_thread(self._run, in_flight, min(WARM_UP, seconds))
        meter = Meter(in_flight, self.pids)
        return meter.read(await asyncio.to_thread(self._run, in_flight, seconds))

    def _run(self, in_flight: int, seconds: float) -> list[float]:
        durations: list[list[float]] = [[] for _ in range(in_flight)]
        failures: list[BaseException] = []
        clock = time.perf_counter
        end = clock() + seconds

        def caller(number: int) -> None:
            start = clock()
            try:
                while start < end and not failures:
                    self._call(number)
                    now = clock()
                    durations[number].append(now - start)
                    start = now
            except BaseException as error:  # noqa: BLE001 - raised again below, in the waiting thread
                failures.append(error)

        threads = [threading.Thread(target=caller, args=(n,)) for n in range(in_flight)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [duration for caller in durations for duration in caller]


class Meter:
    """Measures a load from its creation on.

    Args:
        in_flight: The number of callers.
        pids: The processes between caller and server.
    """

    def __init__(self, in_flight: int, pids: Sequence[int]) -> None:
        self._in_flight = in_flight
        self._pids = pids
        self._client, self._worker = own_cpu(), cpu_of(pids)
        self._began = time.perf_counter()

    def read(self, durations: list[float]) -> Load:
        """Return the figures of a load whose calls took these seconds."""
        seconds = time.perf_counter() - self._began
        client, worker = own_cpu() - self._client, cpu_of(self._pids) - self._worker
        calls = max(1, len(durations))
        durations.sort()
        return Load(
            in_flight=self._in_flight,
            calls=len(durations),
            seconds=seconds,
            p50=percentile(durations, 0.5) * 1e6,
            p99=percentile(durations, 0.99) * 1e6,
            client_cpu=client / calls * 1e6,
            worker_cpu=worker / calls * 1e6,
        )
