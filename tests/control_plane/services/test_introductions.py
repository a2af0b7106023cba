"""What servers say about themselves, over real gRPC: listed in pages, filtered, kept by workers."""

from __future__ import annotations

from dataclasses import replace

from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker

from leaseway.control_plane.sync.toolsets import served_from_proto
from leaseway.spec.filters.names import NameFilter
from leaseway.v1 import catalog_pb2
from leaseway.wire.bounds import MAX_INSTRUCTIONS
from leaseway.wire.messages.mcp import Introduction

UI = "io.modelcontextprotocol/ui"


def said(text: str, *extensions: str) -> catalog_pb2.Introduction:
    return catalog_pb2.Introduction(instructions=text, extensions=extensions)


async def introductions(running: Running, *servers: str) -> list[catalog_pb2.Introduction]:
    """Return the introductions of all pages, each of at most two."""
    found: list[catalog_pb2.Introduction] = []
    token, pages = "", 0
    while token or not pages:
        request = catalog_pb2.ListIntroductionsRequest(
            servers=servers, page_token=token, page_size=2
        )
        page = await running.catalog.ListIntroductions(request)
        assert page.registry_version == running.plane.state.visible.version > 0
        found += page.introductions
        token, pages = page.next_page_token, pages + 1
    return found


async def test_introductions_come_in_pages_by_server_within_their_bounds(
    running: Running,
) -> None:
    running.load(*(spec(introduction) for introduction in "abcde"))
    async with worker(running.address) as w1:
        for _ in range(4):
            await w1.serve("x", introduction=said("y" * (MAX_INSTRUCTIONS + 5), UI, "not one"))
        await w1.serve("x")  # says nothing
        await w1.apply_until(*"abcde")
        await running.until(lambda state: state.ready)
        found = await introductions(running)
        assert [introduction.server_id for introduction in found] == list("abcd")
        assert {len(introduction.instructions) for introduction in found} == {MAX_INSTRUCTIONS}
        assert {tuple(introduction.extensions) for introduction in found} == {(UI,)}
        assert [
            introduction.server_id for introduction in await introductions(running, "c", "b")
        ] == ["b", "c"]


async def test_a_server_of_which_nothing_is_seen_says_nothing(running: Running) -> None:
    hidden = replace(spec("a"), tools=NameFilter(whitelist=("nothing",)))
    running.load(hidden)
    async with worker(running.address) as w1:
        await w1.serve("x", introduction=said("Use x."))
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        assert await introductions(running) == []


async def test_a_worker_keeps_what_a_server_said_for_the_next_control_plane(
    running: Running,
) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        sent = said("Use x.", UI)
        sent.capabilities.append("prompts")
        await w1.serve("x", introduction=sent)
        await w1.apply_until("a")
        (held,) = w1.held.values()
        assert held.toolset.introduction == sent
    kept = Introduction("Use x.", (UI,), ("prompts",))
    assert served_from_proto(held).listing.introduction == kept
