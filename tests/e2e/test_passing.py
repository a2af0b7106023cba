"""What a client gets through the front is what the server said, but for changes that have names.

The list of these changes is in docs/mcp.md, "What passes". A server that says what the test writes
is called over both transports in both eras; the examples are made at random.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol, cast

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import BOUND
from tests.e2e.forking import ForkedProcess, fork_leaseway
from tests.e2e.mcp_front import front
from tests.e2e.system import python_server, running

from leaseway.front.protocol.handshake import CACHE_HINTS, SERVER_META

VERSION = {"legacy": "2025-11-25", "modern": "2026-07-28"}
PREFIX = "io.modelcontextprotocol/"
CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
INFO = {"name": "raw", "version": "0"}
JSON = {"Accept": "application/json, text/event-stream"}
ANSWER = {"action": "accept", "content": {"name": "Ada"}, "x-more": [None, 1.5], "_meta": {"a": 1}}

TEXTS = st.text(max_size=8) | st.sampled_from(["", "é😀", "ui:", "\\u0041", "resultType", "a\nb"])
NUMBERS = st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
UNKNOWN = st.dictionaries(st.sampled_from(["x-a", "x_b", "später", "ttl", "sessions"]), VALUES)
META = st.dictionaries(
    st.sampled_from(["example.com/a", "b", f"{PREFIX}related-task", f"{PREFIX}x"]), VALUES
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "audience": st.lists(st.sampled_from(["user", "assistant"]), max_size=2),
        "priority": st.floats(0, 1),
        "lastModified": st.just("2026-01-01T00:00:00Z"),
        "x-hint": VALUES,
    },
)
ICONS = st.lists(
    st.fixed_dictionaries(
        {"src": st.sampled_from(["https://a/b.png", "data:image/png;base64,AA=="])},
        optional={
            "mimeType": st.just("image/png"),
            "sizes": st.just(["48x48"]),
            "theme": st.just("dark"),
        },
    ),
    max_size=2,
)
COMMON = {"annotations": ANNOTATIONS, "_meta": META}
DATA = st.binary(max_size=6).map(lambda data: base64.b64encode(data).decode())


def made(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with some members, and unknown ones."""
    known = st.fixed_dictionaries(required, optional=optional)
    return st.builds(lambda members, unknown: {**unknown, **members}, known, UNKNOWN)


URIS = st.sampled_from(["file:///a", "note:b?c=d#e", "https://x/y"])
CONTENTS = made({"uri": URIS, "text": TEXTS}, mimeType=TEXTS, _meta=META) | made(
    {"uri": URIS, "blob": DATA}, mimeType=TEXTS, _meta=META
)
ITEMS = (
    made({"type": st.just("text"), "text": TEXTS}, **COMMON)
    | made({"type": st.just("image"), "data": DATA, "mimeType": st.just("image/png")}, **COMMON)
    | made({"type": st.just("audio"), "data": DATA, "mimeType": st.just("audio/wav")}, **COMMON)
    | made({"type": st.just("resource"), "resource": CONTENTS}, **COMMON)
    | made(
        {"type": st.just("resource_link"), "uri": URIS, "name": TEXTS},
        **COMMON,
        title=TEXTS,
        description=TEXTS,
        mimeType=TEXTS,
        size=st.integers(0, 2**53),
        icons=ICONS,
    )
)
TOOL_RESULTS = made(
    {"content": st.lists(ITEMS, max_size=3)},
    structuredContent=st.dictionaries(TEXTS, VALUES, max_size=2) | VALUES,
    isError=st.booleans(),
    _meta=META,
)
MESSAGES = made({"role": st.sampled_from(["user", "assistant"]), "content": ITEMS})
PROMPT_RESULTS = made({"messages": st.lists(MESSAGES, max_size=2)}, description=TEXTS, _meta=META)
READ_RESULTS = made(
    {"contents": st.lists(CONTENTS, max_size=2)},
    _meta=META,
    ttlMs=st.integers(0, 10_000),
    cacheScope=st.sampled_from(["public", "private"]),
)
COMPLETIONS = made(
    {
        "completion": made(
            {"values": st.lists(TEXTS, max_size=3)}, total=st.integers(0, 9), hasMore=st.booleans()
        )
    },
    _meta=META,
)
ERRORS = st.fixed_dictionaries(
    {"code": st.sampled_from([-32603, -32000, 7]), "message": TEXTS.filter(str.strip)},
    optional={"data": VALUES.filter(lambda data: data is not None)},
)
PROGRESS = made(
    {"progress": st.integers(0, 100) | st.floats(0, 1)},
    total=st.integers(1, 100) | st.floats(0.5, 1),
    message=TEXTS,
    _meta=META,
)
LOGS = made(
    {"level": st.sampled_from(["debug", "info", "emergency"]), "data": VALUES},
    logger=TEXTS,
    _meta=META,
)
BEFORE = st.lists(
    st.tuples(st.just("notifications/progress"), PROGRESS)
    | st.tuples(st.just("notifications/message"), LOGS),
    max_size=2,
)
ASKS = st.tuples(
    st.just("elicitation/create"),
    made(
        {
            "message": TEXTS,
            "requestedSchema": st.just({"type": "object", "properties": {"a": {"type": "string"}}}),
        },
        mode=st.just("form"),
        _meta=META,
    ),
) | st.tuples(
    st.just("sampling/createMessage"),
    made(
        {"messages": st.lists(MESSAGES, max_size=2), "maxTokens": st.integers(1, 9)},
        systemPrompt=TEXTS,
        modelPreferences=made({}, hints=st.lists(made({"name": TEXTS}), max_size=2)),
        tools=st.just([{"name": "a", "inputSchema": {"type": "object"}, "x": 1}]),
        _meta=META,
    ),
)


