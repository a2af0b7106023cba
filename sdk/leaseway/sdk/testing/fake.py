"""A Leaseway in this process, for tests of programs that use one."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

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
from leaseway.sdk.testing.admin import FakeAdmin
from leaseway.sdk.testing.approvals import FakeApprovals
from leaseway.sdk.testing.control import FakeControlPlane
from leaseway.sdk.testing.lease_table import LeaseTable
from leaseway.sdk.testing.registry import Registry
from leaseway.sdk.testing.server import FakeServer
from leaseway.sdk.testing.steering import Steering
from leaseway.sdk.testing.worker import FakeWorker, RecordedCall
from leaseway.sdk.transport.server_requests import OnElicitation, OnSampling, Roots
from leaseway.v1 import (
    admin_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    execution_pb2_grpc,
    leases_pb2_grpc,
)
from leaseway.wire.bounds import MAX_LEASES
from leaseway.wire.serving import SERVER_OPTIONS

_WORKER: Final = "fake-worker"
_SERVER: Final = "tools"
_GRACE: Final = 0.2
"""Seconds in which streams of clients that were closed end by themselves."""

WorkT = TypeVar("WorkT")


class FakeLeaseway(Steering):
    """A control plane with one worker on a port of the loopback, and functions as tools.

    Use it as `with FakeLeaseway() as fake`, in plain and in async tests; tools may be added before
    and at any time within. It speaks the true protocol to true clients: arguments are checked
    against schemas, errors are those of a real system, leases are placed, kept alive and end.
    What it lacks: several workers, draining, filters, transforms of names, keys, and calls over
    other RPCs than the SDK's.

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
        self._server: grpc.aio.Server | None = None
        self._thread = 0
        self._clients: list[Client] = []
        incarnation = secrets.token_hex(8)
        self._registry = Registry(self._changed)
        self._leases = LeaseTable(incarnation, _WORKER, self._now)
        self._control = FakeControlPlane(self._registry, self._leases, capacity)
        approvals = FakeApprovals()
        self._admin = FakeAdmin(self._registry, self._leases, capacity, approvals)
        self._worker = FakeWorker(_WORKER, incarnation, self._registry, self._leases, approvals)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            self._running_at(),
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
            self._running_at(),
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
        return [tool_from_wire(message) for message in self._registry.messages([])]

    @property
    def calls(self) -> list[RecordedCall]:
        """The calls that have reached a tool so far, the oldest first; the last 100,000."""
        return self._do(lambda: list(self._worker.calls))

    @property
    def leases(self) -> list[LeaseInfo]:
        """The leases that are held now, the oldest first."""
        return self._do(
            lambda: [lease_from_wire(self._leases.message(one)) for one in self._leases.held]
        )

    @property
    def problems(self) -> list[ProblemInfo]:
        """What clients have reported, the one longest not met first."""
        return self._do(lambda: [problem_from_wire(one) for one in self._admin.problems])

    def _changed(self) -> None:
        if self._server is not None:
            self._do(self._control.changed)

    def _updated(self, server_id: str, uri: str) -> None:
        self._do(lambda: self._worker.requests.changed(server_id, uri))

    def _do(self, work: Callable[[], WorkT]) -> WorkT:
        """Do something where the fake lives; its state has that one writer."""
        if self._server is None or threading.get_ident() == self._thread:
            return work()

        async def there() -> WorkT:
            return work()

        return background().run(there)

    def _running_at(self) -> str:
        if self._server is None:
            raise RuntimeError("The fake does not run: use it as `with FakeLeaseway() as fake`.")
        return self.address

    async def _start(self) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        control: Any = self._control
        admin: Any = self._admin
        worker: Any = self._worker
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(control, server)
        leases_pb2_grpc.add_PlacementServiceServicer_to_server(control, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(worker, server)
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(worker, server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        self._control.worker = self._admin.worker = catalog_pb2.WorkerRef(
            id=_WORKER, incarnation=self._worker.incarnation, address=self.address
        )
        await server.start()
        self._thread = threading.get_ident()
        self._server = server

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_GRACE)
        self._worker.close()

    def __repr__(self) -> str:
        where = self.address if self._server is not None else "not running"
        return f"<{type(self).__name__} {where}>"
