"""What a server said that it has, as it said it: the probe's listing is the contract."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from leaseway.control_plane.core.catalog.definition import is_task_only

_OFFERS: Final = 1 << 63
"""Begins a list that is no list of tools in a digest; no definition is that long."""


@dataclass(frozen=True)
class Recorded:
    """One tool, prompt, resource or template of resources as its server listed it.

    Attributes:
        name: What tells it from others: the server's name for it, a URI, or the template of
            URIs. Empty where the definition has none.
        definition: The whole definition, a JSON object as UTF-8.
    """

    name: str
    definition: bytes


@dataclass(frozen=True)
class ServerListing:
    """Everything that a server listed, in its order, and the protocol it was asked in.

    Attributes:
        tools: Its tools; each has a name.
        protocol_version: The MCP version that was negotiated.
        prompts: Its prompts, none where it has no such thing.
        resources: Its resources, likewise.
        templates: Its templates of resources, likewise.
    """

    tools: tuple[Recorded, ...] = ()
    protocol_version: str = ""
    prompts: tuple[Recorded, ...] = ()
    resources: tuple[Recorded, ...] = ()
    templates: tuple[Recorded, ...] = ()

    @cached_property
    def digest(self) -> str:
        """A hash of the content; of a server that lists tools only, of these alone."""
        state = hashlib.sha256(self.protocol_version.encode())
        state.update(_framed(self.tools))
        for place, offers in enumerate((self.prompts, self.resources, self.templates)):
            if offers:
                state.update((_OFFERS + place).to_bytes(8, "big"))
                state.update(_framed(offers))
        return state.hexdigest()

    @cached_property
    def by_name(self) -> dict[str, Recorded]:
        """The tools by the server's names; the first of two equal ones."""
        return {tool.name: tool for tool in reversed(self.tools)}

    @cached_property
    def task_only(self) -> frozenset[str]:
        """The tools that run as MCP tasks only."""
        return frozenset(tool.name for tool in self.tools if is_task_only(tool.definition))

    @cached_property
    def prompts_by_name(self) -> dict[str, Recorded]:
        return {prompt.name: prompt for prompt in reversed(self.prompts)}


def _framed(items: Iterable[Recorded]) -> bytes:
    return b"".join(
        part
        for item in items
        for part in (len(item.definition).to_bytes(8, "big"), item.definition)
    )
