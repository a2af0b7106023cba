"""Each list of a server is read by the same rules, to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from leaseway.data_plane.mcp.protocol.features import listing
from leaseway.data_plane.mcp.protocol.features.listing import (
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
    Listed,
    ListingFailed,
    ListKind,
    list_all,
)

KINDS = pytest.mark.parametrize("kind", [TOOLS, PROMPTS, RESOURCES, TEMPLATES])


class Pages:
    """A connection to a server that has these pages, by cursor."""

    def __init__(self, pages: Mapping[str, Any]) -> None:
        self.pages = pages

    async def request(self, method: str, params: Mapping[str, Any] | None) -> bytes:
        page = self.pages[(params or {}).get("cursor", "")]
        if isinstance(page, Exception):
            raise page
        return msgspec.json.encode(page)


async def read(kind: ListKind, *, may_be_unknown: bool = False, **pages: Any) -> Listed:
    pages[""] = pages.pop("first")
    peer = cast("Any", Pages(pages))
    return await list_all(peer, kind, may_be_unknown=may_be_unknown)


@KINDS
async def test_every_page_is_read_and_the_first_of_a_name_counts(kind: ListKind) -> None:
    one, again, two = ({kind.name: name, "extra": n} for n, name in enumerate("xxy"))
    found = await read(
        kind, first={kind.key: [one], "nextCursor": "next"}, next={kind.key: [again, two]}
    )
    definitions = found.definitions
    assert [msgspec.json.decode(each) for each in definitions.values()] == [one, two]
    assert list(definitions) == ["x", "y"]
    assert found.skipped == (f"It lists {kind.noun} more than once, the first counts: 'x'.",)


@KINDS
async def test_what_has_no_name_costs_itself_only_and_is_counted(kind: ListKind) -> None:
    found = await read(kind, first={kind.key: [5, {}, {kind.name: 7}, {kind.name: "a"}]})
    assert list(found.definitions) == ["a"]
    (sentence,) = found.skipped
    assert sentence.startswith(f"3 of its {kind.noun} left out")
    assert f"'{kind.name}'" in sentence


@KINDS
async def test_members_of_other_lists_may_be_anything(kind: ListKind) -> None:
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
        ({"KEY": [], "nextCursor": "again"}, "a cursor came twice"),
    ],
)
async def test_a_list_that_can_not_be_used_says_why(
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
async def test_a_server_that_does_not_know_a_list_has_none_or_fails(kind: ListKind) -> None:
    unknown = MCPError(METHOD_NOT_FOUND, "no such method")
    assert not (await read(kind, may_be_unknown=True, first=unknown)).definitions
    with pytest.raises(MCPError):
        await read(kind, first=unknown)
    with pytest.raises(MCPError):
        await read(kind, may_be_unknown=True, first=MCPError(-32603, "not today"))
