"""Servers with changing files and secrets, for tests."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from tests.conftest import BOUND

from leaseway.data_plane.instances.reference_watcher import WatchTiming
from leaseway.spec.references import Value

Bench = Any
ON_DEMAND = WatchTiming(poll=3600.0, debounce=0.005)
"""The timing of a worker that checks references only when a test calls `look`."""


def uses(file: Path) -> dict[str, Value]:
    return {"SECRET": Value("file", str(file))}


def write(file: Path, text: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


def release(pipe: Path) -> None:
    """Let a reader of a named pipe reach its end."""
    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


async def look(bench: Bench) -> None:
    async with asyncio.timeout(BOUND):
        await bench.worker.references.check()


def secrets(bench: Bench) -> list[str]:
    """The secret of each live instance."""
    return [server.resolved_values.env["SECRET"] for server in bench.servers.live]


async def until_looking(bench: Bench, condition: Any) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await look(bench)
