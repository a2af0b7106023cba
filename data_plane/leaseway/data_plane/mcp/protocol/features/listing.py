"""Reads a server's lists of tools, prompts, resources and templates; listens to their changes.

Bypasses the official package's models, so that a definition keeps every field. A list that fails
does not affect the others. Legacy servers notify of changes unasked, modern ones on a stream that
must be requested.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ServerCapabilities

from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES, ListedPromptsResources
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost, InvalidResponse
from leaseway.wire.bounds import MAX_LISTED, MIB
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.timing.backoff import Backoff

_logger = logging.getLogger(__name__)
_REOPEN_BACKOFF: Final = Backoff(initial=1.0, maximum=60.0)
_MAX_BYTES: Final = 16 * MIB
_MAX_NAMES: Final = 20
"""Names in a sentence about a list."""

_MAX_ERROR: Final = 300
"""Characters of a server's error in a warning."""


class ListingFailed(Exception):
    """A list can't be used; the text is the end of a sentence."""


@dataclass(frozen=True)
class ListKind:
    """One of the lists that a server may have.

    Attributes:
        method: Requests a page.
        key: The member of a page with its items.
        name: The member that identifies an item.
        noun: The items, for messages.
    """

    method: str
    key: str
    name: str
    noun: str


TOOLS: Final = ListKind("tools/list", "tools", "name", "tools")
PROMPTS: Final = ListKind("prompts/list", "prompts", "name", "prompts")
RESOURCES: Final = ListKind("resources/list", "resources", "uri", "resources")
TEMPLATES: Final = ListKind(
    "resources/templates/list", "resourceTemplates", "uriTemplate", "templates of resources"
)


class ListedItems:
    """A server's whole list: the definitions as received, by name, in the server's order."""

    def __init__(self, kind: ListKind) -> None:
        self.definitions: dict[str, bytes] = {}
        self._kind = kind
        self._nameless = 0
        self._duplicates: dict[str, None] = {}

    def add(self, definition: bytes) -> None:
        """Add a definition; skip one without a name, or with the name of an earlier one."""
        name = _name(definition, self._kind)
        if name is None:
            self._nameless += 1
        elif self.definitions.setdefault(name, definition) is not definition:
            self._duplicates[name] = None

    @property
    def skipped(self) -> tuple[str, ...]:
        """Sentences about skipped definitions."""
        kind, sentences = self._kind, []
        if self._nameless:
            sentences.append(
                f"{self._nameless} of its {kind.noun} are skipped: they have no text as"
                f" '{kind.name}' to request them by."
            )
        if self._duplicates:
            names = ", ".join(ascii(name[:80]) for name in [*self._duplicates][:_MAX_NAMES])
            sentences.append(f"It lists {kind.noun} more than once, the first counts: {names}.")
        return tuple(sentences)


_Members = dict[str, msgspec.Raw]
# Decodes each member separately: other members may be of any type.
_decode_members: Final = msgspec.json.Decoder(_Members).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str | None).decode
_NULL: Final = msgspec.Raw(b"null")


async def list_all(peer: Peer, kind: ListKind, *, may_be_missing: bool) -> ListedItems:
    """Read a list to its end, over a negotiated connection.

    With `may_be_missing`, METHOD_NOT_FOUND means an empty list.

    Raises:
        ListingFailed: A page is malformed, or there are more than 10,000 items or 16 MiB.
        MCPError: The server answered with an error, or the connection ended.
    """
    found = ListedItems(kind)
    cursors: set[str] = set()
    cursor: str | None = None
    size = 0
    while True:
        items, cursor = await _page(peer, kind, cursor, may_be_missing)
        for raw in items:
            definition = bytes(raw)
            size += len(definition)
            found.add(definition)
        _check_bounds(len(found.definitions), size, kind)
        if not cursor:
            return found
        if cursor in cursors:
            raise ListingFailed("its pages are circular: a cursor was repeated")
        cursors.add(cursor)


async def _page(
    peer: Peer, kind: ListKind, cursor: str | None, may_be_missing: bool
) -> tuple[list[msgspec.Raw], str | None]:
    """Return a page's items and the cursor of the next page."""
    params: Mapping[str, Any] | None = {"cursor": cursor} if cursor else None
    try:
        page = _decode_members(await peer.request(kind.method, params))
        if kind.key not in page:
            raise ListingFailed(f"its list is malformed (it has no {kind.key})")
        return _decode_items(page[kind.key]), _decode_text(page.get("nextCursor", _NULL))
    except MCPError as error:
        if error.error.code == METHOD_NOT_FOUND and may_be_missing:
            return [], None
        raise
    except msgspec.DecodeError as error:
        raise ListingFailed(f"its list is malformed ({error})") from None


