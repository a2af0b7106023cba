"""Search mode: clients see three tools to search, describe and call all others.

Searches run on the client's own tool list, so tools that it may not see stay hidden.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from leaseway.front.lists.definitions import ListingKey, OfItems, PagedListing, tool_definition
from leaseway.front.protocol.messages import (
    CallParams,
    JsonRpcError,
    encode,
    parse_arguments,
    structured_result,
)
from leaseway.front.protocol.results import tool_error
from leaseway.sdk import Tool
from leaseway.sdk.relay import ToolIndex
from leaseway.wire.messages.mcp import INVALID_PARAMS

SEARCH: Final = "search_tools"
DESCRIBE: Final = "describe_tool"
CALL: Final = "call_tool"

_MAX_RESULTS: Final = 20
_MAX_DESCRIPTION: Final = 300
"""Characters of a description in a search result."""

_MAX_OWN: Final = 16
"""Indexes of lists that are each of one session. They take megabytes, and nobody shares them."""

_NAME: Final = {"type": "string", "description": "The tool's name, as search_tools returned it."}
_DEFINITIONS: Final[Sequence[dict[str, Any]]] = (
    {
        "name": CALL,
        "description": "Call a tool that search_tools found.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": _NAME,
                "arguments": {"type": "object", "description": "Must match its input schema."},
            },
            "required": ["name"],
        },
    },
    {
        "name": DESCRIBE,
        "description": "Read a tool's full definition: what it does and its arguments.",
        "inputSchema": {"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": SEARCH,
        "description": "Find tools by what they do. Many more tools are available than are listed "
        "here; search before you say that there is none.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the tool should do, in words."},
                "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_RESULTS, "default": 5},
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": True},
    },
)


class _SearchArguments(msgspec.Struct):
    query: str
    limit: int = 5


class _DescribeArguments(msgspec.Struct):
    name: str


class _CallArguments(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


@functools.cache
def search_listing() -> PagedListing[dict[str, Any]]:
    """Return the list of the three search tools."""
    keys: tuple[ListingKey, ...] = tuple((str(tool["name"]),) for tool in _DEFINITIONS)
    items = dict(zip(keys, _DEFINITIONS, strict=True))
    return PagedListing("tools", items, keys, tuple(map(encode, _DEFINITIONS)))


_of_listings: Final[OfItems[ToolIndex]] = OfItems()
_of_sessions: Final[OfItems[ToolIndex]] = OfItems(_MAX_OWN)
_indexes: Final = WeakValueDictionary[tuple[int, ...], ToolIndex]()
"""The index of each list of tools that a listing has, by its tools: credentials see the same."""


class ToolSearch:
    """Searches lists of tools, with an index for each, which is kept as long as the list.

    Of the lists that only one session has, the newest ones keep theirs.
    """

    @staticmethod
    def known_index(listing: PagedListing[Tool]) -> ToolIndex | None:
        """Return the index of a list if it has one."""
        return (_of_sessions if listing.is_own else _of_listings).find(listing)

    @staticmethod
    def index_of(listing: PagedListing[Tool]) -> ToolIndex:
        """Return the index of a list; any thread may, and one of many tools takes a second."""
        return (_of_sessions if listing.is_own else _of_listings).get(listing, _index)

    @staticmethod
    def search(index: ToolIndex, arguments: bytes) -> bytes:
        """Return the result of `search_tools`."""
        query = parse_arguments(SEARCH, arguments, _SearchArguments)
        if not 1 <= query.limit <= _MAX_RESULTS:
            raise JsonRpcError(INVALID_PARAMS, f"limit is a number from 1 to {_MAX_RESULTS}.")
        tools = index.search(query.query, query.limit)
        matches = [{"name": tool.name, "description": _short(tool.description)} for tool in tools]
        lines = [f"{match['name']}: {match['description']}" for match in matches]
        text = "\n".join(lines) or "No tool matches; try other words."
        return structured_result(text, {"tools": matches})

    @staticmethod
    def describe(
        listing: PagedListing[Tool], arguments: bytes, as_listed: Callable[[Tool], Tool]
    ) -> bytes:
        """Return the result of `describe_tool`.

        Args:
            listing: The tools.
            arguments: The arguments of the call.
            as_listed: Returns a tool as it is listed to the client.
        """
        name = parse_arguments(DESCRIBE, arguments, _DescribeArguments).name
        tool = listing.items.get((name,))
        if tool is None:
            return tool_error(f"There is no tool '{name[:100]}'.")
        definition = tool_definition(as_listed(tool))
        return structured_result(encode(definition).decode(), definition)

    @staticmethod
    def called_tool(arguments: bytes) -> CallParams:
        """Return the params of the call that `call_tool` wraps."""
        call = parse_arguments(CALL, arguments, _CallArguments)
        return CallParams(name=call.name, arguments=call.arguments)


def _index(listing: PagedListing[Tool]) -> ToolIndex:
    tools = listing.items.values()
    key = tuple(map(id, tools))
    index = _indexes.get(key)
    if index is None:
        index = _indexes[key] = ToolIndex(tools)
    return index


def _short(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= _MAX_DESCRIPTION else line[: _MAX_DESCRIPTION - 1] + "…"
