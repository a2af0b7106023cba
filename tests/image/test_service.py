"""The systemd unit, verified by systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import ROOT

from leaseway.cli.commands.running.child_processes import STOP_TIMEOUT
from leaseway.wire.bounds import SHUTDOWN_TIMEOUT


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze.")
    text = (ROOT / "deploy" / "systemd" / "leaseway.service").read_text()
    installed = text.replace("/opt/leaseway/bin/leaseway", "/bin/true")
    (tmp_path / "leaseway.service").write_text(installed)

    outcome = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "leaseway.service")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    said = [line for line in outcome.stderr.splitlines() if "leaseway" in line]
    assert said == []
    assert "ExecStart=/bin/true up" in installed


def test_the_unit_lets_fronts_workers_and_control_plane_stop_one_after_the_other() -> None:
    text = (ROOT / "deploy" / "systemd" / "leaseway.service").read_text()
    given = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert given is not None
    assert int(given[1]) > SHUTDOWN_TIMEOUT + 2 * STOP_TIMEOUT


def test_systemd_reports_a_mistake_in_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze.")
    unit = tmp_path / "leaseway.service"
    unit.write_text("[Service]\nExecStart=/bin/true\nKillMode=sometimes\n")

    outcome = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "kill mode" in outcome.stderr
