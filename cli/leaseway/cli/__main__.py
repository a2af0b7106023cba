"""Run the `leaseway` command as `python -m leaseway.cli`."""

from __future__ import annotations

from leaseway.cli.main import main

if __name__ == "__main__":
    main()
