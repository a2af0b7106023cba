"""A stateful MCP server over stdio for `play.py`: `count` returns its process and a count.

Standard library only. Its arguments are not read; one may tell its processes from others.
"""

import json
import os
import sys

TOOL = {
    "name": "count",
    "description": "Return the process id and how often it was called.",
    "inputSchema": {"type": "object"},
}

counted = 0
for line in sys.stdin:
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if key is None:
        continue
    answer = {}
    if method == "initialize":
        answer["result"] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "counter", "version": "1"},
        }
    elif method == "tools/list":
        answer["result"] = {"tools": [TOOL]}
    elif method == "tools/call":
        counted += 1
        answer["result"] = {"content": [{"type": "text", "text": f"{os.getpid()} {counted}"}]}
    elif method == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps({"jsonrpc": "2.0", "id": key, **answer}), flush=True)
