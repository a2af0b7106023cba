"""The entry point: `leaseway`, and `python -m leaseway`."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command that the process was started with, then exit with its status."""
    _outlive_early_questions()
    try:
        from leaseway.cli.app import cli
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        # The script is part of the wheel, its dependencies are an extra of it.
        sys.exit(
            f"leaseway: The command needs the package '{error.name}'. "
            f"Install it with: pip install 'leaseway[cli]' (or leaseway[all] for the planes too)."
        )
    cli.main(prog_name="leaseway")


def _outlive_early_questions() -> None:
    """Ignore SIGUSR1 until there is something to answer it with (`leaseway.telemetry.diagnostics`).

    Planes import for a while, and it would end them. The planes that `up` starts inherit this, so
    that theirs begins before Python itself does; servers of a worker don't, as it answers by then.
    """
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


if __name__ == "__main__":
    main()
