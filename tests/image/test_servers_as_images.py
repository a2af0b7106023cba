"""Servers as images: a container for each instance, with real container engines.

The image is built from this machine's shell, so that nothing is pulled.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import BOUND, absent
from tests.e2e.system import SERVERS, System, eventually, running

from leaseway.data_plane.kinds.process.containers import (
    ENGINE_VARIABLE,
    OWNER_LABEL,
    has_exited,
    process_identity,
)
from leaseway.sdk import AsyncClient, LeaseLost, ServerLost, ServerNotReady

_DEAD_OWNER = f"{process_identity(os.getpid()).rpartition(':')[0]}:0:of-a-test"


@dataclass(frozen=True)
class Box:
    """An engine, and an image in it with a shell and a server.

    Attributes:
        engine: `docker` or `podman`.
        image: The image's name.
    """

    engine: str
    image: str

    def run(self, *arguments: str, check: bool = True, data: bytes = b"") -> str:
        """Run a command of the engine; return what it printed."""
        done = subprocess.run(
            [self.engine, *arguments], check=check, capture_output=True, input=data, timeout=BOUND
        )
        return done.stdout.decode()

    def server(self, **settings: object) -> dict[str, object]:
        """Return the entry of a server with the image."""
        return {"transport": "stdio", "image": self.image, "startup_timeout": 60, **settings}

    def containers(self) -> list[str]:
        return self.run("ps", "--all", "--quiet", "--filter", f"ancestor={self.image}").split()

    def has(self, container: str) -> bool:
        return bool(self.run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"id={container}"))

    def system(
        self, folder: Path, servers: Mapping[str, object], **environment: str
    ) -> AbstractAsyncContextManager[tuple[System, AsyncClient]]:
        """Run a system whose worker uses this engine."""
        return running(folder, servers, environment={ENGINE_VARIABLE: self.engine, **environment})


@pytest.fixture(scope="module", params=["docker", "podman"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Build an image with a shell and a server, in each engine of this machine."""
    engine = str(request.param)
    # `docker info` also prints something without a daemon.
    if shutil.which(engine) is None or _fails(engine, "info"):
        absent(engine, f"no container engine answers ({engine} info).")
    box = Box(engine, f"localhost/leaseway-boxed:{secrets.token_hex(4)}")
    entry = f'ENTRYPOINT ["/bin/sh", "/{(SERVERS / "boxed.sh").name}"]'
    box.run("import", "--change", entry, "-", box.image, data=_files())
    try:
        if _fails(engine, "run", "--rm", "--interactive", box.image):
            absent(engine, f"{engine} cannot run a container here.")
        yield box
    finally:
        box.run("rmi", "--force", box.image)


def _fails(*command: str) -> bool:
    done = subprocess.run(command, check=False, capture_output=True, input=b"", timeout=BOUND)
    return done.returncode != 0


