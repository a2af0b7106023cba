"""An MCP server over stdio that says what its caller writes for it; standard library only.

A script is a JSON object: `result` or `error` is the answer, `before` are notifications that are
sent first (each a method and its params), and `ask` is a request to the client (a method and its
params), whose answer becomes the member `answered` of the result. It is the argument `script` of
the tool and of the prompt `say`, the value of a completion, and in base64 the path of a URI
`say:...`. The result has the caller's params as `heard` if the script has `echo`. Speaks both eras.
"""

import base64
import json
import sys
import threading

PREFIX = "io.modelcontextprotocol/"
CAPABILITIES = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}, "logging": {}}
INFO = {"name": "scripted", "version": "1"}
LISTS = {
    "tools/list": {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]},
    "prompts/list": {
        "prompts": [{"name": "say", "arguments": [{"name": "script", "required": True}]}]
    },
    "resources/list": {"resources": []},
    "resources/templates/list": {
        "resourceTemplates": [{"uriTemplate": "say:{script}", "name": "say"}]
    },
}
ASKED = "question"
lock = threading.Lock()
waiting = {}


def send(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def script_of(method, params):
    if method == "resources/read":
        return json.loads(base64.urlsafe_b64decode(params["uri"].removeprefix("say:")))
    if method == "completion/complete":
        return json.loads(params["argument"]["value"])
    script = params["arguments"]["script"]
    return json.loads(script) if isinstance(script, str) else script


def play(key, method, params, modern):
    script = script_of(method, params)
    for name, content in script.get("before", ()):
        if name == "notifications/progress":
            content = {**content, "progressToken": params["_meta"]["progressToken"]}
        send({"method": name, "params": content})
    if "error" in script:
        send({"id": key, "error": script["error"]})
        return
    result = dict(script["result"])
    if modern:
        result.setdefault("resultType", "complete")
    if "ask" in script:
        name, content = script["ask"]
        if not modern:
            waiting[key] = result
            send({"id": f"ask {key}", "method": name, "params": content})
            return
        if "inputResponses" not in params:
            requests = {ASKED: {"method": name, "params": content}}
            result = {"resultType": "input_required", "inputRequests": requests}
            send({"id": key, "result": {**result, "requestState": "asked"}})
            return
        result["answered"] = params["inputResponses"][ASKED]
    if script.get("echo"):
        result["heard"] = params
    send({"id": key, "result": result})


def handle(message):
    method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
    modern = PREFIX + "protocolVersion" in params.get("_meta", {})
    if method is None:
        asked = int(key.removeprefix("ask "))
        send(
            {
                "id": asked,
                "result": {
                    **waiting.pop(asked),
                    "answered": message.get("result", message.get("error")),
                },
            }
        )
    elif method == "initialize":
        version = params["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": INFO}
        send({"id": key, "result": result})
    elif method == "server/discover":
        found = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES}
        hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        meta = {"_meta": {PREFIX + "serverInfo": INFO}}
        send({"id": key, "result": {**found, **hints, **meta}})
    elif method in LISTS:
        hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if modern else {}
        send({"id": key, "result": {**LISTS[method], **hints}})
    elif method in ("tools/call", "prompts/get", "resources/read", "completion/complete"):
        play(key, method, params, modern)
    elif key is not None:
        send({"id": key, "result": {}})


for line in sys.stdin:
    handle(json.loads(line))
