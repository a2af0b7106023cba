"""`leaseway up` as a process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from tests.conftest import BOUND
from tests.e2e.forking import ForkedProcess, fork_leaseway
from tests.e2e.system import python_server


class Up(NamedTuple):
    """A running `leaseway up`."""

    process: ForkedProcess
    address: str


async def start_up(
    folder: Path,
    *options: str,
    servers: dict[str, object] | None = None,
    within: Path | None = None,
) -> Up:
    """Start `leaseway up`, by default with a leased server, and wait until it is ready."""
    config = folder / "mcp.yaml"
    chosen = servers or {"leased": python_server("counter.py", transform=[{"prefix": "leased_"}])}
    config.write_text(yaml.safe_dump({"version": 1, "servers": chosen}))
    arguments = ("up", "--config", str(config), "--listen", "127.0.0.1:0", *options)
    process = await fork_leaseway(arguments, os.environ, within)
    async with asyncio.timeout(2 * BOUND):
        line = (await process.stdout.readline()).decode()
    if not line.startswith("ready "):
        pytest.fail((await process.stderr.read()).decode())
    return Up(process, line.removeprefix("ready ").strip())


async def stop(up: Up) -> None:
    """Stop `leaseway up` and its processes."""
    up.process.terminate()
    async with asyncio.timeout(BOUND):
        await up.process.wait()
