"""`deploy/compose.yaml` with `docker compose` or `docker-compose`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
import yaml
from tests.conftest import ROOT, absent
from tests.e2e.system import eventually

_IMAGE = os.environ.get("LEASEWAY_IMAGE") or "leaseway:0.1.0"
_TIMEOUT = 180.0


class Compose:
    """One project of the file.

    Args:
        command: What runs compose.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self.project = f"leaseway-{secrets.token_hex(4)}"
        self._command = (
            *command,
            *("--project-name", self.project),
            *("--file", str(ROOT / "deploy" / "compose.yaml")),
        )
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("LEASEWAY")},
            "LEASEWAY_KEY": secrets.token_urlsafe(24),
            "LEASEWAY_IMAGE": _IMAGE,
            "LEASEWAY_PORT": "0",
            "LEASEWAY_FRONT_PORT": "0",
        }

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of compose."""
        return subprocess.run(
            [*self._command, *arguments],
            check=check,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env=self._environment,
        )

    def leaseway(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `leaseway` in the control plane's container."""
        return self.run("exec", "-T", "control-plane", "leaseway", *arguments, check=False)

    def container(self, service: str) -> str:
        """Return the id of a service's container, running or not."""
        return self.run("ps", "--quiet", "--all", service).stdout.strip()


@pytest.fixture
def compose() -> Iterator[Compose]:
    """Run the project of the file; remove it at the end."""
    if shutil.which("docker") is None or not docker("info", check=False):
        absent("docker", "no container engine answers (docker info).")
    if not docker("image", "inspect", _IMAGE, check=False).strip("[]\n"):
        absent("docker", f"there is no image {_IMAGE}; run tools/image/build.sh.")
    plugin = docker("compose", "version", check=False)
    if not plugin and shutil.which("docker-compose") is None:
        absent("docker", "there is neither `docker compose` nor docker-compose.")
    made = Compose(("docker", "compose") if plugin else ("docker-compose",))
    try:
        made.run("up", "--detach")
        yield made
    finally:
        made.run("down", "--volumes", "--timeout", "45", check=False)


def docker(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *arguments], check=check, capture_output=True, text=True, timeout=_TIMEOUT
    )
    return done.stdout


@pytest.mark.timeout(900)
async def test_compose_serves_recovers_from_a_partition_and_drains(compose: Compose) -> None:
    def workers() -> int:
        listed = compose.leaseway("workers", "--json")
        found = json.loads(listed.stdout) if listed.returncode == 0 else []
        return sum(worker["state"] == "connected" for worker in found)

    def calls() -> bool:
        return compose.leaseway("call", "time_current_time", "timezone=UTC").returncode == 0

    await eventually(lambda: workers() == 2, within=_TIMEOUT)
    await eventually(calls, within=_TIMEOUT)

    cut = compose.container("worker-2")
    docker("network", "disconnect", f"{compose.project}_leaseway", cut)
    await eventually(lambda: workers() == 1, within=_TIMEOUT)
    assert calls()
    docker("network", "connect", "--alias", "worker-2", f"{compose.project}_leaseway", cut)
    await eventually(lambda: workers() == 2, within=_TIMEOUT)
    await eventually(calls, within=_TIMEOUT)

    held = {name: compose.container(name) for name in ("worker-1", "worker-2", "control-plane")}
    compose.run("stop", "--timeout", "60", "worker-1", "worker-2", "front", "control-plane")
    for name, container in held.items():
        state = docker("inspect", "--format", "{{.State.ExitCode}}", container).strip()
        assert (name, state) == (name, "0")
    assert "it received SIGTERM" in compose.run("logs", "worker-1").stdout


@pytest.fixture
def control_plane() -> dict[str, Any]:
    """Return the control plane's entry in the file."""
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    return cast("dict[str, Any]", services["control-plane"])


def test_the_key_of_the_seal_outlives_the_container(control_plane: dict[str, Any]) -> None:
    assert f"data:{control_plane['environment']['HOME']}" in control_plane["volumes"]
    assert "LEASEWAY_KEY" in control_plane["environment"]


def test_the_health_check_fails_while_no_control_plane_answers(
    control_plane: dict[str, Any],
) -> None:
    words: list[str] = control_plane["healthcheck"]["test"]
    assert words[:2] == ["CMD", "leaseway"]
    with socket.socket() as unused:  # bound, so that nothing else listens there
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        check = [address if word == "127.0.0.1:7600" else word for word in words[2:]]
        assert address in check
        done = subprocess.run(
            [sys.executable, "-m", "leaseway.cli", *check], check=False, timeout=_TIMEOUT
        )
    assert done.returncode != 0
