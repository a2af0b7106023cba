"""When a process collects garbage and returns memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from leaseway.cli.commands.running.memory import GROWTH, GrowthWatch, resident_bytes
from leaseway.wire.bounds import MIB


class Loop:
    """An event loop whose time the test sets, and which runs executors at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def run_in_executor(self, _executor: object, call: Callable[[], object]) -> Any:
        call()
        return self

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        callback(self)


class Process:
    """A process of a given size, and what its garbage collector is told."""

    def __init__(self) -> None:
        self.size = 100 * MIB
        self.loop = Loop()
        self.trims = 0
        self.told: list[str] = []
        self.watch = GrowthWatch(
            self.loop,  # type: ignore[arg-type]
            size=lambda: self.size,
            trim=self._trim,
            collector=self,
        )

    def collect(self, generation: int) -> int:
        self.told.append(f"collect {generation}")
        return 0

    def freeze(self) -> None:
        self.told.append("freeze")

    def unfreeze(self) -> None:
        self.told.append("unfreeze")

    def _trim(self) -> None:
        self.trims += 1

    def after(self, seconds: float, size: int) -> int:
        """Set the size, check it, and return how often memory was returned so far."""
        self.loop.now += seconds
        self.size = size
        self.watch.check()
        return self.trims


def test_a_process_that_has_not_grown_collects_nothing() -> None:
    process = Process()
    assert process.after(1.0, 100 * MIB + GROWTH - 1) == 0
    assert process.after(1_000.0, 50 * MIB) == 0


def test_growth_ends_cycles_and_returns_memory() -> None:
    process = Process()
    process.after(1.0, 100 * MIB + GROWTH)
    assert process.after(1.0, 100 * MIB + GROWTH) == 1
    assert process.after(10.0, 100 * MIB + GROWTH) == 2
    assert process.told == ["collect 1", "collect 2", "freeze"], "all if it stays large"


def test_a_process_that_grows_is_left_alone_until_it_stops_or_has_doubled() -> None:
    process = Process()
    sizes = [100 * MIB + GROWTH * step // 2 for step in range(1, 7)]  # up to 196 MiB
    assert [process.after(1.0, size) for size in sizes] == [0] * 6
    assert process.after(1.0, sizes[-1]) == 1, "it has stopped"
    assert Process().after(1.0, 200 * MIB) == 1, "it has doubled"


def test_a_process_that_stays_large_is_checked_less_and_less() -> None:
    process = Process()
    large = 100 * MIB + GROWTH
    counts = [process.after(5.0, large) for _ in range(13)]
    assert counts == [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]
    process.after(5.0, large + GROWTH)
    assert process.after(5.0, large + GROWTH) == 4, "further growth is not waited for"


def test_what_stays_is_walked_again_only_when_the_process_has_doubled() -> None:
    process = Process()
    for size in (199 * MIB, 300 * MIB, 398 * MIB, 700 * MIB):
        process.told.clear()
        for _ in range(4):
            process.after(5.0, size)
        unfrozen = ["unfreeze"] if size in (300 * MIB, 700 * MIB) else []
        assert process.told == ["collect 1", *unfrozen, "collect 2", "freeze"]


def test_a_process_that_shrinks_and_grows_again_is_walked_again() -> None:
    process = Process()
    for _ in range(2):
        process.after(5.0, 100 * MIB)
        process.told.clear()
        for _ in range(4):
            process.after(5.0, 300 * MIB)
        assert "unfreeze" in process.told


def test_a_loop_without_its_threads_any_more_is_no_error() -> None:
    async def end() -> GrowthWatch:
        loop = asyncio.get_running_loop()
        sizes = iter((100 * MIB, 200 * MIB))
        watch = GrowthWatch(loop, size=partial(next, sizes), trim=bool, collector=Process())
        await loop.shutdown_default_executor()
        watch.check()
        return watch

    assert asyncio.run(end())._interval > 5.0, "it has collected"


def test_the_size_of_this_process_is_known() -> None:
    assert resident_bytes() > 10 * MIB
