"""Tools, prompts and resources as MCP definitions, listed in pages. Pure."""

from __future__ import annotations

import base64
import binascii
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from leaseway.front.protocol.eras import to_2025_11_25
from leaseway.front.protocol.handshake import CACHE_HINTS, SERVER_META
from leaseway.front.protocol.messages import JsonRpcError, encode
from leaseway.front.protocol.results import strip_meta
from leaseway.sdk import Prompt, Resource, ResourceTemplate, Tool
from leaseway.wire.bounds import MIB
from leaseway.wire.clients.mcp_headers import ArgumentHeader, Path, argument_headers
from leaseway.wire.listing.model_parts import with_accepted_parts
from leaseway.wire.listing.model_schemas import ModelSchema
from leaseway.wire.messages.mcp import INVALID_PARAMS

PAGE: Final = MIB
"""Bytes of definitions in a page. Large, because many clients read only the first page."""
LIST_TTL: Final = 1000
"""Milliseconds for which a list is known to hold: as long as a change takes to arrive here."""
_TASKS: Final = "execution"
"""The member of a tool about tasks, which the front does not support."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")
ListingKey = tuple[str, ...]


@dataclass(frozen=True)
class PagedListing(Generic[ItemT]):
    """A sorted list of definitions, encoded once and sent in pages.

    Attributes:
        member: The name of the list in the MCP result.
        items: The listed objects by key, in sorted order.
        keys: The keys of `items`.
        encoded: The definitions as JSON, in the order of `keys`.
        older: Definitions that differ for clients of older versions, by key.
        ttl: Milliseconds for which the list is known to hold.
        is_own: Whether only one session sees it.
    """

    member: str
    items: dict[ListingKey, ItemT]
    keys: tuple[ListingKey, ...]
    encoded: tuple[bytes, ...]
    older: Mapping[ListingKey, bytes] = field(default_factory=dict)
    ttl: int = 0
    is_own: bool = False

    @cached_property
    def _modern_members(self) -> bytes:
        """The members that a page has for modern clients only."""
        hints = CACHE_HINTS | {"ttlMs": self.ttl}
        return b"," + encode({"resultType": "complete", **hints, "_meta": SERVER_META})[1:-1]

    @cached_property
    def _encoded_for_older(self) -> tuple[bytes, ...]:
        if not self.older:
            return self.encoded
        pairs = zip(self.keys, self.encoded, strict=True)
        return tuple(self.older.get(key, definition) for key, definition in pairs)

    @cached_property
    def qualified(self) -> dict[str, ItemT]:
        """The tools of the list by their names with their servers."""
        return {getattr(item, "qualified_name", ""): item for item in self.items.values()}

    def page(self, cursor: str | None, *, modern: bool) -> bytes:
        """Return one page as an MCP result; raises `JsonRpcError` for an invalid cursor."""
        begin = bisect_right(self.keys, _decode_cursor(cursor)) if cursor is not None else 0
        encoded = self.encoded if modern else self._encoded_for_older
        end, size = begin, 0
        while end < len(encoded) and (end == begin or size + len(encoded[end]) <= PAGE):
            size += len(encoded[end])
            end += 1
        parts = [b'{"%b":[%b]' % (self.member.encode(), b",".join(encoded[begin:end]))]
        if end < len(encoded):
            parts.append(b',"nextCursor":%b' % encode(_encode_cursor(self.keys[end - 1])))
        if modern:
            parts.append(self._modern_members)
        return b"".join(parts) + b"}"


class OfItems(Generic[MadeT]):
    """What is made of items once, and kept as long as they are: many lists have the same items.

    Args:
        limit: Of how many items it is kept, the newest; None for all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._made: dict[int, tuple[weakref.ref[Any], MadeT]] = {}

    def find(self, item: object) -> MadeT | None:
        """Return what has been made of an item, or None."""
        known = self._made.get(id(item))
        return None if known is None else known[1]

    def get(self, item: ItemT, make: Callable[[ItemT], MadeT]) -> MadeT:
        """Return what is made of an item; it must not refer to the item.

        Items are told apart as objects: they have no hash.
        """
        number = id(item)
        known = self._made.get(number)
        if known is None:
            kept = weakref.ref(item, partial(self._forget, number))
            known = self._made[number] = kept, make(item)
            if self._limit is not None and len(self._made) > self._limit:
                oldest, *_ = self._made  # at once: other threads may make or free some meanwhile
                self._forget(oldest)
        return known[1]

    def _forget(self, number: int, _item: object = None) -> None:
        self._made.pop(number, None)


class _Encoded(NamedTuple):
    """A definition as JSON, and if it differs, as it is for clients of older versions."""

    definition: bytes
    older: bytes | None


_definitions: Final[OfItems[_Encoded]] = OfItems()


def tool_listing(tools: Iterable[Tool]) -> PagedListing[Tool]:
    """List tools."""
    name_of = attrgetter("name")
    return _listing("tools", tools, name_of, tool_definition, to_2025_11_25.tool)


def prompt_listing(prompts: Iterable[Prompt]) -> PagedListing[Prompt]:
    """List prompts."""
    return _listing("prompts", prompts, attrgetter("name"), _prompt_definition)


