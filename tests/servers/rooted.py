"""A stateful stdio server that asks for the roots when they have changed; standard library only.

It speaks 2025-11-25, and writes the answer to a file, whose path is its argument.
"""

import json
import sys
from pathlib import Path


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if method == "initialize":
        send(
            id=key,
            result={
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "rooted", "version": "1"},
            },
        )
    elif method == "tools/list":
        send(id=key, result={"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        send(id=key, result={"content": [], "structuredContent": {}})
    elif method == "notifications/roots/list_changed":
        send(id="roots", method="roots/list")
    elif method is None and key == "roots":
        Path(sys.argv[1]).write_text(line)
    elif key is not None:
        send(id=key, result={})
