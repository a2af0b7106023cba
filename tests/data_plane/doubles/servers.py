"""In-memory MCP servers behind the instance port, for tests.

A call echoes its arguments in the next turn of the loop, or waits for the test to answer it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from mcp_types import METHOD_NOT_FOUND
from tests.specs import part

from leaseway.data_plane.core.calls.call import NO_CALLBACKS, Ask, OnUpdate, Outcome, ToolRequest
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    ClientState,
    InstanceListener,
    InstanceRequest,
    ListedPromptsResources,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.values import resolve
from leaseway.data_plane.mcp.protocol.messages.server_requests import unanswered_text
from leaseway.data_plane.references.resolver import NO_VAULT, Vault
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import ServerSpec
from leaseway.wire.clients.greeting import COMMON
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import NO_INTRODUCTION

ECHO: Mapping[str, bytes] = {
    "echo": msgspec.json.encode(
        {
            "name": "echo",
            "inputSchema": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        }
    )
}
"""The tools of a server with the tool `echo`."""


@dataclass
class MemoryServers:
    """Opens in-memory instances and controls their behaviour.

    Attributes:
        tools: The tools that instances list next.
        holds: Whether calls wait for an answer instead of echoing.
        faults: The errors of the next starts, one each.
        failing: The faults of starts with certain arguments.
        gate: If set, starts wait for it.
        warnings: The warnings of the next instances.
        prompts_resources: The prompts and resources that instances list next.
        vault: Where `{secret}` references are looked up.
        opened: Every instance so far.
    """

    tools: Mapping[str, bytes] = field(default_factory=lambda: dict(ECHO))
    holds: bool = False
    faults: list[Exception] = field(default_factory=list)
    failing: dict[tuple[str, ...], Fault] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    warnings: tuple[tuple[str, str], ...] = ()
    prompts_resources: ListedPromptsResources = NO_PROMPTS_RESOURCES
    vault: Vault = NO_VAULT
    speaks_both_eras: bool = False
    opened: list[MemoryInstance] = field(default_factory=list)

    def __call__(
        self,
        spec: ServerSpec,
        listener: InstanceListener,
        request: InstanceRequest,
    ) -> MemoryInstance:
        """Open an instance without starting it."""
        instance = MemoryInstance(self, spec, len(self.opened) + 1, listener)
        instance.resolved_values = request.resolved_values
        instance.names, instance.greeting = request.names, request.greeting
        if self.speaks_both_eras:
            instance.protocol_version = (
                "2025-11-25" if instance.greeting.is_legacy else "2026-07-28"
            )
        self.opened.append(instance)
        return instance

    @property
    def live(self) -> list[MemoryInstance]:
        return [instance for instance in self.opened if instance.state in ("starting", "ready")]


class MemoryStderr:
    def __init__(self) -> None:
        self.written: list[str] = []

    def lines(self) -> list[str]:
        return list(self.written)

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Do nothing: in-memory servers write nothing."""


