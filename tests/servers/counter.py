"""A stateful stdio server, standard library only: `next` counts, `pid` returns its process id.

It speaks 2025-11-25. `add` adds a number and returns the sum, which shows whose numbers it has.
`tag` returns the first argument, which tells two configurations apart; `sleep` answers after some
seconds without delaying other calls.
"""

import json
import os
import sys
import threading

tag = sys.argv[1] if len(sys.argv) > 1 else ""
count = 0
lock = threading.Lock()


def send(key, result):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", "id": key, "result": result}), flush=True)


def text(value):
    return {"content": [{"type": "text", "text": str(value)}]}


def call(key, params):
    global count
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "next":
        count += 1
        send(key, text(count))
    elif name == "add":
        count += arguments["by"]
        send(key, text(count))
    elif name == "pid":
        send(key, text(os.getpid()))
    elif name == "tag":
        send(key, text(tag))
    elif name == "sleep":
        threading.Timer(arguments["seconds"], send, [key, text("slept")]).start()


def parameter(name, kind):
    return {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}


TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("next", "pid", "tag")]
TOOLS.append({"name": "add", "inputSchema": parameter("by", "integer")})
TOOLS.append({"name": "sleep", "inputSchema": parameter("seconds", "number")})
for line in sys.stdin:
    message = json.loads(line)
    method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "counter", "version": "0"}
        agreed = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        send(key, {**agreed, "serverInfo": info})
    elif method == "tools/list":
        send(key, {"tools": TOOLS})
    elif method == "tools/call":
        call(key, params)
    elif method == "ping":
        send(key, {})
    elif key is not None:
        error = {"code": -32601, "message": "Method not found"}
        with lock:
            print(json.dumps({"jsonrpc": "2.0", "id": key, "error": error}), flush=True)
