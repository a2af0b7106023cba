"""A result is the same for a client whether its call ran with a task or without one."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import event, given
from hypothesis import strategies as st

from leaseway.front.calling.conversations import Carried, Conversations, SessionOptions
from leaseway.front.calling.places import Place
from leaseway.front.calling.plain_calls import PlainCalls, PlainTool
from leaseway.front.calling.requests import Request
from leaseway.front.calling.suspended_calls import Binding, SuspendedCalls, open_state
from leaseway.front.calling.tool_calls import client_result
from leaseway.front.catalog import CatalogCache
from leaseway.front.lists.definitions import tool_listing
from leaseway.front.protocol.envelope import RequestMessage
from leaseway.front.protocol.messages import CallParams, parse_params
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.sdk import Tool, ToolResult

_NAME, _ARGUMENTS = "look", '{"a":1.50}'
_MESSAGE = RequestMessage(
    b"1", "tools/call", b'{"name":"look","arguments":%b}' % _ARGUMENTS.encode()
)
_BINDING = ("tools/call", _NAME, _ARGUMENTS.encode())

_URIS = st.sampled_from(["ui://clock/a", "ui:/x", "file:///ui:", "https://a.example"])
_TEXTS = _URIS | st.sampled_from(["", "ü", "\u2028", '"_meta"', "resultType", "input_required"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.just(1.5) | _TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=4,
)
_ITEMS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, _TEXTS),
    st.builds(lambda uri: {"type": "resource_link", "uri": uri, "name": "n"}, _URIS),
    st.builds(lambda uri: {"type": "resource", "resource": {"uri": uri, "text": "t"}}, _URIS),
    st.just({"type": "image", "data": "aGk=", "mimeType": "image/png"}),
)
_METAS = st.dictionaries(
    st.sampled_from(["ui", "io.modelcontextprotocol/serverInfo", "example/own", "resourceUri"]),
    _VALUES,
    max_size=2,
)
_RESULTS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(_ITEMS, max_size=3),
        "structuredContent": _VALUES,
        "isError": st.booleans(),
        "resultType": st.sampled_from(["complete", "input_required", "other"]),
        "requestState": _TEXTS,
        "inputRequests": st.just({"q": {"method": "roots/list"}}),
        "_meta": _METAS,
        "ttlMs": st.integers(0, 9),
        "own": _VALUES,
    },
)
_WRITTEN = st.builds(
    lambda result, is_ascii, separators: json.dumps(
        result, ensure_ascii=is_ascii, separators=separators
    ).encode(),
    _RESULTS,
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", " : ")]),
)
_SCHEMAS = st.sampled_from([None, {"type": "object"}, {"type": "array"}, {}])


def _tool(schema: dict[str, Any] | None) -> Tool:
    return Tool(
        name=_NAME,
        server_id="clock",
        original_name=_NAME,
        title="",
        description="",
        input_schema={"type": "object"},
        output_schema=schema,
        annotations={},
        extra={},
        shared=True,
    )


def _sessions() -> SessionTable:
    return SessionTable(cast("Any", None), Sealer("a key", "mcp session"), Owner("default"))


def _plain(tool: Tool, scope: str, sessions: SessionTable) -> PlainTool:
    """Return what is known of a tool for calls without a task."""
    listing = tool_listing([tool])
    members = {"cached": lambda _kind, _scope: listing, "may_link": lambda _server: False}
    catalog = cast("CatalogCache", SimpleNamespace(**members))
    conversations = Conversations(SessionOptions())
    calls = PlainCalls(catalog, conversations, None, is_possible=True)
    found = calls.find_outside(Carried(sessions), scope, _MESSAGE.params)
    assert found is not None
    return found[0]


async def _with_task(
    payload: bytes, tool: Tool, scope: str, sessions: SessionTable, *, modern: bool
) -> bytes:
    """Return the result of a call that ran with a task."""
    request = Request(_MESSAGE, Listener(lambda _message: None), modern, scope, Carried(sessions))
    params = parse_params(_MESSAGE, CallParams)
    result = ToolResult(payload)

    async def call() -> bytes:
        return client_result(request, Place(None), tool, result)

    binding = Binding(scope, *_BINDING)
    return await SuspendedCalls().run(request, params, binding, call())


def _read(payload: bytes, scope: str, sessions: SessionTable) -> dict[str, Any]:
    """Return a result with its state as the server wrote it, if the front has sealed it."""
    result: dict[str, Any] = json.loads(payload)
    if result.get("resultType") == "input_required" and "requestState" in result:
        result["requestState"] = open_state(
            sessions, result["requestState"], Binding(scope, *_BINDING)
        )
        event("sealed")
    return result


@given(_WRITTEN, _SCHEMAS, st.sampled_from(["", "clock"]))
def test_an_older_client_gets_the_same_bytes_with_and_without_a_task(
    payload: bytes, schema: dict[str, Any] | None, scope: str
) -> None:
    tool, sessions = _tool(schema), _sessions()
    with_task = asyncio.run(_with_task(payload, tool, scope, sessions, modern=False))
    assert _plain(tool, scope, sessions).result(payload, "") == with_task


@given(_WRITTEN, _SCHEMAS, st.sampled_from(["", "clock"]))
def test_a_modern_client_gets_the_same_result_with_and_without_a_task(
    payload: bytes, schema: dict[str, Any] | None, scope: str
) -> None:
    tool, sessions = _tool(schema), _sessions()
    with_task = asyncio.run(_with_task(payload, tool, scope, sessions, modern=True))
    without = _plain(tool, scope, sessions).modern_result(payload, sessions, _MESSAGE.params)
    assert _read(without, scope, sessions) == _read(with_task, scope, sessions)
