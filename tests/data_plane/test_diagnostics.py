"""SIGUSR1 asks a worker what it is busy with, and never ends it, however early it comes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.app import run
from leaseway.data_plane.references.vault import WorkerVault
from leaseway.data_plane.worker import WorkerOptions
from leaseway.wire.channels.endpoint import Endpoint


async def test_diagnostics_work_before_the_worker_is_built(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refresh = WorkerVault.refresh

    def ask_first(vault: WorkerVault) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        refresh(vault)

    monkeypatch.setattr(WorkerVault, "refresh", ask_first)
    options = WorkerOptions(
        Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 0), id="early", artifacts=tmp_path
    )
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with caplog.at_level(logging.INFO):
        worker = asyncio.create_task(run(options, ready=listening.set_result))
        async with asyncio.timeout(BOUND):
            await listening
            while "Now: threads=" not in caplog.text:
                await asyncio.sleep(0.001)
            os.kill(os.getpid(), signal.SIGUSR1)
            while "Now: leases=0" not in caplog.text:
                await asyncio.sleep(0.001)
    worker.cancel()
    await asyncio.wait([worker], timeout=BOUND)
