"""A server that asks its caller, over stdio; `--legacy` for the era of handshakes."""

import json
import sys
import threading

from asking import Asking


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


server = Asking("--legacy" in sys.argv, lambda work: threading.Timer(0.05, work).start())
for line in sys.stdin:
    server.take(json.loads(line), send)
