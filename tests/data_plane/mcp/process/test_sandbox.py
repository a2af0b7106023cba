"""What a sandboxed server can reach, with the real bubblewrap."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.mcp.process.sandbox.mounts import Paths, of_others, permitted
from leaseway.data_plane.mcp.process.sandbox.trial import try_command
from leaseway.data_plane.mcp.transports import stdio
from leaseway.spec.model import Limits, Sandbox, ServerSpec, Value, VariantKey
from leaseway.spec.permissions import Permissions
from leaseway.spec.policy import ServerPolicy

if TYPE_CHECKING:
    from tests.data_plane.mcp.conftest import Bench

pytestmark = pytest.mark.usefixtures("leak_guard")
HOME = Path(__file__).parent
"""A folder that is not below /tmp, which is private in a sandbox."""


def confined(bench: Bench, **sandbox: Any) -> ServerSpec:
    return bench.stdio("nosy", sandbox=Sandbox(enabled=True, **sandbox))


async def ask(bench: Bench, spec: ServerSpec, tool: str, **arguments: Any) -> Any:
    """Return what a tool of a fresh instance says."""
    instance = await bench.start(spec)
    try:
        return json.loads(await bench.text(instance, tool, arguments))
    finally:
        await instance.close()


@pytest.mark.usefixtures("bwrap")
class TestWithBubblewrap:
    """A sandbox can be made here."""

    async def test_the_network_is_out_of_reach_unless_allowed(self, bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            closed = await ask(bench, confined(bench), "connect", port=port)
            opened = await ask(bench, confined(bench, network=True), "connect", port=port)
        assert (closed, opened) == ("ConnectionRefusedError", "connected")

    async def test_nothing_outside_can_be_written(self, bench: Bench) -> None:
        target = HOME / "written-by-a-sandboxed-server"
        assert await ask(bench, confined(bench), "write", path=str(target)) == "OSError"
        assert not target.exists()

    async def test_a_listed_path_can_be_written_and_is_the_real_one(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        spec = confined(bench, writable_paths=(str(tmp_path),))
        assert await ask(bench, spec, "write", path=str(tmp_path / "a")) == len("written")
        assert (tmp_path / "a").read_text() == "written"

    async def test_permissions_say_what_can_be_read_and_written(
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

    async def test_it_starts_in_its_folder_wherever_that_is(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        (tmp_path / "marker").write_text("here")  # below /tmp, which it else does not see
        for spec in (confined(bench), bench.stdio("nosy")):
            spec = replace(spec, cwd=str(tmp_path))
            assert await ask(bench, spec, "read", path="marker") == "here"

    async def test_a_folder_that_is_not_there_is_named(self, bench: Bench, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing")
        for spec in (confined(bench), bench.stdio("nosy")):
            fault = await bench.fails(replace(spec, cwd=missing))
            assert f"its 'cwd' {missing!r} is no folder on this worker" in fault.message

    async def test_its_tmp_is_its_own(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("x")
        instance = await bench.start(confined(bench))
        seen = await bench.text(instance, "exists", {"path": str(tmp_path / "secret")})
        await bench.text(instance, "write", {"path": "/tmp/by-the-server"})
        read = await bench.text(instance, "read", {"path": "/tmp/by-the-server"})
        assert (json.loads(seen), json.loads(read)) == (False, "written")
        assert not Path("/tmp/by-the-server").exists()

    async def test_what_its_command_line_names_below_tmp_is_there_to_read(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        server = tmp_path / "code" / "server.py"
        server.parent.mkdir()
        shutil.copy(bench.stdio("nosy").args[0], server)
        spec = ServerSpec(
            VariantKey("x"),
            "stdio",
            command=sys.executable,
            args=(str(server),),
            sandbox=Sandbox(enabled=True),
        )
        assert await ask(bench, spec, "exists", path=str(server)) is True
        assert await ask(bench, spec, "write", path=str(server)) == "OSError"

    async def test_other_processes_and_rights_are_out_of_sight(self, bench: Bench) -> None:
        instance = await bench.start(confined(bench))
        seen = json.loads(await bench.text(instance, "processes"))
        status = json.loads(await bench.text(instance, "status"))
        assert os.getpid() not in seen
        assert len(seen) <= 3
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0

    async def test_leaseways_own_secrets_are_masked_also_where_it_may_write(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, elsewhere, plain = (
            tmp_path / name for name in (".leaseway/vault.key", "tls.key", "plain.txt")
        )
        own.parent.mkdir()
        for path in (own, elsewhere, plain):
            path.write_text("content")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("LEASEWAY_TLS_KEY", str(elsewhere))
        spec = confined(bench, writable_paths=(str(tmp_path),))
        assert await ask(bench, spec, "exists", path=str(own)) is False
        assert await ask(bench, spec, "read", path=str(elsewhere)) in ("", "PermissionError")
        assert await ask(bench, spec, "read", path=str(plain)) == "content"
        assert elsewhere.read_text() == "content"

    async def test_folders_of_other_servers_are_out_of_reach(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        for name in ("own", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "note").write_text("kept")
        sandbox = Sandbox(enabled=True)  # what its command line names below /tmp, it sees
        spec = bench.stdio("nosy", str(tmp_path), sandbox=sandbox, cwd=str(tmp_path / "own"))
        other = replace(bench.stdio("other"), cwd=str(tmp_path / "other"))
        found = []
        for bench.served in ([spec], [spec, other]):
            asked = ("note", "../other/note")
            found += [await ask(bench, spec, "read", path=path) for path in asked]
        assert found == ["kept", "kept", "kept", "FileNotFoundError"]

    async def test_sockets_in_run_are_out_of_reach(self, bench: Bench) -> None:
        path = Path("/run") / f"leaseway-test-{os.getpid()}.sock"
        if not os.access("/run", os.W_OK):
            pytest.skip("/run can't be written by this user.")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            try:
                found = await ask(bench, confined(bench), "connect_to", path=str(path))
            finally:
                path.unlink()
        assert found == "FileNotFoundError"

    async def test_it_has_three_descriptors_and_no_more(self, bench: Bench) -> None:
        others = [await bench.start(bench.stdio("nosy")) for _ in range(3)]
        assert await ask(bench, confined(bench), "descriptors") == [0, 1, 2]
        limited = bench.stdio("nosy", sandbox=Sandbox(enabled=True), limits=Limits(open_files=64))
        assert await ask(bench, limited, "descriptors") == [0, 1, 2]
        assert all(other.state == "ready" for other in others)

    async def test_values_of_variables_arrive_and_show_in_no_command_line(
        self, bench: Bench
    ) -> None:
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

    async def test_exit_status_and_last_words_come_through(self, bench: Bench) -> None:
        instance = await bench.start(confined(bench))
        fault = (await bench.call(instance, "exit", {"status": 9})).fault
        assert fault is not None
        assert fault.metadata["exit_status"] == "9"
        assert fault.metadata["stderr"] == "going now"

    async def test_limits_hold_inside(self, bench: Bench) -> None:
        spec = bench.stdio("nosy", sandbox=Sandbox(enabled=True), limits=Limits(open_files=40))
        assert (await ask(bench, spec, "limits"))["open_files"] == [40, 40]
        assert await ask(bench, spec, "open_files", count=50) == "OSError"

    async def test_nothing_that_it_started_outlives_it(self, bench: Bench) -> None:
        for how in ("plain", "session", "orphan"):
            instance = await bench.start(confined(bench))
            await bench.text(instance, "spawn", {"how": how, "count": 2})
            inside = inhabitants(instance.pid or 0)
            assert len(inside) >= 4
            await instance.close()
            await gone(*inside)

    async def test_a_killed_keeper_takes_the_server_with_it(self, bench: Bench) -> None:
        instance = await bench.start(confined(bench))
        await bench.text(instance, "spawn", {"how": "orphan"})
        inside = inhabitants(instance.pid or 0)
        os.kill(instance.pid or 0, signal.SIGKILL)
        await gone(*inside)
        async with asyncio.timeout(BOUND):
            closed, fault = await bench.closed.get()
        assert closed is instance
        assert fault is not None
        assert fault.metadata["exit_status"] == "-9"

    async def test_a_server_that_ends_on_sigterm_gets_its_time(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stdio, "PATIENCE", 6.0)
        note = tmp_path / "note"
        script = (
            "trap 'echo ended > $NOTE; exit' TERM;"
            "exec 3<&0;"
            '"$1" "$2" <&3 3<&- & exec 3<&-;'
            "while true; do sleep 60 & wait $!; done"
        )
        spec = ServerSpec(
            VariantKey("x"),
            "stdio",
            command="sh",
            args=("-c", script, "sh", sys.executable, bench.stdio("nosy").args[0]),
            env={"NOTE": Value("literal", str(note))},
            sandbox=Sandbox(enabled=True, writable_paths=(str(tmp_path),)),
        )
        instance = await bench.start(spec)
        await instance.close()
        assert note.read_text() == "ended\n"

    async def test_a_writable_path_that_is_not_there_is_named(self, bench: Bench) -> None:
        fault = await bench.fails(confined(bench, writable_paths=("/no/such/folder",)))
        assert fault.metadata["problem"] == "SANDBOX_PATH_MISSING"
        assert "/no/such/folder" in fault.message

    async def test_a_command_that_is_not_there_is_named(self, bench: Bench) -> None:
        spec = ServerSpec(
            VariantKey("x"), "stdio", command="no-such-command", sandbox=Sandbox(enabled=True)
        )
        fault = await bench.fails(spec)
        assert fault.metadata["problem"] == "COMMAND_NOT_FOUND"
        assert "no-such-command" in fault.message


async def test_a_server_is_never_run_without_the_sandbox_that_it_wants(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fault = await bench.fails(touching(tmp_path), environment={"PATH": os.defpath})
    assert fault.metadata["problem"] == "SANDBOX_NOT_AVAILABLE"
    assert "Install the package bubblewrap" in fault.message
    assert not (tmp_path / "ran").exists()


async def test_why_a_sandbox_cannot_be_made_is_said_in_bubblewraps_words(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"
    pretend_bwrap(tmp_path, monkeypatch, refusal)
    fault = await bench.fails(touching(tmp_path))
    assert fault.metadata["problem"] == "SANDBOX_NOT_AVAILABLE"
    assert "bwrap: No permissions to create new namespace. Let the worker create" in fault.message
    assert not (tmp_path / "ran").exists()


async def test_a_trial_that_was_killed_is_tried_once_more(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = f"[ -e {tmp_path}/first ] || {{ : >{tmp_path}/first; kill -SEGV $$; }}; exit 3"
    pretend_bwrap(tmp_path, monkeypatch, killed)
    fault = await bench.fails(touching(tmp_path))
    assert "bwrap ended with status 3. Let the worker create" in fault.message


async def test_a_trial_that_was_killed_twice_says_by_what_and_blames_no_namespaces(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_bwrap(tmp_path, monkeypatch, "kill -SEGV $$")
    fault = await bench.fails(touching(tmp_path))
    assert fault.metadata["problem"] == "SANDBOX_NOT_AVAILABLE"
    assert "bwrap was killed by SIGSEGV, twice." in fault.message
    assert "namespace" not in fault.message


async def test_a_trial_ends_with_whoever_asked_for_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    trial = asyncio.create_task(
        try_command(["/bin/sh", "-c", f"echo $$ >{note}.new; mv {note}.new {note}; exec sleep 60"])
    )
    async with asyncio.timeout(BOUND):
        while not note.exists():
            await asyncio.sleep(0.005)
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial
    assert not alive(int(note.read_text()))


async def test_no_trial_runs_what_grpc_registered_for_a_fork() -> None:
    trials = str(Path(__file__).parent / "trials_on_uvloop.py")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, trials, "60", "/bin/sh", "-c", "exit 7"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # With its handlers on and its words let through, each of its forks would show.
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "INFO"},
    )
    assert done.stdout == "{CheckResult(status=7, words='')}\n", done.stderr
    assert "fork" not in done.stderr


def pretend_bwrap(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake = folder / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def touching(folder: Path) -> ServerSpec:
    return ServerSpec(
        VariantKey("x"),
        "stdio",
        command="touch",
        args=(str(folder / "ran"),),
        sandbox=Sandbox(enabled=True, writable_paths=(str(folder),)),
    )


def inhabitants(keeper: int) -> list[int]:
    """Return a sandbox's keeper and all that runs in it, also what left its tree."""
    space = [Path(f"/proc/{pid}/ns/pid").readlink() for pid in children(keeper)]
    found = [keeper]
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "ns" / "pid").readlink() in space:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def gone(*pids: int) -> None:
    async with asyncio.timeout(BOUND):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_with_allowed_paths_the_places_of_data_are_empty_but_for_these() -> None:
    permissions = Permissions(
        allowed_paths=("/srv/files", "reports", "/mnt", "/", "/tmp"),
        denied_paths=("/srv/files/private", ".env"),
    )
    found = permitted(permissions, "/home/ann")
    assert found.writable == ("/srv/files", "/home/ann/reports", "/mnt")
    assert found.private == ("/home", "/root", "/srv", "/media", "/data")
    assert {"/srv/files/private", "/srv/files/.env", "/home/ann/.env"} <= set(found.hidden)
    readable = permitted(replace(permissions, write=False), "/home/ann")
    assert (readable.readable, readable.writable) == (found.writable, ())
    assert permitted(Permissions(denied_paths=(".env",)), "/srv") == Paths(hidden=("/srv/.env",))


def test_what_a_server_was_given_itself_is_not_masked_as_another_ones() -> None:
    def server(name: str, cwd: str = "", *writable: str) -> ServerSpec:
        sandbox = Sandbox(enabled=True, writable_paths=writable)
        return ServerSpec(VariantKey(name), "stdio", command="x", cwd=cwd, sandbox=sandbox)

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
    assert of_others(spec, command, "/srv/own", others) == ("/home/ann/project", "/srv/a")
