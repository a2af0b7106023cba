"""`python -m leaseway.server MODULE CLASS`."""

import sys

from leaseway.telemetry.exporters import load_propagators


def main() -> int:
    """Serve over stdio until standard input ends."""
    load_propagators()
    from leaseway.server.running import main  # it imports the MCP package

    return main()


if __name__ == "__main__":
    sys.exit(main())
