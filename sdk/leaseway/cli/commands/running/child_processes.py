"""The child processes of `leaseway up`: start, watch, restart, stop.

Each child is a `leaseway` command that prints `ready ADDRESS`, then `metrics URL` and `artifacts
URL` if asked to serve them. It has a session of its own, so that a terminal's Ctrl-C reaches only
the parent, which then stops its children in order; and it ends by itself when its stdin closes, so
that it outlives its parent by no more than a shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import click

from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.wire.timing.backoff import Backoff

STOP_TIMEOUT: Final = 35.0
"""Seconds from SIGTERM to SIGKILL: a plane's own shutdown bound and a little more."""

_READY_TIMEOUT: Final = 60.0
_HEALTHY_AFTER: Final = 30.0  # a child that lived this long starts its backoff anew
_READY: Final = "ready "
_PAGES: Final = {"--metrics": "metrics", "--artifacts-http": "artifacts", "--console": "console"}

_logger = logging.getLogger(__name__)


class Child:
    """One child process and its successors.

    Attributes:
        name: What it is called in messages.
        address: Where the current process listens; empty before the first start.
        pages: Where it serves `metrics`, `artifacts` and `console`, as far as it was asked to.
    """

    def __init__(
        self,
        name: str,
        arguments: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        *,
        program: Sequence[str] = (sys.executable, "-m", "leaseway.cli.main"),
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    ) -> None:
        self.name = name
        self.address = ""
        self.pages: dict[str, str] = {}
        self._program = program
        self._arguments = arguments
        self._environment = environment
        self._backoff = backoff
        self._process: asyncio.subprocess.Process | None = None
        self._spawning = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._started_at = 0.0

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self) -> None:
        """Start the process and wait until it says where it listens and what it serves.

        Raises:
            CliFailure: It ended first, with its exit status, or said nothing in time.
        """
        self._stopped.clear()
        await self._start()

    async def _start(self) -> None:
        arguments = self._arguments()
        process = await self._spawn(arguments)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_READY_TIMEOUT):
                async with self._reading:
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
                f"The {self.name} did not start ({_ended(status)}); its reason is above.",
                USAGE if status == USAGE else FAILED,
            )

    async def _spawn(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        async with self._spawning:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._program,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        self._started_at = time.monotonic()
        if self._stopped.is_set():
            # Nobody could signal it before: it has done nothing yet, and need not be asked.
            self._signal(signal.SIGKILL)
        return process

    async def _read_addresses(self, stdout: asyncio.StreamReader, given: Sequence[str]) -> bool:
        """Read where the process listens and serves pages; say whether it told all of that."""
        pages = {f"{noun} ": noun for option, noun in _PAGES.items() if option in given}
        said: dict[str, str] = {}
        for word in (_READY, *pages):
            line = (await stdout.readline()).decode(errors="replace")
            if not line.startswith(word):
                return False
            said[word] = line.removeprefix(word).strip()
        self.address = said.pop(_READY)
        self.pages.update((pages[word], url) for word, url in said.items())
        return True

    async def supervise(self) -> None:
        """Start the process anew whenever it ends, until `stop` is called.

        Raises:
            CliFailure: It ended with a usage error, which no restart mends.
        """
        attempt = 0
        while True:
            status = await self._ended()
            if self._stopped.is_set():
                return
            if status == USAGE:
                raise CliFailure(f"The {self.name} refused its own options.", USAGE)
            if time.monotonic() - self._started_at > _HEALTHY_AFTER:
                attempt = 0
            delay = self._backoff.delay(attempt)
            _logger.warning(
                "The %s ended (%s); it is started again in %.1f s.",
                self.name,
                _ended(status),
                delay,
            )
            if await self._stops_within(delay):
                return
            attempt += 1
            # A failed restart is met again at the top: its process has ended, too.
            with suppress(CliFailure):
                await self._start()

    async def _stops_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        return self._stopped.is_set()

    async def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Ask the process to end, and kill it after `timeout` seconds. Harmless when repeated.

        No successor is left, also where one is being started meanwhile.
        """
        self._stopped.set()
        async with self._spawning:  # what is being started now is known then
            process = self._process
        if process is None or process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout):
                await self._ended()
        except TimeoutError:
            _logger.warning("The %s did not end within %g s and is killed.", self.name, timeout)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """End the process at once. Its own children go with it: a worker's reaper sees to that."""
        self._stopped.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _ended(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        process, stdout = self._process, self._process.stdout
        # Nothing is expected on stdout any more, but an unread pipe would block its writer. Who
        # supervises and who stops both wait here: one of them reads, the other when it is gone.
        async with self._reading:
            while data := await stdout.read(65536):
                click.echo(data, err=True, nl=False)
        return await process.wait()


def _ended(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit status {status}"