class MemoryCall:
    """One call of an in-memory instance."""

    def __init__(
        self, instance: MemoryInstance, request: ToolRequest, done: Callable[[Outcome], None]
    ) -> None:
        self.instance = instance
        self.request = request
        self.written = True
        self.cancelled = ""
        self._done: Callable[[Outcome], None] | None = done

    def answer(self, payload: bytes, is_error: bool = False) -> None:
        self._end(Outcome(payload, is_error))

    def fail(self, fault: Fault) -> None:
        self._end(Outcome(b"", fault=fault))

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> MemoryAsk:
        """Send a request to the caller, as a server does during a call."""
        return MemoryAsk(self.request, method, params or {})

    def cancel(self, reason: str) -> None:
        """Record the cancellation, and drop the answer."""
        self.cancelled = reason
        self._done = None

    def _end(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if self in self.instance.calls:
            self.instance.calls.remove(self)
        if done is not None:
            done(outcome)


class AskRefused(Exception):
    """A server request got a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class MemoryAsk:
    """A request of an in-memory server to its caller.

    Attributes:
        reply: The caller's answer, or `AskRefused`; stays pending if the server withdraws it.
    """

    def __init__(self, request: ToolRequest, method: str, params: Mapping[str, Any]) -> None:
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._ask = Ask(method, msgspec.json.encode(params), self._on_result, self._on_error)
        if method in request.callbacks.answers and request.callbacks.on_ask is not None:
            request.callbacks.on_ask(self._ask)
        else:
            self._ask.refuse(METHOD_NOT_FOUND, unanswered_text(method))

    def withdraw(self) -> None:
        self._ask.withdraw()

    def _on_result(self, result: bytes) -> None:
        if not self.reply.done():
            self.reply.set_result(msgspec.json.decode(result))

    def _on_error(self, code: int, message: str, data: bytes) -> None:
        if not self.reply.done():
            self.reply.set_exception(AskRefused(code, message, data))
            self.reply.exception()  # tests need not await it


class MemoryFollower:
    """One subscription to a resource of an in-memory instance."""

    written = True

    def __init__(
        self,
        instance: MemoryInstance,
        uri: str,
        on_update: OnUpdate,
        done: Callable[[Outcome], None],
    ) -> None:
        self.uri = uri
        self._instance = instance
        self._on_update: OnUpdate | None = on_update
        self._done = done

    def notify(self, uri: str) -> None:
        """Notify of a changed resource; an empty text confirms the subscription."""
        if self._on_update is not None:
            self._on_update(uri)

    def cancel(self, reason: str) -> None:
        self._remove()

    def fail(self, fault: Fault) -> None:
        if self._on_update is not None:
            self._remove()
            self._done(Outcome(b"", fault=fault))

    def _remove(self) -> None:
        self._on_update = None
        if self in self._instance.followed:
            self._instance.followed.remove(self)


class MemoryInstance:
    """One in-memory instance.

    Attributes:
        calls: Calls that wait for an answer.
        followed: Open subscriptions.
        resolved_values: What its references resolved to at the start.
        names: The names of the lease that it was opened for; None for a spare or a probe.
        greeting: How it introduces itself.
    """

    def __init__(
        self, servers: MemoryServers, spec: ServerSpec, number: int, listener: InstanceListener
    ) -> None:
        self.id = f"{spec.key.server_id}-{number}"
        self.spec = spec
        self.state: ClientState = "starting"
        self.starts_process = spec.part.uses_pipes
        self.pid: int | None = 10_000 + number
        self.protocol_version = "2025-11-25"
        self.introduction = NO_INTRODUCTION
        self.mcp_session = ""
        self.tools: Mapping[str, bytes] = {}
        self.prompts_resources: ListedPromptsResources | None = None
        self.followed: list[MemoryFollower] = []
        self.resolved_values: ResolvedValues | None = None
        self.names: LeaseNames | None = None
        self.greeting = COMMON
        self.warnings = servers.warnings
        self.stderr = MemoryStderr()
        self.late_replies = 0
        self.calls: list[MemoryCall] = []
        self._servers = servers
        self._listener = listener

    async def start(self) -> None:
        """Become ready, or fail as the test wants."""
        self.resolved_values = self.resolved_values or self._resolve()
        if self._servers.gate is not None:
            await self._servers.gate.wait()
        if self.state != "starting":
            raise Fault(Reason.SERVER_NOT_READY, "The instance was closed while it started.")
        if self._servers.faults:
            self.state = "failed"
            raise self._servers.faults.pop(0)
        if getattr(part(self.spec), "args", None) in self._servers.failing:
            self.state = "failed"
            raise self._servers.failing[part(self.spec).args]
        self.tools = dict(self._servers.tools)
        self.state = "ready"

    def _resolve(self) -> ResolvedValues:
        try:
            return resolve(self.spec, {}, self._servers.vault)
        except Fault:
            self.state = "failed"
            raise

    def ask(self, method: str) -> MemoryAsk:
        """Send a request to a call that waits for the start, as a server does before its calls."""
        callbacks = self._listener.find_caller(self, method) or NO_CALLBACKS
        return MemoryAsk(ToolRequest("", b"", b"", callbacks=callbacks), method, {})

    def prepare(self, tool_name: str) -> bytes:
        return tool_name.encode()

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> MemoryCall:
        """Echo the arguments, or wait for an answer."""
        call = MemoryCall(self, request, done)
        if self.state != "ready":
            call.written = False
            lost = Fault(Reason.SERVER_LOST, "The instance has ended.")
            asyncio.get_running_loop().call_soon(call.fail, lost)
            return call
        self.calls.append(call)
        if not self._servers.holds:
            text = request.arguments.decode()
            payload = msgspec.json.encode({"content": [{"type": "text", "text": text}]})
            asyncio.get_running_loop().call_soon(call.answer, payload)
        return call

    def follow(
        self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]
    ) -> MemoryFollower:
        """Follow a resource; the subscription is confirmed in the next turn of the loop."""
        follower = MemoryFollower(self, uri, on_update, done)
        if self.state != "ready":
            lost = Fault(Reason.SERVER_LOST, "The instance has ended.")
            asyncio.get_running_loop().call_soon(follower.fail, lost)
            return follower
        self.followed.append(follower)
        asyncio.get_running_loop().call_soon(follower.notify, "")
        return follower

    def update(self, uri: str) -> None:
        """Notify the followers of a resource."""
        for follower in tuple(self.followed):
            if uri.startswith(follower.uri):
                follower.notify(uri)

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources = NO_PROMPTS_RESOURCES
    ) -> ListedPromptsResources:
        """Return the current lists; with gaps, an empty list counts as failed and stays."""
        listed, previous = self._servers.prompts_resources, self.prompts_resources or recorded
        if listed.gaps:
            listed = replace(
                listed,
                prompts=listed.prompts or previous.prompts,
                resources=listed.resources or previous.resources,
                templates=listed.templates or previous.templates,
            )
        self.prompts_resources = listed
        return listed

    async def relist(self) -> Mapping[str, bytes]:
        if self._servers.faults:
            raise self._servers.faults.pop(0)
        self.tools = dict(self._servers.tools)
        return self.tools

    def change_tools(self, tools: Mapping[str, bytes]) -> None:
        """Change the tools, and notify the listener."""
        self._servers.tools = dict(tools)
        self._listener.on_tools_changed(self)

    def fall_silent(self) -> None:
        """Stop responding; `crash` ends it."""
        self.state = "disconnected"
        self._listener.on_disconnected(self)

    def crash(self, message: str = "exit status 1") -> None:
        """End by itself; calls in flight fail."""
        self._finish(Fault(Reason.SERVER_LOST, message, "yes"))

    async def close(self) -> None:
        """End the instance; calls in flight fail."""
        self._finish(None)

    def _finish(self, fault: Fault | None) -> None:
        was_ready, self.state = self.state in ("ready", "disconnected"), "closed"
        lost = fault or Fault(Reason.SERVER_LOST, "The instance was closed.", "yes")
        for call in tuple(self.calls):
            call.fail(lost)
        for follower in tuple(self.followed):
            follower.fail(lost)
        if was_ready:
            self._listener.on_closed(self, fault)
