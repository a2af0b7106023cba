"""The line that SIGUSR1 asks for."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest
from tests.conftest import BOUND

from leaseway.telemetry.diagnostics import diagnostics, diagnostics_on_signal


async def waits_for(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_census_counts_the_tasks_of_the_loop_by_what_they_run() -> None:
    done = asyncio.Event()
    before = int(diagnostics({}).split("tasks=")[1].split()[0])
    tasks = [asyncio.create_task(waits_for(done)) for _ in range(3)]
    line = diagnostics({"leases": 2})
    assert line.startswith("leases=2 ")
    assert f"tasks={before + 3} " in line
    assert "3 waits_for" in line
    done.set()
    await asyncio.gather(*tasks)


async def test_sigusr1_logs_a_census_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asked = asyncio.Event()

    def facts() -> dict[str, int]:
        asyncio.get_running_loop().call_soon(asked.set)
        return {"calls": 7}

    with caplog.at_level(logging.INFO), diagnostics_on_signal(facts):
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(BOUND):
            await asked.wait()
    assert any("calls=7" in record.getMessage() for record in caplog.records)


async def test_after_a_census_sigusr1_is_handled_as_before() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with diagnostics_on_signal(dict):
            assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
