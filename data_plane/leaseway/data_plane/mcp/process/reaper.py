"""Keeps servers from outliving their worker (DESIGN §9).

A worker that is killed can't clean up, so a small process of its own holds a pipe from it and
does it in its place; `reaper_main` is that process's program. It has its own session and ignores
SIGINT and SIGTERM: Ctrl-C on the worker must not take it first.

Where the two are killed together, the next worker of the same user on this machine does it: the
mark of each run is the name of a file that its worker holds a lock on, and one without a lock is
of a run that is over.

Waiting for a process that was killed, and for no longer than the loop can stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import itertools
import json
import logging
import math
import os
import re
import secrets
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leaseway.data_plane.mcp.process.cgroups import Cgroups
from leaseway.data_plane.mcp.process.containers import Containers
from leaseway.data_plane.mcp.process.spawner import Spawner

_AT_ONCE: Final = 0.03
"""Seconds that the loop may stand still; what was killed is mostly gone in a few milliseconds."""


def reap_killed(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a process after SIGKILL, for at most 30 ms; say whether it has ended.

    What has not is reaped by `subprocess` whenever it ends after all.
    """
    try:
        process.wait(_AT_ONCE)
    except subprocess.TimeoutExpired:
        return False
    return True


_logger = logging.getLogger(__name__)
MARK_VARIABLE: Final = "_LEASEWAY_MARK"
"""Set for every server's process; children inherit it wherever they go."""

_PROGRAM: Final = Path(__file__).with_name("reaper_main.py")
_END_TIMEOUT: Final = 5.0
_BETWEEN_DEATHS: Final = 1.0
"""Seconds after a replacement before which another death is not answered with the next one."""


_MOST_RUNS: Final = 1000


