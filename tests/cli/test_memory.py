"""When a process collects garbage and returns memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

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
    """A process of a given size."""

    def __init__(self) -> None:
        self.size = 100 * MIB
        self.loop = Loop()
        self.trims = 0
        self.watch = GrowthWatch(self.loop, size=lambda: self.size, trim=self._trim)  # type: ignore[arg-type]

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


def test_growth_ends_cycles_and_returns_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    generations: list[int] = []
    monkeypatch.setattr(gc, "collect", generations.append)
    process = Process()
    assert process.after(1.0, 100 * MIB + GROWTH) == 1
    assert process.after(10.0, 100 * MIB + GROWTH) == 2
    assert generations == [1, 2], "all garbage if it stays large"


def test_a_process_that_stays_large_is_checked_less_and_less() -> None:
    process = Process()
    large = 100 * MIB + GROWTH
    counts = [process.after(5.0, large) for _ in range(12)]
    assert counts == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]
    assert process.after(5.0, large + GROWTH) == 4, "further growth is not waited for"


def test_the_size_of_this_process_is_known() -> None:
    assert resident_bytes() > 10 * MIB
