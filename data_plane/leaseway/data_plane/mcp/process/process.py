"""One server's process: started in a group of its own, and ended with all its children.

The exit is seen through a process descriptor, and the process stays a zombie until its group is
dead: so long its id can't be reused, and killing the group can't hit a stranger.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Final

from leaseway.data_plane.background import shielded
from leaseway.data_plane.mcp.process.exit_status import describe_container, describe_status
from leaseway.data_plane.mcp.process.launch import Launch, command_fault
from leaseway.data_plane.mcp.process.reaper import MARK_VARIABLE, Reaper, reap_killed
from leaseway.data_plane.mcp.process.spawner import SpawnHangsError
from leaseway.data_plane.mcp.process.stderr import StderrTail
from leaseway.wire.bounds import MIB
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_LOOKS: Final = 100
_BETWEEN_LOOKS: Final = 0.05
"""Seconds; what was killed and has not ended at once is looked at for 5 s."""
PATIENCE: Final = 2.0
"""Seconds from closing standard input to SIGTERM, and from there to SIGKILL."""

_REAP_TIMEOUT: Final = 5.0


class ServerProcess:
    """A started process with its three pipes; `start` makes one.

    Attributes:
        pid: Its id, which is also that of its group and session.
        exited: Its exit status, once it has ended; minus the signal that ended it.
        stderr_ended: Set when nothing more comes from its standard error.
        stdin: The end that we write to; `StdioTransport` attaches to it and closes it.
        stdout: The end that we read from; likewise. Closing it here as well would free its
            number under a transport that still watches it.
    """

    def __init__(
        self,
        server: str,
        launch: Launch,
        stderr: StderrTail,
        reaper: Reaper,
        started: tuple[subprocess.Popen[bytes], str],
    ) -> None:
        self._server = server
        self._launch = launch
        self._reaper = reaper
        self._popen, self._mark = started
        self._loop = asyncio.get_running_loop()
        self.pid = self._popen.pid
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.stdin: IO[bytes] = self._popen.stdin
        self.stdout: IO[bytes] = self._popen.stdout
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.stderr_ended = asyncio.Event()
        self._stderr = _StderrReader(stderr, self.stderr_ended)
        self._stderr_transport: asyncio.BaseTransport | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._dying: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, server: str, launch: Launch, stderr: StderrTail, reaper: Reaper
    ) -> ServerProcess:
        """Start a process.

        Args:
            server: The server's id, for messages.
            launch: What to start. Its cgroup is removed by `stop`, or here if nothing was started.
            stderr: Takes what the process writes to its standard error.
            reaper: Kills the process if this one can't.

        Raises:
            Fault: SERVER_NOT_READY with `problem` COMMAND_NOT_FOUND or START_FAILED.
        """
        mark = reaper.mark()

        def made(popen: subprocess.Popen[bytes]) -> ServerProcess:
            return cls(server, launch, stderr, reaper, (popen, mark))

        try:
            popen = await reaper.spawner.start(
                mark, lambda: _spawn(launch, mark), lambda late: made(late)._undo()
            )
        except (OSError, ValueError, SpawnHangsError, asyncio.CancelledError) as error:
            if launch.cgroup is not None:
                launch.cgroup.discard()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise _not_started(server, launch.command[0], error) from None
        process = made(popen)
        process._begin()
        return process

    def _begin(self) -> None:
        try:
            self._reaper.register(self.pid)
            self._watch()
        except BaseException as error:
            self._undo()
            if isinstance(error, OSError):
                text = f"its process could not be watched: {error.strerror}."
                raise _start_fault(self._server, text) from None
            raise

    async def open(self) -> None:
        """Begin to read its standard error, which must never fill up."""
        assert self._popen.stderr is not None
        self._stderr_transport, _ = await self._loop.connect_read_pipe(
            lambda: self._stderr, handed_over(self._popen.stderr)
        )

    async def stop(self, patience: float = PATIENCE) -> None:
        """End the process and everything in its group.

        Standard input must have been closed before: most servers end on that. What does not
        gets SIGTERM after `patience`, then SIGKILL. Runs to its end, within about 10 s, however
        often the caller is cancelled; a second call waits for the same end.
        """
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(patience))
        await shielded(self._stopping)

    async def _stop(self, patience: float) -> None:
        try:
            await self._ends_within(patience)
            await self._ask_to_end(patience)
            await self._ends_within(patience)
        finally:
            # Children in the group outlive a clean exit of their parent: they go now.
            self._kill()
            await self._reap()

    async def _ends_within(self, seconds: float) -> None:
        if not self.exited.done():
            await asyncio.wait([self.exited], timeout=seconds)

    async def _ask_to_end(self, patience: float) -> None:
        if self.exited.done():
            return
        with contextlib.suppress(OSError):
            if not self._launch.sandboxed:
                os.killpg(self.pid, signal.SIGTERM)
                return
        # A sandbox's keeper would die at once, and take the server with it unasked.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await asyncio.to_thread(_terminate_members, self.pid)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _reap(self) -> None:
        await self._ends_within(_REAP_TIMEOUT)
        if self._launch.container is not None:
            await self._launch.container.remove()
        if self._popen.poll() is None:
            self._say_it_survives()
        else:
            self._reaper.release(self.pid, self._mark)
        if self._stderr_transport is not None:
            self._stderr_transport.close()
        elif self._popen.stderr is not None:
            self._popen.stderr.close()
        cgroup = self._launch.cgroup
        if cgroup is not None and not await cgroup.remove():
            _logger.warning(
                "A cgroup of the server %s can't be removed yet; the reaper does it at the"
                " worker's end.",
                self._server,
            )

    def _say_it_survives(self) -> None:
        # It hangs in the kernel; the reaper keeps its group in mind.
        _logger.error("Process %s of the server %s survives SIGKILL.", self.pid, self._server)

    def _undo(self) -> None:
        """End what has just been started, and can't be kept."""
        self._kill()
        if reap_killed(self._popen):
            self._reaper.release(self.pid, self._mark)
        else:
            self._dying = self._loop.create_task(self._released_when_dead())
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()
        if self._launch.cgroup is not None:
            self._launch.cgroup.discard()
        if self._launch.container is not None:
            self._stopping = self._loop.create_task(self._launch.container.remove())

    async def _released_when_dead(self) -> None:
        for _ in range(_LOOKS):
            await asyncio.sleep(_BETWEEN_LOOKS)
            if self._popen.poll() is not None:
                self._reaper.release(self.pid, self._mark)
                return
        self._say_it_survives()

    def describe_exit(self) -> str:
        """Return how the process ended, as a part of a sentence; it has ended."""
        cgroup, most = self._launch.cgroup, self._launch.limits.memory_bytes
        container = self._launch.container
        if container is not None:
            return describe_container(self.exited.result(), container.image, most)
        ended = describe_status(self.exited.result())
        if cgroup is None or most is None or not cgroup.memory_kills:
            return ended
        return (
            f"{ended}: it used up its memory (limits.memory is {most / MIB:g} MiB), and the kernel"
            " killed it"
        )

    def _watch(self) -> None:
        if not hasattr(os, "pidfd_open"):
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
            return
        descriptor = os.pidfd_open(self.pid)

        def on_exit() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            status = 0 if info is None else info.si_status
            self._on_exit(status if info and info.si_code == os.CLD_EXITED else -status)

        self._loop.add_reader(descriptor, on_exit)

    def _wait_in_thread(self) -> None:
        status = self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_exit, status)

    def _on_exit(self, status: int) -> None:
        if not self.exited.done():
            self.exited.set_result(status)


