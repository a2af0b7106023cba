"""Starting and ending processes, in numbers and where the machine has no more to give."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from tests.conftest import BOUND, descendants
from tests.data_plane.mcp.conftest import SERVERS

from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.process import process
from leaseway.data_plane.mcp.process.launch import Launch
from leaseway.data_plane.mcp.process.process import ServerProcess, handed_over
from leaseway.data_plane.mcp.process.reaper import Reaper
from leaseway.data_plane.mcp.process.spawner import Spawner
from leaseway.data_plane.mcp.process.stderr import StderrTail
from leaseway.data_plane.mcp.transports import stdio
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Fault

if TYPE_CHECKING:
    from tests.data_plane.mcp.conftest import Bench

pytestmark = pytest.mark.usefixtures("leak_guard")
STUBBORN = "trap '' TERM; sh \"$1\"; while :; do sleep 600; done"


def stubborn() -> ServerSpec:
    """Return a cheap server that ignores the end of its input and SIGTERM."""
    args = ("-c", STUBBORN, "sh", str(SERVERS / "tiny.sh"))
    return ServerSpec(VariantKey("stubborn"), "stdio", command="sh", args=args, protocol="legacy")


async def close_all(instances: list[Instance]) -> None:
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(instance.close() for instance in instances))


def in_use() -> set[str]:
    """Return the children, descriptors and threads of this process, each by what it is.

    Idle threads of the loop's default executor are nobody's, those that start processes live as
    long as the worker, and those that Python did not start are gRPC's.
    """
    children = {f"child {pid}: {line}" for pid, line in descendants(os.getpid()).items()}
    descriptors: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # what listed the folder is in it, too
            descriptors.add(f"descriptor {entry.name}: {entry.readlink()}")
    others = ("asyncio_", "spawn", "Dummy-")
    threads = {each.name for each in threading.enumerate() if not each.name.startswith(others)}
    return children | descriptors | {f"thread {name}" for name in threads}


async def nothing_is_left(before: set[str]) -> None:
    """Wait until nothing is in use that was not before; what was there before may have gone."""
    try:
        await until(lambda: in_use() <= before)
    except TimeoutError:
        pytest.fail(f"In use by now: {in_use() - before}, beside what was: {before}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_hundred_are_closed_side_by_side_and_leave_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "PATIENCE", 1.0)
    await close_all([await bench.start(stubborn())])
    before = in_use()
    # Each takes 2 s: one after the other, they would not be done in time.
    await close_all(await asyncio.gather(*(bench.start(stubborn()) for _ in range(100))))
    await nothing_is_left(before)


async def test_a_process_that_cannot_be_watched_is_not_left_running(
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
    await nothing_is_left(before)


@contextlib.contextmanager
def hanging_when_executed(path: Path) -> Iterator[str]:
    """Make a program whose execution hangs until the end: whoever opens it waits for a lease."""
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o700)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"This file system knows no leases of files: {error.strerror}.")
        yield str(path)
    finally:
        os.close(descriptor)


async def test_a_command_whose_execution_hangs_holds_up_itself_only(
    bench: Bench, tmp_path: Path
) -> None:
    bench.reaper.spawner = Spawner(patience=0.1, timeout=0.5)
    await bench.start(stubborn())
    before = in_use()
    limits = resource.getrlimit(resource.RLIMIT_RTTIME)
    with hanging_when_executed(tmp_path / "server") as program:
        spec = ServerSpec(VariantKey("hangs"), "stdio", command=program)
        faults = [asyncio.create_task(bench.fails(spec)) for _ in range(2)]
        neighbour = await bench.start(stubborn())
        for fault in await asyncio.gather(*faults):
            assert fault.metadata["problem"] == "START_FAILED"
            assert f"executing its command {program!r} hangs" in fault.message
        assert resource.getrlimit(resource.RLIMIT_RTTIME) == limits
        await neighbour.close()
    # Both are started after all, and ended: nobody wants them any more.
    await until(lambda: not any(program in line for line in descendants(os.getpid()).values()))
    for instance in bench.instances[1:]:
        await instance.close()
    await nothing_is_left(before)


async def test_the_members_of_a_sandbox_are_found_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of /proc is read for it, which takes long where much runs."""
    readers: list[threading.Thread] = []
    real = process._members

    def members(group: int) -> list[int]:
        readers.append(threading.current_thread())
        return real(group)

    monkeypatch.setattr(process, "_members", members)
    reaper = Reaper()
    launch = Launch(("sh", "-c", "sleep 600 & wait"), dict(os.environ), sandboxed=True)
    server = await ServerProcess.start("s", launch, StderrTail(), reaper)
    async with asyncio.timeout(BOUND):
        await server.stop(patience=0.05)
    assert readers
    assert threading.main_thread() not in readers
    server.stdin.close()
    server.stdout.close()
    await reaper.close()


