"""A stdio server that prints the secrets of its environment at the place of its first argument.

`initialize`, `list`: in the error of that request. `garbage`: in an invalid response to
`initialize`. `call`, `notice`: in the error or progress of its tool `tell`. `exit`: on stderr,
before it exits. Each secret is printed as it is and in six encodings.
"""

from __future__ import annotations

import base64
import html
import json
import os
import sys
from urllib.parse import quote, quote_plus


def told() -> str:
    words = []
    for name, value in sorted(os.environ.items()):
        if name.startswith("PLANTED_"):
            encoded = base64.b64encode(value.encode()).decode()
            forms = (value, json.dumps(value), repr(value), quote(value, safe=""), encoded)
            words += [*forms, quote_plus(value), html.escape(value)]
    return " ".join(words)


def answer(message: dict[str, object], where: str) -> dict[str, object]:
    refusal = {"code": -32000, "message": told(), "data": {"why": told()}}
    match message["method"]:
        case "initialize" if where == "initialize":
            return {"error": refusal}
        case "initialize" if where == "garbage":
            return {"result": {"protocolVersion": told(), "capabilities": told()}}
        case "initialize":
            return {
                "result": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "leaky", "version": "1"},
                }
            }
        case "tools/list" if where == "list":
            return {"error": refusal}
        case "tools/list":
            return {"result": {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]}}
        case "tools/call":
            return {"error": refusal}
    return {"result": {}}


def main() -> None:
    where = sys.argv[1]
    if where == "exit":
        print(told(), file=sys.stderr, flush=True)
        sys.exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            head = {"jsonrpc": "2.0", "id": message["id"]}
            print(json.dumps(head | answer(message, where)), flush=True)


if __name__ == "__main__":
    main()
