"""Reads a server's lists of tools, prompts, resources and templates; listens to their changes.

Bypasses the official package's models, so that a definition keeps every field. A list that fails
does not affect the others. Legacy servers notify of changes unasked, modern ones on a stream that
must be requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, ServerCapabilities
from pydantic import AnyUrl, TypeAdapter, UrlConstraints, ValidationError

from leaseway.data_plane.background import LightEvent
from leaseway.data_plane.core.definitions.admission import (
    Correct,
    admit,
    correct_prompt,
    correct_resource,
    correct_template,
    correct_tool,
)
from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES, ListedPromptsResources
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost, InvalidResponse
from leaseway.data_plane.mcp.protocol.messages.reading import SMALL, repair
from leaseway.wire.bounds import MAX_LISTED, MIB
from leaseway.wire.messages.portable_json import NotPortable
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.timing.backoff import REOPEN, STEADY_STREAM

_logger = logging.getLogger(__name__)
_MAX_BYTES: Final = 16 * MIB
_MAX_EMPTY_PAGES: Final = 100
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
        correct: Corrects definitions that do not conform to MCP.
    """

    method: str
    key: str
    name: str
    noun: str
    correct: Correct


TOOLS: Final = ListKind(
    method="tools/list", key="tools", name="name", noun="tools", correct=correct_tool
)
PROMPTS: Final = ListKind(
    method="prompts/list", key="prompts", name="name", noun="prompts", correct=correct_prompt
)
RESOURCES: Final = ListKind(
    method="resources/list", key="resources", name="uri", noun="resources", correct=correct_resource
)
TEMPLATES: Final = ListKind(
    method="resources/templates/list",
    key="resourceTemplates",
    name="uriTemplate",
    noun="templates of resources",
    correct=correct_template,
)


