"""What servers say about themselves: instructions for models, MCP extensions and capabilities."""

from __future__ import annotations

from dataclasses import dataclass

from leaseway.sdk.catalog.tools import CatalogList
from leaseway.v1 import catalog_pb2


@dataclass(frozen=True)
class ServerIntroduction:
    """What one server says about itself.

    Attributes:
        server_id: The server's id.
        instructions: How to use the server, for models; may be empty.
        extensions: The identifiers of the MCP extensions that it supports, sorted.
        capabilities: What the caller sees of it beside tools: of `completions`, `logging`,
            `prompts`, `resources` and `subscribe`.
    """

    server_id: str
    instructions: str
    extensions: tuple[str, ...]
    capabilities: tuple[str, ...] = ()


class IntroductionList(CatalogList[ServerIntroduction]):
    """Introductions, ordered by server; with the attributes of a `ToolList`."""

    __slots__ = ()


def introduction_from_proto(message: catalog_pb2.Introduction) -> ServerIntroduction:
    """Convert an introduction of the catalog."""
    return ServerIntroduction(
        server_id=message.server_id,
        instructions=message.instructions,
        extensions=tuple(message.extensions),
        capabilities=tuple(message.capabilities),
    )