class _Run:
    """This run in the list of runs; there is none where its folder is not this user's alone.

    Attributes:
        over: The marks of runs whose workers are gone, taken off the list.
    """

    def __init__(self, token: str) -> None:
        self.over: list[str] = []
        self._path: Path | None = None
        self._lock = -1
        folder = Path(tempfile.gettempdir()) / f"leaseway-runs-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "it is not this user's folder")
            if found.st_mode & 0o077:
                raise PermissionError(errno.EPERM, "other users may read or write there")
            self.over = [*_runs_that_are_over(folder)]
            self._enter(folder, token)
        except OSError as error:
            _logger.warning(
                "What this worker starts is ended by its reaper alone, and by no later worker: %s"
                " cannot be used: %s.",
                folder,
                error.strerror,
            )

    def _enter(self, folder: Path, token: str) -> None:
        fresh = folder / f".{token}"  # not seen as a run before it is locked
        self._lock = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path = fresh.rename(folder / token)

    def leave(self) -> None:
        """Remove it from the list: nothing is left of it."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._path = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _runs_that_are_over(folder: Path) -> Iterator[str]:
    for path in itertools.islice(sorted(folder.iterdir()), _MOST_RUNS):
        if not re.fullmatch("[0-9a-f]{32}", path.name):
            continue
        with contextlib.suppress(OSError):  # its worker runs, or somebody else was faster
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                yield path.name
            finally:
                os.close(descriptor)


class Reaper:
    """The worker's side: tells the reaper process what lives. One a worker process.

    Attributes:
        cgroups: The worker's cgroups; the reaper process removes them.
        containers: The worker's containers; likewise.
        spawner: Starts servers so that their children keep their mark.
    """

    def __init__(self) -> None:
        self.cgroups = Cgroups(self._register_cgroup)
        self.spawner = Spawner()
        self._token = secrets.token_hex(16)
        self._run = _Run(self._token)
        self.containers = Containers(os.environ, self._token[:8])
        self._engine = ""
        self._groups: set[int] = set()
        self._folders: list[Path] = []
        self._marks = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._watch = -1
        self._replaced_at = -math.inf
        self._revival: asyncio.TimerHandle | None = None
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def mark(self) -> str:
        """Return a new value of `MARK_VARIABLE`, for one server's process."""
        self._marks += 1
        return f"{self._token}.{self._marks}."

    def register(self, group: int) -> None:
        """A process group was started.

        Raises:
            OSError: There is no reaper process, and none can be started.
        """
        self._groups.add(group)
        self._send_line(f"+{group}\n")

    def register_engine(self) -> None:
        """A container is about to be run.

        Raises:
            OSError: There is no reaper process, and none can be started.
        """
        rites = self.containers.last_rites()
        if not self._engine and rites is not None:
            self._engine = f"engine {json.dumps(rites)}\n"
            self._send_line(self._engine)

    def release(self, group: int, mark: str) -> None:
        """A process group has ended; what left it goes too."""
        self._groups.discard(group)
        try:
            self._send_line(f"-{group} {mark}\n")
        except OSError as error:
            _logger.error("The reaper process can't be started: %s.", error.strerror)

    async def close(self) -> None:
        """End the reaper process; groups that are still registered are killed. Idempotent."""
        self._closed = True
        self.spawner.close()
        self._stop_watching()
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(OSError):
                pipe.write(b"end\n")
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            await asyncio.to_thread(self._process.wait, _END_TIMEOUT)
        except subprocess.TimeoutExpired:
            _logger.warning("The reaper process %s does not end; it is killed.", self.pid)
            self._kill()
        finally:
            self._run.leave()
            self.cgroups.close()

    def _register_cgroup(self, folder: Path) -> None:
        self._folders.append(folder)
        self._send_line(f"cgroup {folder}\n")

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603 - our own file, run by our own interpreter
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            bufsize=0,
            start_new_session=True,
        )
        lines = [
            f"mark {self._token}.\n",
            *(f"-0 {token}.\n" for token in self._run.over),
            *(f"cgroup {folder}\n" for folder in self._folders),
            *([self._engine] if self._engine else ()),
            *(f"+{group}\n" for group in self._groups),
        ]
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and is seen to below
            process.stdin.write("".join(lines).encode())
        os.set_blocking(process.stdin.fileno(), False)
        if hasattr(os, "pidfd_open"):  # elsewhere its death is seen when it is told something
            self._watch = os.pidfd_open(process.pid)
            self._loop.add_reader(self._watch, self._ended)
        return process

    def _send_line(self, line: str) -> None:
        if not self._closed and not self._write(line):
            self._replace("is gone, or does not read what it is told")
            self._write(line)

    def _write(self, line: str) -> bool:
        assert self._process.stdin is not None
        try:
            # A line is shorter than what a pipe takes whole or not at all.
            return self._process.stdin.write(line.encode()) is not None
        except (OSError, ValueError):  # the other end is closed, or this one
            return False

    def _ended(self) -> None:
        # One that cannot live here must not keep this process busy with starting it.
        again_at = self._replaced_at + _BETWEEN_DEATHS
        if self._loop.time() >= again_at:
            self._revive()
        else:
            self._stop_watching()
            self._revival = self._loop.call_at(again_at, self._revive)

    def _revive(self) -> None:
        try:
            self._replace("is gone")
        except OSError as error:  # tried again when the next server starts
            _logger.error("The reaper process can't be started: %s.", error.strerror)

    def _replace(self, why: str) -> None:
        """Start another, which is told all that lives: the worker itself must never wait for it."""
        _logger.warning("The reaper process %s %s; another is started.", self.pid, why)
        self._stop_watching()
        self._replaced_at = self._loop.time()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._kill()
        self._process = self._start()

    def _kill(self) -> None:
        self._process.kill()
        if not reap_killed(self._process):
            _logger.error("The reaper process %s survives SIGKILL; it is left alone.", self.pid)

    def _stop_watching(self) -> None:
        if self._revival is not None:
            self._revival.cancel()
            self._revival = None
        if self._watch >= 0:
            self._loop.remove_reader(self._watch)
            os.close(self._watch)
            self._watch = -1