class ListedItems:
    """A server's whole list: its admitted definitions by name, in the server's order.

    Args:
        kind: Which list it is.
        modern: Whether the server speaks 2026-07-28.
        hide: Removes the server's secrets from a text. Definitions reach the control plane, callers
            and problems; a server may repeat what it was started with.
    """

    def __init__(self, kind: ListKind, *, modern: bool, hide: Callable[[str], str] = str) -> None:
        self._hide = hide
        self.definitions: dict[str, bytes] = {}
        self._kind = kind
        self._modern = modern
        self._nameless = 0
        self._duplicates: dict[str, None] = {}
        self._unusable: dict[str, str] = {}
        self._changed: dict[str, str] = {}
        self._ends: list[str] = []

    def add(self, definition: bytes) -> None:
        """Add a definition; skip one without a name, or with the name of an earlier one."""
        kind = self._kind
        try:
            admitted = admit(definition, kind.name, kind.correct, modern=self._modern)
        except NotPortable as error:
            shown_name = self._hide(_name(definition, kind) or "one without a name")
            self._unusable[shown_name] = f"it {error}"
            return
        name, content, changes = admitted.name, admitted.definition, admitted.changes
        text = content.decode()
        if (shown := self._hide(text)) != text:
            if name is not None and self._hide(name) != name:
                self._unusable[self._hide(name)] = "its name contains a secret of the server"
                return
            if not _is_json(shown):
                self._unusable[name or "one without a name"] = "it contains a secret of the server"
                return
            content, changes = shown.encode(), "; ".join(filter(None, (changes, _HIDDEN)))
        if name is None:
            self._nameless += 1
        elif kind is RESOURCES and not _is_url(name):
            self._unusable[name] = "it is no URI with a scheme, which official clients require"
        elif self.definitions.setdefault(name, content) is not content:
            self._duplicates[name] = None
        elif changes:
            self._changed[name] = changes

    def end_early(self, reason: str) -> None:
        """Record why the rest of the list was not read; the end of a sentence."""
        self._ends.append(reason)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Sentences about skipped definitions."""
        kind, sentences = self._kind, []
        if self._nameless:
            sentences.append(
                f"{self._nameless} of its {kind.noun} are skipped: they have no text as"
                f" '{kind.name}' to request them by."
            )
        if self._unusable:
            sentences.append(f"These {kind.noun} are skipped: {_describe_each(self._unusable)}.")
        if self._duplicates:
            names = ", ".join(ascii(name[:80]) for name in [*self._duplicates][:_MAX_NAMES])
            sentences.append(f"It lists {kind.noun} more than once, the first counts: {names}.")
        sentences += [f"The rest of its {kind.noun} was not read: {end}." for end in self._ends]
        return tuple(sentences)

    @property
    def changed(self) -> tuple[str, ...]:
        """A sentence about definitions that do not conform to MCP and were corrected, if any."""
        if not self._changed:
            return ()
        return (f"Of its {self._kind.noun}: {_describe_each(self._changed)}.",)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _describe_each(causes: Mapping[str, str]) -> str:
    shown = [f"{name[:80]!a} ({causes[name]})" for name in [*causes][:_MAX_NAMES]]
    more = len(causes) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


_HIDDEN: Final = "a secret of the server in it is hidden"
_url: Final[TypeAdapter[Any]] = TypeAdapter(Annotated[AnyUrl, UrlConstraints(host_required=False)])


def _is_url(uri: str) -> bool:
    try:
        _url.validate_python(uri)
    except ValidationError:
        return False
    return True


_Members = dict[str, msgspec.Raw]
# Decodes each member separately: other members may be of any type.
_decode_members: Final = msgspec.json.Decoder(_Members).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str | None).decode
_NULL: Final = msgspec.Raw(b"null")


async def list_all(
    peer: Peer,
    kind: ListKind,
    *,
    may_be_missing: bool,
    keeps_part: bool = False,
    hide: Callable[[str], str] = str,
) -> ListedItems:
    """Read a list to its end, over a negotiated connection.

    A cursor that was used before, or is no text, ends the list, and so do 10,000 items, 16 MiB or
    100 pages in a row without a further item. An empty cursor is one since 2026-07-28, and the end
    before; also later if it brings the first page again or is refused as invalid, as by servers
    that mean the end.

    Args:
        peer: The connection.
        kind: Which list to read.
        may_be_missing: Whether METHOD_NOT_FOUND means an empty list.
        keeps_part: Whether a later page that is an error or malformed ends the list, too.
        hide: Removes the secrets in it.

    Raises:
        ListingFailed: A page is malformed.
        MCPError: The server answered with an error, or the connection ended.
    """
    found = ListedItems(kind, modern=peer.era.modern, hide=hide)
    cursors: set[str] = set()
    cursor: str | None = None
    first, size, empty = b"", 0, 0
    while True:
        before = len(found.definitions)
        try:
            page = await _request_page(peer, kind, cursor, may_be_missing)
            if cursor is None:
                first = page
            elif not cursor and page == first:
                return found
            read = partial(_read_page, page, kind, found, _MAX_BYTES - size)
            # Definitions are parsed and checked one by one, which takes longer than decoding.
            cursor = read() if len(page) <= SMALL else await asyncio.to_thread(read)
        except (ListingFailed, MCPError) as error:
            if cursor == "" and isinstance(error, MCPError) and error.error.code == INVALID_PARAMS:
                return found
            if not keeps_part or cursor is None or isinstance(error, ConnectionLost):
                raise
            found.end_early(f"a page of it failed: {_describe(error)}")
            return found
        size += len(page)
        if cursor is None or not (cursor or peer.era.modern):
            return found
        empty = empty + 1 if len(found.definitions) == before else 0
        if empty >= _MAX_EMPTY_PAGES:
            found.end_early(f"{empty} pages in a row had no further items")
            return found
        if cursor in cursors:
            found.end_early("a cursor was repeated, so its pages are circular")
            return found
        cursors.add(cursor)


async def _request_page(
    peer: Peer, kind: ListKind, cursor: str | None, may_be_missing: bool
) -> bytes:
    params: Mapping[str, Any] | None = None if cursor is None else {"cursor": cursor}
    try:
        return await peer.request(kind.method, params)
    except MCPError as error:
        if error.error.code == METHOD_NOT_FOUND and may_be_missing:
            return b'{"%b":[]}' % kind.key.encode()
        raise


def _read_page(page: bytes, kind: ListKind, found: ListedItems, max_bytes: int) -> str | None:
    """Add a page's items to what was found; return the cursor of the next page."""
    try:
        members, items = _split_page(page, kind)
    except RecursionError:  # with a few levels less than the message itself may have
        members, items = _split_page(repair(page).data, kind)
    for raw in items:
        definition = bytes(raw)
        max_bytes -= len(definition)
        if max_bytes < 0:
            found.end_early(f"it has more than {_MAX_BYTES} bytes")
            return None
        if len(found.definitions) >= MAX_LISTED:
            found.end_early(f"it has more than {MAX_LISTED} {kind.noun}")
            return None
        found.add(definition)
    try:
        cursor: str | None = _decode_text(members.get("nextCursor", _NULL))
        return cursor
    except msgspec.DecodeError:
        found.end_early("the cursor of the next page is no text")
        return None


