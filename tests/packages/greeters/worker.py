"""How a worker runs greeters; only workers import it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from greeters.kind import GreeterPart
from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    ClientState,
    InstancePort,
    ListedPromptsResources,
    NoStderr,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.opening import Opening
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.model import ServerSpec
from leaseway.wire.messages.mcp import NO_INTRODUCTION

_WORDS: Final = {"en": "Hello", "de": "Hallo"}
_TOOL: Final = {
    "name": "greet",
    "description": "Greets.",
    "inputSchema": {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    },
}


def values_of(part: GreeterPart, resolver: Resolver) -> ResolvedValues:
    """Return the owner as an argument."""
    return ResolvedValues(args=(resolver.text("owner", part.owner),))


def open_instance(spec: ServerSpec, host: Host, opening: Opening) -> InstancePort:
    """Return a greeter."""
    return Greeter(spec, host, opening)


class Greeted:
    """A call that has ended."""

    written = True

    def cancel(self, reason: str) -> None:
        """Do nothing: it has ended."""


class Greeter:
    """A greeter; it has no process and no connection."""

    def __init__(self, spec: ServerSpec, host: Host, opening: Opening) -> None:
        self.id = opening.instance_id
        self.state: ClientState = "starting"
        self.starts_process = False
        self.pid: int | None = None
        self.protocol_version = "2025-11-25"
        self.introduction = NO_INTRODUCTION
        self.mcp_session = ""
        self.tools: Mapping[str, bytes] = {}
        self.prompts_resources: ListedPromptsResources | None = None
        self.resolved_values = opening.resolved_values
        self.warnings: tuple[tuple[str, str], ...] = ()
        self.late_replies = 0
        self.stderr = NoStderr()
        self._spec = spec
        self._host = host
        self._opening = opening

    async def start(self) -> None:
        self.resolved_values = self.resolved_values or await self._opening.read_values(
            self._spec, self._host.environment, self._host.vault, self._spec.startup_timeout
        )
        self.tools = {"greet": json.dumps(_TOOL).encode()}
        self.state = "ready"

    def prepare(self, tool_name: str) -> bytes:
        return b""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        values, part = self.resolved_values, self._spec.part_as(GreeterPart)
        names = [
            json.loads(request.arguments)["name"],
            *filter(None, values.args if values else ()),
        ]
        text = f"{_WORDS[part.language]} {' & '.join(names)}{part.ending}"
        done(Outcome(json.dumps({"content": [{"type": "text", "text": text}]}).encode()))
        return Greeted()

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        raise NotImplementedError

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources
    ) -> ListedPromptsResources:
        self.prompts_resources = NO_PROMPTS_RESOURCES
        return NO_PROMPTS_RESOURCES

    async def relist(self) -> Mapping[str, bytes]:
        return self.tools

    async def close(self) -> None:
        if self.state == "ready":
            self.state = "closed"
            self._opening.listener.on_closed(self, None)
