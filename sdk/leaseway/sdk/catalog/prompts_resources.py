"""Resources, and templates of them, as callers see them.

Prompts as callers see them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from leaseway.sdk.catalog.tools import CatalogList, json_object
from leaseway.v1 import catalog_pb2
from leaseway.wire.names import qualified


@dataclass(frozen=True)
class Resource:
    """One resource that its server lists.

    Attributes:
        uri: What to read it by, unique in its server.
        server_id: The server that offers it.
        name: The server's name for it.
        title: A name for people, or empty.
        description: What it is, in the server's words.
        mime_type: The MIME type of its content, or empty where it is not known.
        extra: Every other member of the server's definition, such as `size` and `annotations`.
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
    """A template of resources: filled in, it is the URI of one.

    Attributes:
        uri_template: The template (RFC 6570), such as `file:///{path}`; unique in its server.
        server_id: The server that offers it.
        name: The server's name for it.
        title: A name for people, or empty.
        description: What it stands for, in the server's words.
        mime_type: The MIME type of all that it stands for, or empty.
        extra: Every other member of the server's definition.
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
    """Resources, ordered by server and URI.

    Attributes:
        registry_version: The version that they were read at; it only grows.
        pending: Ids of servers that have no first result yet, so that theirs are missing.
    """

    __slots__ = ()


class ResourceTemplateList(CatalogList[ResourceTemplate]):
    """Templates of resources, ordered by server and template.

    Attributes:
        registry_version: The version that they were read at; it only grows.
        pending: Ids of servers that have no first result yet, so that theirs are missing.
    """

    __slots__ = ()


def resource_from_wire(message: catalog_pb2.Resource) -> Resource:
    """Return a resource of the catalog."""
    return Resource(
        uri=message.uri,
        server_id=message.server_id,
        name=message.name,
        title=message.title,
        description=message.description,
        mime_type=message.mime_type,
        extra=json_object(message.extra),
        shared=message.shared,
    )


def template_from_wire(message: catalog_pb2.Resource) -> ResourceTemplate:
    """Return a template of the catalog."""
    return ResourceTemplate(
        uri_template=message.uri,
        server_id=message.server_id,
        name=message.name,
        title=message.title,
        description=message.description,
        mime_type=message.mime_type,
        extra=json_object(message.extra),
        shared=message.shared,
    )


@dataclass(frozen=True)
class PromptArgument:
    """One argument of a prompt; its value is a text.

    Attributes:
        name: Its name.
        title: A name for people, or empty.
        description: What it is for, in the server's words, or empty.
        required: Whether the prompt cannot be had without it.
    """

    name: str
    title: str
    description: str
    required: bool


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        name: The name to get it by, unique among all prompts that the caller sees.
        server_id: The server that offers it.
        original_name: The name that the server gave it.
        title: A name for people, or empty.
        description: What it is for, in the server's words.
        arguments: Its arguments, in the server's order.
        extra: Every other member of the server's definition.
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
        """`server_id:original_name`, which it can be got by, too."""
        return qualified(self.server_id, self.original_name)


class PromptList(CatalogList[Prompt]):
    """Prompts, ordered by name.

    Attributes:
        registry_version: The version that they were read at; it only grows.
        pending: Ids of servers that have no first result yet, so that their prompts are missing.
    """

    __slots__ = ()


def prompt_from_wire(message: catalog_pb2.Prompt) -> Prompt:
    """Return a prompt of the catalog."""
    arguments = json.loads(message.arguments) if message.arguments else []
    return Prompt(
        name=message.name,
        server_id=message.server_id,
        original_name=message.original_name,
        title=message.title,
        description=message.description,
        arguments=tuple(_argument(one) for one in arguments if isinstance(one, dict)),
        extra=json_object(message.extra),
        shared=message.shared,
    )


def _argument(raw: dict[str, Any]) -> PromptArgument:
    def text(member: str) -> str:
        value = raw.get(member)
        return value if isinstance(value, str) else ""

    return PromptArgument(
        text("name"), text("title"), text("description"), raw.get("required") is True
    )
