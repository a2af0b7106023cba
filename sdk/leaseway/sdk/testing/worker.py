"""The worker of a fake: checks calls, runs tools, keeps leases."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.testing.approvals import FakeApprovals
from leaseway.sdk.testing.artifacts import FakeArtifacts
from leaseway.sdk.testing.behaviour import Behaviour
from leaseway.sdk.testing.context import CallContext, Line
from leaseway.sdk.testing.exchange import Stream
from leaseway.sdk.testing.faults import fault_of
from leaseway.sdk.testing.functions import FakeTool
from leaseway.sdk.testing.lease_table import FakeLease, LeaseTable
from leaseway.sdk.testing.registry import Registry
from leaseway.sdk.testing.requests import Requests
from leaseway.sdk.testing.values import failure, result_of
from leaseway.v1 import execution_pb2, execution_pb2_grpc, leases_pb2, leases_pb2_grpc
from leaseway.wire.admin import ADMIN_TOOLSET, release_target
from leaseway.wire.bounds import LEASE_TTL, MAX_RESULT
from leaseway.wire.durations import duration, seconds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.status import abort, status_from_fault

_MAX_RECORDED: Final = 100_000
_MAX_THREADS: Final = 64
_UNARY: Final = Fault(
    Reason.INVALID_REQUEST, "leaseway.sdk.testing takes calls of the SDK's clients only."
)


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


class FakeWorker(execution_pb2_grpc.ExecutionServiceServicer, leases_pb2_grpc.LeaseServiceServicer):
    """Executes calls; lives in one event loop.

    Args:
        worker_id: Its id.
        incarnation: This run of it.
        registry: What is offered.
        leases: What is held.
        approvals: Calls that need a person.

    Attributes:
        behaviour: What calls meet before their tool runs.
        requests: What is no tool call.
        calls: The calls that have reached a tool, the oldest first; the last 100,000.
    """

    def __init__(
        self,
        worker_id: str,
        incarnation: str,
        registry: Registry,
        leases: LeaseTable,
        approvals: FakeApprovals,
    ) -> None:
        self.id = worker_id
        self.incarnation = incarnation
        self._registry = registry
        self._leases = leases
        self._approvals = approvals
        self._artifacts = FakeArtifacts(incarnation)
        self._threads = ThreadPoolExecutor(_MAX_THREADS, "leaseway fake tool")
        self.behaviour = Behaviour()
        self.requests = Requests(registry)
        self.calls: deque[RecordedCall] = deque(maxlen=_MAX_RECORDED)

    def close(self) -> None:
        """Let the threads of tools end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def execute(
        self, call: execution_pb2.Call, arguments: bytes, result: execution_pb2.Result, line: Line
    ) -> bytes:
        """Run one call.

        Args:
            call: The call.
            arguments: Its arguments as JSON.
            result: Gets the lease that it acquired or joined.
            line: The way back to its caller.

        Returns:
            The MCP result.

        Raises:
            Fault: Why there is none.

        """
        if call.method:
            lease = self._lease_of(call, result)
            context = self._context(call, call.tool, lease, line)
            asked = self.requests.answer(call, arguments, context)
            return self._payload(await self._on(lease, asked), call)
        if call.server_id == ADMIN_TOOLSET:
            released = self._release_by_tool(call, arguments)
            result.is_error = released.get("isError") is True
            return _encode(released)
        tool = self._registry.find_original(call.server_id, call.tool)
        parsed: dict[str, Any] = json.loads(arguments or b"{}")
        tool.check(parsed)
        if tool.needs_approval:
            stateful = self._registry.servers[call.server_id].stateful
            self._approvals.use(call, parsed, of_session=stateful)
        lease = self._lease_of(call, result)
        context = self._context(call, tool.name, lease, line)
        self.calls.append(
            RecordedCall(
                tool.name,
                tool.server_id,
                parsed,
                call.session,
                context.tenant,
                call.agent,
                context.lease_id,
            )
        )
        value = await self._on(lease, self._run(tool, parsed, context))
        result.is_error = value.get("isError") is True
        return self._payload(value, call)

    def _context(
        self, call: execution_pb2.Call, name: str, lease: FakeLease | None, line: Line
    ) -> CallContext:
        """Return what a function may know of the call that it runs for."""
        tenant = call.tenant or DEFAULT_TENANT
        if lease is not None:
            return CallContext(name, tenant, call.agent, call.session, lease.id, lease.state, line)
        state = self._registry.servers[call.server_id].state
        return CallContext(name, tenant, call.agent, call.session, "", state, line)

    def _payload(self, value: dict[str, Any], call: execution_pb2.Call) -> bytes:
        """Return what its caller gets of a result."""
        return _encode(value if call.inline_media else self._artifacts.replaced(value, call))

    async def _run(
        self, tool: FakeTool, arguments: dict[str, Any], context: CallContext
    ) -> dict[str, Any]:
        await self.behaviour.meet(tool.name)
        values = tool.bind(arguments, context)
        try:
            if inspect.iscoroutinefunction(tool.function):
                value = await tool.function(**values)
            else:
                work = partial(copy_context().run, tool.function, **values)
                loop = asyncio.get_running_loop()
                value = await loop.run_in_executor(self._threads, work)
        except Fault:
            raise
        except LeasewayError as error:
            raise fault_of(error) from error
        except Exception as error:
            return failure(error)
        return result_of(value)

    async def _on(self, lease: FakeLease | None, work: Any) -> dict[str, Any]:
        """Run a call on its lease, which does not expire meanwhile and may end it."""
        if lease is None:
            done: dict[str, Any] = await work
            return done
        task = asyncio.current_task()
        assert task is not None
        lease.calls.add(task)
        try:
            done = await work
        except Fault as fault:
            if fault.reason is Reason.SERVER_LOST:
                lease.calls.discard(task)
                self._leases.end(lease.id, Reason.LEASE_LOST, fault.message)
            raise
        except asyncio.CancelledError:
            if self._leases.holds(lease.id):
                raise
            task.uncancel()
            raise replace(self._leases.how_ended(lease.id), started="yes") from None
        finally:
            lease.calls.discard(task)
            self._leases.renew(lease)
        return done

    def _lease_of(self, call: execution_pb2.Call, result: execution_pb2.Result) -> FakeLease | None:
        """Return the lease that a call runs on, acquired where it needs one and names none."""
        tenant = call.tenant or DEFAULT_TENANT
        if not self._registry.servers[call.server_id].stateful:
            return None
        if call.lease_id:
            return self._leases.get(call.lease_id, tenant, call.session)
        if not call.session:
            message = f"Server '{call.server_id}' is leased: call its tools in a session."
            raise Fault(Reason.SESSION_REQUIRED, message, metadata={"server": call.server_id})
        ttl = seconds(call.lease_ttl) or LEASE_TTL
        lease, created = self._leases.grant(
            tenant,
            call.session,
            call.server_id,
            agent=call.agent,
            acquirer=call.acquirer,
            ttl=ttl,
        )
        (result.new_lease if created else result.joined_lease).CopyFrom(self._leases.message(lease))
        return lease

    def _release_by_tool(self, call: execution_pb2.Call, arguments: bytes) -> dict[str, Any]:
        server_id = release_target(arguments)
        if server_id is None:
            message = f"The arguments of {ADMIN_TOOLSET}:{call.tool} do not fit its input schema."
            violation = ("$.serverId", "it names the server to release")
            raise Fault(Reason.INVALID_ARGUMENTS, message, violations=(violation,))
        held = self._leases.find(call.tenant or DEFAULT_TENANT, call.session, server_id)
        if held is None:
            return failure(ValueError(f"There is nothing to release of server {server_id}."))
        self._leases.end(held.id, Reason.LEASE_RELEASED, "")
        return result_of(f"Released the lease of server {server_id}.")

    async def Exchange(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """Carry calls and their results."""
        await Stream(self, context).run(request_iterator)

    async def CallTool(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Refuse: the SDK's clients use the exchange."""
        await abort(context, _UNARY)

    async def CallToolStreaming(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Refuse likewise."""
        await abort(context, _UNARY)
        yield execution_pb2.CallToolStreamingResponse()  # type: ignore[unreachable]

    async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Stream the bytes of an image or a sound."""
        try:
            async for part in self._artifacts.read(request):
                yield part
        except Fault as fault:
            await abort(context, fault)

    async def ReadLogs(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say that nothing was written: functions have no stderr of their own."""
        return execution_pb2.ReadLogsResponse()

    async def AcquireLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Grant the lease of a session for a server."""
        tenant = request.tenant or DEFAULT_TENANT
        ttl = seconds(request.ttl) or LEASE_TTL
        lease, created = self._leases.grant(
            tenant,
            request.session,
            request.server_id,
            agent=request.client.agent,
            acquirer=request.acquirer,
            ttl=ttl,
        )
        return leases_pb2.AcquireLeaseResponse(lease=self._leases.message(lease), created=created)

    async def ReleaseLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        """End a lease for its holder."""
        try:
            self._leases.get(request.lease_id, request.tenant, request.session)
        except Fault as fault:
            if fault.reason is Reason.LEASE_RELEASED:
                return leases_pb2.ReleaseLeaseResponse(released=False)
            await abort(context, fault)
        self._leases.end(request.lease_id, Reason.LEASE_RELEASED, "")
        return leases_pb2.ReleaseLeaseResponse(released=True)

    async def KeepAlive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Renew leases."""
        return self.renew(request)

    async def ListLeases(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List leases."""
        held = [one for one in self._leases.held if request.tenant in ("", one.tenant)]
        return leases_pb2.ListLeasesResponse(leases=map(self._leases.message, held))

    def renew(self, request: leases_pb2.KeepAliveRequest) -> leases_pb2.KeepAliveResponse:
        """Renew leases and say what became of each."""
        answer = leases_pb2.KeepAliveResponse()
        for lease_id in request.lease_ids:
            renewal = answer.renewals.add(lease_id=lease_id)
            try:
                renewal.ttl.CopyFrom(duration(self._leases.get(lease_id).ttl))
            except Fault as fault:
                renewal.error.CopyFrom(status_from_fault(fault))
        return answer


def _encode(result: dict[str, Any]) -> bytes:
    payload = json.dumps(result, ensure_ascii=False).encode()
    if len(payload) > MAX_RESULT:
        message = f"The result takes {len(payload)} bytes; at most {MAX_RESULT} are allowed."
        raise Fault(Reason.RESULT_TOO_LARGE, message, "yes")
    return payload
