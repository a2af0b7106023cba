"""The control plane of a fake: what exists, and which worker holds leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from leaseway.sdk.testing.lease_table import FakeLease, LeaseTable
from leaseway.sdk.testing.paging import page_of
from leaseway.sdk.testing.registry import Registry
from leaseway.v1 import catalog_pb2, catalog_pb2_grpc, leases_pb2, leases_pb2_grpc
from leaseway.wire.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.durations import seconds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.status import abort, status_from_fault

_RETRY: Final = 0.1


class FakeControlPlane(
    catalog_pb2_grpc.CatalogServiceServicer,
    leases_pb2_grpc.PlacementServiceServicer,
):
    """Answers what clients ask of a control plane; lives in one event loop.

    Args:
        registry: What is offered.
        leases: What is held.
        capacity: How many leases there is room for.

    Attributes:
        worker: Where the worker is.
    """

    def __init__(self, registry: Registry, leases: LeaseTable, capacity: int) -> None:
        self._registry = registry
        self._leases = leases
        self._capacity = capacity
        self._watchers: set[asyncio.Event] = set()
        self.worker = catalog_pb2.WorkerRef()

    def changed(self) -> None:
        """Tell watchers that the registry has another version."""
        for watcher in self._watchers:
            watcher.set()

    async def ListTools(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List one page of tools."""
        await self._check(request, context)
        tools = [((one.name,), one) for one in self._registry.messages(list(request.servers))]
        page, token = await page_of("ListTools", tools, request, context)
        answer = catalog_pb2.ListToolsResponse(
            tools=page, registry_version=self._registry.version, next_page_token=token
        )
        answer.config_loaded_at.GetCurrentTime()
        return answer

    async def ListPrompts(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List one page of prompts."""
        await self._check(request, context)
        found = self._registry.prompt_messages(list(request.servers))
        prompts = [((one.name,), one) for one in found]
        page, token = await page_of("ListPrompts", prompts, request, context)
        return catalog_pb2.ListPromptsResponse(
            registry_version=self._registry.version, prompts=page, next_page_token=token
        )

    async def ListResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List one page of resources, and of templates behind them."""
        await self._check(request, context)
        found = self._registry.resource_messages(list(request.servers))
        resources = [((str(int(one.is_template)), one.server_id, one.uri), one) for one in found]
        page, token = await page_of("ListResources", resources, request, context)
        return catalog_pb2.ListResourcesResponse(
            registry_version=self._registry.version, resources=page, next_page_token=token
        )

    async def _check(self, request: Any, context: Any) -> None:
        try:
            self._registry.check_servers(list(request.servers))
        except Fault as fault:
            await abort(context, fault)

    async def ResolveTools(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Find out where names lead."""
        answer = catalog_pb2.ResolveToolsResponse(registry_version=self._registry.version)
        for name in request.names:
            resolved = answer.tools.add(name=name)
            try:
                self._resolve(request, name, resolved)
            except Fault as fault:
                resolved.error.CopyFrom(status_from_fault(fault))
        return answer

    def _resolve(
        self,
        request: catalog_pb2.ResolveToolsRequest,
        name: str,
        resolved: catalog_pb2.ResolvedTool,
    ) -> None:
        if request.kind == catalog_pb2.NAME_KIND_PROMPT:
            prompt = self._registry.find_prompt(request.server_id, name)
            self._lead(resolved, prompt.server_id, prompt.original_name)
        elif request.kind == catalog_pb2.NAME_KIND_RESOURCE:
            resource = self._registry.find_resource(request.server_id, name)
            self._lead(resolved, resource.server_id, name)
        else:
            self._resolve_tool(name, resolved)
        resolved.workers.append(self.worker)

    def _lead(self, resolved: catalog_pb2.ResolvedTool, server_id: str, original: str) -> None:
        resolved.server_id, resolved.original_name = server_id, original
        resolved.shared = not self._registry.servers[server_id].stateful

    def _resolve_tool(self, name: str, resolved: catalog_pb2.ResolvedTool) -> None:
        original = name.removeprefix(f"{ADMIN_TOOLSET}:")
        if original in TOOL_DEFINITIONS and self._registry.leased:
            resolved.server_id, resolved.original_name = ADMIN_TOOLSET, original
            resolved.shared = True
        else:
            tool = self._registry.find(name)
            self._lead(resolved, tool.server_id, tool.original_name)
            resolved.idempotent = tool.annotations.get("idempotentHint") is True
            resolved.read_only = tool.annotations.get("readOnlyHint") is True

    async def WatchTools(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Stream registry versions."""
        wake = asyncio.Event()
        self._watchers.add(wake)
        try:
            while True:
                yield catalog_pb2.WatchToolsResponse(registry_version=self._registry.version)
                await wake.wait()
                wake.clear()
        finally:
            self._watchers.discard(wake)

    async def ListServers(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List one page of servers."""
        servers = [((name,), self._server(name)) for name in sorted(self._registry.servers)]
        page, token = await page_of("ListServers", servers, request, context)
        return catalog_pb2.ListServersResponse(
            registry_version=self._registry.version, servers=page, next_page_token=token
        )

    def _server(self, name: str) -> catalog_pb2.ServerStatus:
        registry = self._registry
        shared = not registry.servers[name].stateful
        resources = (*registry.resources, *registry.templates)
        status = catalog_pb2.ServerStatus(
            server_id=name,
            state=catalog_pb2.SERVER_STATE_READY,
            transport="builtin",
            shared=shared,
            tool_count=sum(tool.server_id == name for tool in registry.tools.values()),
            prompt_count=sum(prompt.server_id == name for prompt in registry.prompts.values()),
            resource_count=sum(owner == name for owner, _ in resources),
            workers=[self.worker.id],
        )
        leases = [self._leases.message(one) for one in self._leases.held]
        held = {one.instance_id: one.id for one in leases if one.server_id == name}
        for instance, lease in ({f"{name}-1": ""} if shared else held).items():
            status.instances.add(
                worker_id=self.worker.id,
                id=instance,
                state="ready",
                lease_id=lease,
                starts=1,
                role="shared" if shared else "leased",
                circuit="closed",
            )
        return status

    async def Place(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Send a lease to the one worker, as soon as there is room."""
        try:
            held = await self._place(request)
        except Fault as fault:
            await abort(context, fault)
        return leases_pb2.PlaceResponse(
            worker=self.worker,
            registry_version=self._registry.version,
            lease_id=held.id if held is not None else "",
        )

    async def _place(self, request: leases_pb2.PlaceRequest) -> FakeLease | None:
        server = self._registry.servers.get(request.server_id)
        if server is None:
            message = f"There is no server '{request.server_id}'."
            raise Fault(Reason.TOOL_NOT_FOUND, message)
        if not server.stateful:
            raise Fault(
                Reason.NOT_LEASABLE,
                f"Server '{server.id}' is shared and there is nothing to lease. Call its tools "
                "directly.",
                metadata={"server": server.id},
            )
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds(request.wait)
        while True:
            tenant = request.tenant or DEFAULT_TENANT
            held = self._leases.find(tenant, request.session, server.id)
            if held is not None or len(self._leases.held) < self._capacity:
                return held
            self._leases.changed.clear()
            try:
                async with asyncio.timeout_at(give_up):
                    await self._leases.changed.wait()
            except TimeoutError:
                message = f"All {self._capacity} leases that there is room for are held."
                raise Fault(Reason.CAPACITY, message, retry_delay=_RETRY) from None

    async def FindLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Find the lease of a session."""
        tenant = request.tenant or DEFAULT_TENANT
        held = self._leases.find(tenant, request.session, request.server_id)
        if held is None:
            return leases_pb2.FindLeaseResponse()
        return leases_pb2.FindLeaseResponse(worker=self.worker, lease_id=held.id)
