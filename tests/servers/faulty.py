"""A stdio server that misbehaves in one way, named by its first argument.

Standard library only. It otherwise answers `initialize`, `tools/list` (one tool, `call`) and
`tools/call`, and has no `server/discover`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

mode = sys.argv[1]
extra = sys.argv[2:]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(key, result):
    send({"id": key, "result": result})


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def start_child(**options):
    child = subprocess.Popen(SLEEPER, stdin=subprocess.DEVNULL, **options)
    Path(extra[0]).write_text(str(child.pid))


class Calls:
    """One method per mode, which answers a call."""

    def dies(self, key, params):
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)

    def killed(self, key, params):
        os.kill(os.getpid(), signal.SIGKILL)

    def closes_stdout(self, key, params):
        os.close(1)
        time.sleep(600)

    def twice(self, key, params):
        answer(key, text("first"))
        answer(key, text("second"))
        answer(987654, text("nobody asked"))

    def late(self, key, params):
        held.append(key)
        if len(held) == 2:
            for child in held:
                answer(child, text(f"late {child}"))

    def string_ids(self, key, params):
        answer(str(key), text("by a string"))

    def oversize(self, key, params):
        how, mib = params["arguments"]["how"], params["arguments"].get("mib", 0)
        if how == "small":
            answer(key, text("small"))
        elif how != "never":
            around = {
                "id first": (b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' % key, b'"}}\n'),
                "id last": (b'{"result":{"id":0,"x":"', b'"},"jsonrpc":"2.0","id":%d}\n' % key),
                "nobody": (b'{"jsonrpc":"2.0","method":"notifications/message","x":"', b'"}\n'),
            }
            head, tail = around[how]
            raw(head)
            for _ in range(mib):
                raw(b"x" * (1 << 20))
            raw(tail)

    def broken_line(self, key, params):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[}\n' % key)

    def deep_line(self, key, params):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":%b%b}\n' % (key, b"[" * 10**5, b"]" * 10**5))

    def half_line(self, key, params):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":{"cont' % key)
        os._exit(3)

    def chatter(self, key, params):
        raw(b"INFO a line of a log that is none of MCP's\n" * 20_000)
        answer(key, text("through"))

    def large(self, key, params):
        answer(key, text("x" * int(params["arguments"]["size"])))

    def invalid_utf8(self, key, params):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"x":"\xff\xfe"}}\n' % key)

    def no_content(self, key, params):
        answer(key, {"structuredContent": {"said": "x" * params["arguments"]["size"]}})

    def no_object(self, key, params):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":["what"]}\n' % key)

    def endless_integer(self, key, params):
        raw(b'{"jsonrpc":"2.0","id":%d,"result":{"n":-%b}}\n' % (key, b"7" * 4301))

    def endless_nesting(self, key, params):
        value = b"[" * 100_000 + b"]" * 100_000
        raw(b'{"jsonrpc":"2.0","id":%d,"result":{"n":%b}}\n' % (key, value))

    def garbage(self, key, params):
        raw(b"log line\n\n\xff\xfe\n[]\n{}\n" * 3)
        answer(key, text("still here"))

    def flood(self, key, params):
        sys.stderr.write(("f" * 10_000 + "\n") * 300)
        sys.stderr.flush()
        answer(key, text("flooded"))

    def secret(self, key, params):
        print("token is", os.environ["API_TOKEN"], file=sys.stderr, flush=True)
        answer(key, text("said"))

    def notes(self, key, params):
        for _ in range(2_000):
            send({"method": "notifications/whatever", "params": {"a": 1}})
        answer(key, text("noted"))

    def odd_notes(self, key, params):
        for name in ("cancelled", "resources/updated", "progress", "message", "tools/list_changed"):
            for odd in ({}, {"params": ["s3cret"]}, {"params": {"uri": 7, "level": "s3cret"}}):
                send({"method": f"notifications/{name}", **odd})
        answer(key, text("noted"))

    def not_reading(self, key, params):
        time.sleep(600)

    def wears_out(self, key, params):
        if params["arguments"]:
            worn.append(key)
        if worn:
            send({"id": key, "error": {"code": -32000, "message": "the backend is gone"}})
        else:
            answer(key, text("fine"))

    def complains(self, key, params):
        send({"id": key, "error": {"code": -32602, "message": "bad arguments"}})

    def fine(self, key, params):
        answer(key, text("fine"))


lists = []


def on_list(key):
    lists.append(key)
    if mode == "late_list" and len(lists) < 3:
        answer(key, {"tools": []})
    elif mode == "late_error" and len(lists) < 3:
        send({"id": key, "error": {"code": -32603, "message": "still connecting"}})
    elif mode == "list_error" or worn:
        send({"id": key, "error": {"code": -32000, "message": "the catalogue burnt"}})
    elif mode == "list_malformed":
        answer(key, {"tools": {"call": "no list"}})
    else:
        answer(key, {"tools": [{"name": "call", "inputSchema": {"type": "object"}}]})


held = []
worn = []
if mode == "exits":
    print("no configuration found", file=sys.stderr, flush=True)
    sys.exit(7)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "child":
    start_child()
if mode == "escaped_child":
    start_child(start_new_session=True)
if mode == "bare_child":
    start_child(start_new_session=True, env={})
if mode == "mute":
    time.sleep(600)
if mode == "garbage":
    raw(b"Welcome to this server!\n")

for line in sys.stdin.buffer:
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if method == "initialize":
        if mode == "refuses":
            send({"id": key, "error": {"code": -32603, "message": "not today"}})
            continue
        version = "1999-01-01" if mode == "old" else message["params"]["protocolVersion"]
        if mode in ("one_version", "a_secret_version") and version != "2025-03-26":
            text = "Unsupported protocol version"
            supported = ["2025-03-26"] if mode == "one_version" else []
            data = {"supported": supported, "requested": version}
            send({"id": key, "error": {"code": -32602, "message": text, "data": data}})
            continue
        declared = message["params"]["capabilities"]
        has_modes = any(declared.get("elicitation", {}))
        known = {"knows_no_modes": not has_modes, "knows_no_capabilities": not declared}
        if not known.get(mode, True):
            text = 'Unrecognized field "form" (class Elicitation), not marked as ignorable'
            send({"id": key, "error": {"code": -32603, "message": text}})
            continue
        info = {"name": "faulty", "version": "0"}
        capabilities = [] if mode == "php" else {"tools": {}}
        answer(key, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
    elif method == "tools/list":
        on_list(key)
    elif method == "tools/call":
        getattr(Calls(), mode, Calls().fine)(key, message["params"])
    elif method == "ping" and mode != "discreet":
        answer(key, {})
    elif mode == "discreet":  # ignores unknown methods, including pings
        pass
    elif key is not None and method is not None:
        send({"id": key, "error": {"code": -32601, "message": "Method not found"}})
while mode in ("stubborn", "ignores_eof"):
    time.sleep(600)
