"""Sandboxed servers with the real bubblewrap. `test_sandbox_table` shows what each level allows."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, is_alive, until_exited
from tests.specs import changed, part

from leaseway.data_plane.kinds.process import stdio
from leaseway.data_plane.kinds.process.sandbox.checks import run_check
from leaseway.data_plane.kinds.process.sandbox.mounts import (
    Paths,
    Surroundings,
    other_servers_folders,
    permitted_paths,
)
from leaseway.spec.kinds.confinement import Limits, Sandbox
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.policy import Permissions, ServerPolicy
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault

pytestmark = pytest.mark.usefixtures("leak_guard")


@pytest.fixture
def visible_folder() -> Iterator[Path]:
    """Return a new folder outside of those that each sandbox has its own of."""
    place = next((name for name in ("/srv", "/opt", "/var/lib") if os.access(name, os.W_OK)), None)
    if place is None:
        pytest.skip("This user can write to no folder that sandboxes show.")
    with tempfile.TemporaryDirectory(prefix="leaseway-test-", dir=place) as folder:
        yield Path(folder)


def confined(bench: Bench, **sandbox: Any) -> ServerSpec:
    return bench.stdio("nosy", sandbox=Sandbox(enabled=True, **sandbox))


async def ask(bench: Bench, spec: ServerSpec, tool: str, **arguments: Any) -> Any:
    """Return the result of a tool of a fresh instance."""
    instance = await bench.start(spec)
    try:
        return json.loads(await bench.text(instance, tool, arguments))
    finally:
        await instance.close()


@pytest.mark.usefixtures("bwrap")
class TestWithBubblewrap:
    """Tests that need a working bubblewrap."""

    async def test_permissions_restrict_reads_and_writes(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        allowed, other = tmp_path / "allowed", tmp_path / "other"
        for folder in (allowed, allowed / "secrets", other):
            folder.mkdir()
            (folder / "note").write_text("kept")
        inside, outside = str(allowed / "note"), str(other / "note")
        hidden = str(allowed / "secrets" / "note")

        async def answers(write: bool) -> list[Any]:
            permissions = Permissions(
                write=write, allowed_paths=(str(allowed),), denied_paths=("secrets",)
            )
            spec = confined(bench, writable_paths=(str(allowed), str(other)) if not write else ())
            spec = replace(spec, policy=ServerPolicy(permissions=permissions))
            asked = [("read", inside), ("read", hidden), ("write", inside), ("write", outside)]
            return [await ask(bench, spec, tool, path=path) for tool, path in asked]

        assert await answers(False) == ["kept", "FileNotFoundError", "OSError", "FileNotFoundError"]
        written = len("written")
        assert await answers(True) == ["kept", "FileNotFoundError", written, "FileNotFoundError"]
        assert (allowed / "note").read_text() == "written"
        assert (other / "note").read_text() == "kept"

    async def test_a_link_to_a_folder_may_be_written_and_one_that_a_server_made_may_not(
        self, bench: Bench, tmp_path: Path, visible_folder: Path
    ) -> None:
        for parent in (tmp_path, visible_folder):  # the first is private, otherwise
            target, link = visible_folder / "target", parent / "link"
            target.mkdir(exist_ok=True)
            link.symlink_to(target)
            spec = confined(bench, writable_paths=(str(link),))
            assert await ask(bench, spec, "write", path=str(link / "note")) == len("written")
            assert (target / "note").read_text() == "written"

        planted = visible_folder / "target" / "planted"
        planted.symlink_to(tmp_path)
        for parent in (visible_folder / "target", visible_folder / "link"):
            nested = confined(bench, writable_paths=(str(parent), str(parent / planted.name)))
            with pytest.raises(Fault, match="it is configured with a sandbox, which can't be made"):
                await bench.start(nested)

    async def test_a_denied_path_is_hidden_also_behind_a_link(
        self, bench: Bench, tmp_path: Path, visible_folder: Path
    ) -> None:
        secrets = visible_folder / "secrets"
        secrets.mkdir()
        (secrets / "note").write_text("kept")
        for parent in (tmp_path, visible_folder):
            link = parent / "link"
            link.symlink_to(visible_folder)
            permissions = Permissions(allowed_paths=(str(link),), denied_paths=(str(secrets),))
            spec = replace(confined(bench), policy=ServerPolicy(permissions=permissions))
            for path in (secrets / "note", link / "secrets" / "note"):
                assert await ask(bench, spec, "read", path=str(path)) == "FileNotFoundError"
            assert await ask(bench, spec, "write", path=str(link / "new")) == len("written")

    async def test_it_starts_in_its_cwd_anywhere(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "marker").write_text("here")  # below /tmp, which is private otherwise
        for spec in (confined(bench), bench.stdio("nosy")):
            spec = changed(spec, cwd=str(tmp_path))
            assert await ask(bench, spec, "read", path="marker") == "here"

    async def test_a_missing_cwd_is_named(self, bench: Bench, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing")
        for spec in (confined(bench), bench.stdio("nosy")):
            fault = await bench.fails(changed(spec, cwd=missing))
            assert f"its 'cwd' {missing!r} is no folder on this worker" in fault.message

    async def test_paths_on_its_command_line_below_tmp_are_readable(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        server = tmp_path / "code" / "server.py"
        server.parent.mkdir()
        shutil.copy(part(bench.stdio("nosy")).args[0], server)
        spec = server_spec(
            VariantKey("x"),
            "stdio",
            command=sys.executable,
            args=(str(server),),
            sandbox=Sandbox(enabled=True),
        )
        assert await ask(bench, spec, "exists", path=str(server)) is True
        assert await ask(bench, spec, "write", path=str(server)) == "OSError"

    async def test_it_has_three_descriptors(self, bench: Bench) -> None:
        others = [await bench.start(bench.stdio("nosy")) for _ in range(3)]
        assert await ask(bench, confined(bench), "descriptors") == [0, 1, 2]
        limited = bench.stdio("nosy", sandbox=Sandbox(enabled=True), limits=Limits(open_files=64))
        assert await ask(bench, limited, "descriptors") == [0, 1, 2]
        assert all(other.state == "ready" for other in others)

    async def test_values_of_variables_are_passed_in_no_command_line(self, bench: Bench) -> None:
        spec = bench.stdio(
            "nosy",
            env={
                "API_TOKEN": Value("literal", "very-secret-value"),
                "odd.name": Value("literal", "1"),
            },
            sandbox=Sandbox(enabled=True),
            limits=Limits(open_files=64),
        )
        instance = await bench.start(spec)
        environment = json.loads(await bench.text(instance, "environment"))
        assert environment["API_TOKEN"] == "very-secret-value"
        assert environment["odd.name"] == "1"
        listing = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, check=True)
        assert b"nosy" in listing.stdout
        assert b"very-secret-value" not in listing.stdout

    async def test_exit_status_and_stderr_are_reported(self, bench: Bench) -> None:
        instance = await bench.start(confined(bench))
        fault = await bench.call_fault(instance, "exit", {"status": 9})
        assert fault.metadata["exit_status"] == "9"
        assert fault.metadata["stderr"] == "going now"

    async def test_its_children_are_killed_with_it(self, bench: Bench) -> None:
        for how in ("plain", "session", "orphan"):
            instance = await bench.start(confined(bench))
            await bench.text(instance, "spawn", {"how": how, "count": 2})
            inside = processes_in_sandbox(instance.pid or 0)
            assert len(inside) >= 4
            await instance.close()
            await until_exited(*inside)

    async def test_killing_bubblewrap_kills_the_server(self, bench: Bench) -> None:
        instance = await bench.start(confined(bench))
        await bench.text(instance, "spawn", {"how": "orphan"})
        inside = processes_in_sandbox(instance.pid or 0)
        os.kill(instance.pid or 0, signal.SIGKILL)
        await until_exited(*inside)
        closed, fault = await bench.next_closed()
        assert closed is instance
        assert fault is not None
        assert fault.metadata["exit_status"] == "-9"

    async def test_a_server_that_exits_on_sigterm_gets_time_to_do_so(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stdio, "STOP_GRACE", 6.0)
        note = tmp_path / "note"
        script = (
            "trap 'echo ended > $NOTE; exit' TERM;"
            "exec 3<&0;"
            '"$1" "$2" <&3 3<&- & exec 3<&-;'
            "while true; do sleep 60 & wait $!; done"
        )
        spec = server_spec(
            VariantKey("x"),
            "stdio",
            command="sh",
            args=("-c", script, "sh", sys.executable, part(bench.stdio("nosy")).args[0]),
            env={"NOTE": Value("literal", str(note))},
            sandbox=Sandbox(enabled=True, writable_paths=(str(tmp_path),)),
        )
        instance = await bench.start(spec)
        await instance.close()
        assert note.read_text() == "ended\n"

    async def test_a_missing_writable_path_is_named(self, bench: Bench) -> None:
        fault = await bench.fails(confined(bench, writable_paths=("/no/such/folder",)))
        assert fault.metadata["problem"] == "SANDBOX_PATH_MISSING"
        assert "/no/such/folder" in fault.message


async def test_a_server_never_runs_without_its_configured_sandbox(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fault = await bench.fails(touching(tmp_path), environment={"PATH": os.defpath})
    assert fault.metadata["problem"] == "SANDBOX_NOT_AVAILABLE"
    assert "Install the package bubblewrap" in fault.message
    assert not (tmp_path / "ran").exists()


async def test_the_error_of_a_failed_sandbox_quotes_bubblewrap(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"
    fake_bwrap(tmp_path, monkeypatch, refusal)
    fault = await bench.fails(touching(tmp_path))
    assert fault.metadata["problem"] == "SANDBOX_NOT_AVAILABLE"
    assert (
        "bwrap: No permissions to create new namespace. Allow the worker to create" in fault.message
    )
    assert not (tmp_path / "ran").exists()


async def test_a_killed_check_is_retried_once(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = f"[ -e {tmp_path}/first ] || {{ : >{tmp_path}/first; kill -SEGV $$; }}; exit 3"
    fake_bwrap(tmp_path, monkeypatch, killed)
    fault = await bench.fails(touching(tmp_path))
    assert "bwrap exited with status 3. Allow the worker to create" in fault.message


async def test_a_check_killed_twice_names_the_signal_and_no_namespaces(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(tmp_path, monkeypatch, "kill -SEGV $$")
    fault = await bench.fails(touching(tmp_path))
    assert fault.metadata["problem"] == "SANDBOX_NOT_AVAILABLE"
    assert "bwrap was killed by SIGSEGV, twice." in fault.message
    assert "namespace" not in fault.message


async def test_a_cancelled_check_kills_its_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    check = asyncio.create_task(
        run_check(["/bin/sh", "-c", f"echo $$ >{note}.new; mv {note}.new {note}; exec sleep 60"])
    )
    async with asyncio.timeout(BOUND):
        while not note.exists():
            await asyncio.sleep(0.005)
        check.cancel()
        with pytest.raises(asyncio.CancelledError):
            await check
    assert not is_alive(int(note.read_text()))


async def test_checks_do_not_run_grpcs_fork_handlers() -> None:
    checks = str(Path(__file__).parent / "checks_on_uvloop.py")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, checks, "60", "/bin/sh", "-c", "exit 7"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # Fork handlers are on and logged, so that each call of them shows.
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "INFO"},
    )
    assert done.stdout == "{CheckResult(status=7, stderr='')}\n", done.stderr
    assert "fork" not in done.stderr


def fake_bwrap(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake = folder / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def touching(folder: Path) -> ServerSpec:
    return server_spec(
        VariantKey("x"),
        "stdio",
        command="touch",
        args=(str(folder / "ran"),),
        sandbox=Sandbox(enabled=True, writable_paths=(str(folder),)),
    )


def processes_in_sandbox(bwrap: int) -> list[int]:
    """Return bubblewrap and all processes in its sandbox, by PID namespace."""
    namespaces = [Path(f"/proc/{pid}/ns/pid").readlink() for pid in children(bwrap)]
    found = [bwrap]
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "ns" / "pid").readlink() in namespaces:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_folders_for_data_are_empty_except_for_allowed_paths() -> None:
    permissions = Permissions(
        allowed_paths=("/srv/files", "reports", "/mnt", "/", "/tmp"),
        denied_paths=("/srv/files/private", ".env"),
    )
    found = permitted_paths(permissions, "/home/ann")
    assert found.writable == ("/srv/files", "/home/ann/reports", "/mnt")
    assert found.private == ("/home", "/root", "/srv", "/media", "/data")
    assert {"/srv/files/private", "/srv/files/.env", "/home/ann/.env"} <= set(found.hidden)
    readable = permitted_paths(replace(permissions, write=False), "/home/ann")
    assert (readable.readable, readable.writable) == (found.writable, ())
    assert permitted_paths(Permissions(denied_paths=(".env",)), "/srv") == Paths(
        hidden=("/srv/.env",)
    )


def test_a_servers_own_folders_are_not_hidden_as_another_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative folders start at the worker's

    def server(name: str, cwd: str = "", *writable: str) -> ServerSpec:
        sandbox = Sandbox(enabled=True, writable_paths=writable)
        return server_spec(VariantKey(name), "stdio", command="x", cwd=cwd, sandbox=sandbox)

    spec = server("own", "/srv/own", "/data/shared")
    others = [
        spec,
        server("a", "/srv/a", "/data/shared/part", "/data/shared"),
        server("around", "/srv"),
        server("program", "/opt/tool"),
        server("script", "/data/scripts/deep"),
        server("system", "/usr/lib/x", "/", "/etc", "/var"),
        server("homes", "/home/ann", str(Path.home())),
        server("home", "/home/ann/project", "relative"),
    ]
    command = ("/opt/tool/bin/run", "/data/scripts/deep/main.py")
    named = [path for other in others for path in other.named_folders]
    named += ["${DATA}/b", "${UNSET}", "/srv/memory/${tenant}-${session}/x", "private"]
    found = Surroundings({"DATA": "/data/x"}, tuple(named))
    assert set(other_servers_folders(spec, command, "/srv/own", found)) == {
        "/data/x/b",
        "/home/ann/project",
        "/srv/a",
        "/srv/memory",
        str(tmp_path / "relative"),
    }


def test_a_folder_that_two_servers_share_by_a_link_is_hidden_from_neither(
    visible_folder: Path,
) -> None:
    real, link = str(visible_folder / "real"), str(visible_folder / "link")
    Path(real).mkdir()
    Path(link).symlink_to(real)
    for own, other in ((real, link), (link, real)):
        sandbox = Sandbox(enabled=True, writable_paths=(own,))
        spec = server_spec(VariantKey("own"), "stdio", command="x", sandbox=sandbox)
        around = Surroundings({}, (own, other))
        assert other_servers_folders(spec, ("/usr/bin/x",), "/", around) == ()
