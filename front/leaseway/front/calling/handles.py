"""Lease handles: two tools of the front, shown to clients whose session nothing else says.

`lease_acquire` creates a session, leases a server in it and returns its id as a handle. Calls that
carry the handle use those leases. `lease_release` releases them. To these clients, leased tools are
listed with an argument that takes the handle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from leaseway.front.calling.conversations import (
    ARGUMENT,
    HANDLE,
    Carried,
    SessionOptions,
    is_offered,
)
from leaseway.front.calling.session_argument import (
    META_KEY,
    has_argument,
    with_argument,
    with_output,
)
from leaseway.front.lists.definitions import (
    ListingKey,
    OfItems,
    PagedListing,
    listed_schema,
    tool_listing,
)
from leaseway.front.protocol.envelope import ESCAPE, RequestMessage
from leaseway.front.protocol.messages import (
    JsonRpcError,
    encode,
    parse_arguments,
    read_name_and_meta,
    structured_result,
)
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.table import SessionTable
from leaseway.sdk import Tool
from leaseway.sdk.relay import speak_for
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.messages.mcp import INVALID_PARAMS

ACQUIRE: Final = "lease_acquire"
RELEASE: Final = "lease_release"
HANDLE_HEADER: Final = "Leaseway-Session"
HANDLE_KEY: Final = META_KEY
"""The header, and the key of `_meta`, in which a request may carry a handle."""
HANDLE_MARK: Final = HANDLE_KEY.encode()
UNKNOWN_HANDLE: Final = (
    "Unknown handle: it was released, was not used for too long, or belongs to another client. "
    f"Call {ACQUIRE} for a new one."
)
UNKNOWN_SESSION: Final = (
    "Unknown session: it was released, was not used for too long, or belongs to another client. "
    "Its state is lost. Call again without it for a new one."
)

_MAX_CACHED: Final = 256
_HANDLES: Final = frozenset((ARGUMENT, HANDLE))
"""The rules by which a call says its session by a handle."""

_SERVER: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "The id of the server.",
}
_DEFINITIONS: Final[Mapping[str, dict[str, Any]]] = {
    ACQUIRE: {
        "name": ACQUIRE,
        "title": "Lease an MCP server",
        "description": (
            "Lease an MCP server: a private client (a process or connection) that keeps its state "
            "from call to call. The result has a handle. Calls of tools that pass it as their "
            "session use that client. It is optional: the first call of a tool that keeps state "
            f"leases its server, too. Call {RELEASE} when you are done."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {"serverId": _SERVER},
            "required": ["serverId"],
            "additionalProperties": False,
        },
        "annotations": {"destructiveHint": False, "openWorldHint": False},
    },
    RELEASE: {
        "name": RELEASE,
        "title": "Release a handle's leases",
        "description": (
            f"Release all servers that were leased with a handle of {ACQUIRE}. Their state, such "
            "as open pages or unsaved changes, is lost."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "handle": {
                    "type": "string",
                    "description": "The handle; optional if the request itself carries it.",
                }
            },
            "additionalProperties": False,
        },
        "annotations": {"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    },
}


class _AcquireArguments(msgspec.Struct, forbid_unknown_fields=True):
    server: str = msgspec.field(name="serverId")


class _ReleaseArguments(msgspec.Struct, forbid_unknown_fields=True):
    handle: str | None = None


def handle_tool(name: str) -> str | None:
    """Return the plain name of a handle tool, or None for any other tool."""
    name = name.removeprefix(f"{ADMIN_TOOLSET}:")
    return name if name in _DEFINITIONS else None


class SessionOffer:
    """What tool lists offer to clients whose session nothing else says, cached for each scope.

    The handle tools are listed, and leased tools have an argument for the session. A client whose
    protocol has sessions needs neither, unless the rules of a tool leave these sessions out.

    Args:
        options: The name of the argument, and the rules.

    Attributes:
        argument: The preferred name of the argument.
    """

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self.argument = options.argument
        self._encoded = options.argument.encode()
        self._extended = _extended_tools.setdefault(options.argument, OfItems())
        self._cache: dict[tuple[str, bool], _Offered] = {}

    def shows(self, tool: Tool, has_session: bool) -> bool:
        """Return whether a tool is offered to a client whose protocol has sessions, or has none."""
        return not tool.shared and is_offered(self._options.rules_of(tool), has_session)

    def takes_handles(self, tool: Tool, has_session: bool) -> bool:
        """Return whether a tool is offered to such a client and can be called with a handle."""
        rules = self._options.rules_of(tool)
        return self.shows(tool, has_session) and not _HANDLES.isdisjoint(rules)

    def may_carry(self, arguments: bytes) -> bool:
        """Return whether the arguments of a call may contain the one for the session."""
        if ESCAPE in arguments:  # so has most text of several lines
            return has_argument(arguments, self.argument)
        return self._encoded in arguments

    def add_tools(
        self,
        listing: PagedListing[Tool],
        scope: str,
        shown: PagedListing[Any],
        has_session: bool,
    ) -> PagedListing[Any]:
        """Return the shown tools plus the handle tools, if the client can call any with a handle.

        A server's own tool of the same name takes precedence.

        Args:
            listing: All tools of the scope.
            scope: The server, or empty for all servers.
            shown: The tools to list: all of them, or the search tools.
            has_session: Whether the client's protocol says its session with every request.
        """
        offered = self._offered(listing, scope, has_session)
        if not offered.has_any:
            return shown
        if offered.shown is None or offered.shown[0] is not shown:
            own = shown if shown is not listing else offered.with_arguments()
            offered.shown = (shown, _with_handle_tools(own))
        return offered.shown[1]

    def of_tool(self, listing: PagedListing[Tool], scope: str, tool: Tool) -> OfferedTool | None:
        """Return how a tool is listed if it has the argument, else None."""
        return self._offered(listing, scope, has_session=False).of_tool(tool)

    def extended(self, tool: Tool) -> OfferedTool | None:
        """Return a leased tool with the argument, or None if it cannot or may not have it."""
        if tool.shared or ARGUMENT not in self._options.rules_of(tool):
            return None
        return self._extended.get(tool, partial(_extended, argument=self.argument))

    def _offered(self, listing: PagedListing[Tool], scope: str, has_session: bool) -> _Offered:
        if listing.is_own:
            return _Offered(self, listing, has_session)
        cached = self._cache.get((scope, has_session))
        if cached is None or cached.listing is not listing:
            if len(self._cache) > _MAX_CACHED:
                self._cache.clear()
            cached = self._cache[scope, has_session] = _Offered(self, listing, has_session)
        return cached


@dataclass(frozen=True)
class OfferedTool:
    """A leased tool with its argument for the session.

    Attributes:
        tool: The tool with changed schemas.
        argument: The argument's name.
        is_structured: Whether structured results may have the session as a member.
    """

    tool: Tool
    argument: str
    is_structured: bool


_extended_tools: Final[dict[str, OfItems[OfferedTool | None]]] = {}
"""Leased tools by the name of the argument: each credential has its own lists of them."""


def _extended(tool: Tool, argument: str) -> OfferedTool | None:
    extended = with_argument(listed_schema(tool).schema, argument)
    if extended is None:
        return None
    schema, name = extended
    output = tool.output_schema
    is_structured = True
    if output is not None:
        changed = with_output(output, name)
        output, is_structured = changed or output, changed is not None
    offered = replace(tool, input_schema=schema, output_schema=output)
    return OfferedTool(offered, name, is_structured)


class _Offered:
    """The tools of one list with their arguments, each made when it is first needed.

    Args:
        offer: Makes them.
        listing: The list.
        has_session: Whether the clients that see it have sessions of their protocol.
    """

    def __init__(self, offer: SessionOffer, listing: PagedListing[Tool], has_session: bool) -> None:
        self.listing = listing
        self.shown: tuple[PagedListing[Any], PagedListing[Any]] | None = None
        self._offer = offer
        self._has_session = has_session
        tools = listing.items.values()
        self.has_any = any(offer.takes_handles(tool, has_session) for tool in tools)
        self._tools: dict[str, OfferedTool | None] = {}

    def of_tool(self, tool: Tool) -> OfferedTool | None:
        if tool.name not in self._tools:
            self._tools[tool.name] = self._offer.extended(tool)
        return self._tools[tool.name]

    def with_arguments(self) -> PagedListing[Tool]:
        tools = [self._as_shown(tool) for tool in self.listing.items.values()]
        return replace(tool_listing(tools), ttl=self.listing.ttl)

    def _as_shown(self, tool: Tool) -> Tool:
        if not self._offer.shows(tool, self._has_session):
            return tool
        offered = self.of_tool(tool)
        return tool if offered is None else offered.tool


def _with_handle_tools(listing: PagedListing[Any]) -> PagedListing[Any]:
    encoded: dict[ListingKey, bytes] = dict(zip(listing.keys, listing.encoded, strict=True))
    for name, definition in _DEFINITIONS.items():
        encoded.setdefault((name,), encode(definition))
    keys = tuple(sorted(encoded))
    definitions = tuple(encoded[key] for key in keys)
    return PagedListing(
        member="tools",
        items=listing.items,
        keys=keys,
        encoded=definitions,
        older=listing.older,
        ttl=listing.ttl,
    )


async def acquire(
    table: SessionTable,
    carried: LiveSession | None,
    scope: str,
    client: str,
    arguments: bytes,
    mcp_client: bytes = b"",
) -> bytes:
    """Return the result of `lease_acquire`, for an MCP client as its server will see it.

    Raises:
        JsonRpcError: The arguments are wrong, there are too many sessions, or those of its client
            that have leases are all in use.
        LeasewayError: The server cannot be leased.
    """
    server = parse_arguments(ACQUIRE, arguments, _AcquireArguments).server
    if scope and server != scope:
        raise JsonRpcError(INVALID_PARAMS, f"Only server '{scope}' can be leased at this URL.")
    live = carried or table.create_handle(scope, client)
    speak_for(live.sdk, mcp_client)
    try:
        if live.on_idle is None:
            await table.admit(live)
        live.begin_call()
        live.calls -= 1  # after one call a session may be over, but not after this
        try:
            await live.sdk.acquire(server, live.lease_ttl)
        finally:
            live.end_call()
    except BaseException:
        if carried is None:
            await table.end(live)
        raise
    structured = {"handle": live.id, "serverId": server}
    text = (
        f"You have a lease on server {server}. Pass this handle as the session of its tools (or "
        f"send it as `_meta` key {HANDLE_KEY} or header {HANDLE_HEADER}), and call {RELEASE} with "
        f"it when you are done: {live.id}"
    )
    return structured_result(text, structured)


async def release(carried: Carried, scope: str, client: str, arguments: bytes) -> bytes:
    """Return the result of `lease_release`; raises `JsonRpcError` for wrong arguments."""
    handle, table = parse_arguments(RELEASE, arguments, _ReleaseArguments).handle, carried.sessions
    if handle is not None:
        live = table.find(handle, scope)
    elif carried.handle is not None or carried.conversation:
        live = carried.handle or carried.named(scope, client, tells_end=False)
    else:
        raise JsonRpcError(INVALID_PARAMS, f"`handle` is missing: send the handle from {ACQUIRE}.")
    if live is None:
        return structured_result("This handle has no leases any more.", {"released": False})
    await table.end(live)
    return structured_result("All leases of this handle were released.", {"released": True})


def handle_from_meta(meta: bytes) -> str | None:
    """Return the handle in a request's `_meta`, or None."""
    if not may_have_handle(meta):
        return None
    try:
        return _read_meta(meta).handle
    except (ValueError, RecursionError):
        text = f"{HANDLE_KEY} must be a handle from {ACQUIRE}."
        raise JsonRpcError(INVALID_PARAMS, text) from None


async def with_handle(carried: Carried, message: RequestMessage, scope: str) -> Carried:
    """Return what a request carries, with the session of the handle in its `_meta`, if any.

    A handle in a header comes before it. Call it if `may_have_handle`.

    Raises:
        JsonRpcError: The handle has ended, is none of this client, or no text.
    """
    if carried.handle is not None:
        return carried
    handle = handle_from_meta(read_name_and_meta(message)[1])
    if handle is None:
        return carried
    live = await carried.sessions.open(handle, scope)
    if live is None:
        raise JsonRpcError(INVALID_PARAMS, UNKNOWN_HANDLE)
    return carried._replace(handle=live)


def may_have_handle(json: bytes) -> bool:
    """Return whether a message's `_meta` may have a handle, without reading it."""
    # Some encoders write `leaseway\/session`.
    return json.find(HANDLE_MARK) >= 0 or json.find(ESCAPE) >= 0


class _Meta(msgspec.Struct):
    handle: str | None = msgspec.field(default=None, name=HANDLE_KEY)


_read_meta: Final[Callable[[bytes], _Meta]] = msgspec.json.Decoder(_Meta).decode
