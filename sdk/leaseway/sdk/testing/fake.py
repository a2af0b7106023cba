"""`FakeLeaseway`: a control plane, a worker and function servers in the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, ParamSpec, Self, TypedDict, TypeVar, Unpack

from leaseway.sdk.blocking.client import Client
from leaseway.sdk.blocking.loop_thread import LOOP_THREAD
from leaseway.sdk.catalog.tools import Tool, tool_from_proto
from leaseway.sdk.client.client import AsyncClient
from leaseway.sdk.client.options import OnApproval
from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.leases.lease import Lease
from leaseway.sdk.operators.views import (
    LeaseInfo,
    ProblemInfo,
    lease_from_proto,
    problem_from_proto,
)
from leaseway.sdk.testing.behaviour import Hold
from leaseway.sdk.testing.instance import FunctionServers, RecordedCall
from leaseway.sdk.testing.planes import Planes
from leaseway.sdk.testing.registry import FakeRegistry
from leaseway.sdk.testing.server import FakeServer
from leaseway.sdk.testing.values import fault_from_error
from leaseway.sdk.transport.forks import mark_grpc_used
from leaseway.sdk.transport.server_requests import OnElicitation, OnSampling, Roots
from leaseway.wire.bounds import MAX_LEASES
from leaseway.wire.messages.states import LeaseOutcome

_DEFAULT_SERVER: Final = "tools"

WorkT = TypeVar("WorkT")
P = ParamSpec("P")


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of `Client` and `AsyncClient`; a fake accepts any key."""

    agent: str | None
    tenant: str | None
    key: str | None
    on_elicitation: OnElicitation | None
    on_sampling: OnSampling | None
    roots: Roots | None
    on_approval: OnApproval | None


