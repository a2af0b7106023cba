"""One server's process: started in its own process group, and stopped with all its children.

The exit is seen through a pidfd. The process stays a zombie until its group has been killed: until
then its id can't be reused, so killing the group can't hit another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from leaseway.data_plane.background import LightEvent, shielded
from leaseway.data_plane.kinds.process.launch import Launch
from leaseway.data_plane.kinds.process.reaper import MARK_VARIABLE, Reaper, reap_killed
from leaseway.data_plane.kinds.process.spawner import SpawnHangsError
from leaseway.data_plane.mcp.failures import (
    command_fault,
    describe_container,
    describe_status,
    not_started,
)
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.wire.bounds import MIB
from leaseway.wire.channels import ancestors
from leaseway.wire.errors import Fault

_logger = logging.getLogger(__name__)
_POLLS: Final = 100
_POLL_INTERVAL: Final = 0.05
"""Seconds; a process that survives SIGKILL at first is polled for 5 s."""
STOP_GRACE: Final = 2.0
"""Seconds from closing standard input to SIGTERM, and from there to SIGKILL."""

_REAP_TIMEOUT: Final = 5.0
_OOM_MARGIN: Final = 300
"""Thousandths of all memory by which a server seems larger than it is when memory runs out."""


class ServerProcess:
    """A started process with its three pipes; created by `start`.

    Attributes:
        pid: Also the id of its process group and session.
        exited: Resolves to the exit status, or minus the signal that ended it.
        stderr_ended: Set at the end of its standard error.
        stdin: Our end of the pipe; `StdioTransport` attaches to it and closes it.
        stdout: Likewise. Closing it here as well would free its file descriptor while a transport
            still watches it.
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
        # The process has its environment: here, its secrets would stay as long as the process.
        self._launch = replace(launch, environment={})
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
        self.stderr_ended = LightEvent()
        self._stderr = _StderrReader(stderr, self.stderr_ended)
        self._stderr_transport: asyncio.BaseTransport | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._dying: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, server: str, launch: Launch, stderr: StderrTail, reaper: Reaper
    ) -> ServerProcess:
        """Start a process. If that fails, its cgroup is removed here, otherwise by `stop`.

        Raises:
            Fault: SERVER_NOT_READY with `problem` COMMAND_NOT_FOUND or START_FAILED.
        """
        mark = reaper.mark()

        def server_process(popen: subprocess.Popen[bytes]) -> ServerProcess:
            return cls(server, launch, stderr, reaper, (popen, mark))

        try:
            popen = await reaper.spawner.start(
                mark, partial(_spawn, launch, mark), lambda late: server_process(late)._abort()
            )
        except (OSError, ValueError, SpawnHangsError, asyncio.CancelledError) as error:
            if launch.cgroup is not None:
                launch.cgroup.remove_nowait()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise _spawn_fault(server, launch.command[0], error) from None
        process = server_process(popen)
        process._watch()
        return process

    def _watch(self) -> None:
        try:
            self._reaper.register(self.pid)
            self._watch_exit()
        except BaseException as error:
            self._abort()
            if isinstance(error, OSError):
                text = f"its process could not be watched: {error.strerror}."
                raise not_started(self._server, "START_FAILED", text) from None
            raise

    async def open(self) -> None:
        """Start reading its standard error, so that the pipe never fills up."""
        assert self._popen.stderr is not None
        self._stderr_transport, _ = await self._loop.connect_read_pipe(
            lambda: self._stderr, pipe_for_loop(self._popen.stderr)
        )

    async def stop(self, grace: float = STOP_GRACE) -> None:
        """Stop the process and its group. Idempotent.

        The caller must have closed standard input: most servers exit on that. The others get
        SIGTERM after `grace` seconds, then SIGKILL. Completes within about 10 s, even if the caller
        is cancelled.
        """
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(grace))
        await shielded(self._stopping)

    async def _stop(self, grace: float) -> None:
        try:
            await self._wait_exited(grace)
            await self._terminate(grace)
            await self._wait_exited(grace)
        finally:
            # Children in the group survive a clean exit of their parent: kill them.
            self._kill()
            await self._reap()

    async def _wait_exited(self, seconds: float) -> None:
        if not self.exited.done():
            await asyncio.wait([self.exited], timeout=seconds)

    async def _terminate(self, grace: float) -> None:
        if self.exited.done():
            return
        with contextlib.suppress(OSError):
            if not self._launch.sandboxed:
                os.killpg(self.pid, signal.SIGTERM)
                return
        # SIGTERM kills bubblewrap at once, and the server with it, without a chance to clean up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.to_thread(_terminate_members, self.pid)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _reap(self) -> None:
        await self._wait_exited(_REAP_TIMEOUT)
        if self._launch.container is not None:
            await self._launch.container.remove(self._popen.poll())
        if self._popen.poll() is None:
            self._log_survivor()
        else:
            self._reaper.release(self.pid, self._mark)
        if self._stderr_transport is not None:
            self._stderr_transport.close()
        elif self._popen.stderr is not None:
            self._popen.stderr.close()
        if self._launch.private is not None:
            await self._reaper.folders.remove(self._launch.private)
        cgroup = self._launch.cgroup
        if cgroup is not None and not await cgroup.remove():
            _logger.warning(
                "A cgroup of the server %s can't be removed yet; the reaper removes it when the"
                " worker exits.",
                self._server,
            )

    def _log_survivor(self) -> None:
        # It hangs in the kernel. Its group stays registered with the reaper.
        _logger.error("Process %s of the server %s survives SIGKILL.", self.pid, self._server)

    def _abort(self) -> None:
        """Kill a process right after its start."""
        self._kill()
        if reap_killed(self._popen):
            self._reaper.release(self.pid, self._mark)
        else:
            self._dying = self._loop.create_task(self._release_when_dead())
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()
        if self._launch.cgroup is not None:
            self._launch.cgroup.remove_nowait()
        if self._launch.container is not None:
            self._stopping = self._loop.create_task(self._launch.container.remove())

    async def _release_when_dead(self) -> None:
        for _ in range(_POLLS):
            await asyncio.sleep(_POLL_INTERVAL)
            if self._popen.poll() is not None:
                self._reaper.release(self.pid, self._mark)
                return
        self._log_survivor()

    def describe_exit(self) -> str:
        """Return how the process has ended, as a part of a sentence."""
        cgroup, memory_limit = self._launch.cgroup, self._launch.limits.memory_bytes
        container = self._launch.container
        if container is not None:
            return describe_container(self.exited.result(), container.image, memory_limit)
        ended = describe_status(self.exited.result())
        if cgroup is None or memory_limit is None or not cgroup.memory_kills:
            return ended
        return (
            f"{ended}: it used up its memory (limits.memory is {memory_limit / MIB:g} MiB), and the"
            " kernel killed it"
        )

    def _watch_exit(self) -> None:
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


