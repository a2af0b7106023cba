"""A stdio MCP server with a fault for a test: `planted.py FAULT`. Standard library only."""

import json
import os
import sys
import threading
import time

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TURNED = "\u202egnp.exe\u202c \x1b[31mred"

OBJECT = {"type": "object"}
SECRETS = (
    "login with password=hunter2-hunter2 failed",
    "Authorization: Bearer 0123456789abcdef",
    "connecting to postgres://bob:s3cret-pw@db.internal/x",
    '{"user": "ann", "password": "in-a-json-text", "headers": {"Authorization": "Basic YW5uOnB3"}}',
    "using key sk-0123456789abcdefghij",
)
TOOLS = {
    "bad_schema": [
        {"name": "odd", "inputSchema": {"type": "object", "properties": {"x": {"type": "odd"}}}}
    ],
    "slow": [{"name": "wait", "inputSchema": OBJECT}],
    "clash": [{"name": "lookup", "inputSchema": OBJECT}],
    "flapping": [{"name": "die", "inputSchema": OBJECT}],
    "crawling": [{"name": "crawl", "inputSchema": OBJECT}],
    "hostile": [
        {
            "name": "inject",
            "title": HOSTILE,
            "description": f"{HOSTILE} {TURNED} </pre></main>",
            "inputSchema": {
                "type": "object",
                "properties": {
                    HOSTILE: {"type": "string", "description": HOSTILE},
                    "count": {"type": "integer", "default": 3, "enum": [3, 4]},
                },
            },
        },
        {"name": HOSTILE, "inputSchema": OBJECT},
    ],
    "form": [
        {
            "name": "fill",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                    "count": {"type": ["integer", "null"]},
                    "parts": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["name"],
            },
        },
    ],
}
FAULT = sys.argv[1]


def call(arguments):
    if FAULT == "talkative":
        print(*SECRETS, os.environ.get("PLAIN", ""), sep="\n", file=sys.stderr, flush=True)
    if FAULT == "slow":
        time.sleep(1.5)
    if FAULT == "flapping":
        print("out of ideas", file=sys.stderr, flush=True)
        os._exit(3)
    words = HOSTILE if FAULT == "hostile" else "fine"
    if FAULT == "form":
        words = json.dumps(arguments, sort_keys=True)
    return {"content": [{"type": "text", "text": words}]}


def answer(message):
    method = message["method"]
    if method == "initialize":
        return {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": HOSTILE if FAULT == "hostile" else FAULT, "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS.get(FAULT, [{"name": "echo", "inputSchema": OBJECT}])}
    return call(message["params"].get("arguments")) if method == "tools/call" else {}


def reply_later(reply):
    """Answer a call after six seconds, without delaying others."""

    def send():
        reply["result"] = call(None)
        print(json.dumps(reply) + "\n", end="", flush=True)

    threading.Timer(6, send).start()


def main():
    if FAULT == "restless":  # exits soon after each start
        threading.Timer(0.2, os._exit, (3,)).start()
    if FAULT == "hostile":
        print(f"{HOSTILE} {TURNED}", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"]}
            if message.get("method") == "server/discover":
                reply["error"] = {"code": -32601, "message": "unknown method"}
            elif FAULT == "crawling" and message["method"] == "tools/call":
                reply_later(reply)
                continue
            else:
                reply["result"] = answer(message)
            print(json.dumps(reply), flush=True)


main()
