"""Calls of tools that need nothing but the tool: no wait before them, and no question to anybody.

Nearly every call of a client with `initialize` and `Mcp-Session-Id` is one, and nearly every call
of a modern client to a shared server, or in a session that its arguments say. What it needs beside
its arguments is found once for each tool and list, and once for a `_meta` that returns; the call
itself then runs without a task (`http.direct_calls`). `Methods` handles every other call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from leaseway.front.calling.conversations import MCP_SESSION, PRINCIPAL, Carried, Conversations
from leaseway.front.calling.handles import HANDLE_KEY, SessionOffer
from leaseway.front.calling.media import MEDIA_KEY
from leaseway.front.calling.requests import Asked, asked_in, trace_in
from leaseway.front.calling.session_argument import InvalidSessionArgument, take_argument
from leaseway.front.calling.suspended_calls import Binding, asks_for_input, seal_state
from leaseway.front.catalog import CatalogCache
from leaseway.front.lists.definitions import PagedListing, header_arguments, listed_schema
from leaseway.front.lists.login_tool import login_arguments
from leaseway.front.lists.ui_resources import result_for_client
from leaseway.front.protocol.envelope import ABSENT, VERSION_KEY
from leaseway.front.protocol.eras import to_2025_11_25
from leaseway.front.protocol.messages import JsonRpcError
from leaseway.front.protocol.results import adapt_result, fitting_result
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.table import SessionTable, TooManySessions
from leaseway.sdk import Tool
from leaseway.wire.bounds import MAX_VALUES
from leaseway.wire.channels.trace_context import NO_TRACE, continued


class _Params(msgspec.Struct, gc=False):
    """Params of `tools/call`, of which all but the name stays unread; as `CallParams`."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    meta: msgspec.Raw = msgspec.field(default=ABSENT, name="_meta")
    cursor: str | None = None
    responses: msgspec.Raw = msgspec.field(default=ABSENT, name="inputResponses")
    state: str | None = msgspec.field(default=None, name="requestState")


_decode: Final = msgspec.json.Decoder(_Params).decode
_decode_meta: Final = msgspec.json.Decoder(dict[str, Any] | None).decode


class PlainTool(NamedTuple):
    """A tool as a client of one scope calls it.

    Attributes:
        tool: The tool.
        scope: The server that the client sees; empty means all.
        is_wrapped: Whether older clients get its structured results as a member of an object.
        has_headers: Whether modern clients repeat arguments of it in headers.
        argument: The argument in which clients without a session of their protocol say one; empty
            if it has none.
        learn_links: Learns which resources a result names; None if none can be read.
    """

    tool: Tool
    scope: str
    is_wrapped: bool
    has_headers: bool
    argument: str
    learn_links: Callable[[str, str, bytes], None] | None

    def result(self, payload: bytes, session: str) -> bytes:
        """Return a result of the tool for a client with `initialize`.

        Args:
            payload: The server's result.
            session: The id of the protocol's session.
        """
        if self.learn_links is not None:
            self.learn_links(session, self.tool.server_id, payload)
        if self.tool.output_schema is not None:
            payload = fitting_result(payload)
        if not self.scope:
            payload = result_for_client(payload, self.tool.server_id)
        payload = to_2025_11_25.tool_result(payload, wrapped=self.is_wrapped)
        return adapt_result(payload, modern=False)

    def modern_result(self, payload: bytes, sessions: SessionTable, params: bytes) -> bytes:
        """Return a result of the tool for a modern client.

        Args:
            payload: The server's result.
            sessions: The sessions of the caller, who may have to answer the server.
            params: The params of the call.
        """
        if self.learn_links is not None:
            self.learn_links("", self.tool.server_id, payload)
        if self.tool.output_schema is not None:
            payload = fitting_result(payload)
        if not self.scope:
            payload = result_for_client(payload, self.tool.server_id)
        payload = adapt_result(payload, modern=True)
        if asks_for_input(payload):
            sent = _decode(params)
            binding = Binding(self.scope, "tools/call", sent.name, bytes(sent.arguments))
            payload = seal_state(sessions, payload, binding)
        return payload


class _KnownList(NamedTuple):
    """A list of tools, and those of them that clients of its scope have called."""

    listing: PagedListing[Tool]
    tools: dict[str, PlainTool]


