"""What every long-running process does: options, listeners, the loop, the end.

The commands of this folder differ in what they run in it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from leaseway.cli.commands.running.memory import collect_rarely
from leaseway.cli.errors import FAILED, CliFailure, os_failure
from leaseway.cli.options.common import ENDPOINT, LogOptions
from leaseway.cli.options.identity import Credentials
from leaseway.cli.output.tables import say
from leaseway.telemetry.logs import unwaiting
from leaseway.wire.channels.endpoint import DEFAULT_ADDRESS, Endpoint, Endpoints

if TYPE_CHECKING:
    from leaseway.identity.authenticator import RoleCheck
    from leaseway.identity.principal import Role
    from leaseway.telemetry.http_listener import HttpListener

Runner = Callable[[], Coroutine[Any, Any, int]]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
ListenerT = TypeVar("ListenerT", bound="HttpListener")
_FILE_THREADS: Final = 8
"""Limit of concurrent blocking operations, such as file reads and name lookups."""
_FILE_GRACE: Final = 5.0
"""Seconds that the end of a process waits for them."""
_FILES: Final = 65_536
"""The most files that a process asks the system to let it open."""
_REFUSED_INTERVAL: Final = 60.0
"""Seconds between two lines about connections that the system does not let a process accept."""

_logger = logging.getLogger(__name__)


def _all_endpoints(
    _context: click.Context, _option: click.Parameter, given: tuple[Endpoint, ...]
) -> Endpoints:
    return Endpoints(given[0], given[1:])


control_planes_option = click.option(
    "--control-plane",
    "control_planes",
    type=ENDPOINT,
    multiple=True,
    default=(DEFAULT_ADDRESS,),
    show_default=True,
    callback=_all_endpoints,
    help="The control plane; repeatable if there are several, of which one leads.",
)

exit_with_stdin_option = click.option(
    "--exit-with-stdin",
    is_flag=True,
    hidden=True,
    help="Stop when stdin closes, so that children of `up` do not outlive it.",
)


def run_process(
    kind: str,
    instance: str,
    log: LogOptions,
    runner: Runner,
    exit_with_stdin: bool,
    loop_factory: LoopFactory | None = None,
) -> int:
    """Run a long-running process, with its logging and tracing, and return its exit status."""
    from leaseway.telemetry.tracing import configure_telemetry

    sys.stderr = unwaiting(sys.stderr)
    log.configure(f"{kind} {instance}".strip())
    raise_file_limit()
    telemetry = configure_telemetry(f"leaseway-{kind}", instance=instance)
    if exit_with_stdin:
        threading.Thread(target=_stop_at_end_of_stdin, name="stdin", daemon=True).start()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as loop:
            loop.get_loop().set_default_executor(_FileThreads())
            loop.get_loop().set_exception_handler(LoopErrors())
            collect_rarely(loop.get_loop())
            return loop.run(runner())
    except OSError as error:
        raise CliFailure(os_failure(error), FAILED) from None
    finally:
        telemetry.shutdown()


def raise_file_limit() -> None:
    """Let this process open as many files as the system lets it, up to 65,536.

    A server takes three to five, and each connection one, but shells and systemd begin with 1,024
    (macOS with 256) and leave it to programs to ask for more. Servers inherit the limit, so it has
    a bound: some programs visit each number below it at their start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # macOS has a lower one that it does not tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class LoopErrors:
    """Logs what the loop reports, but of connections that it cannot accept a line a minute.

    Without files to open, asyncio tries to accept a waiting connection a hundred times a second,
    and would log a traceback each time.
    """

    def __init__(self) -> None:
        self._next_line = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next_line:
            self._next_line = loop.time() + _REFUSED_INTERVAL
            _logger.error("Connections wait, because none can be accepted. %s", os_failure(error))


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector during imports, which it slows down by a tenth."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _FileThreads(ThreadPoolExecutor):
    """Threads for blocking operations, all of them started.

    The loop's default pool grows with use, which looks like a leak of threads, and its end waits
    for every operation, also for one on a disk that hangs.
    """

    def __init__(self) -> None:
        self._started: list[threading.Thread] = []
        super().__init__(_FILE_THREADS, thread_name_prefix="files", initializer=self._note_started)
        all_run = threading.Barrier(_FILE_THREADS)
        for _ in range(_FILE_THREADS):
            self.submit(all_run.wait)  # no thread is idle until all have started

    def _note_started(self) -> None:
        self._started.append(threading.current_thread())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        until = time.monotonic() + _FILE_GRACE
        for thread in self._started if wait else ():
            thread.join(max(0.0, until - time.monotonic()))


@contextmanager
def listening_at(
    open_listener: Callable[[Endpoint, RoleCheck | None], ListenerT],
    endpoint: Endpoint | None,
    credentials: Credentials,
    *roles: Role,
) -> Iterator[ListenerT | None]:
    """Open a listener that admits callers with one of the roles; None if there is no endpoint."""
    if endpoint is None:
        yield None
        return
    credentials.require_for(endpoint)
    authenticator = credentials.authenticator
    admit = None if authenticator.is_open else authenticator.for_role(*roles)
    try:
        listener = open_listener(endpoint, admit)
    except OSError as error:
        raise CliFailure(str(error), FAILED) from None
    with closing(listener):
        yield listener


def ready_printer(*listeners: HttpListener | None) -> Callable[[str], None]:
    """Return an `on_ready` that prints the address and the listeners' URLs."""

    def print_ready(address: str) -> None:
        say(f"ready {address}")
        for listener in listeners:
            if listener is not None:
                say(f"{listener.noun} {listener.url}")
        sys.stdout.flush()

    return print_ready


def uvloop_factory() -> LoopFactory | None:
    """Return uvloop's factory, or None if it is not installed. It makes calls 10 % cheaper."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _stop_at_end_of_stdin() -> None:
    """Send SIGTERM to this process when the other end of stdin closes.

    Runs in a thread, to work also while the loop is busy or not yet running.
    """
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