def pipe_for_loop(pipe: IO[bytes]) -> IO[bytes]:
    """Return an end of a pipe to hand to the running loop, such that it is closed exactly once.

    uvloop closes the descriptor and then the file object, whose number another thread may have
    reused for a new file; if uvloop is cancelled, the file object keeps the number and closes it
    later. So uvloop gets a duplicate that no file object closes.
    """
    if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        return pipe  # asyncio's transports only close the file object
    own = os.dup(pipe.fileno())
    mode = "wb" if pipe.writable() else "rb"
    pipe.close()
    return open(own, mode, buffering=0, closefd=False)


class _StderrReader(asyncio.Protocol):
    def __init__(self, tail: StderrTail, ended: LightEvent) -> None:
        self._tail = tail
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._tail.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


def _spawn(launch: Launch, mark: str) -> subprocess.Popen[bytes]:
    popen = subprocess.Popen(  # noqa: S603 - starting configured commands is the purpose
        list(launch.command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**launch.environment, **ancestors.inherited(os.environ), MARK_VARIABLE: mark},
        cwd=launch.cwd or None,
        bufsize=0,
        start_new_session=True,
    )
    # If memory runs out, the kernel kills the largest process, which would be the worker.
    with contextlib.suppress(OSError):  # not Linux, or a program that changes its user
        own = int(Path("/proc/self/oom_score_adj").read_text())
        Path(f"/proc/{popen.pid}/oom_score_adj").write_text(str(min(own + _OOM_MARGIN, 1000)))
    return popen


def _spawn_fault(server: str, program: str, error: Exception) -> Fault:
    if isinstance(error, FileNotFoundError | PermissionError):
        return command_fault(server, program, error)
    if isinstance(error, SpawnHangsError):
        text = (
            f"executing its command {program!r} hangs. Check that its disk responds; the start is"
            " retried."
        )
    else:
        reason = getattr(error, "strerror", None) or str(error)
        text = f"starting its command {program!r} failed: {reason}."
    return not_started(server, "START_FAILED", text)


def _terminate_members(group: int) -> None:
    """Send SIGTERM to a process group except its leader. Reads all of /proc: not on the loop."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(group):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    os.kill(int(entry.name), signal.SIGTERM)
