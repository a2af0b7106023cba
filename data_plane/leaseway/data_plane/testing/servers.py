"""MCP servers in memory: the twin of `leaseway.data_plane.mcp.instance`, for tests.

No process, no wire: a call echoes its arguments in the loop's next turn, or waits to be answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from mcp_types import METHOD_NOT_FOUND

from leaseway.data_plane.core.calls.call import Ask, OnUpdate, Outcome, ToolRequest
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    InstanceListener,
    ListedPromptsResources,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.protocol.messages.server_requests import unanswered_text
from leaseway.data_plane.references.resolve import resolve
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason

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
"""A server with one tool."""


@dataclass
class MemoryServers:
    """Opens instances in memory, and decides how they behave.

    Attributes:
        tools: What the next listing of each instance finds.
        holds: Whether calls wait to be answered instead of echoing.
        faults: What the next starts fail with, one each.
        failing: What starts with certain arguments fail with.
        gate: Starts wait until it is set.
        warnings: What the next instances say does not hold.
        prompts_resources: What the next listing of prompts and resources finds.
        opened: Every instance so far.
    """

    tools: Mapping[str, bytes] = field(default_factory=lambda: dict(ECHO))
    holds: bool = False
    faults: list[Fault] = field(default_factory=list)
    failing: dict[tuple[str, ...], Fault] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    warnings: tuple[tuple[str, str], ...] = ()
    prompts_resources: ListedPromptsResources = NO_PROMPTS_RESOURCES
    opened: list[MemoryInstance] = field(default_factory=list)

    def __call__(
        self,
        spec: ServerSpec,
        listener: InstanceListener,
        *,
        known_version: str = "",
        resolved_values: ResolvedValues | None = None,
    ) -> MemoryInstance:
        """Open an instance that is not started yet."""
        instance = MemoryInstance(self, spec, len(self.opened) + 1, listener)
        instance.resolved_values = resolved_values
        self.opened.append(instance)
        return instance

    @property
    def live(self) -> list[MemoryInstance]:
        return [each for each in self.opened if each.state in ("starting", "ready")]


class _Stderr:
    def __init__(self) -> None:
        self.written: list[str] = []

    def lines(self) -> list[str]:
        return list(self.written)

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Tell nothing: functions write nothing."""


