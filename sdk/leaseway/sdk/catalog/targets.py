"""Names that can be called or requested, and their resolved targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from leaseway.sdk.transport.workers import ServingWorkers, worker_from_proto
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.bounds import CALL_TIMEOUT
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.timing.durations import seconds


class PromptOrResource(NamedTuple):
    """A prompt or a resource, as the caller names it; a tool is named by a string.

    Attributes:
        kind: `NAME_KIND_PROMPT` or `NAME_KIND_RESOURCE`.
        name: A prompt's exposed or qualified name, or a resource's URI.
        server: The server's id, or empty for any server.
    """

    kind: catalog_pb2.NameKind.ValueType
    name: str
    server: str = ""

    def __str__(self) -> str:
        return self.name


NameOrItem = str | PromptOrResource
"""A tool's exposed or qualified name, or a prompt or resource."""

Domain = tuple[catalog_pb2.NameKind.ValueType, str]
"""Kind and server; names with the same ones can be resolved in one request."""

_TOOLS: Final = (catalog_pb2.NAME_KIND_TOOL, "")
NOUNS: Final = {
    catalog_pb2.NAME_KIND_TOOL: "tool",
    catalog_pb2.NAME_KIND_PROMPT: "prompt",
    catalog_pb2.NAME_KIND_RESOURCE: "resource",
}


class Target:
    """The resolved target of one name, at one registry version.

    Attributes:
        item: The name that was resolved.
        original_name: The server's own name, or a resource's URI.
        repeatable: Whether a second call has no further effect, as the server declares for a tool;
            always true for reading a prompt or a resource.
        head: The fields that all calls to the target share, as a serialized `CallHead`.
        what: The server and the tool, prompt or resource, for messages.
        own_tool: The tool of Leaseway's own toolset that it is, or empty.
        of_user: Whether the name may mean something else for another user.
        user: The user for whom it was resolved; empty for the client's own or none.
        stale: Whether the name must be resolved again before its next use.
        refused: Whether all workers rejected calls or failed since the name was resolved.
        workers: The workers that serve it; names with the same ones share them.
    """

    __slots__ = (
        "call_timeout",
        "head",
        "item",
        "of_user",
        "original_name",
        "own_tool",
        "refresh_at",
        "refused",
        "registry_version",
        "repeatable",
        "server_id",
        "shared",
        "stale",
        "user",
        "what",
        "workers",
    )

    def __init__(
        self,
        item: NameOrItem,
        tool: catalog_pb2.ResolvedTool,
        version: int,
        refresh_at: float,
        user: str = "",
        workers: ServingWorkers | None = None,
    ) -> None:
        self.item = item
        self.user = user
        self.of_user = tool.of_user
        self.server_id = tool.server_id
        self.original_name = tool.original_name
        self.shared = tool.shared
        self.own_tool = tool.original_name if tool.server_id == ADMIN_TOOLSET else ""
        self.repeatable = tool.idempotent or tool.read_only
        self.call_timeout = seconds(tool.call_timeout) or CALL_TIMEOUT
        self.workers = workers if workers is not None else serving_workers(tool.workers)
        self.registry_version = version
        self.head = execution_pb2.CallHead(
            server_id=self.server_id, tool=self.original_name, registry_version=version
        ).SerializeToString()
        noun = "tool" if isinstance(item, str) else NOUNS[item.kind]
        self.what = f"{noun} '{self.original_name}' of server '{self.server_id}'"
        self.refresh_at = refresh_at
        self.stale = False
        self.refused = False


def serving_workers(workers: Iterable[catalog_pb2.WorkerRef]) -> ServingWorkers:
    """Convert the workers of a resolved name."""
    return ServingWorkers(map(worker_from_proto, workers))


def domain(item: NameOrItem) -> Domain:
    """Return the kind and the server of a name."""
    return _TOOLS if isinstance(item, str) else (item.kind, item.server)
