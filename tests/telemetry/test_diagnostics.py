"""The diagnostics that SIGUSR1 logs."""

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


async def test_diagnostics_count_the_tasks_of_the_loop_by_coroutine() -> None:
    done = asyncio.Event()
    previous = int(diagnostics({}).split("tasks=")[1].split()[0])
    tasks = [asyncio.create_task(waits_for(done)) for _ in range(3)]
    line = diagnostics({"leases": 2})
    assert line.startswith("leases=2 ")
    assert f"tasks={previous + 3} " in line
    assert "3 waits_for" in line
    done.set()
    await asyncio.gather(*tasks)


async def test_sigusr1_logs_diagnostics(caplog: pytest.LogCaptureFixture) -> None:
    signalled = asyncio.Event()

    def facts() -> dict[str, int]:
        asyncio.get_running_loop().call_soon(signalled.set)
        return {"calls": 7}

    with caplog.at_level(logging.INFO), diagnostics_on_signal() as parts:
        parts.append(facts)
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(BOUND):
            await signalled.wait()
    assert any("calls=7" in record.getMessage() for record in caplog.records)


async def test_the_previous_handler_of_sigusr1_is_restored() -> None:
    previous = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with diagnostics_on_signal():
            assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, previous)