class PlainMeta(NamedTuple):
    """What the `_meta` of a plain call says.

    Attributes:
        asked: What it asks for.
        trace: The trace that the call continues, or `NO_TRACE`.
    """

    asked: Asked
    trace: tuple[str, str]


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
        options = conversations.options
        rules = options.rules
        # A rule before that of the protocol's session could find another one.
        self._is_possible = (
            is_possible and conversations.is_plain and (offer is None or MCP_SESSION in rules)
        )
        self._is_possible_without = is_possible and PRINCIPAL not in rules
        self._special = frozenset({MEDIA_KEY, HANDLE_KEY, *options.conversation_keys})
        self._lists: dict[str, _KnownList] = {}

    def find(
        self, live: LiveSession, scope: str, params: bytes
    ) -> tuple[PlainTool, str, bytes, bytes] | None:
        """Return the tool that a call names, its name, its arguments and its `_meta`.

        None if it is not plain; so it is with a `_meta` for which `read_meta` returns None.

        Args:
            live: The session of the protocol, which the head of the request names.
            scope: The server that the client sees; empty means all.
            params: The params of `tools/call`.
        """
        if not self._is_possible or live.place or live.renews or len(params) > MAX_VALUES:
            return None
        try:
            sent = _decode(params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        name, arguments = sent.name, bytes(sent.arguments)
        known = self._tool(scope, name)
        if known is None:
            return None
        if not known.tool.shared and (
            known.tool.sessions_from
            or live.on_idle is None
            or (self._offer is not None and self._offer.may_carry(arguments))
        ):
            return None
        if arguments.startswith(b"{") and name.isascii():
            return known, name, arguments, bytes(sent.meta)
        return None

    def find_outside(
        self, carried: Carried, scope: str, params: bytes
    ) -> tuple[PlainTool, str, bytes, bytes, LiveSession | None] | None:
        """Like `find`, for a call of a modern client.

        Returns:
            In addition the session that the arguments say, without which they are then; None if
            the tool is shared.

        Args:
            carried: What the head of the request says about its session.
            scope: As for `find`.
            params: As for `find`.
        """
        cookie = carried.cookie
        if not self._is_possible_without or len(params) > MAX_VALUES:
            return None
        if carried.handle is not None or carried.conversation:
            return None
        if cookie is not None and cookie.live is not None:
            return None
        try:
            sent = _decode(params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        name, arguments = sent.name, bytes(sent.arguments)
        known = self._tool(scope, name)
        if known is None or known.has_headers:
            return None
        if sent.state is not None or bytes(sent.responses):
            return None  # the next try of a call
        if not (arguments.startswith(b"{") and name.isascii()):
            return None
        live = None
        if not known.tool.shared:
            arguments, live = _said_session(known, carried.sessions, arguments)
            if live is None:
                return None
        return known, name, arguments, bytes(sent.meta), live

    def read_meta(self, meta: bytes, *, modern: bool) -> PlainMeta | None:
        """Return what the `_meta` of a call says.

        None if it may choose a session, media or the protocol's version, or is wrong.
        """
        try:
            sent = _decode_meta(meta) or {}
            if not self._special.isdisjoint(sent) or (not modern and VERSION_KEY in sent):
                return None
            asked = asked_in(sent, modern=modern)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, JsonRpcError):
            return None
        trace = trace_in(sent)
        return PlainMeta(asked, NO_TRACE if trace is None else continued(*trace))

    def _tool(self, scope: str, name: str) -> PlainTool | None:
        listing: PagedListing[Any] | None = self._catalog.cached("tools", scope)
        known = self._lists.get(scope)
        if known is None or known.listing is not listing:
            if listing is None:
                return None
            known = self._begin_list(listing, scope)
        tool = known.tools.get(name)
        return tool if tool is not None else self._learn(known, scope, name)

    def _begin_list(self, listing: PagedListing[Tool], scope: str) -> _KnownList:
        """Return a new list of a scope, which has no tools yet; forget those that have changed."""
        cached = self._catalog.cached
        self._lists = {
            other: known
            for other, known in self._lists.items()
            if known.listing is cached("tools", other)
        }
        known = self._lists[scope] = _KnownList(listing, {})
        return known

    def _learn(self, known: _KnownList, scope: str, name: str) -> PlainTool | None:
        listing, offer = known.listing, self._offer
        tool = find_tool(listing, name)
        if tool is None or listed_schema(tool).names or login_arguments(scope, tool) is not None:
            return None
        schema = tool.output_schema
        offered = None
        if offer is not None and offer.shows(tool, has_session=False):
            offered = offer.of_tool(listing, scope, tool)
        is_linking = not scope and self._catalog.may_link(tool.server_id)
        plain = known.tools[name] = PlainTool(
            tool=tool,
            scope=scope,
            is_wrapped=schema is not None and to_2025_11_25.is_wrapped(schema),
            has_headers=bool(header_arguments(tool)),
            argument="" if offered is None else offered.argument,
            learn_links=self._catalog.learn_links if is_linking else None,
        )
        return plain


def _said_session(
    known: PlainTool, sessions: SessionTable, arguments: bytes
) -> tuple[bytes, LiveSession | None]:
    """Return a call's arguments without the session that they say, and the session.

    None if they say none, or one that is not open here or has no leases here.
    """
    if not known.argument:
        return arguments, None
    try:
        others, handle = take_argument(arguments, known.argument)
        live = sessions.opened(handle, known.scope) if handle else None
    except (InvalidSessionArgument, TooManySessions):
        return arguments, None
    return others, None if live is None or live.on_idle is None else live


def find_tool(listing: PagedListing[Tool], name: str) -> Tool | None:
    """Return a tool by its name, or by its name with its server."""
    tool = listing.items.get((name,))
    if tool is None and ":" in name:
        tool = listing.qualified.get(name)
    return tool
