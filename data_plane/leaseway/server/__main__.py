"""`python -m leaseway.server MODULE CLASS`."""

import sys

from leaseway.server.running import main

if __name__ == "__main__":
    sys.exit(main())
