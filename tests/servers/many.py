"""A hand-written MCP server over stdio for many concurrent calls; standard library only.

Its one tool, `produce`, answers after `delay` seconds with `size` characters, which depend on
`seed`, and reports progress `steps` times before. A cancelled call is never answered.
"""

import asyncio
import json
import sys

TOOL = {
    "name": "produce",
    "inputSchema": {
        "type": "object",
        "properties": {
            "seed": {"type": "integer"},
            "size": {"type": "integer"},
            "delay": {"type": "number"},
            "steps": {"type": "integer"},
        },
        "required": ["seed", "size"],
    },
    "annotations": {"readOnlyHint": False, "idempotentHint": False},
}
calls = {}


def produced(seed, size):
    word = f"<{seed:016x}>"
    return (word * (size // len(word) + 1))[:size]


def send(message):
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


async def produce(key, params):
    arguments = params["arguments"]
    token = params.get("_meta", {}).get("progressToken")
    steps = arguments.get("steps", 0)
    for step in range(steps):
        if token is not None:
            report = {"progressToken": token, "progress": step + 1, "total": steps}
            report["message"] = str(arguments["seed"])
            send({"method": "notifications/progress", "params": report})
        await asyncio.sleep(arguments.get("delay", 0) / (steps + 1))
    await asyncio.sleep(arguments.get("delay", 0) / (steps + 1))
    text = produced(arguments["seed"], arguments["size"])
    calls.pop(key, None)
    send({"id": key, "result": {"content": [{"type": "text", "text": text}]}})


def handle(message):
    method, params, key = message.get("method"), message.get("params") or {}, message.get("id")
    if method == "tools/call":
        calls[key] = asyncio.ensure_future(produce(key, params))
    elif method == "notifications/cancelled":
        task = calls.pop(params.get("requestId"), None)
        if task is not None:
            task.cancel()
    elif method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "many", "version": "1"}}
        send({"id": key, "result": {"protocolVersion": params["protocolVersion"], **about}})
    elif method == "tools/list":
        send({"id": key, "result": {"tools": [TOOL]}})
    elif key is not None:
        send({"id": key, "result": {}})


async def main():
    reader = asyncio.StreamReader(limit=2**25)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        handle(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main())
