"""The image of `tools/image/build.sh` in a container engine.

Each test has containers of its own, in a network of its own, and removes them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
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


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments], check=check, capture_output=True, text=True, timeout=BOUND
    )


@pytest.fixture(scope="module")
def image() -> str:
    """Return the name of the image, or skip without an engine or the image."""
    if shutil.which("docker") is None or docker("info", check=False).returncode:
        absent("docker", "no container engine answers (docker info).")
    if docker("image", "inspect", _IMAGE, check=False).returncode:
        absent("docker", f"there is no image {_IMAGE}; run tools/image/build.sh.")
    return _IMAGE


class Containers:
    """The containers of a test, in one network.

    Args:
        image: What they run.
    """

    def __init__(self, image: str) -> None:
        self._image = image
        self._made: list[DockerContainer] = []
        self.network = Network().create()

    def start(self, name: str, *command: str, **options: Any) -> DockerContainer:
        """Start a container; other containers reach it by its name."""
        made = (
            DockerContainer(self._image, hostname=name, read_only=True, cap_drop=["ALL"], **options)
            .with_command(list(command))
            .with_env("LEASEWAY_KEY", _KEY)
            .with_tmpfs_mount("/tmp")
            .with_network(self.network)
            .with_network_aliases(name)
        )
        self._made.append(made.start())
        return made

    def cut_off(self, container: DockerContainer) -> None:
        """Disconnect a container from the network; `network.connect` reconnects it."""
        networks = container.get_docker_client().client.networks
        networks.get(self.network.name).disconnect(container.get_container_id())

    def remove(self) -> None:
        """Remove all containers."""
        for container in self._made:
            container.stop()
        self.network.remove()


@pytest.fixture
def containers(image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Containers]:
    # The remover of testcontainers is an image that would have to be pulled.
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    made = Containers(image)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def system(containers: Containers) -> tuple[DockerContainer, DockerContainer]:
    """Return a control plane and a worker."""
    # The configuration is written in the container: mounts come from the machine of the engine.
    script = (
        'mkdir -p /tmp/c && printf %s "$CONFIG" > /tmp/c/mcp.yaml &&'
        " exec leaseway control-plane --config /tmp/c/mcp.yaml --listen 0.0.0.0:7600"
    )
    plane = containers.start("plane", "-c", script, entrypoint="/bin/sh", env={"CONFIG": _CONFIG})
    worker = containers.start(
        "worker", "worker", "--control-plane", "plane:7600", "--listen", "0.0.0.0:7610"
    )
    return plane, worker


def told(container: DockerContainer, *command: str) -> str:
    """Return the output of a command in a container."""
    return container.exec(list(command)).output.decode()


def called(plane: DockerContainer) -> tuple[bool, str]:
    """Return whether a call succeeds, and the output of the command."""
    command = "leaseway call time:current_time timezone=UTC --timeout 5 --address plane:7600"
    outcome = plane.exec(command)
    return outcome.exit_code == 0, outcome.output.decode()


async def test_a_call_from_one_container_reaches_a_server_in_another(
    system: tuple[DockerContainer, DockerContainer],
) -> None:
    plane, _ = system

    await eventually(lambda: called(plane)[0])


async def test_nothing_runs_as_root_or_can_write_to_the_image(
    system: tuple[DockerContainer, DockerContainer],
) -> None:
    _, worker = system

    assert told(worker, "id", "-u").strip() == "10001"
    for path in ("/x", "/opt/leaseway/x", "/etc/x"):
        assert "Read-only" in told(worker, "touch", path)
    assert worker.get_wrapped_container().attrs["Config"]["User"] == "10001:10001"
    assert told(worker, "cat", "/proc/1/comm").strip() == "tini"


async def test_a_stopped_container_shuts_its_worker_down(
    system: tuple[DockerContainer, DockerContainer],
) -> None:
    plane, worker = system
    await eventually(lambda: called(plane)[0])

    await asyncio.to_thread(worker.get_wrapped_container().stop, timeout=45)

    assert worker.wait() == 0
    assert b"it received SIGTERM" in worker.get_logs()[1]


async def test_a_partition_is_reported_and_recovers(
    containers: Containers, system: tuple[DockerContainer, DockerContainer]
) -> None:
    plane, worker = system
    await eventually(lambda: called(plane)[0])

    containers.cut_off(worker)

    def refused() -> bool:
        went_through, said = called(plane)
        return not went_through and said.startswith("leaseway: ")

    await eventually(refused)
    containers.network.connect(worker.get_container_id(), ["worker"])
    await eventually(lambda: called(plane)[0])
    held = told(plane, "leaseway", "workers", "--json", "--address", "plane:7600")
    assert len(json.loads(held)) == 1


def test_the_image_for_stores_has_their_clients(image: str) -> None:
    name = f"{image}-stores"
    if docker("image", "inspect", name, check=False).returncode:
        absent("docker", f"there is no image {name}; run STORES=1 tools/image/build.sh.")
    program = "import psycopg, obstore; print(psycopg.pq.__impl__)"

    said = docker("run", "--rm", "--entrypoint", "python", name, "-c", program).stdout

    assert said.strip() == "binary"


def test_the_packages_of_the_image_are_listed_with_their_versions(image: str) -> None:
    listed = docker(
        "run", "--rm", "--entrypoint", "cat", image, "/opt/leaseway/sbom.cdx.json"
    ).stdout

    found = {
        component["name"]: component["version"] for component in json.loads(listed)["components"]
    }
    assert "leaseway" in found
    assert "grpcio" in found


@pytest.mark.parametrize(
    ("suffix", "command", "mib"),
    [
        ("", "tools/image/build.sh", 180),
        ("-stores", "STORES=1 tools/image/build.sh", 205),
        ("-node", "tools/image/build.sh node", 320),
    ],
)
def test_no_image_is_larger_than_documented(
    image: str, suffix: str, command: str, mib: int
) -> None:
    found = docker("image", "inspect", "--format", "{{.Size}}", image + suffix, check=False)
    if found.returncode:
        absent("docker", f"there is no image {image}{suffix}; run {command}.")

    assert int(found.stdout) <= mib * 1024 * 1024
