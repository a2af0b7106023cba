"""The image, as a container engine runs it: made by `tools/image/build.sh` beforehand.

Each test has containers of its own, in a network of its own, and removes them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from tests.conftest import BOUND, absent
from tests.e2e.system import eventually

_IMAGE = os.environ.get("LEASEWAY_IMAGE") or "leaseway:0.1.0"
_KEY = "of-a-test-of-the-image"
_CONFIG = """
version: 1
servers:
  time:
    truely-stateless: true
    transport: stdio
    command: python
    args: ['-m', 'leaseway.data_plane.kit']
    tools: { whitelist: [current_time] }
"""
_HELD = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments], check=check, capture_output=True, text=True, timeout=BOUND
    )


@pytest.fixture(scope="module")
def image() -> str:
    """Return the image's name, where there are an engine and the image."""
    if shutil.which("docker") is None or docker("info", check=False).returncode:
        absent("docker", "no container engine answers (docker info).")
    if docker("image", "inspect", _IMAGE, check=False).returncode:
        absent("docker", f"there is no image {_IMAGE}; run tools/image/build.sh.")
    return _IMAGE


class Containers:
    """The containers of one test, in one network.

    Args:
        image: What they run.
        network: Its name, which is also the beginning of theirs.
    """

    def __init__(self, image: str, network: str) -> None:
        self._image = image
        self.network = network
        docker("network", "create", network)
        self.names: list[str] = []

    def start(self, name: str, *command: str, options: tuple[str, ...] = ()) -> str:
        """Start a container; others find it by its short name."""
        full = f"{self.network}-{name}"
        joined = ("--network", self.network, "--network-alias", name, "--hostname", name)
        key = ("--env", f"LEASEWAY_KEY={_KEY}")
        docker("run", "-d", "--name", full, *joined, *key, *_HELD, *options, self._image, *command)
        self.names.append(full)
        return full

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        return docker("exec", name, *command, check=False)

    def remove(self) -> None:
        """Remove all of them."""
        for name in self.names:
            docker("rm", "--force", name, check=False)
        docker("network", "rm", self.network, check=False)


@pytest.fixture
def containers(image: str) -> Iterator[Containers]:
    made = Containers(image, f"leaseway-test-{secrets.token_hex(4)}")
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def system(containers: Containers, tmp_path: object) -> tuple[str, str]:
    """Return a control plane and a worker, by their containers' names."""
    # The configuration is written inside: what is mounted comes from the engine's machine.
    script = (
        'mkdir -p /tmp/c && printf %s "$CONFIG" > /tmp/c/mcp.yaml &&'
        " exec leaseway control-plane --config /tmp/c/mcp.yaml --listen 0.0.0.0:7600"
    )
    plane = containers.start(
        "plane",
        "-c",
        script,
        options=("--env", f"CONFIG={_CONFIG}", "--entrypoint", "/bin/sh"),
    )
    worker = containers.start(
        "worker", "worker", "--control-plane", "plane:7600", "--listen", "0.0.0.0:7610"
    )
    return plane, worker


def called(containers: Containers, name: str) -> subprocess.CompletedProcess[str]:
    return containers.run(
        name,
        "leaseway",
        "call",
        "time:current_time",
        "timezone=UTC",
        "--timeout",
        "5",
        "--address",
        "plane:7600",
    )


async def test_a_call_goes_from_one_container_through_another(
    containers: Containers, system: tuple[str, str]
) -> None:
    plane, _ = system

    await eventually(lambda: called(containers, plane).returncode == 0)


async def test_nothing_runs_as_root_or_can_write_to_the_image(
    containers: Containers, system: tuple[str, str]
) -> None:
    _, worker = system

    assert containers.run(worker, "id", "-u").stdout.strip() == "10001"
    for path in ("/x", "/opt/leaseway/x", "/etc/x"):
        assert "Read-only" in containers.run(worker, "touch", path).stderr
    assert docker("inspect", "-f", "{{.Config.User}}", worker).stdout.strip() == "10001:10001"
    assert containers.run(worker, "cat", "/proc/1/comm").stdout.strip() == "tini"


async def test_a_stop_ends_a_worker_in_order(
    containers: Containers, system: tuple[str, str]
) -> None:
    plane, worker = system
    await eventually(lambda: called(containers, plane).returncode == 0)

    await asyncio.to_thread(docker, "stop", "--time", "45", worker)

    assert docker("inspect", "-f", "{{.State.ExitCode}}", worker).stdout.strip() == "0"
    assert "it received SIGTERM" in docker("logs", worker).stderr


async def test_a_partition_is_told_by_name_and_heals(
    containers: Containers, system: tuple[str, str]
) -> None:
    plane, worker = system
    await eventually(lambda: called(containers, plane).returncode == 0)

    docker("network", "disconnect", containers.network, worker)

    def refused() -> bool:
        outcome = called(containers, plane)
        return outcome.returncode != 0 and outcome.stderr.startswith("leaseway: ")

    await eventually(refused)
    docker("network", "connect", "--alias", "worker", containers.network, worker)
    await eventually(lambda: called(containers, plane).returncode == 0)
    held = containers.run(plane, "leaseway", "workers", "--json", "--address", "plane:7600")
    assert len(json.loads(held.stdout)) == 1


def test_what_is_in_the_image_is_listed_with_its_versions(image: str) -> None:
    listed = docker(
        "run", "--rm", "--entrypoint", "cat", image, "/opt/leaseway/sbom.cdx.json"
    ).stdout

    found = {each["name"]: each["version"] for each in json.loads(listed)["components"]}
    assert "leaseway" in found
    assert "grpcio" in found


def test_the_image_is_no_larger_than_is_said(image: str) -> None:
    size = int(docker("image", "inspect", "--format", "{{.Size}}", image).stdout)

    assert size <= 180 * 1024 * 1024
