"""The entry point: `leaseway`, and `python -m leaseway`."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading


def main() -> None:
    """Run the command line of this process, then exit with its status."""
    _ignore_early_sigusr1()
    _have_home()
    try:
        from leaseway.cli.app import cli
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        # The script is part of the wheel, but its dependencies are an extra.
        sys.exit(
            f"leaseway: This command needs the package '{error.name}'. "
            f"Install it with: pip install 'leaseway[cli]' (or leaseway[all] for the planes too)."
        )
    try:
        cli.main(prog_name="leaseway")
    except SystemExit as end:
        if isinstance(end.code, int) and (_has_threads() or "obstore" in sys.modules):
            _leave(end.code)
        raise


def _has_threads() -> bool:
    """Whether Python would wait for a thread, perhaps for ever: its disk may hang."""
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    return any(not thread.daemon for thread in others)


def _leave(status: int) -> None:
    """Exit without waiting for threads, or taking the interpreter apart.

    Threads that still run then abort the process before Python 3.14, if they are not Python's own
    but use it: those of the audit's object stores do, for a moment after each request.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - nothing public runs them
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _have_home() -> None:
    """Name a home folder if neither HOME nor the system's users name one: `/`, as in containers.

    A user that a cluster has chosen at random has no entry. This process needs no home, but many of
    its defaults are below it, and so are those of the servers that it starts.
    """
    if os.path.expanduser("~") == "~":  # noqa: PTH111 - Path.home() raises instead
        os.environ["HOME"] = "/"


def _ignore_early_sigusr1() -> None:
    """Ignore SIGUSR1 until its handler is installed (`leaseway.telemetry.diagnostics`).

    It would end a plane that still imports its modules. The planes that `up` starts inherit this;
    a worker's servers don't, because the worker has its handler when it starts them.
    """
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


if __name__ == "__main__":
    main()
