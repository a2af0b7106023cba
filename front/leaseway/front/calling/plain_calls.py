"""Calls of tools that need nothing but the tool: neither a wait before nor a change of arguments.

Nearly every call of a client with `initialize` and `Mcp-Session-Id` is one. What it needs beside
its arguments is found once for each tool and list; the call itself then runs without a task
(`http.heads`). `Methods` handles every other call.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from leaseway.front.calling.conversations import MCP_SESSION, Conversations
from leaseway.front.calling.handles import SessionOffer
from leaseway.front.catalog import CatalogCache
from leaseway.front.eras import to_2025_11_25
from leaseway.front.lists.definitions import PagedListing
from leaseway.front.lists.ui_resources import result_for_client
from leaseway.front.messages import CallParams
from leaseway.front.results import adapt_result
from leaseway.front.sessions.live_session import LiveSession
from leaseway.sdk import Tool
from leaseway.wire.bounds import MAX_VALUES

_decode: Final = msgspec.json.Decoder(CallParams).decode


class PlainTool(NamedTuple):
    """A tool as a client of one scope calls it.

    Attributes:
        listing: The list that has it.
        tool: The tool.
        is_wrapped: Whether older clients get its structured results as a member of an object.
        is_scoped: Whether the client sees one server.
    """

    listing: PagedListing[Tool]
    tool: Tool
    is_wrapped: bool
    is_scoped: bool

    def result(self, payload: bytes) -> bytes:
        """Return a result of the tool for a client with `initialize`."""
        if not self.is_scoped:
            payload = result_for_client(payload, self.tool.server_id)
        payload = to_2025_11_25.tool_result(payload, wrapped=self.is_wrapped)
        return adapt_result(payload, modern=False)


class PlainCalls:
    """Tells which calls are plain.

    Args:
        catalog: The lists of tools.
        conversations: Finds the sessions of calls.
        offer: How tools take their session as an argument; None if they do not.
        is_possible: Whether the front lists its tools and passes on what they return.
    """

    def __init__(
        self,
        catalog: CatalogCache,
        conversations: Conversations,
        offer: SessionOffer | None,
        *,
        is_possible: bool,
    ) -> None:
        self._catalog = catalog
        self._offer = offer
        self._rules = conversations.options.rules
        # A rule before that of the protocol's session could find another one.
        self._is_possible = (
            is_possible and conversations.is_plain and (offer is None or MCP_SESSION in self._rules)
        )
        self._tools: dict[tuple[str, str], PlainTool] = {}

    def find(
        self, live: LiveSession, scope: str, params: bytes
    ) -> tuple[PlainTool, str, bytes] | None:
        """Return the tool that a call names, its name and its arguments; None if it is not plain.

        Args:
            live: The session of the protocol, which the head of the request names.
            scope: The server that the client sees; empty means all.
            params: The params of `tools/call`, without `_meta`.
        """
        if not self._is_possible or live.place or live.renews or len(params) > MAX_VALUES:
            return None
        try:
            sent = _decode(params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        name, arguments = sent.name, bytes(sent.arguments)
        listing: PagedListing[Any] | None = self._catalog.cached("tools", scope)
        known = self._tools.get((scope, name))
        if known is None or known.listing is not listing:
            known = self._learn(listing, scope, name) if listing is not None else None
            if known is None:
                return None
        if not known.tool.shared and (
            live.on_idle is None or (self._offer is not None and self._offer.may_carry(arguments))
        ):
            return None
        return (known, name, arguments) if arguments.startswith(b"{") and name.isascii() else None

    def _learn(self, listing: PagedListing[Tool], scope: str, name: str) -> PlainTool | None:
        tool = find_tool(listing, name)
        if tool is None or (tool.sessions_from and not tool.shared):
            return None
        if self._tools and next(iter(self._tools.values())).listing is not listing:
            self._tools.clear()  # so that there are at most as many as tools
        schema = tool.output_schema
        is_wrapped = schema is not None and to_2025_11_25.is_wrapped(schema)
        known = self._tools[scope, name] = PlainTool(listing, tool, is_wrapped, bool(scope))
        return known


def find_tool(listing: PagedListing[Tool], name: str) -> Tool | None:
    """Return a tool by its name, or by its name with its server."""
    tool = listing.items.get((name,))
    if tool is None and ":" in name:
        tool = listing.qualified.get(name)
    return tool
