"""What a server lists, unchanged: tools, prompts, resources and resource templates."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from leaseway.spec.contracts import same_content, same_contract, same_items
from leaseway.wire.listing.definitions import is_task_only
from leaseway.wire.messages.mcp import NO_INTRODUCTION, Introduction


@dataclass(frozen=True)
class ListedItem:
    """One tool, prompt, resource or resource template as its server listed it.

    Attributes:
        name: Its name, URI or URI template; empty if the definition has none.
        definition: The whole definition, a JSON object as UTF-8.
    """

    name: str
    definition: bytes


@dataclass(frozen=True)
class ServerListing:
    """Everything that a server listed, in its order, and what it said at the handshake.

    The name of what cannot be read is empty; it is not exposed.
    """

    tools: tuple[ListedItem, ...] = ()
    protocol_version: str = ""
    prompts: tuple[ListedItem, ...] = ()
    resources: tuple[ListedItem, ...] = ()
    templates: tuple[ListedItem, ...] = ()
    introduction: Introduction = NO_INTRODUCTION

    @cached_property
    def digest(self) -> str:
        """A hash of the content."""
        state = hashlib.sha256(self.protocol_version.encode())
        for items in (self.tools, self.prompts, self.resources, self.templates):
            state.update(len(items).to_bytes(8, "big"))
            state.update(_framed(items))
        introduction = self.introduction
        capable = " ".join(introduction.capabilities)
        said = (introduction.instructions, capable, *introduction.extensions)
        state.update(_framed_bytes(text.encode() for text in said))
        return state.hexdigest()

    def settled(self, previous: ServerListing) -> ServerListing:
        """Return this listing, with the previous definitions where only an order differs.

        Some servers write sets and lists in another order each time: that changes nothing, so no
        worker and no client needs to hear of it.
        """
        if self.digest == previous.digest:
            return previous
        return replace(
            self,
            tools=_settle(self.tools, previous.tools),
            prompts=_settle(self.prompts, previous.prompts),
            resources=_settle(self.resources, previous.resources),
            templates=_settle(self.templates, previous.templates),
        )

    def agrees(self, other: ServerListing) -> bool:
        """Return whether both listings are the same in what callers depend on, texts aside."""
        if self.digest == other.digest:
            return True
        return (
            self.by_name.keys() == other.by_name.keys()
            and all(
                same_contract(tool.definition, other.by_name[name].definition)
                for name, tool in self.by_name.items()
            )
            and all(
                same_items([item.definition for item in own], [item.definition for item in others])
                for own, others in (
                    (self.prompts, other.prompts),
                    (self.resources, other.resources),
                    (self.templates, other.templates),
                )
            )
        )

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        """What `variants` has derived from this listing by some rules, to derive it once.

        Tenants' own variants of a server mostly have one listing and the same rules.
        """
        return {}

    @cached_property
    def by_name(self) -> dict[str, ListedItem]:
        """The tools by original name; the first of duplicates."""
        return {tool.name: tool for tool in reversed(self.tools)}

    @cached_property
    def task_only(self) -> frozenset[str]:
        """The tools that can only be called as MCP tasks."""
        return frozenset(tool.name for tool in self.tools if is_task_only(tool.definition))

    @cached_property
    def prompts_by_name(self) -> dict[str, ListedItem]:
        return {prompt.name: prompt for prompt in reversed(self.prompts)}


NOT_LISTED: Final = ServerListing()
"""Nothing, not even a handshake: of a hidden server, and before a server's first login."""


def _settle(
    items: tuple[ListedItem, ...], before: tuple[ListedItem, ...]
) -> tuple[ListedItem, ...]:
    known = {item.name: item for item in before}
    settled = tuple(
        known[item.name]
        if item.name in known and same_content(item.definition, known[item.name].definition)
        else item
        for item in items
    )
    is_reordered = len(settled) == len(before) == len(known) and set(settled) == set(before)
    return before if is_reordered else settled


def _framed(items: Iterable[ListedItem]) -> bytes:
    return _framed_bytes(item.definition for item in items)


def _framed_bytes(parts: Iterable[bytes]) -> bytes:
    return b"".join(piece for part in parts for piece in (len(part).to_bytes(8, "big"), part))
