"""A server whose lists break rules of JSON and MCP in every way, and which answers calls likewise.

Run by the tests' environment; needs nothing but Python.
"""

import json
import sys

OBJECT = {"type": "object"}
TOOLS = [
    {},
    {"inputSchema": {}},
    {"inputSchema": None},
    {"inputSchema": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}},
    {"inputSchema": {"anyOf": [OBJECT]}},
    {"inputSchema": {"type": ["object", "null"]}},
    {"inputSchema": {**OBJECT, "properties": None, "required": None}},
    {"inputSchema": {**OBJECT, "properties": {"any": True}}},
    {"inputSchema": {**OBJECT, "properties": {"a": {"maximum": float("inf")}}}},
    {"inputSchema": {**OBJECT, "properties": {"a": {"maximum": 2**70}}}},
    {"inputSchema": OBJECT, "_meta": None, "icons": None, "title": None, "execution": None},
    {"inputSchema": OBJECT, "annotations": {"readOnlyHint": "yes"}, "icons": [{"src": 5}]},
    {"inputSchema": OBJECT, "outputSchema": {"type": "array"}},
    {"inputSchema": OBJECT, "outputSchema": {"type": "strng"}},
    {"inputSchema": OBJECT, "outputSchema": {"$ref": "#/$defs/none"}},
    {"inputSchema": OBJECT, "outputSchema": True},
    {"inputSchema": OBJECT, "description": "cut \ud83d"},
    {"inputSchema": OBJECT, "description": "caf@"},
    {"inputSchema": OBJECT, "outputSchema": {**OBJECT, "required": ["what no result has"]}},
]
LISTS = {
    "tools/list": {"tools": [{"name": f"t{n}", **tool} for n, tool in enumerate(TOOLS)]},
    "prompts/list": {
        "prompts": [
            {"name": "p0", "arguments": None, "title": 5},
            {"name": "p1", "arguments": [{"name": "a", "required": "yes"}, {}]},
        ]
    },
    "resources/list": {
        "resources": [
            {"uri": "notes.txt", "name": "n"},
            {"uri": "a:b", "name": None, "size": "5", "annotations": {"priority": 7}},
        ]
    },
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "a:{b}", "icons": 5}]},
}


def send(key, result):
    line = json.dumps({"jsonrpc": "2.0", "id": key, "result": result}).encode()
    sys.stdout.buffer.write(line.replace(b"caf@", b"caf\xe9") + b"\n")
    sys.stdout.buffer.flush()


def extra_tools():
    """Return tools that no parser reads whole, spliced in as text."""
    yield b'{"name":"long","inputSchema":{"type":"object","maximum":%b}}' % (b"1" * 5000)
    for levels in (300, 995, 20_000):
        yield b'{"name":"deep%d","x":%b}' % (levels, b"[" * levels + b"]" * levels)


for line in sys.stdin.buffer:
    message = json.loads(line)
    key, method = message.get("id"), message.get("method")
    if method == "initialize":
        send(
            key,
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            },
        )
    elif method == "tools/list":
        page = json.dumps({**LISTS[method], "nextCursor": "again"}).encode()
        page = page.replace(b"caf@", b"caf\xe9")
        page = page.replace(b'"tools": [', b'"tools": [' + b",".join(extra_tools()) + b",", 1)
        sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (key, page))
        sys.stdout.buffer.flush()
    elif method in LISTS:
        send(key, LISTS[method])
    elif method == "tools/call":
        text = [{"type": "text", "text": "half \ud83d, caf@"}]
        send(key, {"content": text, "structuredContent": [float("nan"), 2**70]})
    elif key is not None:
        error = {"code": -32601, "message": "no such method"}
        reply = {"jsonrpc": "2.0", "id": key, "error": error}
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()
