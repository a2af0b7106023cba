"""Many processes at once, and starts that the machine refuses."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.conftest import BOUND, descendants
from tests.data_plane.mcp.conftest import SERVERS, Bench, until

from leaseway.data_plane.kinds.process import process as module
from leaseway.data_plane.kinds.process import stdio
from leaseway.data_plane.kinds.process.launch import Launch
from leaseway.data_plane.kinds.process.process import ServerProcess, pipe_for_loop
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.data_plane.kinds.process.spawner import Spawner
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Fault

pytestmark = pytest.mark.usefixtures("leak_guard")
STUBBORN = "trap '' TERM; sh \"$1\"; while :; do sleep 600; done"


def stubborn() -> ServerSpec:
    """Return a cheap server that ignores SIGTERM and the end of its input."""
    args = ("-c", STUBBORN, "sh", str(SERVERS / "tiny.sh"))
    return server_spec(VariantKey("stubborn"), "stdio", command="sh", args=args, protocol="legacy")


async def close_all(instances: list[Instance]) -> None:
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(instance.close() for instance in instances))


def in_use() -> set[str]:
    """Describe the children, descriptors and threads of this process.

    Threads of the loop's executor, of the spawner and of gRPC are ignored: they outlive instances.
    """
    children = {f"child {pid}: {line}" for pid, line in descendants(os.getpid()).items()}
    descriptors: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
            descriptors.add(f"descriptor {entry.name}: {entry.readlink()}")
    # Threads of the loop's own executor stay, and it may start another; uvloop does not name them.
    others = ("asyncio_", "ThreadPoolExecutor-", "spawn", "Dummy-")
    threads = {
        thread.name for thread in threading.enumerate() if not thread.name.startswith(others)
    }
    return children | descriptors | {f"thread {name}" for name in threads}


async def nothing_leaks(before: set[str]) -> None:
    """Wait until nothing is in use that was not in use before."""
    try:
        await until(lambda: in_use() <= before)
    except TimeoutError:
        pytest.fail(f"Leaked: {in_use() - before}; in use before: {before}")


async def test_a_hundred_instances_are_closed_in_parallel_without_leaks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "STOP_GRACE", 1.0)
    await close_all([await bench.start(stubborn())])
    before = in_use()
    # Each takes 2 s: one after the other would exceed the bound.
    await close_all(await asyncio.gather(*(bench.start(stubborn()) for _ in range(100))))
    await nothing_leaks(before)


async def test_a_process_that_cannot_be_watched_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, flags: int = 0) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    before = in_use()
    with monkeypatch.context() as without:
        without.setattr(os, "pidfd_open", refuse)
        fault = await bench.fails(stubborn())
    assert fault.metadata["problem"] == "START_FAILED"
    assert fault.message.endswith("its process could not be watched: Too many open files.")
    await bench.instances[0].close()
    await nothing_leaks(before)


@contextlib.contextmanager
def hanging_when_executed(path: Path) -> Iterator[str]:
    """Make a program whose execution hangs: opening it waits for a file lease."""
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o700)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"This file system has no file leases: {error.strerror}.")
        yield str(path)
    finally:
        os.close(descriptor)


async def test_a_command_whose_execution_hangs_delays_no_other_start(
    bench: Bench, tmp_path: Path
) -> None:
    bench.reaper.spawner = Spawner(skip_after=0.1, timeout=0.5)
    await bench.start(stubborn())
    before = in_use()
    limits = resource.getrlimit(resource.RLIMIT_RTTIME)
    with hanging_when_executed(tmp_path / "server") as program:
        spec = server_spec(VariantKey("hangs"), "stdio", command=program)
        faults = [asyncio.create_task(bench.fails(spec)) for _ in range(2)]
        neighbour = await bench.start(stubborn())
        for fault in await asyncio.gather(*faults):
            assert fault.metadata["problem"] == "START_FAILED"
            assert f"executing its command {program!r} hangs" in fault.message
        assert resource.getrlimit(resource.RLIMIT_RTTIME) == limits
        await neighbour.close()
    # Both start late and are killed at once.
    await until(lambda: not any(program in line for line in descendants(os.getpid()).values()))
    for instance in bench.instances[1:]:
        await instance.close()
    await nothing_leaks(before)


async def test_servers_start_after_the_system_has_refused_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the limit of a user's or a container's processes."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "spawn":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        fault = await bench.fails(stubborn())
    assert "can't start new thread" in fault.message
    assert (await bench.start(stubborn())).state == "ready"


async def test_members_of_a_sandbox_are_found_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading all of /proc takes long if many processes run."""
    readers: list[threading.Thread] = []
    terminate = module._terminate_members

    def terminate_members(group: int) -> None:
        readers.append(threading.current_thread())
        terminate(group)

    monkeypatch.setattr(module, "_terminate_members", terminate_members)
    reaper = Reaper()
    launch = Launch(("sh", "-c", "sleep 600 & wait"), dict(os.environ), sandboxed=True)
    server = await ServerProcess.start("s", launch, StderrTail(), reaper)
    async with asyncio.timeout(BOUND):
        await server.stop(grace=0.05)
    assert readers
    assert threading.main_thread() not in readers
    server.stdin.close()
    server.stdout.close()
    await reaper.close()


