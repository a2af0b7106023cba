"""The program that the official suite starts: `caller.py PORT URL` asks the test for a client."""

import json
import os
import socket
import sys

NAMES = (
    "MCP_CONFORMANCE_SCENARIO",
    "MCP_CONFORMANCE_PROTOCOL_VERSION",
    "MCP_CONFORMANCE_CONTEXT",
)

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as test:
    asked = {name: os.environ.get(name, "") for name in NAMES}
    test.sendall(json.dumps({**asked, "url": sys.argv[-1]}).encode() + b"\n")
    while said := test.recv(1 << 16):
        sys.stderr.buffer.write(said)
