"""A stdio server whose tool `fault` misbehaves in the way that its first argument names.

Standard library only; it speaks 2025-11-25. `echo` and `pid` work, to show whether the process is
alive. `hold` never answers, `once` answers all calls but the very first (the second argument names
a file that marks it), `wait` answers once that file exists. A call with a progress token gets one
progress notification when the server has read it.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

mode = sys.argv[1]
mark = Path(sys.argv[2]) if len(sys.argv) > 2 else None
lock = threading.Lock()


def raw(data):
    with lock:
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def send(message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(key, value):
    send({"id": key, "result": {"content": [{"type": "text", "text": str(value)}]}})


class Faults:
    """One method per mode."""

    def dies(self, key, arguments):
        os.write(2, b"last words\n")
        os._exit(3)

    def half_line(self, key, arguments):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"te' % key)
        os._exit(4)

    def floods_stdout(self, key, arguments):
        for _ in range(32):
            raw(b"not json at all\n" * 65536)
        answer(key, "flooded")

    def floods_stderr(self, key, arguments):
        for _ in range(100 * 16):
            os.write(2, (b"f" * 1023 + b"\n") * 64)
        answer(key, "flooded")

    def twice(self, key, arguments):
        answer(key, "first")
        answer(key, "second")

    def late(self, key, arguments):
        threading.Timer(arguments["seconds"], answer, [key, "late"]).start()

    def oversize(self, key, arguments):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"x":"' % key)
        for _ in range(64):
            raw(b"x" * (1 << 20))
        raw(b'"}}\n')

    def large(self, key, arguments):
        answer(key, "x" * arguments["size"])

    def invalid_utf8(self, key, arguments):
        raw(
            b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"caf\xe9"}]}}\n'
            % key
        )

    def closes_stdout(self, key, arguments):
        os.close(1)
        time.sleep(600)

    def stops_reading(self, key, arguments):
        time.sleep(600)


def wait(key):
    while not mark.exists():
        time.sleep(0.01)
    answer(key, "waited")


def begun(meta):
    """Report that the server has read a call."""
    if "progressToken" in meta:
        params = {"progressToken": meta["progressToken"], "progress": 1}
        send({"method": "notifications/progress", "params": params})


def call(key, name, arguments):
    if name == "echo":
        answer(key, arguments.get("text", ""))
    elif name == "pid":
        answer(key, os.getpid())
    elif name == "fault":
        getattr(Faults(), mode)(key, arguments)
    elif name == "wait":
        threading.Thread(target=wait, args=[key], daemon=True).start()
    elif name in ("once", "once_safe"):
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            answer(key, "repeated")


def tool(name, **more):
    return {"name": name, "inputSchema": {"type": "object"}, **more}


TOOLS = [tool(name) for name in ("echo", "pid", "fault", "hold", "wait", "once")]
TOOLS.append(tool("once_safe", annotations={"idempotentHint": True}))
if mode == "mute":
    time.sleep(600)
for line in sys.stdin.buffer:
    message = json.loads(line)
    method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "faults", "version": "0"}
        agreed = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        send({"id": key, "result": {**agreed, "serverInfo": info}})
        if mode == "exits":
            os.write(2, b"no licence found\n")
            os._exit(5)
    elif method == "tools/list":
        send({"id": key, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        call(key, params["name"], params.get("arguments") or {})
        begun(params.get("_meta") or {})
    elif method == "ping":
        send({"id": key, "result": {}})
    elif key is not None:
        send({"id": key, "error": {"code": -32601, "message": "Method not found"}})
