"""The fixture that runs the command. It restores the logging configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from leaseway.cli.app import cli

Run = Callable[..., Result]


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
    """Run the command in this process: `run("servers", "--json", input=None)`.

    Commands use a fake client (`tests.cli.memory`), never gRPC: it has one queue per process, whose
    rest at the end of a command's loop would be processed by the next command.
    """
    for name in ("LEASEWAY_ADDRESS", "LEASEWAY_KEY", "LEASEWAY_KEY_FILE", "LEASEWAY_WORKER_KEY"):
        monkeypatch.setenv(name, "")  # so that what `up` sets is gone after the test
        monkeypatch.delenv(name)

    def invoke(*words: str, **extra: object) -> Result:
        return CliRunner().invoke(cli, list(words), prog_name="leaseway", **extra)  # type: ignore[arg-type]

    return invoke