def scripts(results: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return what a server says during one request."""
    return (
        st.fixed_dictionaries({"error": ERRORS}, optional={"before": BEFORE})
        | st.fixed_dictionaries({"result": results}, optional={"before": BEFORE})
        | st.fixed_dictionaries({"result": results}, optional={"before": BEFORE})
        | st.fixed_dictionaries({"result": results, "ask": ASKS})
    )


CASES = st.one_of(
    st.tuples(st.just("tools/call"), scripts(TOOL_RESULTS)),
    st.tuples(st.just("prompts/get"), scripts(PROMPT_RESULTS)),
    st.tuples(st.just("resources/read"), scripts(READ_RESULTS)),
    st.tuples(
        st.just("completion/complete"),
        st.fixed_dictionaries({"result": COMPLETIONS}) | st.fixed_dictionaries({"error": ERRORS}),
    ),
)


def collected(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return examples, which a coroutine then tries."""
    cases: list[tuple[str, dict[str, Any]]] = []

    @given(CASES)
    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    def collect(case: tuple[str, dict[str, Any]]) -> None:
        cases.append(case)

    cast("Callable[[], None]", collect)()
    return cases


# What passes: docs/mcp.md has these changes in words.


def expected_meta(said: Any, *, modern: bool) -> dict[str, Any]:
    """Return the `_meta` of a result: without the protocol's own keys, which name a connection."""
    passed = {key: value for key, value in (said or {}).items() if not key.startswith(PREFIX)}
    return {**passed, **(SERVER_META if modern else {})}


def expected_result(method: str, said: dict[str, Any], *, modern: bool) -> dict[str, Any]:
    """Return the result that a client gets."""
    result = dict(said)
    meta = expected_meta(result.pop("_meta", None), modern=modern)
    if meta:
        result["_meta"] = meta
    if method == "resources/read":  # the hints are those of the newest version
        ttl = result.pop("ttlMs", CACHE_HINTS["ttlMs"])
        result.pop("cacheScope", None)
        if modern:
            result |= {"ttlMs": ttl, "cacheScope": "private"}
    if modern:
        return result | {"resultType": "complete"}
    if method == "tools/call" and "structuredContent" in result:
        structured = result["structuredContent"]
        if structured is None:
            del result["structuredContent"]
        elif not isinstance(structured, dict):
            result["structuredContent"] = {"result": structured}
            if not any(item["type"] == "text" for item in result["content"]):
                result["content"] = [*result["content"], ...]
    return result


def expected_note(method: str, said: dict[str, Any]) -> dict[str, Any]:
    """Return the params of a notification that a client gets."""
    params = {name: value for name, value in said.items() if name != "_meta"}
    meta = expected_meta(said.get("_meta"), modern=False)
    if meta:
        params["_meta"] = meta
    if method == "notifications/progress":
        params["progressToken"] = "p"
        if params.get("message") == "":
            del params["message"]
    elif params.get("logger") == "":
        del params["logger"]
    return params


@dataclass
class Heard:
    """What a client hears during one request."""

    notes: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)


