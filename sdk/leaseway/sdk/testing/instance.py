"""Functions as MCP servers: a worker opens them through the same port as real servers."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.artifacts.media import may_hold_media
from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, ToolRequest, too_large
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    ClientState,
    InstanceListener,
    InstanceRequest,
    ListedPromptsResources,
    NoStderr,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.values import resolve
from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.testing.behaviour import Behaviour
from leaseway.sdk.testing.context import CallContext
from leaseway.sdk.testing.functions import FakeTool
from leaseway.sdk.testing.prompts_resources import FakePrompt, FakeTemplate
from leaseway.sdk.testing.registry import FakeRegistry
from leaseway.sdk.testing.values import build_error_result, build_result, fault_from_error
from leaseway.server.faults import contained_exits
from leaseway.spec.model import ServerSpec
from leaseway.wire.bounds import MAX_RESULT
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS, NO_INTRODUCTION

PROTOCOL: Final = HANDSHAKE_VERSIONS[-1]
"""The MCP version that fake servers report."""

_MAX_RECORDED: Final = 100_000
_MAX_THREADS: Final = 64
_MAX_COMPLETIONS: Final = 100
"""MCP's limit for the values of one completion."""


@dataclass(frozen=True)
class RecordedCall:
    """A call that reached a tool: its arguments matched the schema, and its lease was held.

    Attributes:
        tool: The tool's exposed name.
        server_id: The tool's server.
        arguments: The arguments as JSON values, unconverted.
        session: The key of the session.
        tenant: The tenant that called.
        agent: The tenant's agent that called; may be empty.
        lease_id: The lease that the call ran on; empty on a shared server.
    """

    tool: str
    server_id: str
    arguments: Mapping[str, Any]
    session: str
    tenant: str
    agent: str
    lease_id: str


