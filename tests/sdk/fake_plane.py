"""A control plane whose responses a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from tests.ports import free_port
from tests.sdk.fake_worker import FakeWorker

from leaseway.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)
from leaseway.wire.channels.serving import SERVER_OPTIONS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import abort, status_from_fault
from leaseway.wire.timing.durations import duration


@dataclass
class FakeTool:
    name: str
    server_id: str
    original_name: str
    shared: bool = True
    idempotent: bool = False
    read_only: bool = False
    call_timeout: float | None = None
    workers: list[FakeWorker] | None = None


class FakeControlPlane(
    catalog_pb2_grpc.CatalogServiceServicer,
    leases_pb2_grpc.PlacementServiceServicer,
    admin_pb2_grpc.AdminServiceServicer,
):
    """Responds with the values of its attributes, which the test sets."""

    def __init__(self) -> None:
        self.tools: dict[str, FakeTool] = {}
        self.of_users: dict[tuple[str, str], FakeTool] = {}
        self.users_changed: list[str] = []
        self.workers: list[FakeWorker] = []
        self.version = 1
        self.page_size = 1000
        self.pending: list[str] = []
        self.prompts: list[catalog_pb2.Prompt] = []
        self.resources: list[catalog_pb2.Resource] = []
        self.introductions: list[catalog_pb2.Introduction] = []
        self.resolves: list[list[str]] = []
        self.worker_set = 0
        self.sets_sent = 0
        self.changed_servers: list[str] | None = None
        self.worker_questions: list[list[str]] = []
        self.says_settled = False
        self.meant: list[tuple[int, str]] = []
        self.places: list[leases_pb2.PlaceRequest] = []
        self.place_faults: list[Fault] = []
        self.finds: list[leases_pb2.FindLeaseRequest] = []
        self.drained: list[str] = []
        self.revoked: list[admin_pb2.RevokeLeaseRequest] = []
        self.resolve_faults: dict[str, Fault] = {}
        self.watch_fault: Fault | None = None
        self.watches_refused = 0
        self.hold_place: asyncio.Event | None = None
        self.hold_resolve: dict[str, asyncio.Event] = {}
        self.clients: list[catalog_pb2.ClientInfo] = []
        self.metadata: list[dict[str, Any]] = []
        self.problems: list[admin_pb2.Problem] = []
        self.events: list[admin_pb2.Event] = []
        self.events_fault: Fault | None = None
        self.absent: set[str] = set()
        self.pages: dict[type, list[Any]] = {}
        self.most_resolved = 1_000
        self.on_list: Callable[[], None] = lambda: None
        self.on_status: Callable[[], None] = lambda: None
        self.on_problem: Callable[[object], None] = lambda _: None
        self.mute = False
        self.address = ""
        self._watchers: set[asyncio.Event] = set()
        self._server: grpc.aio.Server | None = None

    def add(self, server: str, *names: str, **options: Any) -> None:
        for name in names:
            tool = FakeTool(f"{server}_{name}", server, name, **options)
            self.tools[tool.name] = self.tools[f"{server}:{name}"] = tool

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(self, self._server)
        leases_pb2_grpc.add_PlacementServiceServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port or free_port()}")
        self.address = f"127.0.0.1:{bound}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def move(self) -> None:
        """Start a new registry version and notify watchers."""
        self.version += 1
        self.notify()

    def notify(self) -> None:
        """Send watchers the same version again: other workers serve the tools."""
        for watcher in self._watchers:
            watcher.set()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    async def ListTools(self, request: Any, context: Any) -> Any:
        self.clients.append(request.client)
        self.metadata.append(dict(context.invocation_metadata()))
        for server_id in self.absent.intersection(request.servers):
            message = f"There is no server '{server_id}'."
            await abort(context, Fault(Reason.TOOL_NOT_FOUND, message))
        tools = sorted(
            {tool.name: tool for tool in self.tools.values()}.values(), key=lambda tool: tool.name
        )
        page, token = self._page(tools, request)
        answer = catalog_pb2.ListToolsResponse(
            registry_version=self.version, pending=self.pending, next_page_token=token
        )
        answer.config_loaded_at.FromSeconds(1_700_000_000)
        for tool in page:
            answer.tools.add(
                name=tool.name,
                original_name=tool.original_name,
                server_id=tool.server_id,
                title="A title",
                description="What it does.",
                input_schema=b'{"type": "object"}',
                annotations=b'{"readOnlyHint": true}',
                shared=tool.shared,
            )
        self.on_list()
        return answer

    async def ListPrompts(self, request: Any, context: Any) -> Any:
        page, token = self._page(self.prompts, request)
        self.on_list()
        return catalog_pb2.ListPromptsResponse(
            prompts=page,
            registry_version=self.version,
            pending=self.pending,
            next_page_token=token,
        )

    async def ListResources(self, request: Any, context: Any) -> Any:
        page, token = self._page(self.resources, request)
        self.on_list()
        return catalog_pb2.ListResourcesResponse(
            resources=page,
            registry_version=self.version,
            pending=self.pending,
            next_page_token=token,
        )

    async def ListIntroductions(self, request: Any, context: Any) -> Any:
        page, token = self._page(self.introductions, request)
        self.on_list()
        return catalog_pb2.ListIntroductionsResponse(
            introductions=page,
            registry_version=self.version,
            pending=self.pending,
            next_page_token=token,
        )

    def _prepared(self, request: Any, answer: Any) -> Any:
        """Return the requested page of those that a test prepared instead of the answer."""
        pages, number = self.pages.get(type(answer), [answer]), int(request.page_token or 0)
        more = number + 1 < len(pages)
        pages[number].next_page_token = str(number + 1) if more else ""
        return pages[number]

    def _page(self, listed: list[Any], request: Any) -> tuple[list[Any], str]:
        chosen = [
            entry for entry in listed if not request.servers or entry.server_id in request.servers
        ]
        start = int(request.page_token or 0)
        more = start + self.page_size < len(chosen)
        token = str(start + self.page_size) if more else ""
        return chosen[start : start + self.page_size], token

    async def ResolveTools(self, request: Any, context: Any) -> Any:
        self.clients.append(request.client)
        self.resolves.append(list(request.names))
        self.meant.append((request.kind, request.server_id))
        for name in request.names:
            if name in self.hold_resolve:
                await self.hold_resolve[name].wait()
        answer = catalog_pb2.ResolveToolsResponse(registry_version=self.version)
        for name in request.names[: self.most_resolved]:
            resolved = answer.tools.add(name=name)
            own = self.of_users.get((request.client.user, name))
            tool = own or self.tools.get(name)
            resolved.of_user = own is not None
            if name in self.resolve_faults:
                resolved.error.CopyFrom(status_from_fault(self.resolve_faults[name]))
            elif tool is None:
                fault = Fault(Reason.TOOL_NOT_FOUND, f"There is no tool '{name}'.")
                resolved.error.CopyFrom(status_from_fault(fault))
            else:
                resolved.server_id = tool.server_id
                resolved.original_name = tool.original_name
                resolved.shared = tool.shared
                resolved.idempotent = tool.idempotent
                resolved.read_only = tool.read_only
                if tool.call_timeout is not None:
                    resolved.call_timeout.CopyFrom(duration(tool.call_timeout))
                if self.worker_set and request.takes_worker_sets:
                    resolved.worker_set = self.worker_set
                else:
                    workers = self.workers if tool.workers is None else tool.workers
                    resolved.workers.extend(worker.ref for worker in workers)
        if self.worker_set and self.worker_set not in request.known_worker_sets:
            refs = [worker.ref for worker in self.workers]
            answer.worker_sets.add(id=self.worker_set, workers=refs)
            self.sets_sent += 1
        return answer

    async def WatchTools(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if self.watch_fault is not None:
            self.watches_refused += 1
            await abort(context, self.watch_fault)
        wake = asyncio.Event()
        self._watchers.add(wake)
        told = 0
        try:
            while True:
                yield catalog_pb2.WatchToolsResponse(
                    registry_version=self.version,
                    workers_changed=told == self.version and not self.users_changed,
                    users_changed=self.users_changed,
                    names_changed_servers=self.changed_servers is not None and bool(told),
                    changed_servers=self.changed_servers or (),
                )
                told = self.version
                await wake.wait()
                wake.clear()
        finally:
            self._watchers.discard(wake)

    async def ListServers(self, request: Any, context: Any) -> Any:
        answer = catalog_pb2.ListServersResponse(registry_version=self.version)
        for server in sorted({tool.server_id for tool in self.tools.values()}):
            answer.servers.add(
                server_id=server,
                state=catalog_pb2.SERVER_STATE_READY,
                transport="stdio",
                instances=[catalog_pb2.InstanceStatus(worker_id="w1", id="i1", state="ready")],
            )
        return self._prepared(request, answer)

    async def Place(self, request: Any, context: Any) -> Any:
        self.places.append(request)
        await self._speak()
        if self.hold_place is not None:
            await self.hold_place.wait()
        if self.place_faults:
            await abort(context, self.place_faults.pop(0))
        fit = [w for w in self.workers if w.ref.id not in request.exclude_workers]
        if not fit and request.HasField("wait"):
            fit = self.workers  # a waiting request may be placed on an excluded worker
        if not fit:
            await abort(context, Fault(Reason.CAPACITY, "No worker has room.", retry_delay=0.01))
        return leases_pb2.PlaceResponse(worker=fit[0].ref, registry_version=self.version)

    async def FindLease(self, request: Any, context: Any) -> Any:
        self.finds.append(request)
        answer = leases_pb2.FindLeaseResponse()
        for worker in self.workers:
            for lease in worker.leases.values():
                if (lease.session, lease.server_id) == (request.session, request.server_id):
                    return leases_pb2.FindLeaseResponse(worker=worker.ref, lease_id=lease.id)
                if lease.session == request.session and not request.server_id:
                    answer.leases.add(
                        server_id=lease.server_id, lease_id=lease.id, worker=worker.ref
                    )
        return answer

    async def ShareSessionEnds(self, request: Any, context: Any) -> Any:
        return leases_pb2.ShareSessionEndsResponse(run="fake")

    async def _speak(self) -> None:
        if self.mute:
            await asyncio.Event().wait()

    async def GetStatus(self, request: Any, context: Any) -> Any:
        self.on_status()
        await self._speak()
        return admin_pb2.GetStatusResponse(
            ready=True, registry_version=self.version, workers=len(self.workers)
        )

    async def ListWorkers(self, request: Any, context: Any) -> Any:
        self.worker_questions.append(list(request.worker_ids))
        answer = admin_pb2.ListWorkersResponse(settled=self.says_settled)
        for worker in self.workers:
            answer.workers.add(worker=worker.ref, state="connected", capacity=512)
        return self._prepared(request, answer)

    async def ListHeldLeases(self, request: Any, context: Any) -> Any:
        leases = [lease for worker in self.workers for lease in worker.leases.values()]
        return self._prepared(request, admin_pb2.ListHeldLeasesResponse(leases=leases))

    async def ListLimits(self, request: Any, context: Any) -> Any:
        return admin_pb2.ListLimitsResponse()

    async def ListProblems(self, request: Any, context: Any) -> Any:
        answer = admin_pb2.ListProblemsResponse(problems=self.problems)
        return self._prepared(request, answer)

    async def ReportProblem(self, request: Any, context: Any) -> Any:
        self.problems.append(request.problem)
        self.on_problem(request.problem)
        return admin_pb2.ReportProblemResponse()

    async def WatchEvents(self, request: Any, context: Any) -> Any:
        if self.events_fault is not None:
            await abort(context, self.events_fault)
        yield admin_pb2.WatchEventsResponse(events=self.events)

    async def ListCalls(self, request: Any, context: Any) -> Any:
        return admin_pb2.ListCallsResponse()

    async def GetTraffic(self, request: Any, context: Any) -> Any:
        return admin_pb2.GetTrafficResponse()

    async def ListApprovals(self, request: Any, context: Any) -> Any:
        return admin_pb2.ListApprovalsResponse()

    async def ListAuditAnchors(self, request: Any, context: Any) -> Any:
        return admin_pb2.ListAuditAnchorsResponse()

    async def DecideApproval(self, request: Any, context: Any) -> Any:
        return admin_pb2.DecideApprovalResponse()

    async def DrainWorker(self, request: Any, context: Any) -> Any:
        if request.worker_id not in [worker.id for worker in self.workers]:
            message = f"No worker '{request.worker_id}' is connected."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        self.drained.append(request.worker_id)
        return admin_pb2.DrainWorkerResponse()

    async def RevokeLease(self, request: Any, context: Any) -> Any:  # noqa: RET503 - abort raises
        self.revoked.append(request)
        for worker in self.workers:
            if worker.leases.pop(request.lease_id, None) is not None:
                revoked = Fault(Reason.LEASE_REVOKED, f"It was revoked: {request.reason}.")
                worker.lease_faults[request.lease_id] = revoked
                return admin_pb2.RevokeLeaseResponse(ended=True)
        await abort(context, Fault(Reason.LEASE_LOST, f"No worker holds '{request.lease_id}'."))
