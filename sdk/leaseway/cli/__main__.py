"""`python -m leaseway.cli`, which is `leaseway`."""

from __future__ import annotations

from leaseway.cli.main import main

if __name__ == "__main__":
    main()
