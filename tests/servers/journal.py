"""A stdio server that records each call before it answers, standard library only.

It speaks 2025-11-25. `run` appends the caller's token to the file of the first argument, with the
process id and its number of calls; its calls must not be retried.
"""

import json
import os
import sys

journal = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
count = 0
SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string"}},
    "required": ["token"],
}


def answer(method, params):
    global count
    if method == "initialize":
        agreed = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        return {**agreed, "serverInfo": {"name": "journal", "version": "0"}}
    if method == "tools/list":
        return {"tools": [{"name": "run", "inputSchema": SCHEMA}]}
    if method == "tools/call":
        count += 1
        token = params["arguments"]["token"]
        os.write(journal, f"{token} {os.getpid()} {count}\n".encode())
        return {"content": [{"type": "text", "text": f"{token} {os.getpid()} {count}"}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
