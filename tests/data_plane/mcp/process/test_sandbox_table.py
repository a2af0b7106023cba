"""The table "What holds a server" of docs/security.md, row by row, with the real bubblewrap.

A server tries each row at each level, with and without network.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from tests.data_plane.mcp.conftest import Bench

from leaseway.data_plane.kinds.process.sandbox import seccomp
from leaseway.spec.kinds.confinement import Limits, Sandbox
from leaseway.spec.model import ServerSpec

pytestmark = pytest.mark.usefixtures("leak_guard")
SECURITY: Final = Path(__file__).parents[4] / "docs" / "security.md"
Level = Literal["none", "true", "strict"]
LEVELS: Final[tuple[Level, ...]] = ("none", "true", "strict")
PLACES: Final = ("/srv", "/opt", "/var/lib", "/usr/local/share")
NEW_USER: Final = 0x1000_0000
SWITCHES: Final = (
    "/proc/sys/kernel/core_pattern",  # the kernel runs this program on crashes
    "/proc/sys/kernel/panic",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
)
"""Files of the machine's root. Tests open them, but never write."""
WRITTEN: Final = len("written")
CIPHERS, MACHINES = 38, 40  # AF_ALG, AF_VSOCK: unusual socket families


@dataclass
class World:
    """Files and a port for a server to find."""

    data: Path
    home: Path
    own: Path
    others: Path
    private: list[Path]
    port: int

    def spec(self, bench: Bench, level: Level, *, network: bool) -> ServerSpec:
        """Return a server of a level that may write to its own folder and its home."""
        sandbox = Sandbox()
        if level != "none":
            writable = (str(self.own), str(self.home))
            sandbox = Sandbox(
                enabled=True, strict=level == "strict", network=network, writable_paths=writable
            )
        return bench.stdio("nosy", sandbox=sandbox, cwd=str(self.own), limits=Limits(open_files=64))