def without_frame(heard: Any, wanted: Heard) -> Any:
    """Return what was heard without what each message has, and `...` for a text that is added."""
    if not isinstance(heard, dict):
        return heard
    heard = {name: member for name, member in heard.items() if name not in ("jsonrpc", "id")}
    result = heard.get("result", {})
    if result.get("_meta") == {}:
        del result["_meta"]
    if wanted.answer.get("result", {}).get("content", [])[-1:] == [...]:
        result["content"][-1:] = [...]
    return heard


class Wire(Protocol):
    """A connection of a client."""

    def exchange(self, message: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request; yield messages up to its response."""

    async def send(self, message: dict[str, Any]) -> None:
        """Send a response or a notification."""


class Http:
    """Streamable HTTP."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self.headers = dict(JSON)

    def _head(self, message: dict[str, Any]) -> dict[str, str]:
        params = message.get("params", {})
        if f"{PREFIX}protocolVersion" not in params.get("_meta", {}):
            return self.headers
        named = {"name": params.get("name", params.get("uri"))}
        names = {"Mcp-Name": named["name"]} if named["name"] else {}
        method = {"Mcp-Method": message["method"], "MCP-Protocol-Version": VERSION["modern"]}
        return {**self.headers, **method, **names}

    async def exchange(self, message: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        head = self._head(message)
        async with self._http.post(self._url, json=message, headers=head) as answer:
            if session := answer.headers.get("Mcp-Session-Id"):
                self.headers["Mcp-Session-Id"] = session
            if answer.content_type == "application/json":
                yield await answer.json()
                return
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    async def send(self, message: dict[str, Any]) -> None:
        head = self._head(message)
        async with self._http.post(self._url, json=message, headers=head) as answer:
            assert answer.status == 202


class Lines:
    """Stdio."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process

    async def exchange(self, message: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        await self.send(message)
        async for line in self._process.stdout:
            yield json.loads(line)

    async def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        await asyncio.to_thread(self._process.stdin.write, line)


@dataclass
class Talker:
    """A client of one era on one connection."""

    wire: Wire
    era: str
    ids: Any = field(default_factory=lambda: itertools.count(1))
    reply: dict[str, Any] = field(default_factory=lambda: {"result": ANSWER})

    @property
    def modern(self) -> bool:
        return self.era == "modern"

    async def begin(self) -> None:
        if self.modern:
            return
        params = {
            "protocolVersion": VERSION["legacy"],
            "capabilities": CAPABILITIES,
            "clientInfo": INFO,
        }
        await self.heard("initialize", params)
        await self.heard("logging/setLevel", {"level": "debug"})

    async def heard(self, method: str, params: dict[str, Any]) -> Heard:
        """Send a request, answer what is asked, and return what was heard."""
        heard, meta = Heard(), dict(params.get("_meta", {}))
        if self.modern:
            meta |= {
                f"{PREFIX}protocolVersion": VERSION["modern"],
                f"{PREFIX}clientCapabilities": CAPABILITIES,
                f"{PREFIX}clientInfo": INFO,
                f"{PREFIX}logLevel": "debug",
            }
        params = {**params, "_meta": meta}
        while True:
            request = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params}
            async with contextlib.aclosing(self.wire.exchange(request)) as messages:
                async for message in messages:
                    if "method" not in message:
                        heard.answer = message
                        break
                    if "id" in message:
                        heard.asked.append((message["method"], message["params"]))
                        response = {"jsonrpc": "2.0", "id": message["id"], **self.reply}
                        await self.wire.send(response)
                    else:
                        heard.notes.append((message["method"], message["params"]))
            result = heard.answer.get("result", {})
            if result.get("resultType", "complete") != "input_required":
                return heard
            ((name, asked),) = result["inputRequests"].items()
            heard.asked.append((asked["method"], asked["params"]))
            params = {**params, "inputResponses": {name: ANSWER}}
            params["requestState"] = result["requestState"]


def params_of(method: str, script: dict[str, Any]) -> dict[str, Any]:
    """Return the params of a request that makes the server say a script."""
    text = json.dumps(script)
    if method == "tools/call":
        return {"name": "say", "arguments": {"script": script}}
    if method == "prompts/get":
        return {"name": "say", "arguments": {"script": text}}
    if method == "resources/read":
        return {"uri": "say:" + base64.urlsafe_b64encode(text.encode()).decode()}
    ref = {"type": "ref/prompt", "name": "say"}
    return {"ref": ref, "argument": {"name": "script", "value": text}}


@pytest.fixture(scope="module")
async def talkers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Talker]]:
    """Run a system with the server, and connect a client of each era over each transport."""
    servers = {"scripted": python_server("scripted.py", **{"truely-stateless": True})}
    async with contextlib.AsyncExitStack() as stack:
        folder = tmp_path_factory.mktemp("system")
        system, _ = await stack.enter_async_context(running(folder, servers))
        url = await stack.enter_async_context(front(system))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        found = [Talker(Http(http, url), era) for era in VERSION]
        for era in VERSION:
            words = ("mcp", "--address", system.address)
            process = await fork_leaseway(words, os.environ, None)
            stack.push_async_callback(process.wait)
            stack.callback(process.stdin.close)
            found.append(Talker(Lines(process), era))
        for talker in found:
            await talker.begin()
        yield found


async def test_what_a_server_says_passes_unchanged(talkers: list[Talker]) -> None:
    differing: list[tuple[Any, ...]] = []
    async with asyncio.timeout(4 * BOUND):
        for (method, script), talker in itertools.product(collected(120), talkers):
            params = params_of(method, script)
            params["_meta"] = {"progressToken": "p"}
            heard = await talker.heard(method, params)
            notes = [(name, expected_note(name, said)) for name, said in script.get("before", ())]
            notes.sort(key=itemgetter(0), reverse=True)  # those of one moment may change places
            heard.notes.sort(key=itemgetter(0), reverse=True)
            wanted = Heard(notes, [script["ask"]] if "ask" in script else [])
            if "error" in script:
                wanted.answer = {"error": script["error"]}
            else:
                answered = {"answered": ANSWER} if "ask" in script else {}
                said = script["result"] | answered
                wanted.answer = {"result": expected_result(method, said, modern=talker.modern)}
            for word in ("notes", "asked", "answer"):
                passed = without_frame(getattr(heard, word), wanted)
                if passed != getattr(wanted, word):
                    differing.append((talker, method, word, passed, getattr(wanted, word)))
    assert differing[:1] == []


async def test_an_error_of_a_client_reaches_its_server_unchanged(talkers: list[Talker]) -> None:
    error = {"code": -1, "message": "User rejected", "data": {"a": [None, 1.5]}}
    script = {"result": {"content": []}, "ask": ["elicitation/create", {"message": "?"}]}
    for talker in talkers:
        if not talker.modern:  # other clients answer no requests
            talker.reply = {"error": error}
            async with asyncio.timeout(BOUND):
                heard = await talker.heard("tools/call", params_of("tools/call", script))
            talker.reply = {"result": ANSWER}
            assert heard.answer["result"]["answered"] == error


async def test_what_a_client_says_passes_unchanged(talkers: list[Talker]) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = []

    @given(st.dictionaries(TEXTS, VALUES, max_size=3), META)
    @settings(max_examples=30, suppress_health_check=list(HealthCheck))
    def collect(arguments: dict[str, Any], meta: dict[str, Any]) -> None:
        cases.append((arguments, meta))

    cast("Callable[[], None]", collect)()
    script = {"result": {"content": []}, "echo": True}
    for (arguments, meta), talker in itertools.product(cases, talkers):
        given_arguments = {**arguments, "script": script}
        params = {"name": "say", "arguments": given_arguments, "_meta": meta}
        result = (await talker.heard("tools/call", params)).answer["result"]
        assert result["heard"]["arguments"] == given_arguments
        heard = result["heard"].get("_meta", {})
        assert expected_meta(heard, modern=False) == expected_meta(meta, modern=False)
