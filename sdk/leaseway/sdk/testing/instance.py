"""Functions as MCP servers, behind the port that a worker reaches its servers by."""

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
from leaseway.data_plane.core.calls.call import Ask, OnUpdate, Outcome, ToolRequest, too_large
from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES, InstanceListener, PromptsResources
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.references.resolve import resolve
from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.testing.behaviour import Behaviour
from leaseway.sdk.testing.context import CallContext, Line
from leaseway.sdk.testing.faults import fault_of
from leaseway.sdk.testing.functions import FakeTool
from leaseway.sdk.testing.prompts_resources import FakePrompt, FakeTemplate
from leaseway.sdk.testing.registry import FakeRegistry
from leaseway.sdk.testing.values import failure, result_of
from leaseway.server.faults import held_to_its_call
from leaseway.spec.model import ServerSpec
from leaseway.wire.bounds import MAX_RESULT
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT

PROTOCOL: Final = "2025-11-25"
"""The version of MCP that functions speak."""

_MAX_RECORDED: Final = 100_000
_MAX_THREADS: Final = 64
_MOST_VALUES: Final = 100


@dataclass(frozen=True)
class RecordedCall:
    """One call that has reached a tool: its arguments fit, and its lease was good.

    Attributes:
        tool: The tool's exposed name.
        server_id: Its server.
        arguments: The arguments, as JSON holds them.
        session: The session that it was made in.
        tenant: Whose call it is.
        agent: Which agent called, or empty.
        lease_id: The lease that it ran on, or empty.
    """

    tool: str
    server_id: str
    arguments: Mapping[str, Any]
    session: str
    tenant: str
    agent: str
    lease_id: str


class FunctionServers:
    """Opens instances whose tools, prompts and resources are functions; lives in one event loop.

    Args:
        registry: The functions.

    Attributes:
        behaviour: What calls meet before their tool runs.
        calls: The calls that have reached a tool, the oldest first; the last 100,000.
        threads: Run what is not async.
    """

    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        self.behaviour = Behaviour()
        self.calls: deque[RecordedCall] = deque(maxlen=_MAX_RECORDED)
        self.threads = ThreadPoolExecutor(_MAX_THREADS, "leaseway fake tool")
        self.followers: defaultdict[tuple[str, str], set[OnUpdate]] = defaultdict(set)
        self._numbers = itertools.count(1)

    def __call__(
        self,
        spec: ServerSpec,
        listener: InstanceListener,
        *,
        known_version: str = "",
        resolved_values: ResolvedValues | None = None,
    ) -> FunctionInstance:
        """Make an instance that is not started yet."""
        instance_id = f"{spec.key.server_id}-{next(self._numbers)}"
        return FunctionInstance(self, spec, listener, instance_id, resolved_values)

    def updated(self, server_id: str, uri: str) -> None:
        """Notify all who follow a resource that it has changed."""
        for tell in tuple(self.followers.get((server_id, uri), ())):
            tell(uri)

    def close(self) -> None:
        """End the threads of tools."""
        self.threads.shutdown(wait=False, cancel_futures=True)


class _Stderr:
    """Functions write nothing there."""

    def lines(self) -> list[str]:
        return []

    def watch(self, heard: Callable[[str], None]) -> None:
        """Tell nothing."""


class _Pending:
    """One call, or one subscription, of an instance; `done` is called once or never."""

    written = True

    def __init__(self, instance: FunctionInstance, done: Callable[[Outcome], None]) -> None:
        self._instance = instance
        self._done: Callable[[Outcome], None] | None = done
        self.leave: Callable[[], object] = lambda: None
        instance.pending.add(self)

    def end(self, outcome: Outcome) -> None:
        """Hand in how it ended."""
        done, self._done = self._done, None
        self._instance.pending.discard(self)
        self.leave()
        if done is not None:
            done(outcome)

    def cancel(self, reason: str) -> None:
        """End, and tell nobody how."""
        self._done = None
        self.end(Outcome(b""))