async def test_a_reaper_that_stands_still_holds_up_nobody() -> None:
    reaper = Reaper()
    first = reaper.pid
    os.kill(first, signal.SIGSTOP)
    for number in range(10_000):  # of which the pipe to it takes a part only
        reaper.release(1_000_000_000 + number, reaper.mark())
    assert reaper.pid != first
    assert not Path(f"/proc/{first}").exists()
    await reaper.close()


class Immortal(subprocess.Popen[bytes]):
    """Hangs in the kernel: SIGKILL comes to it later, and whoever waits for it waits."""

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "Nobody may wait for it for ever."
        assert timeout <= 0.05, "The loop waits meanwhile."
        raise subprocess.TimeoutExpired(self.args, timeout)

    def poll(self) -> int | None:
        return None

    def end(self) -> None:
        super().kill()
        super().wait(BOUND)


async def test_a_reaper_that_can_not_be_killed_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("leaseway.data_plane.mcp.process.reaper.subprocess.Popen", Immortal)
    monkeypatch.setattr("leaseway.data_plane.mcp.process.reaper._END_TIMEOUT", 0.01)
    reaper = Reaper()
    first = reaper._process
    reaper._replace("is gone")
    second = reaper._process
    assert second is not first
    await reaper.close()
    for left in (first, second):
        assert f"The reaper process {left.pid} survives SIGKILL" in caplog.text
        assert isinstance(left, Immortal)
        left.end()


async def test_a_server_that_can_not_be_killed_does_not_hold_up_who_refuses_it(
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
    monkeypatch.setattr("leaseway.data_plane.mcp.process.process.subprocess.Popen", immortal)
    launch = Launch(("sleep", "600"), dict(os.environ))
    with pytest.raises(Fault, match="could not be watched"):
        await ServerProcess.start("s", launch, StderrTail(), reaper)
    async with asyncio.timeout(BOUND):
        while f"Process {started[0].pid} of the server s survives SIGKILL" not in caplog.text:
            await asyncio.sleep(0.01)
    started[0].end()
    await reaper.close()


async def test_a_reaper_that_was_killed_is_replaced_at_once() -> None:
    reaper = Reaper()
    first = reaper.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: reaper.pid != first)
    assert reaper.pid in descendants(os.getpid())
    await reaper.close()
    assert reaper.pid not in descendants(os.getpid())


class Ended(subprocess.Popen[bytes]):
    """A process that has ended before its parent can tell it anything."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("started_as", [subprocess.Popen, Ended])
async def test_a_reaper_that_cannot_live_here_is_not_started_over_and_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started_as: type[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", started_as)
    dying = tmp_path / "dying.py"
    dying.write_text("")
    monkeypatch.setattr("leaseway.data_plane.mcp.process.reaper._PROGRAM", dying)
    seen: set[int] = set()
    reaper = Reaper()
    began = time.monotonic()

    def three() -> bool:
        seen.add(reaper.pid)
        return len(seen) == 3

    await until(three)
    assert time.monotonic() - began > 0.9
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


async def test_a_reaper_inherits_nothing() -> None:
    with Path(__file__).open():
        reaper = Reaper()
        folder = Path(f"/proc/{reaper.pid}/fd")
        await until(lambda: {entry.name for entry in folder.iterdir()} == {"0", "1", "2"})
        await reaper.close()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_pipe_that_uvloop_got_is_closed_once(cancelled: bool) -> None:
    """A number that is closed again is by then that of what somebody else has opened."""
    uvloop = pytest.importorskip("uvloop")

    async def opened_and_closed() -> None:
        reader, writer = os.pipe()
        given = os.fdopen(reader, "rb", buffering=0)
        end = handed_over(given)
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
        async with asyncio.timeout(BOUND):
            while is_open(number):
                await asyncio.sleep(0.001)
        os.dup2(writer, number)
        given.close()
        end.close()
        del given, end, opening
        gc.collect()
        assert is_open(number)
        os.close(number)
        os.close(writer)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(opened_and_closed())


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
