"""What a server cannot do under `sandbox: strict`, with the real bubblewrap."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.data_plane.mcp.conftest import Bench
from tests.specs import changed, part

from leaseway.data_plane.kinds.process.sandbox.bubblewrap import plan_sandbox
from leaseway.data_plane.kinds.process.sandbox.checks import run_check
from leaseway.data_plane.kinds.process.sandbox.mounts import Paths
from leaseway.data_plane.kinds.process.sandbox.seccomp import ARCHITECTURES, denying_filter
from leaseway.spec.kinds.confinement import Limits, Sandbox
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault

pytestmark = pytest.mark.usefixtures("leak_guard")
NEW_USER, NEW_PROCESSES, NEW_FILES = 0x1000_0000, 0x2000_0000, 0x0002_0000
TERMINAL_INPUT = 0x5412
ESCAPES = {
    "unshare": (272, 97, (NEW_USER,)),
    "setns": (308, 268, (0, 0)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "open_tree": (428, 428, (0, 0, 0)),
    "ptrace": (101, 117, (0, 0, 0, 0)),
    "process_vm_readv": (310, 270, (1, 0, 0, 0, 0, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "keyctl": (250, 219, (0, 0, 0)),
    "io_uring_setup": (425, 425, (1, 0)),
    "userfaultfd": (323, 282, (0,)),
    "perf_event_open": (298, 241, (0, 0, 0, 0, 0)),
}
"""System calls by their numbers on x86_64 and aarch64; without a filter they succeed, or fail with
another error than EPERM."""


def strict(bench: Bench, **sandbox: Any) -> ServerSpec:
    return bench.stdio("nosy", sandbox=Sandbox(enabled=True, strict=True, **sandbox))


class Nosy:
    """A running server that tries what a test asks for."""

    def __init__(self, bench: Bench, spec: ServerSpec) -> None:
        self._bench, self._spec = bench, spec

    async def __aenter__(self) -> Nosy:
        self._instance = await self._bench.start(self._spec)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._instance.close()

    async def ask(self, tool: str, **arguments: Any) -> Any:
        return json.loads(await self._bench.text(self._instance, tool, arguments))


@pytest.mark.usefixtures("bwrap")
class TestWithBubblewrap:
    """Tests that need a working bubblewrap."""

    @pytest.mark.parametrize("network", [False, True])
    async def test_system_calls_that_lead_out_are_denied(self, bench: Bench, network: bool) -> None:
        async with Nosy(bench, strict(bench, network=network)) as nosy:
            for name, (x86_64, aarch64, arguments) in ESCAPES.items():
                found = await nosy.ask(
                    "kernel", x86_64=x86_64, aarch64=aarch64, arguments=arguments
                )
                assert found == "EPERM", name
            for flag in (NEW_USER, NEW_PROCESSES, NEW_FILES):
                assert await nosy.ask("clone", flags=flag) == "EPERM"
            assert await nosy.ask("clone", flags=0) == "started"
            clone3 = await nosy.ask("kernel", x86_64=435, aarch64=435, arguments=[0, 0])
            typing = await nosy.ask("kernel", x86_64=16, aarch64=29, arguments=[0, TERMINAL_INPUT])
            assert (clone3, typing) == ("ENOSYS", "EPERM")
            assert await nosy.ask("family", number=socket.AF_INET) == "opened"
            assert await nosy.ask("family", number=38) == "EAFNOSUPPORT"  # the kernel's ciphers
            assert (await nosy.ask("status"))["Seccomp"] == "2"

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="Only x86_64 has x32 calls.")
    async def test_x32_system_calls_are_denied(self, bench: Bench) -> None:
        async with Nosy(bench, strict(bench)) as nosy:
            number = 0x4000_0000 + 272
            assert await nosy.ask("kernel", x86_64=number, aarch64=0, arguments=[0]) == "ENOSYS"

    async def test_homes_are_empty_except_for_paths_of_the_command(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "home"  # below /tmp: the real homes are checked below
        (home / "server").mkdir(parents=True)
        (home / ".ssh").mkdir()
        script = home / "server" / "nosy.py"
        shutil.copy(part(bench.stdio("nosy")).args[0], script)
        monkeypatch.setattr(Path, "home", lambda: home)
        spec = changed(strict(bench), args=(str(script),))
        async with Nosy(bench, spec) as nosy:
            assert await nosy.ask("names", path=str(home)) == ["server"]
            assert await nosy.ask("write", path=str(script)) == "OSError"
            assert await nosy.ask("write", path=str(home / "note")) == len("written")
            for place in ("/home", "/root"):
                held = await nosy.ask("names", path=place) if Path(place).is_dir() else []
                assert not [
                    name for name in held if not sys.base_prefix.startswith(f"{place}/{name}")
                ]
        assert not (home / "note").exists()

    async def test_a_script_directly_in_the_home_does_not_expose_the_home(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = tmp_path / "nosy.py"
        shutil.copy(part(bench.stdio("nosy")).args[0], script)
        (tmp_path / "diary").write_text("x")
        monkeypatch.setattr(Path, "home", lambda: tmp_path)
        async with Nosy(bench, changed(strict(bench), args=(str(script),))) as nosy:
            assert await nosy.ask("names", path=str(tmp_path)) == ["nosy.py"]

    async def test_it_has_three_descriptors_with_a_limit(self, bench: Bench) -> None:
        async with Nosy(bench, changed(strict(bench), limits=Limits(open_files=40))) as nosy:
            assert await nosy.ask("descriptors") == [0, 1, 2]

    async def test_threads_and_children_work(self, bench: Bench) -> None:
        async with Nosy(bench, strict(bench)) as nosy:
            assert await nosy.ask("threads", count=8) == 8
            assert await nosy.ask("run", command=["sh", "-c", "echo a | cat"]) == {
                "status": 0,
                "words": "a\n",
            }

    async def test_node_runs(self, bench: Bench) -> None:
        if shutil.which("node") is None:
            pytest.skip("Node is not installed.")
        script = (
            "require('fs').readdir('/', () => require('dns').lookup('localhost', () =>"
            " new (require('worker_threads').Worker)('1', {eval: true})"
            ".on('exit', status => console.log('ran', status))))"
        )
        async with Nosy(bench, strict(bench)) as nosy:
            found = await nosy.ask("run", command=["node", "-e", script])
        assert found == {"status": 0, "words": "ran 0\n"}

    async def test_additional_paths_are_readable_writable_and_hidden(self, tmp_path: Path) -> None:
        folders = {name: tmp_path / name for name in ("read", "write", "hide")}
        for folder in folders.values():
            folder.mkdir()
            (folder / "a").write_text("x")
        read, write, hide = map(str, folders.values())
        paths = Paths(readable=(read, hide), writable=(write, "/no/such"), hidden=(hide,))
        plan = plan_sandbox("x", Sandbox(enabled=True, strict=True), ["sh"], "", paths)
        script = f"test -e {read}/a && ! touch {read}/b && touch {write}/b && ! test -e {hide}/a"
        result = await run_check((*plan.prefix, shutil.which("sh") or "sh", "-c", script))
        assert result.status == 0, result.stderr
        assert (folders["write"] / "b").exists()


def test_each_architecture_has_a_filter_within_the_kernels_limit() -> None:
    for machine in ARCHITECTURES:
        program = denying_filter(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4_096


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_no_jump_leads_beyond_a_filters_end(machine: str) -> None:
    program = denying_filter(machine)
    steps = [program[at : at + 8] for at in range(0, len(program), 8)]
    for index, step in enumerate(steps):
        if step[0] & 7 == 5:
            assert index + 1 + max(step[2], step[3]) < len(steps)
    assert steps[-1][0] == 6


def test_an_unsupported_architecture_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(Fault, match="does not support this worker's architecture"):
        plan_sandbox("x", Sandbox(enabled=True, strict=True), ["sh"])
