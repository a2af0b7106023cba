"""A stateful stdio server that tells its client things after its calls; standard library only.

It speaks 2025-11-25. After the result of `tell` it sends a log message and the end of an
elicitation. `changes` counts the notifications that the client's roots have changed.
"""

import json
import sys

TOLD = [
    ("message", {"level": "debug", "data": "quiet"}),
    ("message", {"level": "warning", "logger": "later", "data": {"said": "loud"}}),
    ("elicitation/complete", {"elicitationId": "e1"}),
]
changes = 0


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(value):
    return {"content": [{"type": "text", "text": str(value)}]}


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
        schema = {"type": "object"}
        tools = [{"name": name, "inputSchema": schema} for name in ("tell", "changes")]
        send(id=key, result={"tools": tools})
    elif method == "tools/call" and request["params"]["name"] == "tell":
        send(id=key, result=text("told"))
        for name, params in TOLD:
            send(method=f"notifications/{name}", params=params)
    elif method == "tools/call":
        send(id=key, result=text(changes))
    elif method == "notifications/roots/list_changed":
        changes += 1
    elif key is not None:
        send(id=key, result={})
