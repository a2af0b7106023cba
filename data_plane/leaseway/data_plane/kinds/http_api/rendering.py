"""Renders response templates: at once if that is quick, else in processes that can be ended.

What a rendering costs is decided by an API's response. So it never waits in, and never holds up,
threads that anything else uses: renderings have processes of their own, where servers take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from leaseway.data_plane.background import FairThreads
from leaseway.templates.engine import Template
from leaseway.templates.limits import Budget, OutOfFuel, TemplateFailure
from leaseway.templates.renderer import Rendered, Rendering, decoded, read_frame, write_frame
from leaseway.wire.bounds import KIB

T = TypeVar("T")

TIMEOUT: Final = 5.0
"""Seconds that one rendering may take."""
_PROCESSES: Final = 2
_START_TIMEOUT: Final = 30.0
_IDLE: Final = 60.0
"""Seconds after which an unused process ends."""
_QUICK_BODY: Final = 64 * KIB
_QUICK_TEMPLATE: Final = 2_000
_QUICK_STEPS: Final = 2_000
_QUICK_SECONDS: Final = 0.005
_COMMAND: Final = (sys.executable, "-P", "-m", "leaseway.templates.renderer")
_INHERITED: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LC_ALL", "_LEASEWAY_MARK")


class Renderers:
    """The processes that render templates; they start when they are needed.

    Args:
        environment: The worker's environment.
        timeout: Seconds for one rendering.
    """

    def __init__(
        self, environment: Mapping[str, str] = os.environ, timeout: float = TIMEOUT
    ) -> None:
        self._environment = {name: environment[name] for name in _INHERITED if name in environment}
        self._timeout = timeout
        self._threads = FairThreads(_PROCESSES)
        self._idle: deque[_Process] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._idle_timer: asyncio.TimerHandle | None = None

    async def render(self, server: str, template: Template, body: bytes) -> str:
        """Render a JSON document.

        Args:
            server: Whose turn it takes.
            template: The template.
            body: The document.

        Raises:
            TemplateFailure: It fails with this document, exceeds a limit, or takes too long.
        """
        if len(body) <= _QUICK_BODY and len(template.text) <= _QUICK_TEMPLATE:
            with contextlib.suppress(OutOfFuel):
                return template.render(decoded(body), Budget(_QUICK_STEPS, _QUICK_SECONDS))
        rendering = Rendering(template.text, body)
        rendered = await self._threads.run(server, partial(self._render, rendering))
        self._end_idle_later()
        if rendered.failure:
            raise TemplateFailure(rendered.failure, rendered.line)
        return rendered.text

    async def run(self, server: str, work: Callable[..., T], *args: Any) -> T:
        """Run other work whose cost an API decides in the same turns, in a thread."""
        return await self._threads.run(server, partial(work, *args))

    def close(self) -> None:
        """End all processes; renderings in progress fail."""
        with self._lock:
            self._closed = True
            idle = tuple(self._idle)
            self._idle.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for process in idle:
            process.close()

    def _render(self, rendering: Rendering) -> Rendered:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            process = _Process(self._environment)
        try:
            return process.render(rendering, self._timeout)
        finally:
            with self._lock:
                keep = process.is_alive and not self._closed
                if keep:
                    self._idle.append(process)
            if not keep:
                process.close()

    def _end_idle_later(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(_IDLE, self._end_idle)

    def _end_idle(self) -> None:
        with self._lock:
            idle = tuple(self._idle)
            self._idle.clear()
        for process in idle:
            process.close()


class _Process:
    """One renderer; used by one thread at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - a module of ours
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
        self._timed_out = False
        self._ready = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None and not self._timed_out

    def render(self, rendering: Rendering, timeout: float) -> Rendered:
        """Render; the process is killed if that takes too long."""
        if not self._ready:
            self._ready = self._exchange(None, _START_TIMEOUT) is not None
        answer = self._exchange(rendering, timeout) if self._ready else None
        if answer is not None:
            return msgspec.msgpack.decode(answer, type=Rendered)
        if self._timed_out:
            return Rendered(failure=f"it took more than {timeout:g} s")
        self._kill()
        return Rendered(failure="its process ended, perhaps because it needed too much memory")

    def _exchange(self, rendering: Rendering | None, timeout: float) -> bytes | None:
        """Send a rendering, if there is one; return the next message, or None if there is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(timeout, self._kill)
        timer.daemon = True
        timer.start()
        try:
            if rendering is not None:
                write_frame(self._process.stdin, msgspec.msgpack.encode(rendering))
            return read_frame(self._process.stdout)
        except OSError:
            return None
        finally:
            timer.cancel()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unwritten bytes of a killed rendering
                    pipe.close()

    def _kill(self) -> None:
        self._timed_out = True
        self._process.kill()
