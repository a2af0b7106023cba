"""`python -m leaseway.server MODULE CLASS`."""

import sys

from leaseway.server.imports import uncollected
from leaseway.telemetry.exporters import ignore_missing_plugins


def main() -> int:
    """Serve over stdio until standard input ends."""
    ignore_missing_plugins()
    with uncollected():
        from leaseway.server.running import main  # it imports the MCP package

    return main()


if __name__ == "__main__":
    sys.exit(main())