class MemoryCall:
    """One call of an instance in memory."""

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
        """Ask the caller something, as a server does during a call."""
        return MemoryAsk(self.request, method, params or {})

    def cancel(self, reason: str) -> None:
        """Note that nobody waits any more."""
        self.cancelled = reason
        self._done = None

    def _end(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if self in self.instance.calls:
            self.instance.calls.remove(self)
        if done is not None:
            done(outcome)


class AskRefused(Exception):
    """A question got a JSON-RPC error for an answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class MemoryAsk:
    """A question of a server in memory.

    Attributes:
        reply: The caller's answer, or `AskRefused`; stays open where the server withdraws it.
    """

    def __init__(self, request: ToolRequest, method: str, params: Mapping[str, Any]) -> None:
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._ask = Ask(method, msgspec.json.encode(params), self._take, self._fail)
        if method in request.answers and request.on_ask is not None:
            request.on_ask(self._ask)
        else:
            self._ask.refuse(METHOD_NOT_FOUND, unanswered_text(method))

    def withdraw(self) -> None:
        self._ask.withdraw()

    def _take(self, result: bytes) -> None:
        if not self.reply.done():
            self.reply.set_result(msgspec.json.decode(result))

    def _fail(self, code: int, message: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(AskRefused(code, message))
            self.reply.exception()  # a server need not look at it


class MemoryFollower:
    """One subscription to a resource of an instance in memory."""

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
        """Say that something changed, or by an empty text that the subscription holds."""
        if self._on_update is not None:
            self._on_update(uri)

    def cancel(self, reason: str) -> None:
        self._leave()

    def fail(self, fault: Fault) -> None:
        if self._on_update is not None:
            self._leave()
            self._done(Outcome(b"", fault=fault))

    def _leave(self) -> None:
        self._on_update = None
        if self in self._instance.followed:
            self._instance.followed.remove(self)


class MemoryInstance:
    """One instance in memory.

    Attributes:
        calls: Calls that wait to be answered.
        followed: Subscriptions that hold.
        resolved_values: What its references stood for when it started.
    """

    def __init__(
        self, servers: MemoryServers, spec: ServerSpec, number: int, listener: InstanceListener
    ) -> None:
        self.id = f"{spec.key.server_id}-{number}"
        self.spec = spec
        self.state = "starting"
        self.pid: int | None = 10_000 + number
        self.protocol_version = "2025-11-25"
        self.mcp_session = ""
        self.tools: Mapping[str, bytes] = {}
        self.prompts_resources: ListedPromptsResources | None = None
        self.followed: list[MemoryFollower] = []
        self.resolved_values: ResolvedValues | None = None
        self.warnings = servers.warnings
        self.stderr = _Stderr()
        self.late_replies = 0
        self.calls: list[MemoryCall] = []
        self._servers = servers
        self._listener = listener

    async def start(self) -> None:
        """Become ready, or fail as the servers say."""
        self.resolved_values = self.resolved_values or self._resolve()
        if self._servers.gate is not None:
            await self._servers.gate.wait()
        if self.state != "starting":
            raise Fault(Reason.SERVER_NOT_READY, "The instance was closed while it started.")
        if self._servers.faults:
            self.state = "failed"
            raise self._servers.faults.pop(0)
        if self.spec.args in self._servers.failing:
            self.state = "failed"
            raise self._servers.failing[self.spec.args]
        self.tools = dict(self._servers.tools)
        self.state = "ready"

    def _resolve(self) -> ResolvedValues:
        try:
            return resolve(self.spec, {})
        except Fault:
            self.state = "failed"
            raise

    def prepare(self, tool_name: str) -> bytes:
        return tool_name.encode()

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> MemoryCall:
        """Echo the arguments, or wait to be answered."""
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
        """Follow a resource; the subscription holds from the loop's next turn on."""
        follower = MemoryFollower(self, uri, on_update, done)
        if self.state != "ready":
            lost = Fault(Reason.SERVER_LOST, "The instance has ended.")
            asyncio.get_running_loop().call_soon(follower.fail, lost)
            return follower
        self.followed.append(follower)
        asyncio.get_running_loop().call_soon(follower.notify, "")
        return follower

    def update(self, uri: str) -> None:
        """Say that a resource changed."""
        for follower in tuple(self.followed):
            if uri.startswith(follower.uri):
                follower.notify(uri)

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources = NO_PROMPTS_RESOURCES
    ) -> ListedPromptsResources:
        """List what the servers say now; of what has gaps, empty lists are those that failed."""
        now, before = self._servers.prompts_resources, self.prompts_resources or recorded
        if now.gaps:
            now = replace(
                now,
                prompts=now.prompts or before.prompts,
                resources=now.resources or before.resources,
                templates=now.templates or before.templates,
            )
        self.prompts_resources = now
        return now

    async def relist(self) -> Mapping[str, bytes]:
        """List what the servers say now."""
        if self._servers.faults:
            raise self._servers.faults.pop(0)
        self.tools = dict(self._servers.tools)
        return self.tools

    def change_tools(self, tools: Mapping[str, bytes]) -> None:
        """Have other tools from now on, and say so."""
        self._servers.tools = dict(tools)
        self._listener.on_tools_changed(self)

    def fall_silent(self) -> None:
        """Give no sign of life any more; `crash` ends it."""
        self.state = "disconnected"
        self._listener.on_disconnected(self)

    def crash(self, message: str = "exit status 1") -> None:
        """End by itself; calls in flight fail."""
        self._finish(Fault(Reason.SERVER_LOST, message, "yes"))

    async def close(self, grace: float = 0) -> None:
        """End because somebody asked; calls in flight fail."""
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
