"""A legacy stdio server that accepts nothing before `initialize`. Standard library only.

The first argument says what any other first message causes: `exits`, `closes` its output, `hangs`
for ever, is answered by a `parse error` without an id, or `poisons` the connection: everything is
refused from then on. `exits once` exits, too, and the second start is too slow for anybody. The
second argument is a file to which each start and method is appended.
"""

import json
import os
import sys
import time
from pathlib import Path

how, log = sys.argv[1], Path(sys.argv[2])
TOOLS = [{"name": "hello", "inputSchema": {"type": "object"}}]


def note(text):
    with log.open("a") as file:
        file.write(text + "\n")


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def refuse(key):
    if how.startswith("exits"):
        print("Error: ExpectedInitializeRequest", file=sys.stderr, flush=True)
        sys.exit(1)
    if how == "closes":
        os.close(1)
        time.sleep(600)
    if how == "hangs":
        time.sleep(600)
    if how == "parse error":
        send(id=None, error={"code": -32700, "message": "Parse error"})
    else:
        send(id=key, error={"code": -32600, "message": "expected initialize"})


def answer(method, key):
    if method == "initialize":
        info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "strict", "version": "0"}}
        send(id=key, result={"protocolVersion": "2025-06-18", **info})
    elif method == "tools/list":
        send(id=key, result={"tools": TOOLS})
    elif method == "tools/call":
        send(id=key, result={"content": [{"type": "text", "text": "hello"}]})
    elif key is not None:
        send(id=key, result={})


note("start")
if how == "exits once" and log.read_text().count("start") == 2:
    time.sleep(600)
initialized = poisoned = False
for line in sys.stdin:
    message = json.loads(line)
    note(message["method"])
    initialized = initialized or message["method"] == "initialize"
    if poisoned or not initialized:
        poisoned = how == "poisons"
        refuse(message.get("id"))
    else:
        answer(message["method"], message.get("id"))