class FunctionInstance:
    """One client of a server made of functions; see `core.ports.InstancePort`.

    Attributes:
        pending: What is under way.
    """

    pid: int | None = None
    protocol_version = PROTOCOL
    mcp_session = ""
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
        self.state = "starting"
        self.stderr = _Stderr()
        self.resolved_values = resolved_values
        self.pending: set[_Pending] = set()
        self._servers = servers
        self._spec = spec
        self._listener = listener
        self._server = servers.registry.servers[spec.key.server_id]
        self._state: dict[str, Any] = {} if self._server.stateful else self._server.state
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def tools(self) -> Mapping[str, bytes]:
        """The definitions of its tools as they are now, by original name."""
        return self._servers.registry.definitions(self._server.id)

    @property
    def prompts_resources(self) -> PromptsResources | None:
        """What else it offers now."""
        return self._servers.registry.prompts_resources(self._server.id)

    async def start(self) -> None:
        """Be ready."""
        self.resolved_values = self.resolved_values or resolve(self._spec, {})
        self.state = "ready"

    async def relist(self) -> Mapping[str, bytes]:
        """Return its tools."""
        return self.tools

    async def list_prompts_resources(
        self, timeout: float, recorded: PromptsResources = NO_PROMPTS_RESOURCES
    ) -> PromptsResources:
        """Return what else it offers."""
        return self._servers.registry.prompts_resources(self._server.id)

    def prepare(self, tool_name: str) -> bytes:
        """Make nothing: functions are called by their names."""
        return b""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> _Pending:
        """Run the function of a tool, a prompt or a resource."""
        pending = _Pending(self, done)
        context = self._context(request, done)
        task = self._loop.create_task(
            self._answer(request, context, pending), name=f"leaseway fake call {request.name}"
        )
        pending.leave = task.cancel
        return pending

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> _Pending:
        """Notify of a resource's changes."""
        pending = _Pending(self, done)
        followers = self._servers.followers[self._server.id, uri]
        followers.add(on_update)
        pending.leave = partial(followers.discard, on_update)
        self._loop.call_soon(on_update, "")
        return pending

    async def close(self, grace: float = 0) -> None:
        """End; what is under way fails."""
        self._end(Fault(Reason.SERVER_LOST, "The instance was closed.", "yes"), None)

    def _end(self, lost: Fault, cause: Fault | None) -> None:
        was_ready, self.state = self.state == "ready", "closed"
        for pending in tuple(self.pending):
            pending.end(Outcome(b"", fault=lost))
        if was_ready:
            self._listener.on_closed(self, cause)

    async def _answer(self, request: ToolRequest, context: CallContext, pending: _Pending) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            value = await self._result(request, context)
            payload = json.dumps(value, ensure_ascii=False).encode()
            outcome = Outcome(payload, value.get("isError") is True)
            if len(payload) > MAX_RESULT and not may_hold_media(payload):
                outcome = Outcome(b"", fault=too_large(self._server.id, len(payload)))
        except Fault as fault:
            outcome = Outcome(b"", fault=fault)
        except Exception as error:
            broken = Fault(Reason.INTERNAL, f"The fake failed: {error!r}", "yes")
            outcome = Outcome(b"", fault=broken)
        pending.leave = lambda: None  # which would cancel this task
        lost = outcome.fault
        if lost is not None and lost.reason is Reason.SERVER_LOST and self._server.stateful:
            self._end(lost, lost)
        pending.end(outcome)

    async def _result(self, request: ToolRequest, context: CallContext) -> dict[str, Any]:
        params: dict[str, Any] = json.loads(request.arguments or b"{}")
        registry, server = self._servers.registry, self._server.id
        match request.method:
            case "":
                tool = registry.find_original(server, request.name)
                return await self._run(tool, params, context)
            case "prompts/get":
                prompt = registry.find_prompt(server, params["name"])
                return await prompt.get(params.get("arguments") or {}, context)
            case "resources/read":
                return registry.find_resource(server, params["uri"]).read()
            case "completion/complete":
                return self._complete(params)
        raise Fault(Reason.INVALID_REQUEST, f"There is no method {request.method[:64]} to call.")

    async def _run(
        self, tool: FakeTool, arguments: dict[str, Any], context: CallContext
    ) -> dict[str, Any]:
        self._servers.calls.append(
            RecordedCall(
                tool.name,
                tool.server_id,
                arguments,
                context.session,
                context.tenant,
                context.agent,
                context.lease_id,
            )
        )
        await self._servers.behaviour.meet(tool.name)
        values = tool.bind(arguments, context)
        try:
            with held_to_its_call():
                if inspect.iscoroutinefunction(tool.function):
                    value = await tool.function(**values)
                else:
                    work = partial(copy_context().run, tool.function, **values)
                    value = await self._loop.run_in_executor(self._servers.threads, work)
        except Fault:
            raise
        except LeasewayError as error:
            raise fault_of(error) from error
        except Exception as error:
            return failure(error)
        return result_of(value)

    def _complete(self, params: dict[str, Any]) -> dict[str, Any]:
        ref, argument = params["ref"], params["argument"]
        registry, server = self._servers.registry, self._server.id
        offer: FakePrompt | FakeTemplate
        if ref.get("type") == "ref/prompt":
            offer = registry.find_prompt(server, ref["name"])
        else:
            offer = registry.find_template(server, ref["uri"])
        known = offer.completions.get(argument["name"], ())
        fit = [value for value in known if value.startswith(argument["value"])]
        some = fit[:_MOST_VALUES]
        more = len(fit) > len(some)
        return {"completion": {"values": some, "total": len(fit), "hasMore": more}}

    def _context(self, request: ToolRequest, done: Callable[[Outcome], None]) -> CallContext:
        """Return what a function may know of its call; who makes it, only the worker knows."""
        active: Any = getattr(done, "__self__", None)
        assert isinstance(active, ActiveCall), "a worker hands in the end of one of its calls"
        call = active.call
        name = request.name
        if not request.method:
            name = self._servers.registry.find_original(self._server.id, name).name
        return CallContext(
            tool=name,
            tenant=call.tenant or DEFAULT_TENANT,
            agent=call.agent,
            session=call.session,
            lease_id=active.lease.id if active.lease is not None else "",
            state=self._state,
            _line=self._line(request),
        )

    def _line(self, request: ToolRequest) -> Line:
        progress, log = request.on_progress, request.on_log
        return Line(
            progress=None if progress is None else lambda *told: self._here(progress, *told),
            log=None if log is None else lambda *told: self._here(log, *told),
            log_level=request.log_level,
            ask=partial(self._ask, request),
            answers=request.answers,
        )

    def _ask(self, request: ToolRequest, method: str, params: bytes) -> asyncio.Future[bytes]:
        reply: asyncio.Future[bytes] = self._loop.create_future()

        def answered(result: bytes) -> None:
            if not reply.done():
                reply.set_result(result)

        def refused(_code: int, message: str) -> None:
            if not reply.done():
                reply.set_exception(Fault(Reason.INPUT_REQUIRED, message, started="yes"))

        ask = Ask(method, params, answered, refused)
        reply.add_done_callback(lambda _: ask.withdraw() if reply.cancelled() else None)
        assert request.on_ask is not None
        request.on_ask(ask)
        return reply

    def _here(self, tell: Callable[..., None], *told: Any) -> None:
        """Tell something in the loop: at once from there, else as soon as it may."""
        if threading.get_ident() == self._thread:
            tell(*told)
        else:
            self._loop.call_soon_threadsafe(tell, *told)
