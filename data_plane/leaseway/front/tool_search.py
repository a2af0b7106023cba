"""Three tools instead of hundreds: a model searches, reads one definition and calls.

What the client may not see is neither found nor described: it is looked up in its own list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from mcp_types.jsonrpc import INVALID_PARAMS

from leaseway.front.definitions import Key, Listing, tool_definition
from leaseway.front.messages import CallParams, RpcError, encode, read_arguments, structured_result
from leaseway.sdk import Tool
from leaseway.sdk.catalog.search import ToolIndex

SEARCH: Final = "search_tools"
DESCRIBE: Final = "describe_tool"
CALL: Final = "call_tool"

_MOST: Final = 20
_SHOWN: Final = 300
"""Characters of a description that a search shows."""

_NAME: Final = {"type": "string", "description": "The tool's name, as search_tools gave it."}
_DEFINITIONS: Final[Sequence[dict[str, Any]]] = (
    {
        "name": CALL,
        "description": "Call a tool that search_tools found.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": _NAME,
                "arguments": {"type": "object", "description": "As its input schema says."},
            },
            "required": ["name"],
        },
    },
    {
        "name": DESCRIBE,
        "description": "Read a tool's whole definition: what it does and which arguments it takes.",
        "inputSchema": {"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": SEARCH,
        "description": "Find tools by what they are to do. Many more tools can be called than are "
        "listed here; look for one before you say that there is none.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the tool is to do, in words."},
                "limit": {"type": "integer", "minimum": 1, "maximum": _MOST, "default": 5},
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": True},
    },
)


class _Search(msgspec.Struct):
    query: str
    limit: int = 5


class _Describe(msgspec.Struct):
    name: str


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def search_listing() -> Listing[dict[str, Any]]:
    """Return what is listed instead of all tools."""
    keys: tuple[Key, ...] = tuple((str(each["name"]),) for each in _DEFINITIONS)
    items = dict(zip(keys, _DEFINITIONS, strict=True))
    return Listing("tools", items, keys, tuple(map(encode, _DEFINITIONS)))


class ToolSearch:
    """Searches one list of tools; indexes are kept as long as their list is.

    The newest 16 lists have one.
    """

    def __init__(self) -> None:
        self._indexes: dict[int, tuple[Listing[Tool], ToolIndex]] = {}

    def found(self, listing: Listing[Tool], arguments: bytes) -> bytes:
        wanted = read_arguments(SEARCH, arguments, _Search)
        if not 1 <= wanted.limit <= _MOST:
            raise RpcError(INVALID_PARAMS, f"limit is a number from 1 to {_MOST}.")
        tools = self._index(listing).search(wanted.query, wanted.limit)
        found = [{"name": tool.name, "description": _short(tool.description)} for tool in tools]
        lines = [f"{each['name']}: {each['description']}" for each in found]
        text = "\n".join(lines) or "No tool fits; try other words."
        return structured_result(text, {"tools": found})

    @staticmethod
    def described(listing: Listing[Tool], arguments: bytes) -> bytes:
        name = read_arguments(DESCRIBE, arguments, _Describe).name
        tool = listing.items.get((name,))
        if tool is None:
            return encode(
                {
                    "content": [{"type": "text", "text": f"There is no tool '{name[:100]}'."}],
                    "isError": True,
                }
            )
        definition = tool_definition(tool)
        return structured_result(encode(definition).decode(), definition)

    @staticmethod
    def meant(arguments: bytes) -> CallParams:
        wanted = read_arguments(CALL, arguments, _Call)
        return CallParams(name=wanted.name, arguments=wanted.arguments)

    def _index(self, listing: Listing[Tool]) -> ToolIndex:
        known = self._indexes.get(id(listing))
        if known is None or known[0] is not listing:
            while len(self._indexes) >= 16:
                del self._indexes[next(iter(self._indexes))]
            known = self._indexes[id(listing)] = (listing, ToolIndex(listing.items.values()))
        return known[1]


def _short(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
