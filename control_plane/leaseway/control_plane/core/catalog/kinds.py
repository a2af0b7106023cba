"""What servers offer: tools and prompts, which have names, and resources, which have URIs.

The rules are the same for all (DESIGN §§2, 4); what differs is here: the words of messages, the
reasons of problems, and which of a spec's filters is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from leaseway.spec.model import ServerSpec
from leaseway.spec.name_filters import NameFilter
from leaseway.wire.messages.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS


@dataclass(frozen=True)
class Kind:
    """One kind of what servers offer.

    Attributes:
        noun: One of them, in messages.
        member: The member of a definition that tells one from others.
        listing: The command that lists them.
        rules: Returns a spec's filter of them.
        malformed: Why a definition is left out that cannot be used.
        too_many: Why what a server lists beyond the bound is left out.
        listed_twice: Why a server is warned of that lists one more than once.
        filtered: Why what the filter holds back is named.
    """

    noun: str
    member: str
    listing: str
    rules: Callable[[ServerSpec], NameFilter]
    malformed: str
    too_many: str
    listed_twice: str
    filtered: str


@dataclass(frozen=True)
class NamedKind(Kind):
    """A kind whose members callers name, in a name space of its own.

    Attributes:
        reserved: Exposed names that only the `mcp_admin` toolset may have.
        invalid_name: Why one is left out whose name breaks the rule.
        duplicate_name: Why one is left out whose name another of the same server has.
        clash: Why one is left out whose name a server with a smaller id has.
        name_reserved: Why one is left out whose name is reserved.
        owner_changed: Why operators are told of a name that moved between servers.
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
    listing="leaseway tools",
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
    listing="leaseway prompts",
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

RESOURCES: Final = Kind(
    noun="resource",
    member="uri",
    listing="leaseway resources",
    rules=attrgetter("resources"),
    malformed="INVALID_RESOURCE",
    too_many="TOO_MANY_RESOURCES",
    listed_twice="RESOURCE_LISTED_TWICE",
    filtered="RESOURCES_FILTERED",
)

RESOURCE_TEMPLATES: Final = Kind(
    noun="resource template",
    member="uriTemplate",
    listing="leaseway resources",
    rules=attrgetter("resources"),
    malformed="INVALID_RESOURCE_TEMPLATE",
    too_many="TOO_MANY_RESOURCE_TEMPLATES",
    listed_twice="RESOURCE_TEMPLATE_LISTED_TWICE",
    filtered="RESOURCE_TEMPLATES_FILTERED",
)
