"""An MCP server over stdio with one tool, `echo`, that takes a few microseconds per call.

Run as `python echo.py`, with `SECONDS` that it waits before it reads, if wanted. It needs only
orjson, so that it runs in the peers' environments too.
"""

import sys
import time

import orjson

TOOLS = [
    {
        "name": "echo",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "size": {"type": "integer"}},
            "required": ["text"],
        },
    }
]


def answer(method, params):
    """Return the result of one request."""
    if method == "tools/call":
        arguments = params["arguments"]
        text = arguments["text"] or "x" * arguments.get("size", 0)
        return {"content": [{"type": "text", "text": text}]}
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        }
    return {"tools": TOOLS} if method == "tools/list" else {}


def main():
    """Answer requests until standard input ends."""
    for seconds in sys.argv[1:]:
        time.sleep(float(seconds))
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = orjson.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params"))
            out.write(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
            out.write(b"\n")
            out.flush()


if __name__ == "__main__":
    main()
