"""The child processes of `leaseway up`: start, watch, restart, stop.

Each child is a `leaseway` command that prints `ready ADDRESS`, then a line such as `metrics URL`
for each page that it serves. It runs in its own session, so that a terminal's Ctrl-C reaches only
the parent, which then stops its children in order. A child also stops when its stdin closes: so it
does not outlive its parent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import click

from leaseway.cli.errors import FAILED, USAGE, CliFailure, os_failure
from leaseway.vault.key import VAULT_KEY_VARIABLE, VAULT_NEW_KEY_VARIABLE
from leaseway.wire.channels.auth import SEAL_KEY_VARIABLE
from leaseway.wire.timing.backoff import RESTART, Backoff

STOP_TIMEOUT: Final = 60.0
"""Seconds from SIGTERM to SIGKILL. A worker's calls get 30 of them, its audit's sink 20."""

_READY_TIMEOUT: Final = 60.0
_HEALTHY_AFTER: Final = 30.0  # after this run time the backoff starts from the beginning
_READY: Final = "ready "
_PAGES: Final = {
    "--metrics": "metrics",
    "--artifacts-http": "artifacts",
    "--mcp": "mcp",
    "--console": "console",
}

_logger = logging.getLogger(__name__)


CONTROL_PLANE_ONLY: Final = frozenset({SEAL_KEY_VARIABLE})
"""Keys of the control plane; a worker with the first could sign its own state."""
WORKER_ONLY: Final = frozenset({VAULT_KEY_VARIABLE, VAULT_NEW_KEY_VARIABLE})
"""Keys of workers."""


class Child:
    """A child process, restarted when it exits.

    Args:
        name: The child's name in messages.
        arguments: Returns the words of its command.
        environment: Variables in addition to this process's.
        withheld: Names of this process's variables that it does not get.
        program: What runs the command.
        backoff: The delays of restarts.

    Attributes:
        name: The child's name in messages.
        address: Where the current process listens; empty before the first start.
        pages: The URLs of the `metrics`, `artifacts`, `mcp` and `console` that it serves.
    """

    def __init__(
        self,
        name: str,
        arguments: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        *,
        withheld: Collection[str] = (),
        program: Sequence[str] = (sys.executable, "-P", "-m", "leaseway.cli.main"),
        backoff: Backoff = RESTART,
    ) -> None:
        self.name = name
        self.address = ""
        self.pages: dict[str, str] = {}
        self._program = program
        self._arguments = arguments
        self._environment = environment
        self._withheld = withheld
        self._backoff = backoff
        self._process: asyncio.subprocess.Process | None = None
        self._spawn_lock = asyncio.Lock()
        self._read_lock = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._started_at = 0.0

    @property
    def pid(self) -> int | None:
        """The running process's id, or None."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self) -> None:
        """Start the process and wait until it has printed its addresses.

        Raises:
            CliFailure: It exited first, or printed no address in time.
        """
        self._stopped.clear()
        await self._start()

    async def _start(self) -> None:
        arguments = self._arguments()
        process = await self._spawn(arguments)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_READY_TIMEOUT):
                async with self._read_lock:
                    ready = await self._read_addresses(process.stdout, arguments)
                if not ready:
                    await process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            raise CliFailure(
                f"The {self.name} did not start within {_READY_TIMEOUT:g} s."
            ) from None
        if not ready:
            status = process.returncode or FAILED
            raise CliFailure(
                f"The {self.name} did not start ({_describe(status)}). The reason is above.",
                USAGE if status == USAGE else FAILED,
            )

    async def _spawn(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        self._started_at = time.monotonic()
        async with self._spawn_lock:
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._program,
                    *arguments,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={
                        **{k: v for k, v in os.environ.items() if k not in self._withheld},
                        **self._environment,
                    },
                    start_new_session=True,
                )
            except OSError as error:  # such as no memory, or too many processes
                raise CliFailure(f"The {self.name} can't be started: {os_failure(error)}") from None
        if self._stopped.is_set():
            # `stop` could not signal it before. It has done nothing yet: no need for SIGTERM.
            self._signal(signal.SIGKILL)
        return process

    async def _read_addresses(self, stdout: asyncio.StreamReader, given: Sequence[str]) -> bool:
        """Read the process's addresses; return whether it printed all of them."""
        pages = {f"{noun} ": noun for option, noun in _PAGES.items() if option in given}
        printed: dict[str, str] = {}
        for word in (_READY, *pages):
            line = (await stdout.readline()).decode(errors="replace")
            if not line.startswith(word):
                return False
            printed[word] = line.removeprefix(word).strip()
        self.address = printed.pop(_READY)
        self.pages.update((pages[word], url) for word, url in printed.items())
        return True

    async def supervise(self) -> None:
        """Restart the process whenever it exits, until `stop` is called.

        Raises:
            CliFailure: It exited with a usage error, which a restart cannot fix.
        """
        attempt = 0
        while True:
            status = await self._wait_for_exit()
            if self._stopped.is_set():
                return
            if status == USAGE:
                raise CliFailure(f"The {self.name} rejected its options.", USAGE)
            if time.monotonic() - self._started_at > _HEALTHY_AFTER:
                attempt = 0
            delay = self._backoff.delay(attempt)
            _logger.log(
                logging.WARNING if status else logging.INFO,  # 0: it was drained
                "The %s exited (%s); it is restarted in %.1f s.",
                self.name,
                _describe(status),
                delay,
            )
            if await self._stops_within(delay):
                return
            attempt += 1
            try:
                await self._start()
            except CliFailure as failure:
                _logger.warning("%s", failure.message)  # no process runs: the loop starts one

    async def _stops_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        return self._stopped.is_set()

    async def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds. Idempotent.

        Also stops a process that is just being started by `supervise`.
        """
        self._stopped.set()
        async with self._spawn_lock:  # wait for a process that is being spawned
            process = self._process
        if process is None or process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for_exit()
        except TimeoutError:
            _logger.warning("The %s did not exit within %g s and is killed.", self.name, timeout)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Kill the process. If it is a worker, its reaper kills the worker's children."""
        self._stopped.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _wait_for_exit(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        process, stdout = self._process, self._process.stdout
        # No more output is expected, but an unread pipe would block its writer. `supervise` and
        # `stop` may both wait here: the lock lets only one of them read.
        async with self._read_lock:
            while data := await stdout.read(65536):
                click.echo(data, err=True, nl=False)
        return await process.wait()


def _describe(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit status {status}"
