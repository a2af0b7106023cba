"""A server that asks its caller, over stdio; `--legacy` for the era of handshakes.

With `--offers` it asks during requests of its prompt and its resource, too.
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
