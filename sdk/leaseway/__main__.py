"""`python -m leaseway`: the command, where no script of it is on the PATH."""

from __future__ import annotations

from leaseway.cli.main import main

if __name__ == "__main__":
    main()