async def test_the_kernel_kills_a_server_before_its_worker_if_memory_runs_out() -> None:
    def score(process: object) -> int:
        return int(Path(f"/proc/{process}/oom_score_adj").read_text())

    reaper = Reaper()
    server = await ServerProcess.start(
        "s", Launch(("cat",), dict(os.environ)), StderrTail(), reaper
    )
    assert score(server.pid) == min(score("self") + 300, 1000)
    server.stdin.close()
    async with asyncio.timeout(BOUND):
        await server.stop()
    server.stdout.close()
    await reaper.close()


async def test_a_stopped_reaper_is_replaced_and_never_blocks_the_worker() -> None:
    reaper = Reaper()
    first = reaper.pid
    os.kill(first, signal.SIGSTOP)
    for number in range(10_000):  # more than the pipe to it can buffer
        reaper.release(1_000_000_000 + number, reaper.mark())
    assert reaper.pid != first
    assert not Path(f"/proc/{first}").exists()
    await reaper.close()


class Immortal(subprocess.Popen[bytes]):
    """Imitates a process that hangs in the kernel and survives SIGKILL."""

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "A wait needs a timeout."
        assert timeout <= 0.05, "The wait blocks the loop."
        raise subprocess.TimeoutExpired(self.args, timeout)

    def poll(self) -> int | None:
        return None

    def end(self) -> None:
        super().kill()
        super().wait(BOUND)


async def test_a_reaper_that_survives_sigkill_is_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("leaseway.data_plane.kinds.process.reaper.subprocess.Popen", Immortal)
    monkeypatch.setattr("leaseway.data_plane.kinds.process.reaper._STOP_TIMEOUT", 0.01)
    reaper = Reaper()
    first = reaper._process
    reaper._restart("has exited")
    second = reaper._process
    assert second is not first
    await reaper.close()
    for process in (first, second):
        assert f"The reaper process {process.pid} survives SIGKILL" in caplog.text
        assert isinstance(process, Immortal)
        process.end()


async def test_a_server_that_survives_sigkill_does_not_block_its_failed_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Immortal] = []

    def refuse(_: int) -> NoReturn:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    def immortal(*args: Any, **options: Any) -> Immortal:
        started.append(Immortal(*args, **options))
        return started[0]

    reaper = Reaper()
    monkeypatch.setattr(reaper, "register", refuse)
    monkeypatch.setattr("leaseway.data_plane.kinds.process.process.subprocess.Popen", immortal)
    launch = Launch(("sleep", "600"), dict(os.environ))
    with pytest.raises(Fault, match="could not be watched"):
        await ServerProcess.start("s", launch, StderrTail(), reaper)
    await until(lambda: f"Process {started[0].pid} of the server s survives SIGKILL" in caplog.text)
    started[0].end()
    await reaper.close()


class Exited(subprocess.Popen[bytes]):
    """A process that has exited before its parent writes to it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("started_as", [subprocess.Popen, Exited])
async def test_a_reaper_that_always_dies_is_restarted_once_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started_as: type[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", started_as)
    dying = tmp_path / "dying.py"
    dying.write_text("")
    monkeypatch.setattr("leaseway.data_plane.kinds.process.reaper._PROGRAM", dying)
    seen: set[int] = set()
    reaper = Reaper()
    started = time.monotonic()

    def three() -> bool:
        seen.add(reaper.pid)
        return len(seen) == 3

    await until(three)
    assert time.monotonic() - started > 0.9
    await reaper.close()


async def test_no_server_runs_without_a_reaper(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> NoReturn:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    running = await bench.start(stubborn())
    with monkeypatch.context() as without:
        without.setattr(bench.reaper, "_start", refuse)
        os.kill(bench.reaper.pid, signal.SIGKILL)
        await until(lambda: "can't be started" in caplog.text)
        fault = await bench.fails(stubborn())
        assert "could not be watched: Resource temporarily unavailable" in fault.message
        await running.close()
    assert await bench.start(stubborn())


async def test_a_reaper_inherits_no_descriptors() -> None:
    with Path(__file__).open():
        reaper = Reaper()
        folder = Path(f"/proc/{reaper.pid}/fd")
        await until(lambda: {entry.name for entry in folder.iterdir()} == {"0", "1", "2"})
        await reaper.close()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_pipe_handed_to_uvloop_is_closed_once(cancelled: bool) -> None:
    """A second close would close a file that reuses the descriptor."""
    uvloop = pytest.importorskip("uvloop")

    async def open_and_close() -> None:
        reader, writer = os.pipe()
        given = os.fdopen(reader, "rb", buffering=0)
        end = pipe_for_loop(given)
        number = end.fileno()
        opening = asyncio.ensure_future(
            asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, end)
        )
        if cancelled:
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
        else:
            (await opening)[0].close()
        await until(lambda: not is_open(number))
        os.dup2(writer, number)
        given.close()
        end.close()
        del given, end, opening
        gc.collect()
        assert is_open(number)
        os.close(number)
        os.close(writer)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(open_and_close())


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
