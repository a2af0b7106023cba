"""The server of `asking` over stdio; `--legacy` selects the legacy era.

With `--offers` it has a prompt and a resource, and sends requests while they are read.
"""

import json
import sys
import threading

from asking import Asking


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


server = Asking("--legacy" in sys.argv, lambda work: threading.Timer(0.05, work).start())
server.offers = "--offers" in sys.argv
for line in sys.stdin:
    server.take(json.loads(line), send)
