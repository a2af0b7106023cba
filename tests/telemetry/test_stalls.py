"""Stalls of an event loop."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from tests.conftest import BOUND

from leaseway.telemetry.diagnostics import STALLS_VARIABLE, Stall, StallMeter, measure_stalls


def block(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def recorded(records: list[Stall], seconds: float) -> Stall:
    async with asyncio.timeout(BOUND):
        while True:
            for stall in records:
                if stall.seconds > seconds and stall.stack:
                    return stall
            await asyncio.sleep(0.01)


async def test_a_stall_is_measured_with_its_stack() -> None:
    records: list[Stall] = []
    meter = StallMeter(records.append)
    meter.start()
    await asyncio.sleep(0.1)
    block(0.4)
    stall = await recorded(records, 0.3)
    meter.stop()
    assert stall.busy > 0.3
    assert "block" in "".join(stall.stack)
    assert meter.recent() > 0.3


async def test_the_longest_stall_of_a_process_is_written_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STALLS_VARIABLE, str(tmp_path))
    with measure_stalls("a-plane", enabled=False) as meter:
        await asyncio.sleep(0.1)
        time.sleep(0.3)
        async with asyncio.timeout(BOUND):
            while meter is None or meter.recent() < 0.2:
                await asyncio.sleep(0.01)
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["name"] == "a-plane"
    assert found["longest"]["seconds"] > 0.2


async def test_stalls_are_not_measured_if_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STALLS_VARIABLE, raising=False)
    with measure_stalls("a-plane", enabled=False) as meter:
        assert meter is None
