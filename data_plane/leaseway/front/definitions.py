"""Definitions of tools, prompts and resources as MCP lists them, in pages. Pure."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types.jsonrpc import INVALID_PARAMS

from leaseway.front.greeting import CACHE_HINTS
from leaseway.front.messages import RpcError, encode
from leaseway.front.results import strip_meta
from leaseway.sdk.catalog.prompts_resources import Prompt, Resource, ResourceTemplate
from leaseway.sdk.catalog.tools import Tool
from leaseway.wire.bounds import MIB

PAGE: Final = MIB
"""Bytes of definitions in a page; many clients read the first one only."""
_TASKS: Final = "execution"
"""What a definition says of tasks, which the front does not pass on."""

ItemT = TypeVar("ItemT")
Key = tuple[str, ...]


@dataclass(frozen=True)
class Listing(Generic[ItemT]):
    """One list, ready to be sent.

    Attributes:
        member: What MCP calls the list in its result.
        items: What is listed, by key, in the list's order.
        keys: Their keys, in order.
        encoded: Their definitions as JSON, in the same order.
    """

    member: str
    items: dict[Key, ItemT]
    keys: tuple[Key, ...]
    encoded: tuple[bytes, ...]

    def page(self, cursor: str | None, *, modern: bool) -> bytes:
        """Return one page as an MCP result.

        Raises:
            RpcError: The cursor is none of this front's.
        """
        begin = bisect_right(self.keys, _key_of(cursor)) if cursor is not None else 0
        end, size = begin, 0
        while end < len(self.encoded) and (end == begin or size + len(self.encoded[end]) <= PAGE):
            size += len(self.encoded[end])
            end += 1
        parts = [b'{"%b":[%b]' % (self.member.encode(), b",".join(self.encoded[begin:end]))]
        if end < len(self.encoded):
            parts.append(b',"nextCursor":%b' % encode(_cursor_of(self.keys[end - 1])))
        if modern:
            parts.append(b',"resultType":"complete",%b' % encode(CACHE_HINTS)[1:-1])
        return b"".join(parts) + b"}"


def tool_listing(tools: Iterable[Tool]) -> Listing[Tool]:
    return _listing("tools", tools, lambda tool: (tool.name,), tool_definition)


def prompt_listing(prompts: Iterable[Prompt]) -> Listing[Prompt]:
    return _listing("prompts", prompts, lambda prompt: (prompt.name,), _prompt_definition)


def resource_listing(resources: Iterable[Resource]) -> Listing[Resource]:
    """Return resources as `resources/list` has them.

    Of two servers with the same URI only the first is listed: it is the one that is read.
    """
    return _listing("resources", resources, lambda one: (one.uri,), _resource_definition)


def template_listing(templates: Iterable[ResourceTemplate]) -> Listing[ResourceTemplate]:
    return _listing(
        "resourceTemplates", templates, lambda one: (one.uri_template,), _template_definition
    )


def tool_definition(tool: Tool) -> dict[str, Any]:
    definition = tool.definition()
    return _definition({"inputSchema": definition.pop("inputSchema"), **definition})


def wants_headers(tool: Tool) -> bool:
    """Return whether a modern client repeats arguments of a tool in headers."""
    schema = tool.input_schema
    return find_invalid_x_mcp_header(schema) is None and bool(x_mcp_header_map(schema))


def _prompt_definition(prompt: Prompt) -> dict[str, Any]:
    arguments = [
        _definition(
            {},
            name=one.name,
            title=one.title,
            description=one.description,
            required=one.required or None,
        )
        for one in prompt.arguments
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
    """Return a definition: its members but empty ones, and what else the server said."""
    definition = {name: value for name, value in members.items() if value not in ("", None, [])}
    if definition.get("annotations") == {}:
        del definition["annotations"]
    for name, value in extra.items():
        if name == _TASKS:
            continue
        if name == "_meta" and isinstance(value, dict):
            value = strip_meta(value)
            if not value:
                continue
        definition.setdefault(name, value)
    return definition


def _listing(
    member: str,
    found: Iterable[ItemT],
    key_of: Any,
    define: Any,
) -> Listing[ItemT]:
    items: dict[Key, ItemT] = {}
    for item in found:
        items.setdefault(key_of(item), item)
    keys = tuple(sorted(items))
    encoded = tuple(encode(define(items[key])) for key in keys)
    return Listing(member, {key: items[key] for key in keys}, keys, encoded)


def _cursor_of(key: Sequence[str]) -> str:
    return base64.urlsafe_b64encode("\0".join(key).encode()).decode()


def _key_of(cursor: str) -> Key:
    try:
        return tuple(base64.b64decode(cursor, b"-_", validate=True).decode().split("\0"))
    except (binascii.Error, ValueError):
        raise RpcError(INVALID_PARAMS, "This cursor is none that a list has given out.") from None
