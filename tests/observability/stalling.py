"""`leaseway`, whose event loop stands still for 17 seconds at SIGUSR2; its links stay up."""

import signal
import time

from leaseway.cli.main import main

signal.signal(signal.SIGUSR2, lambda *_: time.sleep(17))
main()