def resource_listing(resources: Iterable[Resource]) -> PagedListing[Resource]:
    """List resources. If two servers have the same URI, `resources/read` uses the first one."""
    return _listing("resources", resources, attrgetter("uri"), _resource_definition)


def template_listing(templates: Iterable[ResourceTemplate]) -> PagedListing[ResourceTemplate]:
    """List templates of resources."""
    text_of = attrgetter("uri_template")
    return _listing("resourceTemplates", templates, text_of, _template_definition)


LISTINGS: Final[Mapping[str, Callable[[Iterable[Any]], PagedListing[Any]]]] = {
    "tools": tool_listing,
    "prompts": prompt_listing,
    "resources": resource_listing,
    "templates": template_listing,
}
"""How the list of each kind is built."""
WITH_URIS: Final = frozenset({"resources", "templates"})
"""Lists whose items clients know by a URI."""


def tool_definition(tool: Tool) -> dict[str, Any]:
    definition = tool.definition()
    definition.pop(_TASKS, None)
    definition["inputSchema"] = listed_schema(tool).schema
    return _definition({"inputSchema": definition.pop("inputSchema"), **definition})


def listed_schema(tool: Tool) -> ModelSchema:
    """Return a tool's input schema as it is listed, and how its arguments are named there."""
    listed = tool.for_models
    if listed.names and header_arguments(tool):  # headers repeat arguments by the server's names
        return ModelSchema(with_accepted_parts(tool.input_schema), {})
    return listed


def server_arguments(tool: Tool, arguments: bytes) -> bytes:
    """Return the arguments of a call, a JSON object, as the server names them."""
    listed = listed_schema(tool)
    if not listed.names:
        return arguments
    try:
        members = _members(arguments)
    except (ValueError, RecursionError):
        return arguments  # the worker reports the error
    return encode(listed.server_arguments(members))


def header_arguments(tool: Tool) -> dict[Path, ArgumentHeader]:
    """Return the arguments of a tool that HTTP headers repeat; none if its schema is wrong."""
    try:
        return argument_headers(tool.input_schema)
    except ValueError:  # clients send no headers then
        return {}


def _prompt_definition(prompt: Prompt) -> dict[str, Any]:
    arguments = [
        _definition(
            argument.extra,
            name=argument.name,
            title=argument.title,
            description=argument.description,
            required=argument.required or None,
        )
        for argument in prompt.arguments
    ]
    return _definition(
        prompt.extra,
        name=prompt.name,
        title=prompt.title,
        description=prompt.description,
        arguments=arguments,
    )


def _resource_definition(resource: Resource) -> dict[str, Any]:
    return _definition(
        resource.extra,
        uri=resource.uri,
        name=resource.name or resource.uri,
        title=resource.title,
        description=resource.description,
        mimeType=resource.mime_type,
    )


def _template_definition(template: ResourceTemplate) -> dict[str, Any]:
    return _definition(
        template.extra,
        uriTemplate=template.uri_template,
        name=template.name or template.uri_template,
        title=template.title,
        description=template.description,
        mimeType=template.mime_type,
    )


def _definition(extra: dict[str, Any], /, **members: Any) -> dict[str, Any]:
    """Build a definition from its non-empty members and the server's extra members."""
    definition = {name: value for name, value in members.items() if value not in ("", None, [])}
    if definition.get("annotations") == {}:
        del definition["annotations"]
    for name, value in extra.items():
        if name == "_meta" and isinstance(value, dict):
            value = strip_meta(value)
            if not value:
                continue
        definition.setdefault(name, value)
    return definition


def _listing(
    member: str,
    items: Iterable[ItemT],
    name_of: Callable[[ItemT], str],
    define: Callable[[ItemT], dict[str, Any]],
    for_older: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> PagedListing[ItemT]:
    by_key: dict[ListingKey, ItemT] = {}
    for item in items:
        by_key.setdefault((name_of(item),), item)
    by_key = {key: by_key[key] for key in sorted(by_key)}
    encode_item = partial(_encoded, define=define, for_older=for_older)
    encoded = {key: _definitions.get(item, encode_item) for key, item in by_key.items()}
    return PagedListing(
        member=member,
        items=by_key,
        keys=tuple(by_key),
        encoded=tuple(item.definition for item in encoded.values()),
        older={key: item.older for key, item in encoded.items() if item.older is not None},
    )


def _encoded(
    item: ItemT,
    define: Callable[[ItemT], dict[str, Any]],
    for_older: Callable[[dict[str, Any]], dict[str, Any]] | None,
) -> _Encoded:
    definition = define(item)
    older = definition if for_older is None else for_older(definition)
    return _Encoded(encode(definition), None if older is definition else encode(older))


def _encode_cursor(key: ListingKey) -> str:
    return base64.urlsafe_b64encode("\0".join(key).encode()).decode()


def _decode_cursor(cursor: str) -> ListingKey:
    try:
        return tuple(base64.b64decode(cursor, b"-_", validate=True).decode().split("\0"))
    except (binascii.Error, ValueError):
        raise JsonRpcError(INVALID_PARAMS, "This cursor is invalid: no list returned it.") from None
