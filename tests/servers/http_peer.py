"""A gateway of its own process for tests of `--peer`: MCP over HTTP at `/mcp` with the tool `echo`.

Run as `python http_peer.py PORT FORM PYTHON SCRIPT`. FORM is how it responds: `json`, `chunks`
(an event stream), `wrong` (another text), or `prefix`: it serves `/`, and the tool has a prefix. It
ignores the server it is given, except that its command must be there.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != PATH:
            self.send_error(404)
            return
        if "id" not in message:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        result = {"tools": [{"name": TOOL}]} if message["method"] == "tools/list" else {}
        if message["method"] == "tools/call":
            if self.headers["Mcp-Session-Id"] != "one" or message["params"]["name"] != TOOL:
                self.send_error(404)
                return
            text = message["params"]["arguments"]["text"]
            text = "another" if FORM == "wrong" else text
            result = {"content": [{"type": "text", "text": text}]}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        self.send_response(200)
        self.send_header("Mcp-Session-Id", "one")
        if FORM == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            event = b"event: message\ndata: " + body + b"\n\n"
            for piece in (event[:40], event[40:], b""):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


PORT, FORM, PYTHON, SCRIPT = sys.argv[1:]
PATH, TOOL = ("/", "backend/echo") if FORM == "prefix" else ("/mcp", "echo")
assert Path(PYTHON).is_file()
assert Path(SCRIPT).is_file()
ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler).serve_forever()