def _files() -> bytes:
    """Return a root file system with this machine's shell and its libraries."""
    shell = Path("/bin/sh").resolve()
    linked = subprocess.run(["ldd", shell], check=True, capture_output=True, text=True).stdout
    paths = {word for word in linked.split() if word.startswith("/")}
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for folder in ("tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
        archive.add(shell, "bin/sh")
        archive.add(SERVERS / "boxed.sh", "boxed.sh")
        for path in sorted(paths):
            archive.add(Path(path).resolve(), path.lstrip("/"))
    return tar.getvalue()


async def test_each_lease_has_its_own_container(box: Box, tmp_path: Path) -> None:
    entry = box.server(args=["said"], env={"GREETING": {"env": "HELLO"}}, start="lazy")
    async with box.system(tmp_path, {"box": entry}, HELLO="hi there") as (_, client):
        async with client.session("one") as one, client.session("two") as two:
            assert (await one.call_tool("box:next", {})).text == "1"
            assert (await one.call_tool("box:next", {})).text == "2"
            assert (await two.call_tool("box:next", {})).text == "1"
            seen = (await one.call_tool("box:look", {})).text
            containers = box.containers()
        await eventually(lambda: not box.containers())

    assert "variable=hi there argument=said writes=yes" in seen
    assert "eth0" in seen
    assert len(containers) == 2


async def test_limits_and_the_sandbox_apply_in_the_container(box: Box, tmp_path: Path) -> None:
    limits = {"memory": "64MiB", "cpu": 0.5, "processes": 20}
    entry = box.server(sandbox=True, limits=limits, **{"truely-stateless": True})
    async with box.system(tmp_path, {"box": entry}) as (_, client):
        seen = (await client.call_tool("box:look", {})).text
        (name,) = box.containers()
        template = "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}"
        limits_set = box.run("inspect", "--format", template, name).split()

    assert "writes=no scratch=yes interfaces= lo" in seen
    assert limits_set == [str(64 << 20), "500000000", "20"]
    assert not box.containers()


async def test_containers_of_a_killed_worker_are_removed(box: Box, tmp_path: Path) -> None:
    entries = {
        "held": box.server(warm=1),
        "shared": box.server(**{"truely-stateless": True}),
    }
    async with box.system(tmp_path, entries) as (system, client):
        session = client.session("one")
        await session.call_tool("held:next", {})
        await eventually(lambda: len(box.containers()) >= 3)

        await system.workers["worker-1"].end(signal.SIGKILL)

        await eventually(lambda: not box.containers())
        await system.start_worker("worker-1")
        await system.ready()
        with pytest.raises(LeaseLost):
            await session.call_tool("held:next", {})
        assert (await client.call_tool("shared:next", {})).text == "1"


async def test_a_container_that_exits_is_replaced(box: Box, tmp_path: Path) -> None:
    entry = box.server(**{"truely-stateless": True})
    async with box.system(tmp_path, {"box": entry}) as (_, client):
        assert (await client.call_tool("box:next", {})).text == "1"
        (first,) = box.containers()

        box.run("kill", first)

        async def responds() -> bool:
            try:
                return (await client.call_tool("box:next", {}, timeout=5)).text == "1"
            except (ServerLost, ServerNotReady):
                return False

        await eventually(responds)
        assert first not in box.containers()


async def test_a_missing_image_is_reported(box: Box, tmp_path: Path) -> None:
    absent_image = f"{box.image}-that-is-not-there"
    entry = box.server(start="eager") | {"image": absent_image}
    async with box.system(tmp_path, {"box": entry}) as (_, client):
        (problem,) = [
            each_problem
            for each_problem in await client.problems()
            if each_problem.server_id == "box"
        ]

    assert f"the container engine could not run {absent_image}" in problem.message


async def test_containers_of_a_command_are_removed_although_they_ignore_their_end(
    box: Box, tmp_path: Path
) -> None:
    deaf = "trap '' TERM; . /boxed.sh; while :; do :; done"
    entry = {
        "transport": "stdio",
        "command": box.engine,
        "args": ["run", "-i", "--rm", "--entrypoint", "/bin/sh", box.image, "-c", deaf],
    }
    async with box.system(tmp_path, {"deaf": entry}) as (system, client):
        async with client.session("one") as session:
            assert (await session.call_tool("deaf:next", {})).text == "1"
            assert box.containers()
        await eventually(lambda: not box.containers())

        await client.session("two").call_tool("deaf:next", {})
        await system.workers["worker-1"].end(signal.SIGKILL)
        await eventually(lambda: not box.containers())


async def test_a_worker_removes_containers_of_dead_workers(box: Box, tmp_path: Path) -> None:
    orphan = box.run("create", "--label", f"{OWNER_LABEL}={_DEAD_OWNER}", box.image).strip()
    kept = box.run("create", "--label", f"{OWNER_LABEL}=another-machine:1:1:1:x", box.image).strip()
    assert has_exited(_DEAD_OWNER)
    try:
        async with box.system(tmp_path, {"box": box.server()}):
            await eventually(lambda: not box.has(orphan))
        assert box.has(kept)
    finally:
        box.run("rm", "--force", orphan, kept, check=False)
