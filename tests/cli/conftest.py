"""A runner for the command, with logging put back afterwards."""

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

    What asks a control plane does so from memory (`tests.cli.memory`), never over gRPC: that has
    one queue a process, and what is left in it at the end of a command's loop would be another's.
    """
    for name in ("LEASEWAY_ADDRESS", "LEASEWAY_KEY", "LEASEWAY_WORKER_KEY"):
        monkeypatch.setenv(name, "")  # so that what `up` sets is gone after the test
        monkeypatch.delenv(name)

    def invoke(*words: str, **extra: object) -> Result:
        return CliRunner().invoke(cli, list(words), prog_name="leaseway", **extra)  # type: ignore[arg-type]

    return invoke
