"""A server with server requests, without a transport: `asking_stdio` and `asking_http` add one.

Legacy: `ask` sends its `questions` as requests and returns the responses; `late` does not wait for
them, `withdraw` cancels them, `later` sends a request after its end, `visit` fails its first
`times` calls with a URL to visit. Modern: `ask` requests its `questions` in `rounds` rounds,
`patience` only asks to be called again, `demand` requires capabilities that the caller lacks.
Both: `capabilities`, `seen`, `echo`.
"""

import json

PREFIX = "io.modelcontextprotocol/"
TOOLS = ["ask", "late", "withdraw", "later", "demand", "endless", "capabilities"]
TOOLS += ["seen", "echo", "visit"]
MODERN = "2026-07-28"
ROOTS = {"method": "roots/list"}


def text(value):
    return {"content": [{"type": "text", "text": json.dumps(value)}]}


class Asking:
    """One server. `soon` schedules a function."""

    def __init__(self, legacy, soon):
        self.legacy = legacy
        self.soon = soon
        self.offers = False
        self.numbers = 0
        self.visits = 0
        self.waiting = {}
        self.capabilities = None
        self.seen = {"replies": [], "cancelled": [], "ids": []}

    def take(self, message, send):
        """Handle one message; `send` sends messages on its stream."""
        method, key, params = message.get("method"), message.get("id"), message.get("params") or {}
        meta = params.get("_meta") or {}

        def answer(result):
            stamp = {} if self.legacy else {"resultType": "complete"}
            send({"id": key, "result": {**stamp, **result}})

        if method is None:
            self.reply(message)
        elif method == "initialize" and self.legacy:
            self.capabilities = params["capabilities"]
            info = {"name": "asking", "version": "1"}
            offers = {"prompts": {}, "resources": {}} if self.offers else {}
            about = {"capabilities": {"tools": {}, **offers}, "serverInfo": info}
            answer({"protocolVersion": "2025-11-25", **about})
        elif method == "server/discover" and not self.legacy:
            cache = {"ttlMs": 0, "cacheScope": "private"}
            answer({"supportedVersions": [MODERN], "capabilities": {"tools": {}}, **cache})
        elif method == "tools/list":
            schema = {"type": "object"}
            cache = {} if self.legacy else {"ttlMs": 0, "cacheScope": "private"}
            answer({"tools": [{"name": tool, "inputSchema": schema} for tool in TOOLS], **cache})
        elif method == "prompts/get" and not self.legacy:
            self.seen["ids"].append(key)
            self.call_modern(key, params["name"], params, send, answer)
        elif method == "tools/call":
            self.seen["ids"].append(key)
            if not self.legacy:
                self.capabilities = meta[PREFIX + "clientCapabilities"]
            self.call(key, params, send, answer)
        elif method == "notifications/cancelled":
            self.seen["cancelled"].append(params["requestId"])
        elif method == "notifications/roots/list_changed":
            self.question(send, ROOTS, lambda _: None)
        elif key is not None:
            self.answer_rest(key, method, params, send, answer)

    def answer_rest(self, key, method, params, send, answer):
        if method == "ping":
            answer({})
        elif self.offers and method.startswith(("prompts/", "resources/")):
            self.offer(method, params, send, answer)
        else:
            send({"id": key, "error": {"code": -32601, "message": "Method not found"}})

    def reply(self, message):
        outcome = message.get("result", message.get("error"))
        self.seen["replies"].append(outcome)
        self.waiting.pop(message["id"], lambda _: None)(outcome)

    def offer(self, method, params, send, answer):
        """List one prompt and one resource; both request the roots and contain the response."""

        def on_reply(reply):
            said = json.dumps(reply)
            if method == "prompts/get":
                message = {"role": "user", "content": {"type": "text", "text": said}}
                answer({"messages": [message]})
            else:
                answer({"contents": [{"uri": params["uri"], "text": said}]})

        if method == "prompts/list":
            answer({"prompts": [{"name": "interview"}]})
        elif method == "resources/list":
            answer({"resources": [{"uri": "memo://roots", "name": "roots"}]})
        elif method == "resources/templates/list":
            answer({"resourceTemplates": []})
        else:
            self.question(send, ROOTS, on_reply)

    def call(self, key, params, send, answer):
        name, arguments = params["name"], params.get("arguments") or {}
        if name == "capabilities":
            answer(text(self.capabilities))
        elif name == "seen":
            answer(text(self.seen))
        elif name == "echo":
            answer(text(arguments))
        elif name == "visit":
            self.visit(key, arguments, send, answer)
        elif self.legacy:
            self.call_legacy(name, arguments, send, answer)
        else:
            self.call_modern(key, name, params, send, answer)

    def visit(self, key, arguments, send, answer):
        self.visits += 1
        if self.visits > arguments["times"]:
            answer(text("visited"))
            return
        visit = {"mode": "url", "url": f"http://127.0.0.1/{self.visits}", "message": "Visit"}
        data = {"elicitations": [{**visit, "elicitationId": str(self.visits)}]}
        send({"id": key, "error": {"code": -32042, "message": "Visit first", "data": data}})

    def question(self, send, question, on_reply):
        self.numbers += 1
        key = f"q{self.numbers}"
        self.waiting[key] = on_reply
        send({"id": key, **question})
        return key

    def call_legacy(self, name, arguments, send, answer):
        questions = arguments.get("questions", [])
        replies = [None] * len(questions)

        def on_reply(place, reply):
            replies[place] = reply
            if name == "ask" and None not in replies:
                answer(text(replies))

        keys = [
            self.question(send, question, lambda reply, place=place: on_reply(place, reply))
            for place, question in enumerate(questions)
        ]
        if name == "withdraw":
            for key in keys:
                send({"method": "notifications/cancelled", "params": {"requestId": key}})
        if name != "ask":
            answer(text("done"))
        if name == "later":
            self.soon(lambda: self.question(send, ROOTS, lambda _: None))

    def call_modern(self, key, name, params, send, answer):
        state = json.loads(params.get("requestState", '{"given": {}, "round": 0}'))
        state["given"].update(params.get("inputResponses", {}))
        arguments = params.get("arguments") or {}
        if name == "demand":
            data = {"requiredCapabilities": arguments["capabilities"]}
            error = {"code": -32021, "message": "Missing capability", "data": data}
            send({"id": key, "error": error})
        elif state["round"] == arguments.get("rounds", 1) and name != "endless":
            answer(text(state["given"]))
        else:
            state["round"] += 1
            wanted = {"resultType": "input_required", "requestState": json.dumps(state)}
            asked = arguments.get("questions", [])
            wanted["inputRequests"] = {
                f"r{state['round']}.{place}": question for place, question in enumerate(asked)
            }
            answer(wanted)