def _name(definition: bytes, kind: ListKind) -> str | None:
    """Return a definition's name; the registry rejects an empty one."""
    try:
        name: str | None = _decode_text(_decode_members(definition).get(kind.name, _NULL))
    except msgspec.DecodeError:
        return None
    return name


def _check_bounds(count: int, size: int, kind: ListKind) -> None:
    if count > MAX_LISTED:
        raise ListingFailed(f"it lists more than {MAX_LISTED} {kind.noun}")
    if size > _MAX_BYTES:
        raise ListingFailed(f"its list has more than {_MAX_BYTES} bytes")


async def list_prompts_resources(
    peer: Peer,
    capabilities: ServerCapabilities | None,
    timeout: float,
    before: ListedPromptsResources = NO_PROMPTS_RESOURCES,
) -> ListedPromptsResources:
    """List all that a server's capabilities promise; never fails.

    `timeout` is for all lists together. A list that fails stays as it was `before`.
    """
    wanted: list[tuple[str, ListKind]] = []
    if capabilities is not None and capabilities.prompts is not None:
        wanted.append(("prompts", PROMPTS))
    if capabilities is not None and capabilities.resources is not None:
        wanted += (("resources", RESOURCES), ("templates", TEMPLATES))
    lists: dict[str, tuple[bytes, ...]] = {}
    gaps: list[str] = []
    skipped: list[str] = []
    until = asyncio.get_running_loop().time() + timeout
    for into, kind in wanted:
        try:
            async with asyncio.timeout_at(until):
                # A server with resources may have no templates, and the other way round.
                listed = await list_all(peer, kind, may_be_missing=True)
            lists[into] = tuple(listed.definitions.values())
            skipped += listed.skipped
        except (ListingFailed, MCPError, TimeoutError) as error:
            gaps.append(f"{kind.method} failed: {_describe(error, timeout)}.")
            lists[into] = getattr(before, into)
    return ListedPromptsResources(**lists, gaps=tuple(gaps), skipped=tuple(skipped))


def _describe(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"there was no answer within {timeout:g} s"
    if isinstance(error, ConnectionLost | InvalidResponse):
        return redact(error.fault.message)[:_MAX_ERROR].rstrip(". ")
    if isinstance(error, MCPError):
        text = f"the server answered with error {error.error.code}: {error.error.message}"
        return redact(text)[:_MAX_ERROR].rstrip(". ")
    return str(error)


async def listen_to_changes(session: ClientSession, peer: Peer, on_gap: Callable[[], None]) -> None:
    """Keep the stream of changes open until the connection ends, if the server supports it.

    The connection's inbox handles the notifications themselves. `on_gap` is called when the stream
    was reopened: changes in between were lost.
    """
    capabilities = session.server_capabilities
    tools, prompts, resources = _notified_lists(capabilities)
    if not peer.era.modern or not (tools or prompts or resources):
        return
    failures, reopened = 0, False
    while not peer.closed.is_set():
        try:
            async with listen(
                session,
                tools_list_changed=tools,
                prompts_list_changed=prompts,
                resources_list_changed=resources,
            ) as changes:
                if reopened:
                    on_gap()
                failures, reopened = 0, True
                async for _ in changes:
                    pass
        except MCPError as error:
            if error.error.code == METHOD_NOT_FOUND:
                return
            failures += 1
        except SubscriptionLost:
            failures += 1
        except Exception:  # later list changes must not be missed
            failures += 1
            _logger.exception("Listening to the server %s failed; it is retried.", peer.server)
        await asyncio.sleep(_REOPEN_BACKOFF.ceiling(failures))


def _notified_lists(capabilities: ServerCapabilities | None) -> tuple[bool, bool, bool]:
    """Return whether the server notifies of changed tools, prompts and resources."""
    if capabilities is None:
        return False, False, False
    tools, prompts, resources = (
        kind is not None and bool(kind.list_changed)
        for kind in (capabilities.tools, capabilities.prompts, capabilities.resources)
    )
    return tools, prompts, resources
