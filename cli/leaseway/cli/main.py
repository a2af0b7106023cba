"""The entry point: `leaseway`, and `python -m leaseway`."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line of this process, then exit with its status."""
    _ignore_early_sigusr1()
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
    cli.main(prog_name="leaseway")


def _ignore_early_sigusr1() -> None:
    """Ignore SIGUSR1 until its handler is installed (`leaseway.telemetry.diagnostics`).

    It would end a plane that still imports its modules. The planes that `up` starts inherit this;
    a worker's servers don't, because the worker has its handler when it starts them.
    """
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


if __name__ == "__main__":
    main()
