"""Search mode: finding one tool among hundreds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from weakref import ReferenceType, ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND
from tests.front.harness import front, host
from tests.front.questions import QUESTIONS, tools
from tests.front.tools import make_tool

from leaseway.front import methods
from leaseway.front.lists import tool_search
from leaseway.front.lists.definitions import tool_listing
from leaseway.front.lists.tool_search import ToolSearch, search_listing
from leaseway.front.protocol.messages import JsonRpcError
from leaseway.sdk import Tool
from leaseway.sdk.catalog.search import ToolIndex
from leaseway.sdk.testing import FakeLeaseway

MIN_FOUND = 55
"""Of 60 questions, so many must find their tool among the first five results."""


def test_questions_find_the_right_tool_among_the_first_five() -> None:
    index = ToolIndex(tools())
    missed = {
        question: wanted
        for question, wanted in QUESTIONS.items()
        if wanted not in [tool.name for tool in index.search(question, 5)]
    }
    print(f"{len(QUESTIONS) - len(missed)} of {len(QUESTIONS)} found; missed: {missed}")
    assert len(QUESTIONS) == 60
    assert len(QUESTIONS) - len(missed) >= MIN_FOUND, missed


def test_the_ranking_is_that_of_a_library() -> None:
    # Recorded with BM25Plus of rank-bm25 0.2.2 over the same words.
    recorded = json.loads(Path(__file__).with_name("recorded_ranking.json").read_text())
    index = ToolIndex(tools())
    assert {
        question: [tool.name for tool in index.search(question, 5)] for question in QUESTIONS
    } == recorded


def test_every_tool_that_matches_is_found_even_if_all_do() -> None:
    files = [make_tool("read_file"), make_tool("write_file"), make_tool("move_file")]
    found = ToolIndex(files).search("read or write a file", 5)
    assert [tool.name for tool in found] == ["read_file", "write_file", "move_file"]


def test_three_definitions_take_a_hundredth_of_five_hundred() -> None:
    every = sum(map(len, tool_listing(tools()).encoded))
    three = sum(map(len, search_listing().encoded))
    print(f"{every} characters of definitions before, {three} after")
    assert len(tools()) == 500
    assert three * 100 < every


@given(st.text(max_size=200), st.integers(1, 20))
def test_any_query_returns_known_tools_within_the_limit(query: str, limit: int) -> None:
    few = [make_tool("read_file"), make_tool("writeFile", description="Writes a file.")]
    found = ToolIndex(few).search(query, limit)
    assert len(found) <= min(limit, 2)
    assert set(map(id, found)) <= set(map(id, few))


def test_words_are_found_in_names_descriptions_and_parameters() -> None:
    schema = {"properties": {"zone": {"description": "A timezone such as Europe/Berlin."}}}
    some = [
        make_tool("readFiles"),
        make_tool("now", description="What time is it", input_schema=schema),
        make_tool("other"),
    ]
    index = ToolIndex(some)
    for query, name in (("read a file", "readFiles"), ("TIME", "now"), ("berlin", "now")):
        assert [tool.name for tool in index.search(query, 1)] == [name]
    assert index.search("xylophone", 5) == []
    assert ToolIndex([]).search("anything", 5) == []
    assert [tool.name for tool in ToolIndex([make_tool("only")]).search("only", 5)] == ["only"]


def make_greeting() -> str:
    """Make a greeting."""
    return "Hello."


def _unchanged(tool: Tool) -> Tool:
    return tool


def test_a_model_searches_describes_and_calls() -> None:
    search = ToolSearch()
    listing = tool_listing(tools())
    found = json.loads(
        search.search(search.index_of(listing), b'{"query":"create an sms","limit":2}')
    )
    names = [tool["name"] for tool in found["structuredContent"]["tools"]]
    assert names[0] == "twilio_create_sms"
    assert len(names) == 2
    described = json.loads(search.describe(listing, b'{"name":"twilio_create_sms"}', _unchanged))
    assert described["structuredContent"]["inputSchema"]["properties"].keys() == {"fields"}
    call = search.called_tool(b'{"name":"twilio_create_sms","arguments":{"fields":{}}}')
    assert (call.name, call.arguments_json()) == ("twilio_create_sms", b'{"fields":{}}')
    assert json.loads(search.describe(listing, b'{"name":"x"}', _unchanged))["isError"]


@pytest.mark.parametrize("arguments", [b"{}", b'{"query":7}', b'{"query":"x","limit":0}'])
def test_wrong_arguments_are_rejected(arguments: bytes) -> None:
    with pytest.raises(JsonRpcError, match=r"limit|search_tools"):
        ToolSearch().search(ToolIndex([]), arguments)


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> list[ReferenceType[ToolIndex]]:
    """The indexes that are made from now on."""
    made: list[ReferenceType[ToolIndex]] = []

    class Counted(ToolIndex):
        def __init__(self, tools: Iterable[Tool]) -> None:
            super().__init__(tools)
            made.append(ref(self))

    monkeypatch.setattr(tool_search, "ToolIndex", Counted)
    return made


def test_lists_of_the_same_tools_share_an_index_that_ends_with_them(
    indexes: list[ReferenceType[ToolIndex]],
) -> None:
    some = tools()
    of_one, of_another = tool_listing(some), tool_listing(some)
    for listing in (of_one, of_another, tool_listing(some[:1])):
        ToolSearch().index_of(listing)
    del listing
    assert [index() is not None for index in indexes] == [True, False]
    del of_one, of_another
    assert indexes[0]() is None


def test_few_indexes_are_kept_of_lists_that_single_sessions_have(
    indexes: list[ReferenceType[ToolIndex]],
) -> None:
    own = [replace(tool_listing([make_tool(f"t{number}")]), is_own=True) for number in range(40)]
    for listing in [*own, own[-1]]:
        ToolSearch().index_of(listing)
    kept = [index() is not None for index in indexes]
    assert len(kept) == 40
    assert 0 < sum(kept) <= 20
    assert kept[-1]


async def test_an_index_is_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    class Noted(ToolIndex):
        def __init__(self, tools: Iterable[Tool]) -> None:
            super().__init__(tools)
            threads.append(threading.get_ident())

    monkeypatch.setattr(tool_search, "ToolIndex", Noted)
    with FakeLeaseway() as fake:

        @fake.server("notes").tool
        def greet() -> str:
            """Greet."""
            return "Hello."

        async with front(fake, search=True) as url, host(url) as client:
            session = await client.initialize()
            call = {"name": "search_tools", "arguments": {"query": "greet"}}
            found = await client.send("tools/call", call, session)
    assert found["structuredContent"]["tools"] == [{"name": "greet", "description": "Greet."}]
    assert threads
    assert threading.get_ident() not in threads


async def test_clients_that_search_a_list_at_once_make_one_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ToolIndex] = []
    another = threading.Event()

    class Slow(ToolIndex):
        def __init__(self, tools: Iterable[Tool]) -> None:
            super().__init__(tools)
            made.append(self)
            if len(made) > 1:
                another.set()
            another.wait(0.2)

    monkeypatch.setattr(tool_search, "ToolIndex", Slow)
    with FakeLeaseway() as fake:
        fake.server("notes").tool(make_greeting)
        async with front(fake, search=True) as url, host(url) as client:
            session = await client.initialize()
            call = {"name": "search_tools", "arguments": {"query": "greeting"}}
            sent = (client.send("tools/call", call, session) for _ in range(2))
            await asyncio.gather(*sent)
    assert len(made) == 1


async def test_a_list_with_an_index_is_searched_while_another_one_is_made() -> None:
    held = threading.Event()
    with FakeLeaseway() as fake:
        fake.server("notes").tool(make_greeting)
        async with front(fake, search=True) as url, host(url) as client:
            session = await client.initialize()
            call = {"name": "search_tools", "arguments": {"query": "greeting"}}
            first = await client.send("tools/call", call, session)
            making = methods._indexing.submit(held.wait, BOUND)
            try:
                async with asyncio.timeout(BOUND):
                    assert await client.send("tools/call", call, session) == first
                assert not making.done()
            finally:
                held.set()
