"""A Leaseway in this process, for tests of programs that use one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Self, TypeVar

from leaseway.sdk.blocking.client import Client
from leaseway.sdk.blocking.loop_thread import background
from leaseway.sdk.catalog.tools import Tool, tool_from_wire
from leaseway.sdk.client.approvals import OnApproval
from leaseway.sdk.client.client import AsyncClient
from leaseway.sdk.forks import begin_use
from leaseway.sdk.operators.views import (
    LeaseInfo,
    ProblemInfo,
    lease_from_wire,
    problem_from_wire,
)
from leaseway.sdk.testing.instance import FunctionServers, RecordedCall
from leaseway.sdk.testing.planes import Planes
from leaseway.sdk.testing.registry import FakeRegistry
from leaseway.sdk.testing.server import FakeServer
from leaseway.sdk.testing.steering import Steering
from leaseway.sdk.transport.server_requests import OnElicitation, OnSampling, Roots
from leaseway.wire.bounds import MAX_LEASES

_SERVER: Final = "tools"

WorkT = TypeVar("WorkT")


class FakeLeaseway(Steering):
    """A control plane and a worker on ports of the loopback, and functions as tools.

    Use it as `with FakeLeaseway() as fake`, in plain and in async tests; tools may be added before
    and at any time within. Control plane and worker are the real ones, in this process: only the
    MCP servers are functions. There is one worker, and no filters, rules, tenants' variants or
    credentials.

    It needs the extra `leaseway[testing]`. Children that a process forks once it has
    used one cannot use clients.

    Args:
        capacity: How many leases there is room for; more wait, or fail with `Capacity`.

    Attributes:
        address: Where it is, once it runs.
        tool: Makes a function a tool of the shared server `tools`; see `FakeServer.tool`.
        prompt: Makes a function a prompt of that server; see `FakeServer.prompt`.
        resource: Offers a resource of that server; see `FakeServer.resource`.
        resource_template: Makes a function what a template of that server stands for; see
            `FakeServer.resource_template`.
    """

    def __init__(self, *, capacity: int = MAX_LEASES) -> None:
        self._capacity = capacity
        self._planes: Planes | None = None
        self._thread = 0
        self._clients: list[Client] = []
        self._changing: set[asyncio.Task[None]] = set()
        self._registry = FakeRegistry(self._changed)
        self._servers = FunctionServers(self._registry)
        self.address = ""
        tools = self.server(_SERVER)
        self.tool = tools.tool
        self.prompt = tools.prompt
        self.resource = tools.resource
        self.resource_template = tools.resource_template

    def __enter__(self) -> Self:
        begin_use()
        background().run(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        background().run(self._stop)

    def server(self, server_id: str, *, stateful: bool = False, prefix: str = "") -> FakeServer:
        """Offer another server, whose tools are added with its `tool`.

        Args:
            server_id: Its id.
            stateful: Whether each session leases a client of its own, with a state of its own.
            prefix: What the exposed names of its tools begin with.

        Raises:
            ValueError: The id is taken, or none that a server may have.
        """
        return FakeServer(
            self._registry, server_id, stateful=stateful, prefix=prefix, on_update=self._updated
        )

    def remove_tool(self, name: str) -> None:
        """Offer a tool no more, as after a reload.

        Raises:
            ValueError: There is none of that name.
        """
        self._registry.remove(name)

    def client(
        self,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        on_approval: OnApproval | None = None,
    ) -> Client:
        """Return a new synchronous client, closed with the fake at the latest.

        All parameters are those of `Client`; the fake accepts any key.
        """
        client = Client(
            self._running().address,
            agent=agent,
            tenant=tenant,
            key=key,
            on_elicitation=on_elicitation,
            on_sampling=on_sampling,
            roots=roots,
            on_approval=on_approval,
        )
        self._clients.append(client)
        return client

    def async_client(
        self,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        on_approval: OnApproval | None = None,
    ) -> AsyncClient:
        """Return a new asynchronous client, to be used as `async with`; see `client`."""
        return AsyncClient(
            self._running().address,
            agent=agent,
            tenant=tenant,
            key=key,
            on_elicitation=on_elicitation,
            on_sampling=on_sampling,
            roots=roots,
            on_approval=on_approval,
        )

    @property
    def tools(self) -> list[Tool]:
        """What clients see listed, ordered by name."""
        planes = self._running()
        return [tool_from_wire(message) for message in self._do(planes.tools)]

    @property
    def calls(self) -> list[RecordedCall]:
        """The calls that have reached a tool so far, the oldest first; the last 100,000."""
        return self._do(lambda: list(self._servers.calls))

    @property
    def leases(self) -> list[LeaseInfo]:
        """The leases that are held now, the oldest first."""
        return [lease_from_wire(message) for message in self._do(self._running().leases)]

    @property
    def problems(self) -> list[ProblemInfo]:
        """What clients have reported, the one longest not met first."""
        return [problem_from_wire(message) for message in self._do(self._running().problems)]

    def _changed(self) -> None:
        """Serve a change: at once, but for one that a tool of this very fake makes."""
        planes = self._planes
        if planes is None:
            return
        if threading.get_ident() != self._thread:
            background().run(planes.settle)
            return
        task = asyncio.get_running_loop().create_task(planes.settle())
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    def _updated(self, server_id: str, uri: str) -> None:
        self._do(lambda: self._servers.updated(server_id, uri))

    def _do(self, work: Callable[[], WorkT]) -> WorkT:
        """Do something where the fake lives; its state has that one writer."""
        if self._planes is None or threading.get_ident() == self._thread:
            return work()

        async def there() -> WorkT:
            return work()

        return background().run(there)

    def _running(self) -> Planes:
        if self._planes is None:
            raise RuntimeError("The fake does not run: use it as `with FakeLeaseway() as fake`.")
        return self._planes

    async def _start(self) -> None:
        planes = Planes(self._registry, self._servers, self._capacity)
        await planes.start()
        self.address = planes.address
        self._thread = threading.get_ident()
        self._planes = planes

    async def _stop(self) -> None:
        planes, self._planes = self._planes, None
        if planes is not None:
            await planes.stop()
        self._servers.close()

    def __repr__(self) -> str:
        where = self.address if self._planes is not None else "not running"
        return f"<{type(self).__name__} {where}>"