def _split_page(page: bytes, kind: ListKind) -> tuple[_Members, list[msgspec.Raw]]:
    try:
        members = _decode_members(page)
        if kind.key not in members:
            raise ListingFailed(f"its list is malformed (it has no {kind.key})")
        # Null is how Go writes an empty list.
        return members, _decode_items(members[kind.key]) if members[kind.key] != _NULL else []
    except msgspec.DecodeError as error:
        raise ListingFailed(f"its list is malformed ({error})") from None


def _name(definition: bytes, kind: ListKind) -> str | None:
    """Return the name of a definition that was not admitted."""
    try:
        name: str | None = _decode_text(_decode_members(definition).get(kind.name, _NULL))
    except (msgspec.DecodeError, RecursionError):
        return None
    return name


async def list_prompts_resources(
    peer: Peer,
    capabilities: ServerCapabilities | None,
    timeout: float,
    before: ListedPromptsResources = NO_PROMPTS_RESOURCES,
    hide: Callable[[str], str] = str,
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
    changed: list[str] = []
    until = asyncio.get_running_loop().time() + timeout
    for into, kind in wanted:
        try:
            async with asyncio.timeout_at(until):
                # A server with resources may have no templates, and the other way round.
                listed = await list_all(
                    peer,
                    kind,
                    may_be_missing=True,
                    keeps_part=not getattr(before, into),
                    hide=hide,
                )
            lists[into] = tuple(listed.definitions.values())
            skipped += listed.skipped
            changed += listed.changed
        except (ListingFailed, MCPError, TimeoutError) as error:
            gaps.append(f"{kind.method} failed: {_describe(error, timeout)}.")
            lists[into] = getattr(before, into)
    return ListedPromptsResources(
        **lists, gaps=tuple(gaps), skipped=tuple(skipped), changed=tuple(changed)
    )


def _describe(error: Exception, timeout: float = 0.0) -> str:
    if isinstance(error, TimeoutError):
        return f"there was no answer within {timeout:g} s"
    if isinstance(error, ConnectionLost | InvalidResponse):
        return redact(error.fault.message)[:_MAX_ERROR].rstrip(". ")
    if isinstance(error, MCPError):
        text = f"the server answered with error {error.error.code}: {error.error.message}"
        return redact(text)[:_MAX_ERROR].rstrip(". ")
    return str(error)


class ChangeStream:
    """The stream of a modern server's list changes, open until the connection ends.

    The connection's inbox handles the notifications themselves. A server that notifies of no
    changed list has no such stream.

    Args:
        session: The negotiated session.
        peer: Its connection.
        on_gap: Called when the stream opens after lists were read: changes may have been lost.
    """

    def __init__(self, session: ClientSession, peer: Peer, on_gap: Callable[[], None]) -> None:
        self._session = session
        self._peer = peer
        self._on_gap = on_gap
        self._has_gap = False
        self._tried = LightEvent()

    async def opened(self, seconds: float) -> None:
        """Wait for the first opening or its failure, at most for a time; then lists may be read."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._tried.wait()
        self._has_gap = True

    async def keep_open(self) -> None:
        """Open the stream, and reopen it whenever it ends, until cancelled."""
        try:
            await self._keep_open()
        finally:
            self._tried.set()

    async def _keep_open(self) -> None:
        tools, prompts, resources = notified_lists(self._session.server_capabilities)
        if not self._peer.era.modern or not (tools or prompts or resources):
            return
        failures = 0
        while not self._peer.closed.is_set:
            opened = time.monotonic()
            try:
                async with listen(
                    self._session,
                    tools_list_changed=tools,
                    prompts_list_changed=prompts,
                    resources_list_changed=resources,
                ) as changes:
                    if self._has_gap:
                        self._on_gap()
                    self._has_gap = True
                    self._tried.set()
                    async for _ in changes:
                        pass
            except MCPError as error:
                if error.error.code == METHOD_NOT_FOUND:
                    return
            except SubscriptionLost:
                pass
            except Exception:  # later list changes must not be missed
                _logger.exception(
                    "Listening to the server %s failed; it is retried.", self._peer.server
                )
            self._tried.set()
            # Each opening causes a new list, also on a server that ends the stream at once.
            failures = 0 if time.monotonic() - opened > STEADY_STREAM else failures + 1
            await asyncio.sleep(REOPEN.ceiling(failures))


def notified_lists(capabilities: ServerCapabilities | None) -> tuple[bool, bool, bool]:
    """Return whether the server notifies of changed tools, prompts and resources."""
    if capabilities is None:
        return False, False, False
    tools, prompts, resources = (
        kind is not None and bool(kind.list_changed)
        for kind in (capabilities.tools, capabilities.prompts, capabilities.resources)
    )
    return tools, prompts, resources
