"""The kinds of items that servers list: tools, prompts, resources and resource templates.

The rules are the same for all kinds (design.md). Nouns in messages, reasons of problems and the
filter in the spec differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec
from leaseway.wire.messages.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS


@dataclass(frozen=True)
class ItemKind:
    """One kind of items, each identified by a name or URI.

    Attributes:
        member: The member of a definition that identifies it.
        listed_by: The word of the command that lists the items.
        rules: Returns a spec's filter for the kind.
        malformed: Reason if a definition cannot be used; the others are reasons of problems, too.
    """

    noun: str
    member: str
    listed_by: str
    rules: Callable[[ServerSpec], NameFilter]
    malformed: str
    too_many: str
    listed_twice: str
    filtered: str


@dataclass(frozen=True)
class NamedKind(ItemKind):
    """A kind with exposed names, in its own name space.

    Attributes:
        reserved: Exposed names that only the `mcp_admin` toolset may have.
        duplicate_name: Reason if two items of one server get the same name.
        clash: Reason if a server with a smaller id has the name.
        owner_changed: Reason if a name moved between servers.
    """

    reserved: frozenset[str]
    invalid_name: str
    duplicate_name: str
    clash: str
    name_reserved: str
    owner_changed: str


TOOLS: Final = NamedKind(
    noun="tool",
    member="name",
    listed_by="tools",
    rules=attrgetter("tools"),
    malformed="INVALID_TOOL",
    too_many="TOO_MANY_TOOLS",
    listed_twice="TOOL_LISTED_TWICE",
    filtered="TOOLS_FILTERED",
    reserved=frozenset({ADMIN_TOOLSET, *TOOL_DEFINITIONS}),
    invalid_name="INVALID_TOOL_NAME",
    duplicate_name="DUPLICATE_TOOL_NAME",
    clash="TOOL_NAME_CLASH",
    name_reserved="TOOL_NAME_RESERVED",
    owner_changed="TOOL_OWNER_CHANGED",
)

PROMPTS: Final = NamedKind(
    noun="prompt",
    member="name",
    listed_by="prompts",
    rules=attrgetter("prompts"),
    malformed="INVALID_PROMPT",
    too_many="TOO_MANY_PROMPTS",
    listed_twice="PROMPT_LISTED_TWICE",
    filtered="PROMPTS_FILTERED",
    reserved=frozenset(),
    invalid_name="INVALID_PROMPT_NAME",
    duplicate_name="DUPLICATE_PROMPT_NAME",
    clash="PROMPT_NAME_CLASH",
    name_reserved="PROMPT_NAME_RESERVED",
    owner_changed="PROMPT_OWNER_CHANGED",
)

RESOURCES: Final = ItemKind(
    noun="resource",
    member="uri",
    listed_by="resources",
    rules=attrgetter("resources"),
    malformed="INVALID_RESOURCE",
    too_many="TOO_MANY_RESOURCES",
    listed_twice="RESOURCE_LISTED_TWICE",
    filtered="RESOURCES_FILTERED",
)

RESOURCE_TEMPLATES: Final = ItemKind(
    noun="resource template",
    member="uriTemplate",
    listed_by="resources",
    rules=attrgetter("resources"),
    malformed="INVALID_RESOURCE_TEMPLATE",
    too_many="TOO_MANY_RESOURCE_TEMPLATES",
    listed_twice="RESOURCE_TEMPLATE_LISTED_TWICE",
    filtered="",
)
