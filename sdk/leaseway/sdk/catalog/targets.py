"""What can be called or asked for, and where that leads."""

from __future__ import annotations

from typing import Final, NamedTuple

from leaseway.sdk.transport.workers import worker_from_wire
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.bounds import CALL_TIMEOUT
from leaseway.wire.messages.admin import ADMIN_TOOLSET, RELEASE_TOOL
from leaseway.wire.timing.durations import seconds


class PromptOrResource(NamedTuple):
    """A prompt or a resource, as callers name it; a tool is named by its name alone.

    Attributes:
        kind: `NAME_KIND_PROMPT` or `NAME_KIND_RESOURCE`.
        name: A prompt's exposed or qualified name, or a resource's URI.
        server: The server that is meant, or empty for whichever offers it.
    """

    kind: catalog_pb2.NameKind.ValueType
    name: str
    server: str = ""

    def __str__(self) -> str:
        return self.name


NameOrItem = str | PromptOrResource
"""What can be asked for: a tool's exposed or qualified name, or an offer."""

Domain = tuple[catalog_pb2.NameKind.ValueType, str]
"""Of what kind, and of which server, names are that can be asked for together."""

_TOOLS: Final = (catalog_pb2.NAME_KIND_TOOL, "")
_NOUNS: Final = {catalog_pb2.NAME_KIND_PROMPT: "prompt", catalog_pb2.NAME_KIND_RESOURCE: "resource"}


class Target:
    """Where one name leads, as of one registry version.

    Attributes:
        asked: What it was asked for as.
        original_name: What the server calls it: a name, or a resource's URI.
        repeatable: Whether a second call changes nothing more, as the server says of a tool;
            getting a prompt or reading a resource never does.
        head: What every call of it says, as a serialized `Call`.
        what: Server and tool, prompt or resource, for messages.
        stale: Whether it is to be asked again before it is used.
        refused: Whether all that it leads to has refused or failed since it was resolved.
    """

    __slots__ = (
        "asked",
        "call_timeout",
        "head",
        "original_name",
        "refresh_at",
        "refused",
        "registry_version",
        "releases",
        "repeatable",
        "server_id",
        "shared",
        "stale",
        "what",
        "workers",
    )

    def __init__(
        self, asked: NameOrItem, tool: catalog_pb2.ResolvedTool, version: int, refresh_at: float
    ) -> None:
        self.asked = asked
        self.server_id = tool.server_id
        self.original_name = tool.original_name
        self.shared = tool.shared
        self.releases = tool.server_id == ADMIN_TOOLSET and tool.original_name == RELEASE_TOOL
        self.repeatable = tool.idempotent or tool.read_only
        given = seconds(tool.call_timeout)
        self.call_timeout = given or CALL_TIMEOUT
        self.workers = tuple(worker_from_wire(worker) for worker in tool.workers)
        self.registry_version = version
        self.head = execution_pb2.Call(
            server_id=self.server_id, tool=self.original_name, registry_version=version
        ).SerializeToString()
        noun = "tool" if isinstance(asked, str) else _NOUNS[asked.kind]
        self.what = f"{noun} '{self.original_name}' of server '{self.server_id}'"
        self.refresh_at = refresh_at
        self.stale = False
        self.refused = False


def domain(asked: NameOrItem) -> Domain:
    """Return what the request for a name is about."""
    return _TOOLS if isinstance(asked, str) else (asked.kind, asked.server)
