"""The `ui://` resources of MCP Apps, whose URIs must be unique for a client that sees many servers.

A tool names the resource that shows its results (`_meta.ui.resourceUri`), and hosts read it by this
URI alone. Servers choose the URIs for themselves, so that two of them may have the same one. For
clients that see all servers, the id of the server becomes the authority of the URI: `ui://clock/a`
of the server `time` is listed as `ui://time/clock/a`. A client of one server gets the URIs as
they are. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from leaseway.front.lists.definitions import OfItems
from leaseway.front.protocol.messages import decode, encode
from leaseway.sdk import Resource, ResourceTemplate, Tool
from leaseway.wire.bounds import MAX_VALUES
from leaseway.wire.messages.portable_json import has_many_values

EXTENSION: Final = "io.modelcontextprotocol/ui"
_SCHEME: Final = "ui://"
_MARK: Final = b"ui:"
"""What a result contains that may name such a resource; `/` may be escaped."""
_URI_MEMBERS: Final = frozenset({"uri", "uriTemplate", "resourceUri", "ui/resourceUri"})
"""The members with URIs in definitions, contents and links; the last one is that of early hosts."""
_RESULT_MEMBERS: Final = ("content", "contents", "messages", "_meta")
"""The members of results whose form is MCP's; structured content is the server's own."""

ItemT = TypeVar("ItemT")

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def is_ui(uri: str) -> bool:
    """Return whether a URI names a resource of MCP Apps."""
    return uri.startswith(_SCHEME)


def for_client(uri: str, server_id: str) -> str:
    """Return the URI by which a client of all servers knows a resource of one server."""
    return f"{_SCHEME}{server_id}/{uri[len(_SCHEME) :]}" if is_ui(uri) else uri


class ServerResource(NamedTuple):
    """A resource as its server knows it.

    Attributes:
        uri: Its URI.
        server: The server's id; None means the first server that has it.
        is_renamed: Whether the client knows it by another URI.
    """

    uri: str
    server: str | None = None
    is_renamed: bool = False

    def for_client(self, uri: str) -> str:
        """Return the URI of the resource, or of a part of it, as the client knows it."""
        return for_client(uri, self.server) if self.is_renamed and self.server else uri


def of_server(uri: str, servers: Collection[str]) -> ServerResource:
    """Return the resource that a client of all servers means by a URI."""
    server_id, slash, rest = uri.removeprefix(_SCHEME).partition("/")
    if is_ui(uri) and slash and server_id in servers:
        return ServerResource(_SCHEME + rest, server_id, is_renamed=True)
    return ServerResource(uri)


def items_for_client(items: Iterable[ItemT]) -> list[ItemT]:
    """Return listed tools, resources or templates of all servers with their URIs for clients."""
    return [_item(item) for item in items]


_renamed: Final[OfItems[Any]] = OfItems()


def _item(item: Any) -> Any:
    if isinstance(item, Resource) and is_ui(item.uri):
        return _renamed.get(item, _renamed_resource)
    if isinstance(item, ResourceTemplate) and is_ui(item.uri_template):
        return _renamed.get(item, _renamed_template)
    if isinstance(item, Tool) and names_ui(item):
        return _renamed.get(item, _renaming_tool)
    return item


def _renamed_resource(item: Resource) -> Resource:
    return replace(item, uri=for_client(item.uri, item.server_id))


def _renamed_template(item: ResourceTemplate) -> ResourceTemplate:
    return replace(item, uri_template=for_client(item.uri_template, item.server_id))


def _renaming_tool(item: Tool) -> Tool:
    meta = _value_for_client(item.extra["_meta"], item.server_id)
    return replace(item, extra={**item.extra, "_meta": meta})


def names_ui(tool: Tool) -> bool:
    """Return whether a tool's results are shown by a resource of MCP Apps."""
    meta = tool.extra.get("_meta")
    if not isinstance(meta, dict):
        return False
    app = meta.get("ui")
    named = app.get("resourceUri") if isinstance(app, dict) else meta.get("ui/resourceUri")
    return isinstance(named, str) and is_ui(named)


def result_for_client(payload: bytes, server_id: str) -> bytes:
    """Return a server's result with its URIs as a client of all servers knows them."""
    if payload.find(_MARK) < 0:
        return payload
    try:
        members: dict[str, Any] = dict(_members(payload))
        for name in _RESULT_MEMBERS:
            if name in members and _MARK in bytes(members[name]):
                members[name] = _raw_for_client(members[name], server_id)
    except (ValueError, RecursionError):
        return payload  # no valid result; the client decides
    return encode(members)


def _raw_for_client(raw: msgspec.Raw, server_id: str) -> msgspec.Raw:
    """Convert a member; of a list only the objects that may name a resource are decoded.

    What has too many values to decode them all stays as it is.
    """
    items = _items(raw) if bytes(memoryview(raw)[:1]) == b"[" else [raw]
    naming = [
        index
        for index, item in enumerate(items)
        if bytes(memoryview(item)[:1]) == b"{" and _MARK in bytes(item)
    ]
    if len(naming) > MAX_VALUES or has_many_values(b",".join(bytes(items[at]) for at in naming)):
        return raw
    for index in naming:
        items[index] = msgspec.Raw(encode(_value_for_client(decode(items[index]), server_id)))
    return items[0] if bytes(memoryview(raw)[:1]) != b"[" else msgspec.Raw(encode(items))


def _value_for_client(value: Any, server_id: str) -> Any:
    if isinstance(value, list):
        return [_value_for_client(item, server_id) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: for_client(member, server_id)
        if name in _URI_MEMBERS and isinstance(member, str)
        else _value_for_client(member, server_id)
        for name, member in value.items()
    }
