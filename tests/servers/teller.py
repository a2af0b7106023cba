"""A stateful stdio server that tells its client things after its calls; standard library only.

It speaks 2025-11-25. After the result of `tell` it sends log messages and one end of elicitation.
"""

import json
import sys

TOLD = [
    ("message", {"level": "debug", "data": "quiet"}),
    ("message", {"level": "warning", "logger": "later", "data": {"said": "loud"}}),
    ("elicitation/complete", {"elicitationId": "e1"}),
]


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    request = json.loads(line)
    method, key = request.get("method"), request.get("id")
    if method == "initialize":
        send(
            id=key,
            result={
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "teller", "version": "1"},
            },
        )
    elif method == "tools/list":
        send(id=key, result={"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        send(id=key, result={"content": [{"type": "text", "text": "told"}]})
        for name, params in TOLD:
            send(method=f"notifications/{name}", params=params)
    elif key is not None:
        send(id=key, result={})
