"""Prompts, resources and templates of resources."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from leaseway.sdk.catalog.tools import CatalogList, json_object
from leaseway.v1 import catalog_pb2
from leaseway.wire.names import qualified


@dataclass(frozen=True)
class Resource:
    """One resource that its server lists; `title` is a name for people, or empty.

    Attributes:
        uri: The URI to read it by, unique in its server.
        mime_type: The MIME type of its content, or empty if unknown.
        extra: The other members of the server's definition, such as `size` and `annotations`.
        shared: Whether callers share one client (True) or each session leases its own (False).
    """

    uri: str
    server_id: str
    name: str
    title: str
    description: str
    mime_type: str
    extra: dict[str, Any]
    shared: bool


@dataclass(frozen=True)
class ResourceTemplate:
    """A template for the URIs of resources; `title` is a name for people, or empty.

    Attributes:
        uri_template: The template (RFC 6570), such as `file:///{path}`; unique in its server.
        mime_type: The MIME type of all resources, or empty.
        extra: The other members of the server's definition.
        shared: Whether callers share one client (True) or each session leases its own (False).
    """

    uri_template: str
    server_id: str
    name: str
    title: str
    description: str
    mime_type: str
    extra: dict[str, Any]
    shared: bool


class ResourceList(CatalogList[Resource]):
    """Resources, ordered by server and URI; with the attributes of a `ToolList`."""

    __slots__ = ()


class ResourceTemplateList(CatalogList[ResourceTemplate]):
    """Templates, ordered by server and template; with the attributes of a `ToolList`."""

    __slots__ = ()


def resource_from_proto(message: catalog_pb2.Resource) -> Resource:
    """Convert a resource of the catalog."""
    return Resource(uri=message.uri, **_members(message))


def template_from_proto(message: catalog_pb2.Resource) -> ResourceTemplate:
    """Convert a template of the catalog."""
    return ResourceTemplate(uri_template=message.uri, **_members(message))


def _members(message: catalog_pb2.Resource) -> dict[str, Any]:
    return {
        "server_id": message.server_id,
        "name": message.name,
        "title": message.title,
        "description": message.description,
        "mime_type": message.mime_type,
        "extra": json_object(message.extra),
        "shared": message.shared,
    }


_OF_ARGUMENTS = frozenset({"name", "title", "description", "required"})


@dataclass(frozen=True)
class PromptArgument:
    """One argument of a prompt, whose value is a string; `title` and `description` may be empty.

    Attributes:
        extra: The other members of the server's definition.
    """

    name: str
    title: str
    description: str
    required: bool
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """One prompt; `title` is a name for people, or empty.

    Attributes:
        name: The name to get it by, unique among the visible prompts.
        extra: The other members of the server's definition.
        shared: Whether callers share one client (True) or each session leases its own (False).
    """

    name: str
    server_id: str
    original_name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]
    extra: dict[str, Any]
    shared: bool

    @property
    def qualified_name(self) -> str:
        """`server_id:original_name`, which also works as a name."""
        return qualified(self.server_id, self.original_name)


class PromptList(CatalogList[Prompt]):
    """Prompts, ordered by name; with the attributes of a `ToolList`."""

    __slots__ = ()


def prompt_from_proto(message: catalog_pb2.Prompt) -> Prompt:
    """Convert a prompt of the catalog."""
    arguments = json.loads(message.arguments) if message.arguments else []
    return Prompt(
        name=message.name,
        server_id=message.server_id,
        original_name=message.original_name,
        title=message.title,
        description=message.description,
        arguments=tuple(_argument(raw) for raw in arguments if isinstance(raw, dict)),
        extra=json_object(message.extra),
        shared=message.shared,
    )


def _argument(raw: dict[str, Any]) -> PromptArgument:
    def text(member: str) -> str:
        value = raw.get(member)
        return value if isinstance(value, str) else ""

    return PromptArgument(
        name=text("name"),
        title=text("title"),
        description=text("description"),
        required=raw.get("required") is True,
        extra={key: value for key, value in raw.items() if key not in _OF_ARGUMENTS},
    )
