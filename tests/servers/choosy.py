"""A stateful stdio server that lists most only to clients that answer sampling; stdlib only.

To others it lists one of two resources, and does not even have prompts. It speaks 2025-11-25.
"""

import json
import sys

TOOL = {"name": "wait", "inputSchema": {"type": "object"}}
LISTS = {
    "tools/list": ("tools", [TOOL], [TOOL]),
    "prompts/list": ("prompts", [], [{"name": "ask"}]),
    "resources/list": (
        "resources",
        [{"uri": "ui://note", "name": "note"}],
        [{"uri": "ui://note", "name": "note"}, {"uri": "ui://answers", "name": "answers"}],
    ),
    "resources/templates/list": (
        "resourceTemplates",
        [],
        [{"uriTemplate": "ui://answers/{id}", "name": "answer"}],
    ),
}

is_asked = False
for line in sys.stdin:
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if key is None:
        continue
    if method == "initialize":
        is_asked = "sampling" in message["params"]["capabilities"]
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "resources": {}} | ({"prompts": {}} if is_asked else {}),
            "serverInfo": {"name": "choosy", "version": "1"},
        }
    elif method in LISTS:
        member, few, all_of_them = LISTS[method]
        result = {member: all_of_them if is_asked else few}
    else:
        result = {"content": [], "structuredContent": {}}
    print(json.dumps({"jsonrpc": "2.0", "id": key, "result": result}), flush=True)
