"""Leases as handles: two tools of the front for clients of a protocol without sessions.

`lease_acquire` begins a session, leases a server in it and gives its sealed id; a client that
carries that id in a request keeps its leases from call to call. `lease_release` ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from mcp_types.jsonrpc import INVALID_PARAMS

from leaseway.front.calling.sessions import LiveSession
from leaseway.front.definitions import Key, Listing
from leaseway.front.messages import RpcError, encode, read_arguments, structured_result
from leaseway.sdk import Tool
from leaseway.wire.messages.admin import ADMIN_TOOLSET

ACQUIRE: Final = "lease_acquire"
RELEASE: Final = "lease_release"
HANDLE_HEADER: Final = "Leaseway-Session"
HANDLE_KEY: Final = "leaseway/session"
"""The header, and the key of `_meta`, in which a request may carry a handle."""
LEADS_NOWHERE: Final = (
    "This handle leads nowhere: it was released, was not used for too long, or was given to "
    f"another client. {ACQUIRE} gives a new one."
)

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
            "Lease an MCP server: a client of its own (a process or connection) that remembers "
            "what is done with it from call to call. The result has a handle. Requests that "
            f"carry it, as `_meta` key {HANDLE_KEY} or header {HANDLE_HEADER}, use that client; "
            f"a call of this tool that carries it leases one more server. Call {RELEASE} in the "
            "end."
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
            f"Give back all that was leased with a handle of {ACQUIRE}; what its servers kept, "
            "such as open pages or unsaved state, is gone afterwards."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "handle": {
                    "type": "string",
                    "description": f"What {ACQUIRE} gave; not needed where the request carries it.",
                }
            },
            "additionalProperties": False,
        },
        "annotations": {"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    },
}


class _Acquire(msgspec.Struct, forbid_unknown_fields=True):
    server: str = msgspec.field(name="serverId")


class _Release(msgspec.Struct, forbid_unknown_fields=True):
    handle: str | None = None


class HandleTable(Protocol):
    """Where handles lead."""

    def begin_handle(self, scope: str) -> LiveSession:
        """Begin a session; raises `RpcError` where there are too many."""

    def find_handle(self, handle: str, scope: str) -> LiveSession | None:
        """Return the session of a handle, or None where it has ended or is none of ours."""

    async def end_handle(self, live: LiveSession) -> None:
        """End a session and give back what it leases."""


def handle_tool(name: str) -> str | None:
    name = name.removeprefix(f"{ADMIN_TOOLSET}:")
    return name if name in _DEFINITIONS else None


class HandleListing:
    """Lists of tools with the two among them, where anything is leased."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Listing[Tool], Listing[Any]]] = {}

    def of(self, listing: Listing[Tool], scope: str, shown: Listing[Any]) -> Listing[Any]:
        """Return a list with the two tools; names that servers use stay theirs.

        Args:
            listing: All tools.
            scope: Whose they are.
            shown: What is listed: all tools, or those to search them with.
        """
        made = self._made.get(scope)
        if made is None or made[0] is not listing:
            if len(self._made) > 256:
                self._made.clear()
            is_leased = any(not tool.shared for tool in listing.items.values())
            made = self._made[scope] = (listing, _with_handles(shown) if is_leased else shown)
        return made[1]


def _with_handles(listing: Listing[Any]) -> Listing[Any]:
    encoded: dict[Key, bytes] = dict(zip(listing.keys, listing.encoded, strict=True))
    for name, definition in _DEFINITIONS.items():
        encoded.setdefault((name,), encode(definition))
    keys = tuple(sorted(encoded))
    return Listing("tools", listing.items, keys, tuple(encoded[key] for key in keys))


async def acquire(
    table: HandleTable, carried: LiveSession | None, scope: str, arguments: bytes
) -> bytes:
    """Return the result of `lease_acquire`.

    Raises:
        RpcError: The arguments are wrong, or there are too many sessions.
        LeasewayError: The server cannot be leased.
    """
    server = read_arguments(ACQUIRE, arguments, _Acquire).server
    if scope and server != scope:
        raise RpcError(INVALID_PARAMS, f"At this address only server '{scope}' can be leased.")
    live = carried or table.begin_handle(scope)
    try:
        await live.sdk.acquire(server, live.lease_ttl)
    except BaseException:
        if carried is None:
            await table.end_handle(live)
        raise
    structured = {"handle": live.id, "serverId": server}
    text = (
        f"You hold a lease of server {server}. Carry this handle in each request, as `_meta` key "
        f"{HANDLE_KEY} or header {HANDLE_HEADER}, and call {RELEASE} with it in the end: {live.id}"
    )
    return structured_result(text, structured)


async def release(
    table: HandleTable, carried: LiveSession | None, scope: str, arguments: bytes
) -> bytes:
    """Return the result of `lease_release`.

    Raises:
        RpcError: The arguments are wrong.
    """
    handle = read_arguments(RELEASE, arguments, _Release).handle
    live = table.find_handle(handle, scope) if handle is not None else carried
    if handle is None and carried is None:
        raise RpcError(INVALID_PARAMS, f"Which lease? Name the `handle` that {ACQUIRE} gave.")
    if live is None:
        return structured_result(
            "Nothing is leased with this handle any more.", {"released": False}
        )
    await table.end_handle(live)
    return structured_result(
        "All that was leased with this handle was given back.", {"released": True}
    )


def carried_in_meta(meta: bytes) -> str | None:
    """Return the handle that a request's `_meta` carries, or None."""
    if HANDLE_KEY.encode() not in meta:
        return None
    try:
        handle = _read_meta(meta).handle
    except (ValueError, RecursionError):
        raise RpcError(INVALID_PARAMS, f"{HANDLE_KEY} is a text that {ACQUIRE} gave.") from None
    return handle


class _Meta(msgspec.Struct):
    handle: str | None = msgspec.field(default=None, name=HANDLE_KEY)


_read_meta: Final[Callable[[bytes], _Meta]] = msgspec.json.Decoder(_Meta).decode