def handed_over(pipe: IO[bytes]) -> IO[bytes]:
    """Return an end of a pipe as a running loop is to get it, so that it is closed once.

    uvloop closes the descriptor, and then the file object, whose number may by then be that of
    what another thread has opened; where it is cancelled meanwhile, the file object goes on to
    hold the number and closes it later. It gets a descriptor of its own, which no object closes.
    """
    if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        return pipe  # its transports close the object, and nothing else
    own = os.dup(pipe.fileno())
    mode = "wb" if pipe.writable() else "rb"
    pipe.close()
    return open(own, mode, buffering=0, closefd=False)


class _StderrReader(asyncio.Protocol):
    def __init__(self, tail: StderrTail, ended: asyncio.Event) -> None:
        self._tail = tail
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._tail.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


def _spawn(launch: Launch, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - starting configured commands is the purpose
        list(launch.command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**launch.environment, MARK_VARIABLE: mark},
        cwd=launch.cwd or None,
        bufsize=0,
        start_new_session=True,
    )


def _not_started(server: str, program: str, error: Exception) -> Fault:
    if isinstance(error, FileNotFoundError | PermissionError):
        return command_fault(server, program, error)
    if isinstance(error, SpawnHangsError):
        text = (
            f"executing its command {program!r} hangs. See whether the disk that it is on answers;"
            " the start is tried again."
        )
        return _start_fault(server, text)
    reason = getattr(error, "strerror", None) or str(error)
    return _start_fault(server, f"starting its command {program!r} failed: {reason}.")


def _terminate_members(group: int) -> None:
    """Send SIGTERM to a group but its leader; reads all of /proc, which is not for the loop."""
    for pid in _members(group):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def _members(group: int) -> list[int]:
    """Return the processes of a group but its leader (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(group):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    found.append(int(entry.name))
    return found


def _start_fault(server: str, text: str) -> Fault:
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: {text}",
        metadata={"server": server, "problem": "START_FAILED"},
    )
