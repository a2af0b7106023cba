"""A hand-written MCP server over stdio, standard library only; answers either era.

Options: `--legacy` has no `server/discover`, `--modern` no `initialize`; `--log PATH` records every
received line; `--name TEXT`; `--changes` says that its tools may change; `--many N` lists N more
tools in pages; `--restless` describes each tool with its process id and the time, and lists sets in
any order.
Tools: echo, meta, slow, never, progress, fail, error, log, change, env, counter, pid, sample, ping.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from pathlib import Path

PREFIX = "io.modelcontextprotocol/"
options = argparse.ArgumentParser()
options.add_argument("--legacy", action="store_true")
options.add_argument("--modern", action="store_true")
options.add_argument("--changes", action="store_true")
options.add_argument("--log")
options.add_argument("--name", default="echo-raw")
options.add_argument("--many", type=int, default=0)
options.add_argument("--restless", action="store_true")
args = options.parse_args()
log = Path(args.log) if args.log else None
lock = threading.Lock()
state = {"count": 0, "changed": False, "listen": None}
waiting = {}
cancelled = []


def tools():
    names = [name for name in vars(Tools) if not name.startswith("_")]
    found = []
    for name in names + (["added"] if state["changed"] else []):
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        found.append({"name": name, "inputSchema": schema, "x-unknown": {"kept": 1.0}})
        if args.restless:
            found[-1] |= restless(schema)
    return found + [{"name": f"t{i}", "inputSchema": {"type": "object"}} for i in range(args.many)]


def restless(schema):
    """Return a definition that no two processes write in the same way."""
    node = f"Node_{os.getpid()}"
    orders = random.sample(["asc", "desc", "none", "other"], 4)
    kinds = random.sample([{"type": "string"}, {"type": "null"}], 2)
    properties = {
        **schema["properties"],
        "order": {"enum": orders, "default": orders[0], "description": f"At {time.time()}"},
        "node": {"$ref": f"#/$defs/{node}"},
    }
    return {
        "title": f"Of process {os.getpid()}",
        "description": f"Process {os.getpid()}, listed at {time.time()}.",
        "inputSchema": {
            "type": "object",
            "title": f"Arguments {os.getpid()}",
            "$defs": {node: {"anyOf": kinds, "title": node}},
            "properties": dict(random.sample(list(properties.items()), len(properties))),
        },
    }


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


class Tools:
    """One method per tool: (request id, arguments, `_meta` or None, answer)."""

    def echo(self, key, arguments, meta, answer):
        answer(text(arguments.get("text", "")))

    def meta(self, key, arguments, meta, answer):
        answer(text(json.dumps(meta)))

    def slow(self, key, arguments, meta, answer):
        threading.Timer(float(arguments.get("seconds", 0.2)), answer, [text("slow")]).start()

    def never(self, key, arguments, meta, answer):
        pass

    def progress(self, key, arguments, meta, answer):
        for step in range(3):
            report = {"progressToken": meta["progressToken"], "progress": step, "total": 3}
            report["message"] = f"step {step}"
            send({"method": "notifications/progress", "params": report})
        answer(text("done"))

    def fail(self, key, arguments, meta, answer):
        answer({**text("it went wrong"), "isError": True})

    def error(self, key, arguments, meta, answer):
        error = {"code": -32602, "message": "no such thing", "data": {"why": "because"}}
        send({"id": key, "error": error})

    def log(self, key, arguments, meta, answer):
        for level in ("debug", "warning"):
            note = {"level": level, "logger": "raw", "data": {"said": level}}
            send({"method": "notifications/message", "params": note})
        answer(text("logged"))

    def change(self, key, arguments, meta, answer):
        state["changed"] = True
        note = {"method": "notifications/tools/list_changed"}
        if state["listen"] is not None:
            note["params"] = {"_meta": {PREFIX + "subscriptionId": state["listen"]}}
        send(note)
        answer(text("changed"))

    def halfway(self, key, arguments, meta, answer):
        send({"id": key, "result": {**text("not yet"), "resultType": "halfway"}})

    def backless(self, key, arguments, meta, answer):
        why = "this transport context has no back-channel for server-initiated requests."
        answer({**text(f"Cannot send 'elicitation/create': {why}"), "isError": True})

    def nothing(self, key, arguments, meta, answer):
        send({"id": key})

    def env(self, key, arguments, meta, answer):
        answer(text(json.dumps(dict(os.environ))))

    def counter(self, key, arguments, meta, answer):
        state["count"] += 1
        answer(text(str(state["count"])))

    def pid(self, key, arguments, meta, answer):
        answer(text(str(os.getpid())))

    def sample(self, key, arguments, meta, answer):
        relay("sampling/createMessage", {"messages": [], "maxTokens": 1}, answer)

    def ping(self, key, arguments, meta, answer):
        relay("ping", None, answer)

    def cancelled(self, key, arguments, meta, answer):
        answer(text(json.dumps(cancelled)))


def relay(method, params, answer):
    """Send a request to the client; answer the call with the response."""
    ask_and_answer = lambda: answer(text(json.dumps(ask(method, params))))  # noqa: E731
    threading.Thread(target=ask_and_answer, daemon=True).start()


def call(key, params, answer):
    tool = getattr(Tools(), params["name"], None)
    if tool is None:
        send({"id": key, "error": {"code": -32602, "message": f"Unknown tool: {params['name']}"}})
    else:
        tool(key, params.get("arguments") or {}, params.get("_meta"), answer)


def handle(message):
    method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
    meta = params.get("_meta") or {}
    modern = PREFIX + "protocolVersion" in meta

    def answer(result):
        send({"id": key, "result": {**result, **({"resultType": "complete"} if modern else {})}})

    if method is None:
        waiting[key].answer = message.get("result", message.get("error"))
        waiting[key].set()
    elif method == "initialize" and not args.modern:
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
        with log.open("a") as file:
            file.write(line)
    handle(json.loads(line))
