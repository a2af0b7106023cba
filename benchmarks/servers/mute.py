"""The echo server with a second tool, `never`, that never responds."""

import sys

import orjson
from echo import TOOLS, answer

NEVER = {"name": "never", "inputSchema": {"type": "object"}}


def main():
    """Respond to all requests except calls of `never`."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = orjson.loads(line)
        method, params = message["method"], message.get("params")
        if "id" not in message or (method == "tools/call" and params["name"] == "never"):
            continue
        result = {"tools": [*TOOLS, NEVER]} if method == "tools/list" else answer(method, params)
        out.write(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
