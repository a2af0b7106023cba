"""A runner for the command, with logging put back afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import grpc
import pytest
from click.testing import CliRunner, Result

from leaseway.cli.app import cli

Run = Callable[..., Result]

UNREACHABLE = 3
"""The exit status of a command that reached no control plane."""


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process: `run("servers", "--json", input=None)`."""
    for name in ("LEASEWAY_ADDRESS", "LEASEWAY_KEY"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*words: str, **extra: object) -> Result:
        result = CliRunner().invoke(cli, list(words), prog_name="leaseway", **extra)  # type: ignore[arg-type]
        if result.exit_code == UNREACHABLE:
            asyncio.run(_hear_the_last_of_it())
        return result

    return invoke


async def _hear_the_last_of_it() -> None:
    """Let gRPC tell what it has left to tell of connections that a command tried to make.

    It tells that after the command's loop has ended, and fails in whichever loop is the next: a
    process of its own has none, but here it would be another test's.
    """
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    async with grpc.aio.insecure_channel("127.0.0.1:1"):
        await asyncio.sleep(0.1)