@pytest.fixture
def world(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Create files outside of private folders, a home, and a port."""
    place = next((each_place for each_place in PLACES if os.access(each_place, os.W_OK)), None)
    if place is None:
        pytest.skip(f"None of {', '.join(PLACES)} can be written by this user.")
    data = Path(tempfile.mkdtemp(prefix="leaseway-test-", dir=place))
    private = [
        Path(text) / f"leaseway-test-{os.getpid()}"
        for text in ("/tmp", "/var/tmp", "/run", "/dev/shm")
        if os.access(text, os.W_OK)
    ]
    try:
        home, own, others = data / "home", data / "audit" / "own", data / "others"
        for folder in (home / ".leaseway", home / "diary", own, others):
            folder.mkdir(parents=True)
        for path in (home / ".leaseway" / "vault.key", home / "tls.key", data / "note"):
            path.write_text("kept")
        (others / "note").write_text("kept")
        bench.own_paths = [data / "audit", data / "keys.json"]
        for path in (data / "audit" / "run-1.jsonl", data / "keys.json"):
            path.write_text("kept")
        for path in private:
            path.write_text("kept")
        monkeypatch.setattr(Path, "home", lambda: home)
        monkeypatch.setenv("LEASEWAY_TLS_KEY", str(home / "tls.key"))
        bench.server_folders = [str(others)]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            yield World(data=data, home=home, own=own, others=others, private=private, port=port)
    finally:
        shutil.rmtree(data)
        for path in private:
            path.unlink(missing_ok=True)


Ask = Callable[..., Awaitable[Any]]


async def files(world: World, ask: Ask, level: Level, network: bool) -> None:
    assert await ask("read", path=str(world.data / "note")) == "kept"
    found = await ask("write", path=str(world.data / "new"))
    assert found == (WRITTEN if level == "none" else "OSError")
    assert (world.data / "new").exists() == (level == "none")
    assert await ask("write", path=str(world.own / "new")) == WRITTEN
    assert (world.own / "new").read_text() == "written"


async def homes(world: World, ask: Ask, level: Level, network: bool) -> None:
    """The home is writable here, so that hidden files below it are tested, too."""
    for place in ("/home", "/root"):
        if level == "strict" and Path(place).is_dir():
            held = await ask("names", path=place)
            needed = Path(sys.executable).resolve()
            assert [path for path in held if Path(place, path) not in needed.parents] == []


async def private_places(world: World, ask: Ask, level: Level, network: bool) -> None:
    for path in world.private:
        assert await ask("exists", path=str(path)) == (level == "none"), path
    for path in world.private:
        if level != "none" and path.parent != Path("/dev/shm"):
            assert await ask("write", path=str(path)) == WRITTEN
            assert path.read_text() == "kept"
    seen = set(await ask("names", path="/dev"))
    usual = {"null", "zero", "full", "random", "urandom", "tty", "shm", "pts", "ptmx", "fd"}
    own = usual | {"stdin", "stdout", "stderr", "core", "console"}
    assert level == "none" or seen <= own


async def processes(world: World, ask: Ask, level: Level, network: bool) -> None:
    seen = await ask("processes")
    assert (os.getpid() in seen) == (level == "none")
    if level != "none":
        assert len(seen) <= 3
        for switch in SWITCHES:
            assert await ask("opened_to_write", path=switch) != "opened", switch
        inner = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc"]
        again = await ask("run", command=[*inner, "/proc", "test", "-w", SWITCHES[0]])
        assert again["status"] != 0, "a /proc of a sandbox in the sandbox can be written"


async def own_files(world: World, ask: Ask, level: Level, network: bool) -> None:
    assert await ask("exists", path=str(world.home / ".leaseway" / "vault.key")) == (
        level == "none"
    )
    audit = str(world.data / "audit" / "run-1.jsonl")
    assert await ask("exists", path=audit) == (level == "none")
    for path in (world.home / "tls.key", world.data / "keys.json"):
        found = await ask("read", path=str(path))
        assert found == "kept" if level == "none" else found in ("", "PermissionError")


async def folders_of_others(world: World, ask: Ask, level: Level, network: bool) -> None:
    found = await ask("read", path=str(world.others / "note"))
    assert found == ("kept" if level == "none" else "FileNotFoundError")


async def network_of_the_machine(world: World, ask: Ask, level: Level, network: bool) -> None:
    reached = level == "none" or network
    found = await ask("connect", port=world.port)
    assert found == ("connected" if reached else "ConnectionRefusedError")
    name = f"\0leaseway-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        found = await ask("connect_to", path=name)
    assert found == ("connected" if reached else "ConnectionRefusedError")


async def socket_families(world: World, ask: Ask, level: Level, network: bool) -> None:
    for number in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        assert await ask("family", number=int(number)) == "opened"
    for kind in (CIPHERS, MACHINES):
        found = await ask("family", number=kind)
        assert (found == "EAFNOSUPPORT") if level == "strict" else found == _own_family(kind)


def _own_family(number: int) -> str:
    try:
        socket.socket(number, socket.SOCK_DGRAM).close()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "opened"


async def capabilities(world: World, ask: Ask, level: Level, network: bool) -> None:
    status = await ask("status")
    own = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if level == "none":
        assert int(status["CapEff"], 16) == int(own["CapEff"], 16)
    else:
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0


async def user_namespaces(world: World, ask: Ask, level: Level, network: bool) -> None:
    found = await ask("clone", flags=NEW_USER)
    assert found == "EPERM" if level == "strict" else found in ("started", "EPERM", "ENOSPC")
    inner = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
    made = await ask("run", command=inner)
    if level == "strict":
        assert made["status"] != 0
    path = str(world.home / ".leaseway" / "vault.key")
    unmount = ["bwrap", "--dev-bind", "/", "/", "umount", str(world.home / ".leaseway")]
    if level != "none":  # a new namespace must not uncover hidden files
        await ask("run", command=unmount)
        again = ["bwrap", "--unshare-user", "--bind", "/", "/", "cat", path]
        assert "kept" not in (await ask("run", command=again))["words"]


async def system_calls(world: World, ask: Ask, level: Level, network: bool) -> None:
    for name, (x86_64, aarch64) in seccomp._DENIED.items() if level == "strict" else ():
        if (x86_64 if platform.machine() == "x86_64" else aarch64) is not None:
            found = await ask("kernel", x86_64=x86_64, aarch64=aarch64, arguments=[0] * 6)
            assert found == "EPERM", name
    mode = (await ask("status"))["Seccomp"]
    own = re.search(r"Seccomp:\s+(\d)", Path("/proc/self/status").read_text())
    assert mode == ("2" if level == "strict" else own and own[1])


async def limits(world: World, ask: Ask, level: Level, network: bool) -> None:
    assert (await ask("limits"))["open_files"] == [64, 64]
    assert await ask("open_files", count=70) == "OSError"


ROWS: Final = {
    "files": files,
    "home folders": homes,
    "`/tmp`": private_places,
    "`/proc`": processes,
    "Leaseway's own folder": own_files,
    "folders of the worker's other servers": folders_of_others,
    "network": network_of_the_machine,
    "socket families": socket_families,
    "capabilities": capabilities,
    "user namespaces": user_namespaces,
    "system calls": system_calls,
    "memory": limits,
}
"""The start of each row's first cell, and the function that tries it."""


@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize("network", [False, True], ids=["alone", "network"])
@pytest.mark.parametrize("level", LEVELS)
async def test_each_row_of_the_table_holds(
    bench: Bench, world: World, level: Level, network: bool
) -> None:
    instance = await bench.start(world.spec(bench, level, network=network))

    async def ask(tool: str, **arguments: Any) -> Any:
        return json.loads(await bench.text(instance, tool, arguments))

    failed = []
    for name, row in ROWS.items():
        try:
            await row(world, ask, level, network)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
    await instance.close()
    assert not failed, "\n".join(failed)


def test_the_table_of_the_documentation_has_these_rows() -> None:
    text = SECURITY.read_text().partition("## What holds a server")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    _, *documented = rows  # the first one is the heading
    assert len(documented) == len(ROWS)
    assert all(cell.startswith(name) for cell, name in zip(documented, ROWS, strict=True)), (
        documented
    )
