"""Servers as images: one container for each instance, run by a worker with the engine's client.

The image is made here, of this machine's shell alone, so that nothing has to be pulled.
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

from leaseway.data_plane.mcp.process.containers import (
    ENGINE_VARIABLE,
    OWNER_LABEL,
    has_exited,
    process_identity,
)
from leaseway.sdk import AsyncClient, LeaseLost, ServerLost, ServerNotReady

_GONE = f"{process_identity(os.getpid()).rpartition(':')[0]}:0:of-a-test"


@dataclass(frozen=True)
class Box:
    """An engine, and an image in it with a shell and a server for that.

    Attributes:
        engine: `docker` or `podman`.
        image: The image's name.
    """

    engine: str
    image: str

    def ask(self, *arguments: str, check: bool = True, data: bytes = b"") -> str:
        """Run a command of the engine; return what it printed."""
        done = subprocess.run(
            [self.engine, *arguments], check=check, capture_output=True, input=data, timeout=BOUND
        )
        return done.stdout.decode()

    def server(self, **settings: object) -> dict[str, object]:
        """Return the entry of a server that is the image."""
        return {"transport": "stdio", "image": self.image, "startup_timeout": 60, **settings}

    def containers(self) -> list[str]:
        return self.ask("ps", "--all", "--quiet", "--filter", f"ancestor={self.image}").split()

    def has(self, container: str) -> bool:
        return bool(self.ask("ps", "--all", "--quiet", "--no-trunc", "--filter", f"id={container}"))

    def system(
        self, folder: Path, servers: Mapping[str, object], **environment: str
    ) -> AbstractAsyncContextManager[tuple[System, AsyncClient]]:
        """Run a system whose worker uses this engine."""
        return running(folder, servers, environment={ENGINE_VARIABLE: self.engine, **environment})


@pytest.fixture(scope="module", params=["docker", "podman"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Make an image with a shell and a server for it, in each engine that runs here."""
    engine = str(request.param)
    # `docker info` prints what it knows without a daemon, too.
    if shutil.which(engine) is None or _fails(engine, "info"):
        absent(engine, f"no container engine answers ({engine} info).")
    box = Box(engine, f"localhost/leaseway-boxed:{secrets.token_hex(4)}")
    entry = f'ENTRYPOINT ["/bin/sh", "/{(SERVERS / "boxed.sh").name}"]'
    box.ask("import", "--change", entry, "-", box.image, data=_files())
    try:
        if _fails(engine, "run", "--rm", "--interactive", box.image):
            absent(engine, f"{engine} cannot run a container here.")
        yield box
    finally:
        box.ask("rmi", "--force", box.image)


def _fails(*command: str) -> bool:
    done = subprocess.run(command, check=False, capture_output=True, input=b"", timeout=BOUND)
    return done.returncode != 0


def _files() -> bytes:
    """Return a root file system of this machine's shell, with what it is linked to."""
    shell = Path("/bin/sh").resolve()
    linked = subprocess.run(["ldd", shell], check=True, capture_output=True, text=True).stdout
    paths = {word for word in linked.split() if word.startswith("/")}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for folder in ("tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
        archive.add(shell, "bin/sh")
        archive.add(SERVERS / "boxed.sh", "boxed.sh")
        for path in sorted(paths):
            archive.add(Path(path).resolve(), path.lstrip("/"))
    return made.getvalue()


async def test_a_server_is_an_image_and_its_lease_a_container(box: Box, tmp_path: Path) -> None:
    entry = box.server(args=["said"], env={"GREETING": {"env": "HELLO"}}, start="lazy")
    async with box.system(tmp_path, {"box": entry}, HELLO="hi there") as (_, client):
        async with client.session("one") as one, client.session("two") as two:
            assert (await one.call_tool("box:next", {})).text == "1"
            assert (await one.call_tool("box:next", {})).text == "2"
            assert (await two.call_tool("box:next", {})).text == "1"
            seen = (await one.call_tool("box:look", {})).text
            held = box.containers()
        await eventually(lambda: not box.containers())

    assert "variable=hi there argument=said writes=yes" in seen
    assert "eth0" in seen
    assert len(held) == 2


async def test_limits_and_the_sandbox_hold_in_the_container(box: Box, tmp_path: Path) -> None:
    limits = {"memory": "64MiB", "cpu": 0.5, "processes": 20}
    entry = box.server(sandbox=True, limits=limits, **{"truely-stateless": True})
    async with box.system(tmp_path, {"box": entry}) as (_, client):
        seen = (await client.call_tool("box:look", {})).text
        (name,) = box.containers()
        wanted = "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}"
        held = box.ask("inspect", "--format", wanted, name).split()

    assert "writes=no scratch=yes interfaces= lo" in seen
    assert held == [str(64 << 20), "500000000", "20"]
    assert not box.containers()


async def test_no_container_outlives_a_worker_that_was_killed(box: Box, tmp_path: Path) -> None:
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


async def test_a_container_that_dies_is_replaced(box: Box, tmp_path: Path) -> None:
    entry = box.server(**{"truely-stateless": True})
    async with box.system(tmp_path, {"box": entry}) as (_, client):
        assert (await client.call_tool("box:next", {})).text == "1"
        (first,) = box.containers()

        box.ask("kill", first)

        async def answers_anew() -> bool:
            try:
                return (await client.call_tool("box:next", {}, timeout=5)).text == "1"
            except (ServerLost, ServerNotReady):
                return False

        await eventually(answers_anew)
        assert first not in box.containers()


async def test_an_image_that_is_not_there_says_so(box: Box, tmp_path: Path) -> None:
    absent_image = f"{box.image}-that-is-not-there"
    entry = box.server(start="eager") | {"image": absent_image}
    async with box.system(tmp_path, {"box": entry}) as (_, client):
        (problem,) = [each for each in await client.problems() if each.server_id == "box"]

    assert f"the container engine could not run {absent_image}" in problem.message


async def test_a_worker_removes_what_one_that_is_gone_left(box: Box, tmp_path: Path) -> None:
    left = box.ask("create", "--label", f"{OWNER_LABEL}={_GONE}", box.image).strip()
    kept = box.ask("create", "--label", f"{OWNER_LABEL}=another-machine:1:1:1:x", box.image).strip()
    assert has_exited(_GONE)
    try:
        async with box.system(tmp_path, {"box": box.server()}):
            await eventually(lambda: not box.has(left))
        assert box.has(kept)
    finally:
        box.ask("rm", "--force", left, kept, check=False)
