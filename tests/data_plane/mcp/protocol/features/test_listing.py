"""All lists of a server are read by the same rules, to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ServerCapabilities, ToolsCapability
from tests.conftest import BOUND

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

    def __init__(self, pages: Mapping[str, Any]) -> None:
        self.pages = pages

    async def request(self, method: str, params: Mapping[str, Any] | None) -> bytes:
        page = self.pages[(params or {}).get("cursor", "")]
        if isinstance(page, Exception):
            raise page
        return msgspec.json.encode(page)


async def read(kind: ListKind, *, may_be_missing: bool = False, **pages: Any) -> ListedItems:
    pages[""] = pages.pop("first")
    peer = cast("Any", Pages(pages))
    return await list_all(peer, kind, may_be_missing=may_be_missing)


@KINDS
async def test_every_page_is_read_and_the_first_item_of_a_name_counts(kind: ListKind) -> None:
    one, again, two = ({kind.name: name, "extra": n} for n, name in enumerate("xxy"))
    found = await read(
        kind, first={kind.key: [one], "nextCursor": "next"}, next={kind.key: [again, two]}
    )
    definitions = found.definitions
    assert [msgspec.json.decode(each) for each in definitions.values()] == [one, two]
    assert list(definitions) == ["x", "y"]
    assert found.skipped == (f"It lists {kind.noun} more than once, the first counts: 'x'.",)


@KINDS
async def test_items_without_a_name_are_skipped_and_counted(kind: ListKind) -> None:
    found = await read(kind, first={kind.key: [5, {}, {kind.name: 7}, {kind.name: "a"}]})
    assert list(found.definitions) == ["a"]
    (sentence,) = found.skipped
    assert sentence.startswith(f"3 of its {kind.noun} are skipped")
    assert f"'{kind.name}'" in sentence


@KINDS
async def test_members_of_other_lists_may_have_any_type(kind: ListKind) -> None:
    other = {"uri": 5, "name": 5, "uriTemplate": 5, kind.name: "x"}
    page = {"tools": 5, "prompts": 5, "resources": 5, "resourceTemplates": 5, kind.key: [other]}
    found = await read(kind, first=page)
    assert list(found.definitions) == ["x"]
    assert not found.skipped


@KINDS
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ({}, "it has no KEY"),
        ({"KEY": {}}, "malformed"),
        ({"KEY": [{"NAME": "a"}, {"NAME": "b"}, {"NAME": "c"}]}, "it lists more than 2 NOUN"),
        ({"KEY": [{"NAME": "a", "text": "x" * 100}]}, "more than 64 bytes"),
        ({"KEY": [], "nextCursor": "again"}, "a cursor was repeated"),
    ],
)
async def test_an_unusable_list_fails_with_the_reason(
    kind: ListKind, page: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_LISTED", 2)
    monkeypatch.setattr(listing, "_MAX_BYTES", 64)
    for mark, text in (("KEY", kind.key), ("NAME", kind.name), ("NOUN", kind.noun)):
        words = words.replace(mark, text)
        page = msgspec.json.decode(msgspec.json.encode(page).replace(mark.encode(), text.encode()))
    with pytest.raises(ListingFailed, match=words):
        await read(kind, first=page, again=page)


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
    monkeypatch.setattr(listing, "_REOPEN_BACKOFF", Backoff(0.0))
    peer = Peer("odd", lambda: None)
    peer.era = Era("2026-07-28", modern=True)
    session = cast("ClientSession", Session())
    task = asyncio.create_task(listing.listen_to_changes(session, peer, lambda: None))
    async with asyncio.timeout(BOUND):
        await asyncio.wait(
            (task, asyncio.create_task(opened.wait())), return_when=asyncio.FIRST_COMPLETED
        )
    assert opened.is_set()
    assert "What is this?" in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