class FakeLeaseway:
    """A Leaseway for tests: a real control plane and worker on loopback ports, in this process.

    Only the MCP servers are fake: they are functions. There is one worker, and no name filters,
    rules, tenant overrides or credentials.

    Use it as `with FakeLeaseway() as fake`, in plain and in async tests. Tools may be added before
    the block and at any time inside it, from any thread; a method that changes the fake returns
    once clients see the change. It needs the extra `leaseway[testing]`. After a process has used a
    fake, its forked children cannot use clients.

    Args:
        capacity: The limit of held leases; further ones wait, or fail with `Capacity`.

    Attributes:
        address: The control plane's HOST:PORT; empty before the block.
        tool: Serves a function as a tool of the shared server `tools`; see `FakeServer.tool`.
        prompt: Serves a function as a prompt of that server; see `FakeServer.prompt`.
        resource: Serves a resource of that server; see `FakeServer.resource`.
        resource_template: Serves resources that match a template; see
            `FakeServer.resource_template`.
    """

    def __init__(self, *, capacity: int = MAX_LEASES) -> None:
        self._capacity = capacity
        self._planes: Planes | None = None
        self._loop_thread = 0
        self._clients: list[Client] = []
        self._reconciling: set[asyncio.Task[None]] = set()
        self._registry = FakeRegistry(self._on_change)
        self._servers = FunctionServers(self._registry)
        self.address = ""
        tools = self.server(_DEFAULT_SERVER)
        self.tool = tools.tool
        self.prompt = tools.prompt
        self.resource = tools.resource
        self.resource_template = tools.resource_template

    def __enter__(self) -> Self:
        mark_grpc_used()
        LOOP_THREAD.run(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        LOOP_THREAD.run(self._stop)

    def server(
        self,
        server_id: str,
        *,
        stateful: bool = False,
        prefix: str = "",
        instructions: str = "",
        extensions: Sequence[str] = (),
    ) -> FakeServer:
        """Add a server; add tools with its `tool`.

        Args:
            server_id: The server's id.
            stateful: Whether the server is leased: each session gets its own instance and state.
            prefix: The prefix of the exposed names of its tools and prompts.
            instructions: What it tells models about its use (`AsyncClient.instructions`).
            extensions: The identifiers of its MCP extensions.

        Raises:
            ValueError: The id is taken or invalid.
        """
        return FakeServer(
            self._registry,
            server_id,
            stateful=stateful,
            prefix=prefix,
            instructions=instructions,
            extensions=extensions,
            on_update=self._on_update,
        )

    def remove_tool(self, name: str) -> None:
        """Remove a tool, as a reload of the configuration can.

        Args:
            name: The tool's exposed name.

        Raises:
            ValueError: There is no such tool.
        """
        self._registry.remove_tool(name)

    def client(self, **options: Unpack[ClientOptions]) -> Client:
        """Return a new synchronous client, which the fake closes when its block ends.

        Args:
            **options: The parameters of `Client` except the address. Any key is accepted.

        Raises:
            RuntimeError: The fake is not running.
        """
        client = Client(self._running().address, **options)
        self._clients.append(client)
        return client

    def async_client(self, **options: Unpack[ClientOptions]) -> AsyncClient:
        """Return a new asynchronous client, to be used as `async with`.

        Args:
            **options: As for `client`.

        Raises:
            RuntimeError: The fake is not running.
        """
        return AsyncClient(self._running().address, **options)

    @property
    def tools(self) -> list[Tool]:
        """The tools that clients see, ordered by name."""
        planes = self._running()
        return [tool_from_proto(message) for message in self._run(planes.tools)]

    @property
    def calls(self) -> list[RecordedCall]:
        """The calls that reached a tool, the oldest first; at most the last 100,000."""
        return self._run(list, self._servers.calls)

    @property
    def leases(self) -> list[LeaseInfo]:
        """The held leases, the oldest first."""
        return [lease_from_proto(message) for message in self._run(self._running().leases)]

    @property
    def problems(self) -> list[ProblemInfo]:
        """The problems that clients have reported, the least recently seen first."""
        return [problem_from_proto(message) for message in self._run(self._running().problems)]

    def fail_next(self, tool: str, error: LeasewayError, times: int = 1) -> None:
        """Make the next calls of a tool fail without running its function.

        Clients retry as usual: after an error with `started` `no`, such as `Draining`, the next
        try succeeds unless `times` covers all tries. `ServerLost` on a leased server ends the
        lease.

        Args:
            tool: The tool's exposed name.
            error: The error that the calls fail with.
            times: The number of calls that fail, 1 or more.

        Raises:
            ValueError: There is no such tool.
            TypeError: The error is not a `LeasewayError`.
        """
        if not isinstance(error, LeasewayError):
            raise TypeError(
                "error must be one that clients raise, such as ServerLost('It died.'), not "
                f"{type(error).__name__}. To make the tool itself fail, raise in its function."
            )
        self._registry.check_tool(tool)
        fault = fault_from_error(error)
        self._run(self._servers.behaviour.fail, tool, fault, times)

    def delay_next(self, tool: str, seconds: float, times: int = 1) -> None:
        """Delay the next calls of a tool.

        Args:
            tool: The tool's exposed name.
            seconds: The delay of each call.
            times: The number of calls that are delayed, 1 or more.

        Raises:
            ValueError: There is no such tool.
        """
        self._registry.check_tool(tool)
        self._run(self._servers.behaviour.delay, tool, seconds, times)

    def hold(self, tool: str) -> Hold:
        """Make all calls of a tool wait until a `with` block ends, without any sleeping.

            with fake.hold("build") as hold:
                pending = threads.submit(client.call_tool, "build")
                hold.wait()  # until the call has arrived

        Args:
            tool: The tool's exposed name.

        Raises:
            ValueError: There is no such tool, or its calls are held already.
        """
        self._registry.check_tool(tool)
        behaviour = self._servers.behaviour
        hold = Hold(partial(self._run, behaviour.release, tool))
        self._run(behaviour.hold, tool, hold)
        return hold

    def advance(self, seconds: float) -> None:
        """Advance the planes' clocks: leases that are not renewed meanwhile expire.

        A lease on which a call is running does not expire.

        Args:
            seconds: How far.
        """
        planes = self._running()
        self._run(planes.advance, seconds)
        self._on_change()

    def expire_lease(self, lease: Lease | LeaseInfo | str) -> None:
        """End a lease as if it had not been renewed in time; its calls raise `LeaseExpired`.

        Args:
            lease: The lease, or its id. No-op if the lease is not held.
        """
        self._end_lease(lease, "expired")

    def revoke_lease(self, lease: Lease | LeaseInfo | str, reason: str = "a test did it") -> None:
        """End a lease as an operator would; its calls raise `LeaseRevoked`.

        Args:
            lease: The lease, or its id. No-op if the lease is not held.
            reason: The reason that its holder sees.
        """
        self._end_lease(lease, "revoked", reason)

    def lose_lease(self, lease: Lease | LeaseInfo | str) -> None:
        """End a lease as if its worker or server had died; its calls raise `LeaseLost`.

        Args:
            lease: The lease, or its id. No-op if the lease is not held.
        """
        self._end_lease(lease, "lost", "its instance ended")

    def _end_lease(
        self, lease: Lease | LeaseInfo | str, outcome: LeaseOutcome, reason: str = ""
    ) -> None:
        lease_id = lease if isinstance(lease, str) else lease.id
        planes = self._running()
        self._run(planes.worker.leases.end, lease_id, outcome, reason)
        self._on_change()  # the control plane knows the end before a test advances its clock

    def _on_change(self) -> None:
        """Wait until a change is served, unless a tool of this fake made it in the loop itself."""
        planes = self._planes
        if planes is None:
            return
        if threading.get_ident() != self._loop_thread:
            LOOP_THREAD.run(planes.reconcile)
            return
        task = asyncio.get_running_loop().create_task(planes.reconcile())
        self._reconciling.add(task)
        task.add_done_callback(self._reconciling.discard)

    def _on_update(self, server_id: str, uri: str) -> None:
        self._run(self._servers.notify_subscribers, server_id, uri)

    def _run(self, work: Callable[P, WorkT], *args: P.args, **kwargs: P.kwargs) -> WorkT:
        """Run a function in the planes' event loop, the only place where their state is changed."""
        if self._planes is None or threading.get_ident() == self._loop_thread:
            return work(*args, **kwargs)

        async def run() -> WorkT:
            return work(*args, **kwargs)

        return LOOP_THREAD.run(run)

    def _running(self) -> Planes:
        if self._planes is None:
            raise RuntimeError("The fake does not run: use it as `with FakeLeaseway() as fake`.")
        return self._planes

    async def _start(self) -> None:
        planes = Planes(self._registry, self._servers, self._capacity)
        await planes.start()
        self.address = planes.address
        self._loop_thread = threading.get_ident()
        self._planes = planes

    async def _stop(self) -> None:
        planes, self._planes = self._planes, None
        if planes is not None:
            await planes.stop()
        self._servers.close()

    def __repr__(self) -> str:
        state = self.address if self._planes is not None else "not running"
        return f"<{type(self).__name__} {state}>"
