"""Certificate files that a process cannot use are named before it starts anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result


@pytest.mark.parametrize("command", ["control-plane", "mcp", "mcp-front", "up", "worker"])
def test_a_process_with_a_wrong_certificate_file_does_not_start(
    run: Callable[..., Result], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_TLS_CA", str(tmp_path / "none.pem"))
    done = run(command)
    assert done.exit_code == 2
    assert f"{tmp_path / 'none.pem'} cannot be read" in done.stderr
