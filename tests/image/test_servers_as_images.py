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
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import BOUND, absent
from tests.e2e.system import SERVERS, eventually, running

from leaseway.data_plane.mcp.process.container_command import OWNER_LABEL
from leaseway.data_plane.mcp.process.containers import is_gone, process_identity
from leaseway.sdk import LeaseLost, ServerLost, ServerNotReady

_GONE = f"{process_identity(os.getpid()).rpartition(':')[0]}:0:of-a-test"


def docker(*arguments: str, check: bool = True, data: bytes = b"") -> str:
    done = subprocess.run(
        ["docker", *arguments], check=check, capture_output=True, input=data, timeout=BOUND
    )
    return done.stdout.decode()


def _engine_answers() -> bool:
    """Say whether a daemon is there; `docker info` prints what it knows without one, too."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def boxed() -> Iterator[str]:
    """Return the name of an image with a shell and a server for it."""
    if not _engine_answers():
        absent("docker", "no container engine answers (docker info).")
    name = f"leaseway-boxed:{secrets.token_hex(4)}"
    entry = f'ENTRYPOINT ["/bin/sh", "/{(SERVERS / "boxed.sh").name}"]'
    docker("import", "--change", entry, "-", name, data=_files())
    try:
        yield name
    finally:
        docker("rmi", "--force", name)


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


def containers_of(image: str) -> list[str]:
    return docker("ps", "--all", "--quiet", "--filter", f"ancestor={image}").split()


def server(image: str, **settings: object) -> dict[str, object]:
    return {"transport": "stdio", "image": image, "startup_timeout": 60, **settings}


async def test_a_server_is_an_image_and_its_lease_a_container(boxed: str, tmp_path: Path) -> None:
    entry = server(boxed, args=["said"], env={"GREETING": {"env": "HELLO"}}, start="lazy")
    async with running(tmp_path, {"box": entry}, environment={"HELLO": "hi there"}) as (_, client):
        async with client.session("one") as one, client.session("two") as two:
            assert (await one.call_tool("box:next", {})).text == "1"
            assert (await one.call_tool("box:next", {})).text == "2"
            assert (await two.call_tool("box:next", {})).text == "1"
            seen = (await one.call_tool("box:look", {})).text
            held = containers_of(boxed)
        await eventually(lambda: not containers_of(boxed))

    assert "variable=hi there argument=said writes=yes" in seen
    assert "eth0" in seen
    assert len(held) == 2


async def test_limits_and_the_sandbox_hold_in_the_container(boxed: str, tmp_path: Path) -> None:
    limits = {"memory": "64MiB", "cpu": 0.5, "processes": 20, "open_files": 64}
    entry = server(boxed, sandbox=True, limits=limits, **{"truely-stateless": True})
    async with running(tmp_path, {"box": entry}) as (_, client):
        seen = (await client.call_tool("box:look", {})).text
        (name,) = containers_of(boxed)
        wanted = "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}"
        held = docker("inspect", "--format", wanted, name).split()

    assert "writes=no scratch=yes interfaces= lo" in seen
    assert held == [str(64 << 20), "500000000", "20"]
    assert not containers_of(boxed)


async def test_no_container_outlives_a_worker_that_was_killed(boxed: str, tmp_path: Path) -> None:
    entries = {
        "held": server(boxed, warm=1),
        "shared": server(boxed, **{"truely-stateless": True}),
    }
    async with running(tmp_path, entries) as (system, client):
        session = client.session("one")
        await session.call_tool("held:next", {})
        await eventually(lambda: len(containers_of(boxed)) >= 3)

        await system.workers["worker-1"].end(signal.SIGKILL)

        await eventually(lambda: not containers_of(boxed))
        await system.start_worker("worker-1")
        await system.ready()
        with pytest.raises(LeaseLost):
            await session.call_tool("held:next", {})
        assert (await client.call_tool("shared:next", {})).text == "1"


async def test_a_container_that_dies_is_replaced(boxed: str, tmp_path: Path) -> None:
    entry = server(boxed, **{"truely-stateless": True})
    async with running(tmp_path, {"box": entry}) as (_, client):
        assert (await client.call_tool("box:next", {})).text == "1"
        (first,) = containers_of(boxed)

        docker("kill", first)

        async def answers_anew() -> bool:
            try:
                return (await client.call_tool("box:next", {}, timeout=5)).text == "1"
            except (ServerLost, ServerNotReady):
                return False

        await eventually(answers_anew)
        assert first not in containers_of(boxed)


async def test_an_image_that_is_not_there_says_so(boxed: str, tmp_path: Path) -> None:
    absent_image = f"{boxed}-that-is-not-there"
    async with running(tmp_path, {"box": server(absent_image, start="eager")}) as (_, client):
        (problem,) = [each for each in await client.problems() if each.server_id == "box"]

    assert f"the container engine could not run {absent_image}" in problem.message


async def test_a_worker_removes_what_one_that_is_gone_left(boxed: str, tmp_path: Path) -> None:
    left = docker("create", "--label", f"{OWNER_LABEL}={_GONE}", boxed).strip()
    kept = docker("create", "--label", f"{OWNER_LABEL}=another-machine:1:1:1:x", boxed).strip()
    assert is_gone(_GONE)
    try:
        async with running(tmp_path, {"box": server(boxed)}):
            await eventually(lambda: not _exists(left))
        assert _exists(kept)
    finally:
        docker("rm", "--force", left, kept, check=False)


def _exists(container: str) -> bool:
    return bool(docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"id={container}"))
