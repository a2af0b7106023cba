"""A stdio server, standard library only: `note` appends a number to a file before it answers.

The file shows which calls reached the server, also if its worker was killed.
"""

import json
import os
import sys

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def send(key, result):
    print(json.dumps({"jsonrpc": "2.0", "id": key, "result": result}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        agreed = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        send(key, {**agreed, "serverInfo": {"name": "witness", "version": "0"}})
    elif method == "tools/list":
        send(key, {"tools": [{"name": "note", "inputSchema": SCHEMA}]})
    elif method == "tools/call":
        number = params["arguments"]["number"]
        os.write(descriptor, b"%d\n" % number)
        send(key, {"content": [{"type": "text", "text": str(number)}]})
