"""Plays how hosts speak to a front, and prints which process answers each call.

Standard library only. The front serves `counter.py`, as `hosts.yaml` says (docs/mcp.md):

    leaseway up --config tools/hosts/hosts.yaml --mcp 127.0.0.1:7680
    python tools/hosts/play.py http://127.0.0.1:7680/mcp

A line for each call: the host, the process that counted, its count, and how many processes of the
server this machine runs. They are found by the last word of their command line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

TIMEOUT = 60.0
"""Seconds for one request."""
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "host", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Host:
    """One program, which keeps what its pattern lets it keep.

    Args:
        url: The front.
        name: Its `clientInfo.name`.
        cookies: Whether it returns cookies.
    """

    def __init__(self, url: str, name: str, *, cookies: bool = False) -> None:
        handlers = [urllib.request.HTTPCookieProcessor(CookieJar())] if cookies else []
        self._http = urllib.request.build_opener(*handlers)
        self._url = url
        self._name = name

    def initialize(self) -> str:
        """Open a session; return its id."""
        info = {"name": self._name, "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        session = self._send({"id": 0, "method": "initialize", "params": params}, {})[1]
        self._send({"method": "notifications/initialized"}, _with(session))
        return session

    def call(
        self,
        session: str = "",
        meta: dict[str, object] | None = None,
        arguments: dict[str, str] | None = None,
    ) -> dict[str, object]:
        """Call `count`; return the result."""
        params = {"name": "count", "arguments": arguments or {}, "_meta": meta or {}}
        headers = _with(session)
        if meta is MODERN:
            headers = {
                "MCP-Protocol-Version": "2026-07-28",
                "Mcp-Method": "tools/call",
                "Mcp-Name": "count",
            }
        response = self._send({"id": 1, "method": "tools/call", "params": params}, headers)[0]
        if "error" in response or response["result"].get("isError"):
            raise SystemExit(f"A call of the host '{self._name}' failed: {json.dumps(response)}")
        return response["result"]

    def list(self, session: str) -> None:
        """List tools."""
        self._send({"id": 1, "method": "tools/list"}, _with(session))

    def _send(self, message: dict[str, object], headers: dict[str, str]) -> tuple[dict, str]:
        request = urllib.request.Request(
            self._url,
            json.dumps({"jsonrpc": "2.0", **message}).encode(),
            {
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                **({"Authorization": f"Bearer {KEY}"} if KEY else {}),
                **headers,
            },
        )
        with self._http.open(request, timeout=TIMEOUT) as response:
            body = response.read().decode()
            if response.headers.get_content_type() == "text/event-stream":
                events = [line[5:] for line in body.splitlines() if line.startswith("data:")]
                body = events[-1]
            return json.loads(body or "{}"), response.headers.get("Mcp-Session-Id", "")


KEY = os.environ.get("LEASEWAY_KEY", "")


def _with(session: str) -> dict[str, str]:
    return {"Mcp-Session-Id": session} if session else {}


# The hosts. Each plays two conversations by turns and yields the results of its calls.


def keeps_its_session(url: str, calls: int) -> Iterator[dict]:
    """Send `initialize` once for each conversation, and then its `Mcp-Session-Id`."""
    host = Host(url, "keeps-its-session")
    sessions = [host.initialize(), host.initialize()]
    for number in range(calls):
        yield host.call(sessions[number % 2])


def initializes_before_each_call(url: str, calls: int) -> Iterator[dict]:
    """Send `initialize` before each call, and nothing that says the conversation."""
    host = Host(url, "initializes-before-each-call")
    for _ in range(calls):
        yield host.call(host.initialize())


def renews_and_passes(url: str, calls: int) -> Iterator[dict]:
    """Send `initialize` before each request; its model passes back the `session` of a result.

    Results say one from the second session on, of which the first one lists tools here.
    """
    host = Host(url, "renews-and-passes")
    host.list(host.initialize())
    known: list[dict[str, str]] = [{}, {}]
    for number in range(calls):
        result = host.call(host.initialize(), arguments=known[number % 2])
        if session := result.get("_meta", {}).get("leaseway/session"):
            known[number % 2] = {"session": session}
        yield result


def names_its_conversations(url: str, calls: int) -> Iterator[dict]:
    """Send `initialize` before each call, and the conversation as `openai/session`."""
    host = Host(url, "names-its-conversations")
    for number in range(calls):
        meta = {"openai/session": f"conversation-{number % 2}"}
        yield host.call(host.initialize(), meta)


def sends_no_session(url: str, calls: int) -> Iterator[dict]:
    """Send `initialize` once, never a session or cookie; its model drops `session`, too."""
    host = Host(url, "sends-no-session")
    host.initialize()
    for _ in range(calls):
        yield host.call()


def passes_the_argument(url: str, calls: int) -> Iterator[dict]:
    """Like `sends_no_session`, but its model passes back the `session` of a result."""
    host = Host(url, "passes-the-argument")
    host.initialize()
    yield from _passing(host, calls, {})


def is_modern(url: str, calls: int) -> Iterator[dict]:
    """Speak 2026-07-28 without cookies; its model passes back the `session` of a result."""
    yield from _passing(Host(url, "is-modern"), calls, MODERN)


def _passing(host: Host, calls: int, meta: dict[str, object]) -> Iterator[dict]:
    known: list[dict[str, str]] = [{}, {}]
    for number in range(calls):
        result = host.call(meta=meta, arguments=known[number % 2])
        if not known[number % 2]:
            known[number % 2] = {"session": result["_meta"]["leaseway/session"]}
        yield result


def returns_cookies(url: str, calls: int) -> Iterator[dict]:
    """Send `initialize` once for each conversation, no session, but the cookies of each."""
    hosts = [Host(url, "returns-cookies", cookies=True) for _ in range(2)]
    for host in hosts:
        host.initialize()
    for number in range(calls):
        yield hosts[number % 2].call()


HOSTS = {
    host.__name__.replace("_", "-"): host
    for host in (
        keeps_its_session,
        initializes_before_each_call,
        renews_and_passes,
        names_its_conversations,
        sends_no_session,
        passes_the_argument,
        is_modern,
        returns_cookies,
    )
}


def processes(word: str) -> int:
    """Return how many processes have a command line that ends with a word."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().rstrip("\0").split("\0")
        except (OSError, UnicodeDecodeError):  # it has ended, or is not one of ours
            continue
        found += words[-1] == word and path.parent.name != str(os.getpid())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Play how hosts speak to a front.")
    parser.add_argument("url", help="the front's URL")
    parser.add_argument("--host", choices=HOSTS, help="only this one")
    parser.add_argument("--calls", type=int, default=6, help="of each host")
    parser.add_argument("--json", action="store_true", help="print each call as a JSON array")
    parser.add_argument("--word", default="tools/hosts/counter.py", help="ends their command line")
    parser.add_argument(
        "--until", type=int, metavar="COUNT", help="then wait until so few processes are left"
    )
    options = parser.parse_args()
    for name in [options.host] if options.host else HOSTS:
        for result in HOSTS[name](options.url, options.calls):
            pid, count = map(int, result["content"][0]["text"].split())
            row = (name, pid, count, processes(options.word))
            print(json.dumps(row) if options.json else _shown(*row), flush=True)
    if options.until is None:
        return 0
    ends = time.monotonic() + 2 * TIMEOUT
    while (left := processes(options.word)) > options.until:
        if time.monotonic() > ends:
            print(f"{left} processes are still left.", file=sys.stderr)
            return 1
        time.sleep(0.1)
    return 0


def _shown(name: str, pid: int, count: int, running: int) -> str:
    return f"{name:30} process {pid:<8} count {count:<4} processes {running}"


if __name__ == "__main__":
    sys.exit(main())
