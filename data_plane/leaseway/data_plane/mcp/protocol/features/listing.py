"""Reading a list of a server's to its end: tools, prompts, resources or templates.

Below the official package's models, so that a definition reaches the registry with every field
that the server gave it.

Listing what a server offers besides tools: prompts, resources and templates of resources.

A list that fails costs that list and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ServerCapabilities

from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES, ListedPromptsResources
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost, Unanswered
from leaseway.wire.bounds import MAX_LISTED, MIB
from leaseway.wire.secrets.redaction import redact

_MAX_BYTES: Final = 16 * MIB
_NAMED: Final = 20
"""Names that a sentence about a list holds."""


class ListingFailed(Exception):
    """A list that can't be used; the text says why, as the end of a sentence."""


@dataclass(frozen=True)
class ListKind:
    """One of the lists that a server may have.

    Attributes:
        method: Asks for a page of it.
        key: Where a page has its items.
        name: What tells two items apart.
        noun: What the items are, for messages.
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


class Listed:
    """One list of a server's, read to its end.

    Attributes:
        definitions: Every definition as the server sent it, one of each name, in its order.
    """

    def __init__(self, kind: ListKind) -> None:
        self.definitions: dict[str, bytes] = {}
        self._kind = kind
        self._nameless = 0
        self._again: dict[str, None] = {}

    def add(self, definition: bytes) -> None:
        """Take one; without a name it is left out, and of two with one name the first counts."""
        name = _name(definition, self._kind)
        if name is None:
            self._nameless += 1
        elif self.definitions.setdefault(name, definition) is not definition:
            self._again[name] = None

    @property
    def skipped(self) -> tuple[str, ...]:
        """What of the list is in no definition, a sentence each."""
        kind, found = self._kind, []
        if self._nameless:
            what = f"{self._nameless} of its {kind.noun}"
            found.append(f"{what} left out: without a text as '{kind.name}' nobody can ask for it.")
        if self._again:
            names = ", ".join(ascii(name[:80]) for name in [*self._again][:_NAMED])
            found.append(f"It lists {kind.noun} more than once, the first counts: {names}.")
        return tuple(found)


_Members = dict[str, msgspec.Raw]
# Member by member: what else an object holds may be of any type.
_decode_members: Final = msgspec.json.Decoder(_Members).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str | None).decode
_NULL: Final = msgspec.Raw(b"null")


async def list_all(peer: Peer, kind: ListKind, *, may_be_unknown: bool) -> Listed:
    """Read a list to its end.

    Args:
        peer: The connection, negotiated.
        kind: Which list.
        may_be_unknown: Whether a server that does not know the method has an empty list.

    Raises:
        ListingFailed: A page is malformed, or there are more than 10,000 items or 16 MiB.
        MCPError: The server answered with an error, or the connection ended.
    """
    found = Listed(kind)
    cursors: set[str] = set()
    cursor: str | None = None
    size = 0
    while True:
        items, cursor = await _page(peer, kind, cursor, may_be_unknown)
        for raw in items:
            definition = bytes(raw)
            size += len(definition)
            found.add(definition)
        _check_bounds(len(found.definitions), size, kind)
        if not cursor:
            return found
        if cursor in cursors:
            raise ListingFailed("its pages go round in a circle: a cursor came twice")
        cursors.add(cursor)


async def _page(
    peer: Peer, kind: ListKind, cursor: str | None, may_be_unknown: bool
) -> tuple[list[msgspec.Raw], str | None]:
    """Return a page's items, and where the next one begins."""
    params: Mapping[str, Any] | None = {"cursor": cursor} if cursor else None
    try:
        page = _decode_members(await peer.request(kind.method, params))
        if kind.key not in page:
            raise ListingFailed(f"its list is malformed (it has no {kind.key})")
        return _decode_items(page[kind.key]), _decode_text(page.get("nextCursor", _NULL))
    except MCPError as error:
        if error.error.code == METHOD_NOT_FOUND and may_be_unknown:
            return [], None
        raise
    except msgspec.DecodeError as error:
        raise ListingFailed(f"its list is malformed ({error})") from None


def _name(definition: bytes, kind: ListKind) -> str | None:
    """Return what a definition is told apart by; an empty one is the registry's to refuse."""
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


_MAX_WHY: Final = 300
"""Characters of a server's error that a warning quotes."""


async def list_prompts_resources(
    peer: Peer,
    capabilities: ServerCapabilities | None,
    timeout: float,
    before: ListedPromptsResources = NO_PROMPTS_RESOURCES,
) -> ListedPromptsResources:
    """List all that a server says it has; never fails.

    Args:
        peer: The connection, negotiated.
        capabilities: What the server says of itself.
        timeout: Seconds for all lists together.
        before: What was listed before: a list that fails stays as it was.
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
                # Said to have some, a server may have none of one kind.
                listed = await list_all(peer, kind, may_be_unknown=True)
            lists[into] = tuple(listed.definitions.values())
            skipped += listed.skipped
        except (ListingFailed, MCPError, TimeoutError) as error:
            gaps.append(f"{kind.method} failed: {_why(error, timeout)}.")
            lists[into] = getattr(before, into)
    return ListedPromptsResources(**lists, gaps=tuple(gaps), skipped=tuple(skipped))


def _why(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"there was no answer within {timeout:g} s"
    if isinstance(error, ConnectionLost | Unanswered):
        return redact(error.fault.message)[:_MAX_WHY].rstrip(". ")
    if isinstance(error, MCPError):
        said = f"the server answered with error {error.error.code}: {error.error.message}"
        return redact(said)[:_MAX_WHY].rstrip(". ")
    return str(error)
