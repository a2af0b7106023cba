"""What servers say about themselves: instructions for models, and MCP extensions."""

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
    """

    server_id: str
    instructions: str
    extensions: tuple[str, ...]


class IntroductionList(CatalogList[ServerIntroduction]):
    """Introductions, ordered by server; with the attributes of a `ToolList`."""

    __slots__ = ()


def introduction_from_proto(message: catalog_pb2.Introduction) -> ServerIntroduction:
    """Convert an introduction of the catalog."""
    return ServerIntroduction(message.server_id, message.instructions, tuple(message.extensions))
