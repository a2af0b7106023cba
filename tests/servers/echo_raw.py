"""A hand-written MCP server over stdio, standard library only; answers either era.

Options: `--legacy` knows no `server/discover`; `--log PATH` writes down every line it gets;
`--name TEXT`; `--changes` says that its tools may change; `--many N` lists N more tools in pages.
Tools: echo, meta, slow, never, progress, fail, error, log, change, env, counter, pid, sample, ping.
"""

import argparse
import json
import os
import sys
import threading

PREFIX = "io.modelcontextprotocol/"
options = argparse.ArgumentParser()
options.add_argument("--legacy", action="store_true")
options.add_argument("--changes", action="store_true")
options.add_argument("--log")
options.add_argument("--name", default="echo-raw")
options.add_argument("--many", type=int, default=0)
args = options.parse_args()
log = open(args.log, "a", buffering=1) if args.log else None
lock = threading.Lock()
state = {"count": 0, "changed": False, "listen": None}
waiting = {}
NAMES = (
    "echo meta slow never progress fail error log change env counter pid sample ping cancelled"
).split()
cancelled = []


def tools():
    found = []
    for name in NAMES + (["added"] if state["changed"] else []):
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        found.append({"name": name, "inputSchema": schema, "x-unknown": {"kept": 1.0}})
    return found + [{"name": f"t{i}", "inputSchema": {"type": "object"}} for i in range(args.many)]


def send(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": value}], "isError": False, "unknown": {"a": 1.0}}


def ask(method, params=None):
    key = f"s{len(waiting)}"
    waiting[key] = threading.Event()
    send({"id": key, "method": method, **({"params": params} if params else {})})
    waiting[key].wait(10)
    return waiting[key].answer


def call(key, params, answer):
    name, arguments, meta = params["name"], params.get("arguments") or {}, params.get("_meta") or {}
    if name == "echo":
        answer(text(arguments.get("text", "")))
    elif name == "meta":
        answer(text(json.dumps(params.get("_meta"))))
    elif name == "slow":
        threading.Timer(float(arguments.get("seconds", 0.2)), answer, [text("slow")]).start()
    elif name == "progress":
        for step in range(3):
            report = {"progressToken": meta["progressToken"], "progress": step, "total": 3}
            report["message"] = f"step {step}"
            send({"method": "notifications/progress", "params": report})
        answer(text("done"))
    elif name == "fail":
        answer({**text("it went wrong"), "isError": True})
    elif name == "error":
        error = {"code": -32602, "message": "no such thing", "data": {"why": "because"}}
        send({"id": key, "error": error})
    elif name == "log":
        for level in ("debug", "warning"):
            note = {"level": level, "logger": "raw", "data": {"said": level}}
            send({"method": "notifications/message", "params": note})
        answer(text("logged"))
    elif name == "change":
        state["changed"] = True
        note = {"method": "notifications/tools/list_changed"}
        if state["listen"] is not None:
            note["params"] = {"_meta": {PREFIX + "subscriptionId": state["listen"]}}
        send(note)
        answer(text("changed"))
    elif name == "env":
        answer(text(json.dumps(dict(os.environ))))
    elif name == "counter":
        state["count"] += 1
        answer(text(str(state["count"])))
    elif name == "pid":
        answer(text(str(os.getpid())))
    elif name in ("sample", "ping"):
        method = "ping" if name == "ping" else "sampling/createMessage"
        params = None if name == "ping" else {"messages": [], "maxTokens": 1}
        relay = lambda: answer(text(json.dumps(ask(method, params))))  # noqa: E731
        threading.Thread(target=relay, daemon=True).start()
    elif name == "cancelled":
        answer(text(json.dumps(cancelled)))
    elif name != "never":
        send({"id": key, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})


def handle(message):
    method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
    meta = params.get("_meta") or {}
    modern = PREFIX + "protocolVersion" in meta

    def answer(result):
        send({"id": key, "result": {**result, **({"resultType": "complete"} if modern else {})}})

    if method is None:
        waiting[key].answer = message.get("result") or message.get("error")
        waiting[key].set()
    elif method == "initialize":
        version = params["protocolVersion"]
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": args.name, "version": "1"}
        answer({"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
    elif method == "server/discover" and not args.legacy:
        tool_flags = {"listChanged": True} if args.changes else {}
        capabilities = {"tools": tool_flags}
        stamp = {"_meta": {PREFIX + "serverInfo": {"name": args.name, "version": "1"}}}
        cache = {"ttlMs": 0, "cacheScope": "private"}
        found = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
        answer({**found, **cache, **stamp})
    elif method == "subscriptions/listen" and modern:
        state["listen"] = key
        stamp = {"_meta": {PREFIX + "subscriptionId": key}}
        honored = {**stamp, "notifications": params["notifications"]}
        send({"method": "notifications/subscriptions/acknowledged", "params": honored})
    elif method == "tools/list":
        listed, start = tools(), int(params.get("cursor") or 0)
        page = {"tools": listed[start : start + 50]}
        if start + 50 < len(listed):
            page["nextCursor"] = str(start + 50)
        answer({**page, **({"ttlMs": 0, "cacheScope": "private"} if modern else {})})
    elif method == "tools/call":
        call(key, params, answer)
    elif method == "ping":
        answer({})
    elif method == "notifications/cancelled":
        cancelled.append(params)
    elif key is not None:
        send({"id": key, "error": {"code": -32601, "message": "Method not found"}})


for line in sys.stdin:
    if log:
        log.write(line)
    handle(json.loads(line))
