"""`python -m leaseway`: the command line, if its script is not on the PATH."""

from __future__ import annotations

from leaseway.cli.main import main

if __name__ == "__main__":
    main()
