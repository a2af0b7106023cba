"""`leaseway` with an event loop that SIGUSR2 blocks for 17 seconds."""

import signal
import time

from leaseway.cli.main import main

signal.signal(signal.SIGUSR2, lambda *_: time.sleep(17))
main()
