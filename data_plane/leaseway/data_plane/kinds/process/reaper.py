"""Kills the servers of a worker that was killed (design.md#one-mcp-connection).

A killed worker can't clean up, so a small separate process holds a pipe from it and cleans up;
`reaper_main` is that process's program. It has its own session and ignores SIGINT and SIGTERM:
Ctrl-C on the worker must not kill the reaper first.

If both are killed together, the next worker of the same user on this machine cleans up: each
worker holds a lock on a file named by its mark, and a file without a lock belongs to a dead worker.
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

from leaseway.data_plane.kinds.process.cgroups import Cgroups
from leaseway.data_plane.kinds.process.containers import Containers
from leaseway.data_plane.kinds.process.private_folders import PrivateFolders, folder_of_run
from leaseway.data_plane.kinds.process.spawner import Spawner

_logger = logging.getLogger(__name__)
MARK_VARIABLE: Final = "_LEASEWAY_MARK"
"""Set for every server's process; its children inherit it."""

_REAP_TIMEOUT: Final = 0.03
"""Seconds that the loop may block; a killed process usually exits within a few milliseconds."""

_PROGRAM: Final = Path(__file__).with_name("reaper_main.py")
_STOP_TIMEOUT: Final = 5.0
_RESTART_INTERVAL: Final = 1.0
"""Minimum seconds between two restarts of a reaper process that died."""

_MAX_RUNS: Final = 1000


