"""All lists of a server are read by the same rules, to their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import msgspec
import pytest
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, ServerCapabilities, ToolsCapability
from tests.conftest import BOUND

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features import listing
from leaseway.data_plane.mcp.protocol.features.listing import (
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
    ListedItems,
    ListingFailed,
    ListKind,
    list_all,
)
from leaseway.data_plane.mcp.protocol.messages.era import Era
from leaseway.wire.timing.backoff import Backoff

KINDS = pytest.mark.parametrize("kind", [TOOLS, PROMPTS, RESOURCES, TEMPLATES])


class Pages:
    """A connection to a server with these pages, by cursor."""

    era = Era()

    def __init__(self, pages: Mapping[str, Any]) -> None:
        self.pages = pages

    async def request(self, method: str, params: Mapping[str, Any] | None) -> bytes:
        page = self.pages[(params or {}).get("cursor", "")]
        if isinstance(page, Exception):
            raise page
        return page if isinstance(page, bytes) else msgspec.json.encode(page)


def item(kind: ListKind, name: str, **members: Any) -> dict[str, Any]:
    """Return a definition that needs no correction."""
    schema = {"inputSchema": {"type": "object"}} if kind is TOOLS else {}
    return {kind.name: name, **schema, **members}


async def read(
    kind: ListKind, *, may_be_missing: bool = False, keeps_part: bool = False, **pages: Any
) -> ListedItems:
    pages[""] = pages.pop("first")
    peer = cast("Any", Pages(pages))
    return await list_all(peer, kind, may_be_missing=may_be_missing, keeps_part=keeps_part)


@KINDS
async def test_every_page_is_read_and_the_first_item_of_a_name_counts(kind: ListKind) -> None:
    one, again, two = (item(kind, name, extra=n) for n, name in enumerate(("a:x", "a:x", "a:y")))
    found = await read(
        kind, first={kind.key: [one], "nextCursor": "next"}, next={kind.key: [again, two]}
    )
    definitions = found.definitions
    assert [msgspec.json.decode(definition) for definition in definitions.values()] == [one, two]
    assert list(definitions) == ["a:x", "a:y"]
    assert found.skipped == (f"It lists {kind.noun} more than once, the first counts: 'a:x'.",)
    assert not found.changed


@KINDS
async def test_items_without_a_name_are_skipped_and_counted(kind: ListKind) -> None:
    found = await read(kind, first={kind.key: [5, {}, {kind.name: 7}, {kind.name: "a:a"}]})
    assert list(found.definitions) == ["a:a"]
    (sentence,) = found.skipped
    assert sentence.startswith(f"3 of its {kind.noun} are skipped")
    assert f"'{kind.name}'" in sentence


@KINDS
async def test_members_of_other_lists_may_have_any_type(kind: ListKind) -> None:
    other = {"uri": 5, "name": 5, "uriTemplate": 5, kind.name: "a:x"}
    page = {"tools": 5, "prompts": 5, "resources": 5, "resourceTemplates": 5, kind.key: [other]}
    found = await read(kind, first=page)
    assert list(found.definitions) == ["a:x"]
    assert not found.skipped


@KINDS
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ({}, "it has no KEY"),
        ({"KEY": {}}, "malformed"),
    ],
)
async def test_an_unusable_list_fails_with_the_reason(
    kind: ListKind, page: Any, words: str
) -> None:
    for mark, text in (("KEY", kind.key), ("NAME", kind.name), ("NOUN", kind.noun)):
        words = words.replace(mark, text)
        page = msgspec.json.decode(msgspec.json.encode(page).replace(mark.encode(), text.encode()))
    with pytest.raises(ListingFailed, match=words):
        await read(kind, first=page, again=page)


@KINDS
@pytest.mark.parametrize(
    ("page", "end"),
    [
        ({"more": [{"NAME": "a:b"}, {"NAME": "a:c"}]}, "it has more than 2 NOUN"),
        ({"more": [{"NAME": "a:b", "text": "x" * 1000}]}, "it has more than 800 bytes"),
        ({"more": [], "nextCursor": "again"}, "a cursor was repeated, so its pages are circular"),
        ({"more": [], "nextCursor": 2}, "the cursor of the next page is no text"),
    ],
)
async def test_a_list_without_a_usable_end_keeps_what_was_read(
    kind: ListKind, page: Any, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_LISTED", 2)
    monkeypatch.setattr(listing, "_MAX_BYTES", 800)
    page = msgspec.json.decode(msgspec.json.encode(page).replace(b"NAME", kind.name.encode()))
    page[kind.key] = [item(kind, "a:a"), *page.pop("more")]
    found = await read(kind, first=page, again={kind.key: [], "nextCursor": "again"})
    assert "a:a" in found.definitions
    end = end.replace("NOUN", kind.noun)
    assert found.skipped == (f"The rest of its {kind.noun} was not read: {end}.",)


@KINDS
@pytest.mark.parametrize(
    ("era", "second", "names"),
    [
        (Era(), "a:b", ["a:a"]),
        (Era(modern=True), "a:b", ["a:a", "a:b"]),
        (Era(modern=True), "a:a", ["a:a"]),
    ],
)
async def test_an_empty_cursor_is_one_since_2026(
    kind: ListKind, era: Era, second: str, names: list[str]
) -> None:
    class Pair(Pages):
        async def request(self, method: str, params: Mapping[str, Any] | None) -> bytes:
            name = "a:a" if params is None else second
            cursor = {"nextCursor": ""} if name == "a:a" else {}
            return msgspec.json.encode({kind.key: [item(kind, name)]} | cursor)

    peer = Pair({})
    peer.era = era
    found = await list_all(cast("Any", peer), kind, may_be_missing=False)
    assert [*found.definitions] == names
    assert not found.skipped


@KINDS
@pytest.mark.parametrize("refuses", [False, True])
async def test_an_empty_cursor_that_leads_nowhere_ends_a_list(
    kind: ListKind, refuses: bool
) -> None:
    class Ending(Pages):
        async def request(self, method: str, params: Mapping[str, Any] | None) -> bytes:
            cursor = (params or {}).get("cursor")
            if cursor == "" and refuses:
                raise MCPError(INVALID_PARAMS, "There is no such cursor.")
            name, following = ("a:b", "") if cursor == "more" else ("a:a", "more")
            return msgspec.json.encode({kind.key: [item(kind, name)], "nextCursor": following})

    peer = Ending({})
    peer.era = Era(modern=True)
    found = await list_all(cast("Any", peer), kind, may_be_missing=False)
    assert [*found.definitions] == ["a:a", "a:b"]
    assert not found.skipped


@KINDS
async def test_null_is_an_empty_list(kind: ListKind) -> None:
    found = await read(kind, first={kind.key: None})
    assert not found.definitions
    assert not found.skipped


@KINDS
@pytest.mark.parametrize(
    ("page", "end"),
    [
        (MCPError(-32603, "lost its place"), "the server answered with error -32603: lost its"),
        ({"KEY": 5}, "its list is malformed"),
        ({}, "its list is malformed"),
    ],
)
async def test_a_later_page_that_fails_ends_a_list_that_nothing_else_replaces(
    kind: ListKind, page: Any, end: str
) -> None:
    page = {kind.key: page["KEY"]} if page == {"KEY": 5} else page
    pages = {"first": {kind.key: [item(kind, "a:a")], "nextCursor": "next"}, "next": page}
    found = await read(kind, keeps_part=True, **pages)
    assert list(found.definitions) == ["a:a"]
    (sentence,) = found.skipped
    assert f"The rest of its {kind.noun} was not read: a page of it failed: {end}" in sentence
    with pytest.raises((ListingFailed, MCPError)):  # an earlier list is better than a part
        await read(kind, **pages)


@KINDS
async def test_a_list_whose_pages_never_end_keeps_what_was_read(kind: ListKind) -> None:
    class Endless(Pages):
        async def request(self, method: str, params: Mapping[str, Any] | None) -> bytes:
            number = int((params or {}).get("cursor", "0")) + 1
            page = {kind.key: [item(kind, "a:a")], "nextCursor": str(number)}
            return msgspec.json.encode(page)

    async with asyncio.timeout(BOUND):
        found = await list_all(cast("Any", Endless({})), kind, may_be_missing=False)
    assert list(found.definitions) == ["a:a"]
    assert "100 pages in a row had no further items" in found.skipped[-1]


@KINDS
@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b"1" * 4301, "contains a number beyond the range of a double"),
        (b"1e999", "contains a number beyond the range of a double"),
        (b"[" * 995 + b"]" * 995, "is nested more than 128 levels deep"),
        (b"[" * 128 + b"]" * 128, "is nested more than 128 levels deep"),
    ],
)
async def test_a_definition_that_others_cannot_read_costs_only_itself(
    kind: ListKind, value: bytes, cause: str
) -> None:
    one = msgspec.json.encode(item(kind, "a:good"))
    bad = b'{"%b":"a:bad","extra":%b}' % (kind.name.encode(), value)
    page = b'{"%b":[%b,%b,%b]}' % (kind.key.encode(), one, bad, one.replace(b"good", b"also"))
    found = await read(kind, first=page)
    assert list(found.definitions) == ["a:good", "a:also"]
    assert found.skipped == (f"These {kind.noun} are skipped: 'a:bad' (it {cause}).",)


async def test_a_resource_without_a_scheme_is_skipped() -> None:
    found = await read(RESOURCES, first={"resources": [{"uri": "notes.txt"}, {"uri": "a:b"}]})
    assert list(found.definitions) == ["a:b"]
    (sentence,) = found.skipped
    assert "'notes.txt' (it is no URI" in sentence


async def test_changed_definitions_are_named_with_what_was_changed() -> None:
    tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}, "title": None} for n in range(22)]
    (sentence,) = (await read(TOOLS, first={"tools": tools})).changed
    assert sentence.startswith("Of its tools: 't0' (title is null); 't1' (title is null);")
    assert sentence.endswith("'t19' (title is null); and 2 more.")


@KINDS
async def test_an_unknown_method_is_an_empty_list_or_fails(kind: ListKind) -> None:
    unknown = MCPError(METHOD_NOT_FOUND, "no such method")
    assert not (await read(kind, may_be_missing=True, first=unknown)).definitions
    with pytest.raises(MCPError):
        await read(kind, first=unknown)
    with pytest.raises(MCPError):
        await read(kind, may_be_missing=True, first=MCPError(-32603, "not today"))


class Session:
    """A session with a server that notifies of changed tools."""

    server_capabilities = ServerCapabilities(tools=ToolsCapability(list_changed=True))


async def test_a_stream_of_changes_is_reopened_after_an_unexpected_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = asyncio.Event()
    failures = [RuntimeError("What is this?")]

    class Listening:
        async def __aenter__(self) -> Any:
            if failures:
                raise failures.pop()
            opened.set()
            await asyncio.Event().wait()

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(listing, "listen", lambda *_, **__: Listening())
    monkeypatch.setattr(listing, "REOPEN", Backoff(0.0))
    peer = Peer("odd", lambda: None)
    peer.era = Era("2026-07-28", modern=True)
    session = cast("ClientSession", Session())
    stream = listing.ChangeStream(session, peer, lambda: None)
    task = asyncio.create_task(stream.keep_open())
    async with asyncio.timeout(BOUND):
        await asyncio.wait(
            (task, asyncio.create_task(opened.wait())), return_when=asyncio.FIRST_COMPLETED
        )
    assert opened.is_set()
    assert "What is this?" in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_stream_of_changes_that_ends_at_once_is_opened_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    enough = asyncio.Event()

    class Schedule:
        def ceiling(self, attempt: int) -> float:
            asked.append(attempt)
            if len(asked) == 3:
                enough.set()
            return 0.0

    class Listening:
        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def __aiter__(self) -> AsyncIterator[None]:
            for nothing in list[None]():
                yield nothing

    monkeypatch.setattr(listing, "listen", lambda *_, **__: Listening())
    monkeypatch.setattr(listing, "REOPEN", Schedule())
    peer = Peer("odd", lambda: None)
    peer.era = Era("2026-07-28", modern=True)
    session = cast("ClientSession", Session())
    stream = listing.ChangeStream(session, peer, lambda: None)
    task = asyncio.create_task(stream.keep_open())
    async with asyncio.timeout(BOUND):
        await enough.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asked[:3] == [1, 2, 3]


def test_a_secret_that_a_server_repeats_in_its_list_is_hidden() -> None:
    resolved = ResolvedValues(secrets=frozenset({"s3cret-9d1c", "production", "/srv/data1"}))
    found = ListedItems(TOOLS, modern=False, hide=resolved.without_secrets_in_definitions)
    schema = {"type": "object", "properties": {"stage": {"enum": ["production"]}}}
    described = {
        "name": "a",
        "description": "uses s3cret-9d1c in /srv/data1",
        "inputSchema": schema,
    }
    for definition in (described, {"name": "get-s3cret-9d1c", "inputSchema": schema}):
        found.add(json.dumps(definition).encode())
    assert list(found.definitions) == ["a"]
    listed = json.loads(found.definitions["a"])
    assert listed["description"] == "uses [hidden] in /srv/data1"
    assert listed["inputSchema"] == schema
    texts = " ".join((*found.skipped, *found.changed))
    assert "s3cret" not in texts
    assert "'get-[hidden]' (its name contains a secret of the server)" in texts
    assert "'a' (a secret of the server in it is hidden)" in texts
