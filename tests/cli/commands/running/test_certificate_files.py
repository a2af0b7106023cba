"""Certificate files that a process cannot use are named before it starts anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.conftest import BOUND


@pytest.mark.parametrize("command", ["control-plane", "mcp-front", "up", "worker"])
def test_a_process_with_a_wrong_certificate_file_does_not_start(
    run: Callable[..., Result], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_TLS_CA", str(tmp_path / "none.pem"))
    done = run(command)
    assert done.exit_code == 2
    assert f"{tmp_path / 'none.pem'} cannot be read" in done.stderr


@pytest.mark.parametrize("command", ["control-plane", "mcp-front", "up", "worker"])
def test_a_process_with_a_wrong_certificate_of_its_own_does_not_start(
    run: Callable[..., Result], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CERT", "KEY"):
        monkeypatch.setenv(f"LEASEWAY_TLS_{name}", str(tmp_path / "none.pem"))
    done = run(command)
    assert done.exit_code == 2
    missing = f"{tmp_path / 'none.pem'} cannot be read: No such file or directory."
    assert done.stderr == f"leaseway: {missing}\n"


def test_a_bridge_with_a_wrong_certificate_file_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "leaseway.cli.main", "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "LEASEWAY_TLS_CA": str(tmp_path / "none.pem")},
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / 'none.pem'} cannot be read" in done.stderr
