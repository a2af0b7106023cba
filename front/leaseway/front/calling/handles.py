"""Lease handles: two tools of the front for clients whose protocol has no sessions.

`lease_acquire` creates a session, leases a server in it and returns its sealed id as a handle.
Requests that carry the handle use those leases. `lease_release` releases them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from mcp_types.jsonrpc import INVALID_PARAMS

from leaseway.front.calling.sessions import LiveSession
from leaseway.front.definitions import ListingKey, PagedListing
from leaseway.front.messages import JsonRpcError, encode, parse_arguments, structured_result
from leaseway.sdk import Tool
from leaseway.wire.messages.admin import ADMIN_TOOLSET

ACQUIRE: Final = "lease_acquire"
RELEASE: Final = "lease_release"
HANDLE_HEADER: Final = "Leaseway-Session"
HANDLE_KEY: Final = "leaseway/session"
"""The header, and the key of `_meta`, in which a request may carry a handle."""
UNKNOWN_HANDLE: Final = (
    "Unknown handle: it was released, was not used for too long, or belongs to another client. "
    f"Call {ACQUIRE} for a new one."
)

_MAX_CACHED: Final = 256

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
            "from call to call. The result has a handle. Requests that carry it, as `_meta` key "
            f"{HANDLE_KEY} or header {HANDLE_HEADER}, use that client; a call of this tool that "
            f"carries it leases one more server. Call {RELEASE} when you are done."
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


class HandleTable(Protocol):
    """The sessions behind lease handles."""

    def create_handle(self, scope: str) -> LiveSession:
        """Create a session; raises `JsonRpcError` if there are too many."""

    def find(self, session_id: str, scope: str) -> LiveSession | None:
        """Return the session of a handle, or None if it has ended or is unknown."""

    async def end(self, live: LiveSession) -> None:
        """End a session and release its leases."""


def handle_tool(name: str) -> str | None:
    """Return the plain name of a handle tool, or None for any other tool."""
    name = name.removeprefix(f"{ADMIN_TOOLSET}:")
    return name if name in _DEFINITIONS else None


class HandleListing:
    """Adds the handle tools to tool lists, and caches the result for each scope."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[PagedListing[Tool], PagedListing[Any]]] = {}

    def add_tools(
        self, listing: PagedListing[Tool], scope: str, shown: PagedListing[Any]
    ) -> PagedListing[Any]:
        """Return the shown tools plus the handle tools, if any server of the scope is leased.

        A server's own tool of the same name takes precedence.

        Args:
            listing: All tools of the scope.
            scope: The server, or empty for all servers.
            shown: The tools to list: all of them, or the search tools.
        """
        cached = self._cache.get(scope)
        if cached is None or cached[0] is not listing:
            if len(self._cache) > _MAX_CACHED:
                self._cache.clear()
            if any(not tool.shared for tool in listing.items.values()):
                shown = _with_handle_tools(shown)
            cached = self._cache[scope] = (listing, shown)
        return cached[1]


def _with_handle_tools(listing: PagedListing[Any]) -> PagedListing[Any]:
    encoded: dict[ListingKey, bytes] = dict(zip(listing.keys, listing.encoded, strict=True))
    for name, definition in _DEFINITIONS.items():
        encoded.setdefault((name,), encode(definition))
    keys = tuple(sorted(encoded))
    definitions = tuple(encoded[key] for key in keys)
    return PagedListing("tools", listing.items, keys, definitions, listing.older)


async def acquire(
    table: HandleTable, carried: LiveSession | None, scope: str, arguments: bytes
) -> bytes:
    """Return the result of `lease_acquire`.

    Raises:
        JsonRpcError: The arguments are wrong, or there are too many sessions.
        LeasewayError: The server cannot be leased.
    """
    server = parse_arguments(ACQUIRE, arguments, _AcquireArguments).server
    if scope and server != scope:
        raise JsonRpcError(INVALID_PARAMS, f"Only server '{scope}' can be leased at this URL.")
    live = carried or table.create_handle(scope)
    try:
        await live.sdk.acquire(server, live.lease_ttl)
    except BaseException:
        if carried is None:
            await table.end(live)
        raise
    structured = {"handle": live.id, "serverId": server}
    text = (
        f"You have a lease on server {server}. Send this handle in each request, as `_meta` key "
        f"{HANDLE_KEY} or header {HANDLE_HEADER}, and call {RELEASE} with it when you are done: "
        f"{live.id}"
    )
    return structured_result(text, structured)


async def release(
    table: HandleTable, carried: LiveSession | None, scope: str, arguments: bytes
) -> bytes:
    """Return the result of `lease_release`; raises `JsonRpcError` for wrong arguments."""
    handle = parse_arguments(RELEASE, arguments, _ReleaseArguments).handle
    live = table.find(handle, scope) if handle is not None else carried
    if handle is None and carried is None:
        raise JsonRpcError(INVALID_PARAMS, f"`handle` is missing: send the handle from {ACQUIRE}.")
    if live is None:
        return structured_result("This handle has no leases any more.", {"released": False})
    await table.end(live)
    return structured_result("All leases of this handle were released.", {"released": True})


def handle_from_meta(meta: bytes) -> str | None:
    """Return the handle in a request's `_meta`, or None."""
    if HANDLE_KEY.encode() not in meta:
        return None
    try:
        return _read_meta(meta).handle
    except (ValueError, RecursionError):
        text = f"{HANDLE_KEY} must be a handle from {ACQUIRE}."
        raise JsonRpcError(INVALID_PARAMS, text) from None


class _Meta(msgspec.Struct):
    handle: str | None = msgspec.field(default=None, name=HANDLE_KEY)


_read_meta: Final[Callable[[bytes], _Meta]] = msgspec.json.Decoder(_Meta).decode