def reap_killed(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a process after SIGKILL, for at most 30 ms; return whether it has exited.

    `subprocess` reaps it if it exits later.
    """
    try:
        process.wait(_REAP_TIMEOUT)
    except subprocess.TimeoutExpired:
        return False
    return True


class _RunFile:
    """This worker's locked file in the folder of runs; none if other users can access the folder.

    `dead_tokens` are those of dead workers, whose files were removed.
    """

    def __init__(self, token: str) -> None:
        self.dead_tokens: list[str] = []
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
            self.dead_tokens = [*_remove_dead_runs(folder)]
            self._create(folder, token)
        except OSError as error:
            _logger.warning(
                "If this worker and its reaper are killed together, no later worker stops the"
                " servers: %s cannot be used: %s.",
                folder,
                error.strerror,
            )

    def _create(self, folder: Path, token: str) -> None:
        fresh = folder / f".{token}"  # other workers ignore it until it is locked and renamed
        self._lock = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path = fresh.rename(folder / token)

    def close(self) -> None:
        """Remove the file: nothing of this run needs cleaning up."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._path = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_dead_runs(folder: Path) -> Iterator[str]:
    for path in itertools.islice(sorted(folder.iterdir()), _MAX_RUNS):
        if not re.fullmatch("[0-9a-f]{32}", path.name):
            continue
        with contextlib.suppress(OSError):  # its worker is alive, or another worker removed it
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                yield path.name
            finally:
                os.close(descriptor)


class Reaper:
    """The worker's side of the reaper process. One per worker process.

    Args:
        starter: See `Cgroups`.

    Attributes:
        cgroups: The worker's cgroups; the reaper process removes them.
        containers: The worker's containers; likewise.
        folders: The private folders of its servers; likewise.
        spawner: Starts servers such that their children keep their mark.
    """

    def __init__(self, starter: int | None = None) -> None:
        self.cgroups = Cgroups(self._register_cgroup, starter=starter)
        self.spawner = Spawner()
        self._token = secrets.token_hex(16)
        self._run_file = _RunFile(self._token)
        self.folders = PrivateFolders(self._token, self._register_folder)
        self.containers = Containers(os.environ, self._token[:8])
        self._engines: dict[str, None] = {}  # the lines that register them
        self._groups: set[int] = set()
        self._folders: list[Path] = []
        self._private: Path | None = None
        self._marks = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._watch = -1
        self._restarted_at = -math.inf
        self._restart_timer: asyncio.TimerHandle | None = None
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def mark(self) -> str:
        """Return a new value of `MARK_VARIABLE`, for one server's process."""
        self._marks += 1
        return f"{self._token}.{self._marks}."

    def register(self, group: int) -> None:
        """Register a started process group.

        Raises:
            OSError: The reaper process is dead and can't be restarted.
        """
        self._groups.add(group)
        self._send_line(f"+{group}\n")

    def register_engines(self) -> None:
        """Register the container engines in use, before the first container of each is run.

        Raises:
            OSError: The reaper process is dead and can't be restarted.
        """
        for cleanup in self.containers.cleanups():
            line = f"engine {json.dumps(cleanup)}\n"
            if line not in self._engines:
                self._engines[line] = None
                self._send_line(line)

    def release(self, group: int, mark: str) -> None:
        """Release an exited process group; the reaper kills its processes in other groups."""
        self._groups.discard(group)
        try:
            self._send_line(f"-{group} {mark}\n")
        except OSError as error:
            _logger.error("The reaper process can't be started: %s.", error.strerror)

    async def close(self) -> None:
        """Stop the reaper process; it kills groups that are still registered. Idempotent."""
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
            await asyncio.to_thread(self._process.wait, _STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            _logger.warning("The reaper process %s does not exit; it is killed.", self.pid)
            self._kill()
        finally:
            self._run_file.close()
            self.cgroups.close()

    def _register_cgroup(self, folder: Path) -> None:
        self._folders.append(folder)
        self._send_line(f"cgroup {folder}\n")

    def _register_folder(self, folder: Path) -> None:
        self._private = folder
        self._send_line(f"folder {folder}\n")

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
            *(f"-0 {token}.\n" for token in self._run_file.dead_tokens),
            *(f"remove {folder_of_run(token)}\n" for token in self._run_file.dead_tokens),
            *([f"folder {self._private}\n"] if self._private is not None else ()),
            *(f"cgroup {folder}\n" for folder in self._folders),
            *self._engines,
            *(f"+{group}\n" for group in self._groups),
        ]
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has exited; handled below
            process.stdin.write("".join(lines).encode())
        os.set_blocking(process.stdin.fileno(), False)
        if hasattr(os, "pidfd_open"):  # otherwise its exit is noticed at the next write
            self._watch = os.pidfd_open(process.pid)
            self._loop.add_reader(self._watch, self._on_exit)
        return process

    def _send_line(self, line: str) -> None:
        if not self._closed and not self._write(line):
            self._restart("has exited, or does not read its input")
            self._write(line)

    def _write(self, line: str) -> bool:
        assert self._process.stdin is not None
        try:
            # A pipe accepts a line this short whole or not at all.
            return self._process.stdin.write(line.encode()) is not None
        except (OSError, ValueError):  # either end is closed
            return False

    def _on_exit(self) -> None:
        # Do not keep restarting a reaper that can't run on this machine.
        next_restart = self._restarted_at + _RESTART_INTERVAL
        if self._loop.time() >= next_restart:
            self._try_restart()
        else:
            self._stop_watching()
            self._restart_timer = self._loop.call_at(next_restart, self._try_restart)

    def _try_restart(self) -> None:
        try:
            self._restart("has exited")
        except OSError as error:  # retried when the next server starts
            _logger.error("The reaper process can't be started: %s.", error.strerror)

    def _restart(self, cause: str) -> None:
        """Start a new reaper process and send it all registrations, without waiting for it."""
        _logger.warning("The reaper process %s %s; a new one is started.", self.pid, cause)
        self._stop_watching()
        self._restarted_at = self._loop.time()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._kill()
        self._process = self._start()

    def _kill(self) -> None:
        self._process.kill()
        if not reap_killed(self._process):
            _logger.error("The reaper process %s survives SIGKILL; it is ignored.", self.pid)

    def _stop_watching(self) -> None:
        if self._restart_timer is not None:
            self._restart_timer.cancel()
            self._restart_timer = None
        if self._watch >= 0:
            self._loop.remove_reader(self._watch)
            os.close(self._watch)
            self._watch = -1
