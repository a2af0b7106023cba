"""The entry point: `leaseway`, and `python -m leaseway`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with, then exit with its status."""
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


if __name__ == "__main__":
    main()