class FunctionServers:
    """Opens instances of the servers in a registry. Lives in one event loop.

    Attributes:
        calls: The newest calls that reached a tool, the oldest first.
        threads: Run the functions that are not async.
        subscribers: Who to notify of a resource's changes, by server id and URI.
    """

    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        self.behaviour = Behaviour()
        self.calls: deque[RecordedCall] = deque(maxlen=_MAX_RECORDED)
        self.threads = _new_threads()
        self.subscribers: defaultdict[tuple[str, str], set[OnUpdate]] = defaultdict(set)
        self._numbers = itertools.count(1)

    def __call__(
        self, spec: ServerSpec, listener: InstanceListener, request: InstanceRequest
    ) -> FunctionInstance:
        """Build an instance, which is not started yet."""
        instance_id = f"{spec.key.server_id}-{next(self._numbers)}"
        return FunctionInstance(self, spec, listener, instance_id, request.resolved_values)

    def notify_subscribers(self, server_id: str, uri: str) -> None:
        """Report a change of a resource to its subscribers."""
        for on_update in tuple(self.subscribers.get((server_id, uri), ())):
            on_update(uri)

    def close(self) -> None:
        """Stop the threads. Functions that still run in them are not interrupted."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.threads = _new_threads()  # for the next block; they start when they are used


def _new_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS, "leaseway fake tool")


class _ActiveRequest:
    """A call or subscription of an instance. It ends once, and then calls `done` at most once."""

    written = True

    def __init__(
        self,
        instance: FunctionInstance,
        done: Callable[[Outcome], None],
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._instance = instance
        self._done: Callable[[Outcome], None] | None = done
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        instance.active.add(self)

    def work(self, task: asyncio.Task[None]) -> None:
        """Cancel a task if the request ends before it."""
        self._task = task

    def end(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        self._instance.active.discard(self)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._on_end is not None:
            self._on_end()
        if done is not None:
            done(outcome)

    def cancel(self, reason: str) -> None:
        """End without an outcome."""
        self._done = None
        self.end(Outcome(b""))


class FunctionInstance:
    """An instance of a fake server; see `core.ports.InstancePort`."""

    starts_process = False
    pid: int | None = None
    protocol_version = PROTOCOL
    mcp_session = ""
    introduction = NO_INTRODUCTION
    warnings: tuple[tuple[str, str], ...] = ()
    late_replies = 0

    def __init__(
        self,
        servers: FunctionServers,
        spec: ServerSpec,
        listener: InstanceListener,
        instance_id: str,
        resolved_values: ResolvedValues | None,
    ) -> None:
        self.id = instance_id
        self.state: ClientState = "starting"
        self.stderr = NoStderr()
        self.resolved_values = resolved_values
        self.active: set[_ActiveRequest] = set()
        self._servers = servers
        self._spec = spec
        self._listener = listener
        self._offers = servers.registry.servers[spec.key.server_id]
        self._state: dict[str, Any] = {} if self._offers.stateful else self._offers.state
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    @property
    def tools(self) -> Mapping[str, bytes]:
        """The current definitions of the tools, by original name."""
        return self._offers.definitions()

    @property
    def prompts_resources(self) -> ListedPromptsResources | None:
        """The current definitions of the prompts, resources and templates."""
        return self._offers.prompts_resources()

    async def start(self) -> None:
        """Resolve the references of the server and become ready."""
        self.resolved_values = self.resolved_values or resolve(self._spec, {})
        self.state = "ready"

    async def relist(self) -> Mapping[str, bytes]:
        """Return the definitions of the tools, which are always current."""
        return self.tools

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources = NO_PROMPTS_RESOURCES
    ) -> ListedPromptsResources:
        """Return the current definitions of the prompts, resources and templates."""
        return self._offers.prompts_resources()

    def prepare(self, tool_name: str) -> bytes:
        """Return nothing: functions are called by name and need no prepared bytes."""
        return b""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> _ActiveRequest:
        """Call the function of a tool, prompt or resource."""
        active = _ActiveRequest(self, done)
        context = self._build_context(request, done)
        task = self._loop.create_task(
            self._run(request, context, active), name=f"leaseway fake call {request.name}"
        )
        active.work(task)
        return active

    def follow(
        self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]
    ) -> _ActiveRequest:
        """Subscribe to a resource."""
        subscribers = self._servers.subscribers[self._offers.id, uri]
        subscribers.add(on_update)
        active = _ActiveRequest(self, done, partial(subscribers.discard, on_update))
        self._loop.call_soon(on_update, "")  # the subscription holds
        return active

    async def close(self) -> None:
        """Close; active requests fail."""
        self._close(Fault(Reason.SERVER_LOST, "The instance was closed.", "yes"), None)

    def _close(self, fault: Fault, cause: Fault | None) -> None:
        was_ready, self.state = self.state == "ready", "closed"
        for active in tuple(self.active):
            active.end(Outcome(b"", fault=fault))
        if was_ready:
            self._listener.on_closed(self, cause)

    async def _run(
        self, request: ToolRequest, context: CallContext, active: _ActiveRequest
    ) -> None:
        try:
            result = await self._result(request, context)
            payload = json.dumps(result, ensure_ascii=False).encode()
            outcome = Outcome(payload, result.get("isError") is True)
            if len(payload) > MAX_RESULT and not may_hold_media(payload):
                outcome = Outcome(b"", fault=too_large(self._offers.id, len(payload)))
        except Fault as fault:
            outcome = Outcome(b"", fault=fault)
        except Exception as error:  # noqa: BLE001 - a test's function raises what it likes
            internal = Fault(Reason.INTERNAL, f"The fake failed: {error!r}", "yes")
            outcome = Outcome(b"", fault=internal)
        lost = outcome.fault
        if lost is not None and lost.reason is Reason.SERVER_LOST and self._offers.stateful:
            self._close(lost, lost)
        active.end(outcome)

    async def _result(self, request: ToolRequest, context: CallContext) -> dict[str, Any]:
        params: dict[str, Any] = json.loads(request.arguments or b"{}")
        match request.method:
            case "":
                return await self._call_tool(self._offers.tool(request.name), params, context)
            case "prompts/get":
                prompt = self._offers.prompt(params["name"])
                return await prompt.get(params.get("arguments") or {}, context)
            case "resources/read":
                return self._offers.resource(params["uri"]).read()
            case "completion/complete":
                return self._complete(params)
        raise Fault(Reason.INVALID_REQUEST, f"Fakes have no method {request.method[:64]}.")

    async def _call_tool(
        self, tool: FakeTool, arguments: dict[str, Any], context: CallContext
    ) -> dict[str, Any]:
        self._servers.calls.append(
            RecordedCall(
                tool=tool.name,
                server_id=self._offers.id,
                arguments=arguments,
                session=context.session,
                tenant=context.tenant,
                agent=context.agent,
                lease_id=context.lease_id,
            )
        )
        await self._servers.behaviour.apply(tool.name)
        values = tool.bind(arguments, context)
        try:
            with contained_exits():
                if inspect.iscoroutinefunction(tool.function):
                    value = await tool.function(**values)
                else:
                    work = partial(copy_context().run, tool.function, **values)
                    value = await self._loop.run_in_executor(self._servers.threads, work)
                    if inspect.isawaitable(value):  # of a decorator that is not async
                        value = await value
        except Fault:
            raise
        except LeasewayError as error:
            raise fault_from_error(error) from error
        except Exception as error:  # noqa: BLE001 - a test's function raises what it likes
            return build_error_result(error)
        return build_result(value)

    def _complete(self, params: dict[str, Any]) -> dict[str, Any]:
        ref, argument = params["ref"], params["argument"]
        offer: FakePrompt | FakeTemplate
        if ref.get("type") == "ref/prompt":
            offer = self._offers.prompt(ref["name"])
        else:
            offer = self._offers.template(ref["uri"])
        candidates = offer.completions.get(argument["name"], ())
        matches = [value for value in candidates if value.startswith(argument["value"])]
        values = matches[:_MAX_COMPLETIONS]
        more = len(matches) > len(values)
        return {"completion": {"values": values, "total": len(matches), "hasMore": more}}

    def _build_context(self, request: ToolRequest, done: Callable[[Outcome], None]) -> CallContext:
        # The port does not pass the caller, but `done` is a method of the worker's call.
        active: Any = getattr(done, "__self__", None)
        assert isinstance(active, ActiveCall), "`done` must be a method of an ActiveCall"
        call = active.call
        return CallContext(
            tool=request.name if request.method else self._offers.tool(request.name).name,
            tenant=call.tenant,
            agent=call.agent,
            session=call.session,
            lease_id=active.lease.id if active.lease is not None else "",
            state=self._state,
            _request=request,
            _loop=self._loop,
            _loop_thread=self._loop_thread,
            _on_notification=partial(self._listener.on_notification, self),
        )
