"""Arguments that are not UTF-8 are rejected, except paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli.memory import answering

from leaseway.cli.errors import UNREACHABLE, USAGE
from leaseway.sdk import ControlPlaneUnavailable

Run = Callable[..., Result]

UNUSED_ADDRESS = ("--address", "127.0.0.1:1")


@pytest.mark.parametrize(
    "words",
    [
        ("call", "x\udcff"),
        ("call", "x", "a=\udcff"),
        ("call", "x", "--session", "\udcff"),
        ("--tenant", "\udcff", "tools"),
        ("tools", "\udcff"),
        ("prompt", "\udcff"),
        ("resource", "\udcff"),
        ("logs", "\udcff"),
        ("lease", "revoke", "\udcff"),
        ("worker", "drain", "\udcff"),
    ],
    ids=lambda words: " ".join(words).encode("ascii", "replace").decode(),
)
def test_words_that_are_not_utf8_are_a_usage_error(run: Run, words: tuple[str, ...]) -> None:
    result = run(*UNUSED_ADDRESS, *words)
    assert result.exit_code == USAGE
    assert result.stderr.startswith("leaseway: Invalid value for ")
    assert result.stderr.endswith(" It is not UTF-8.\n")


def test_a_path_may_be_of_any_bytes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = answering(monkeypatch)
    client.error = ControlPlaneUnavailable("Nobody answers.")
    result = run("call", "x", "--output", f"{tmp_path}/\udcff")
    assert (result.exit_code, result.stderr) == (UNREACHABLE, "leaseway: Nobody answers.\n")
