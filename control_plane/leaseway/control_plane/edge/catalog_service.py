"""What tools exist and where they can be called: the part that callers ask (DESIGN §4)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from leaseway.control_plane.core.lookup import (
    Denied,
    Waiting,
    find_tool,
    not_served,
    pending_for,
    variants_of,
    workers_for,
)
from leaseway.control_plane.core.snapshot import ToolTarget
from leaseway.control_plane.edge import answers
from leaseway.control_plane.edge.callers import check_client, tenant_of, time_left
from leaseway.control_plane.edge.plane import Plane
from leaseway.v1 import catalog_pb2, catalog_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.fault import Fault, Reason, abort
from leaseway.wire.names import ALL_TENANTS
from leaseway.wire.spec import VariantKey

__all__ = ["CatalogService"]

_MAX_NAMES = 1_000
_PAGE_SIZE = bounds.MAX_MESSAGE - 16 * bounds.KIB  # the rest is for what is not tools
_TOOL_OVERHEAD = 8
_HEARTBEAT = 30.0

_ListContext = grpc.aio.ServicerContext[catalog_pb2.ListToolsRequest, catalog_pb2.ListToolsResponse]
_ResolveContext = grpc.aio.ServicerContext[
    catalog_pb2.ResolveToolsRequest, catalog_pb2.ResolveToolsResponse
]
_WatchContext = grpc.aio.ServicerContext[
    catalog_pb2.WatchToolsRequest, catalog_pb2.WatchToolsResponse
]
_ServersContext = grpc.aio.ServicerContext[
    catalog_pb2.ListServersRequest, catalog_pb2.ListServersResponse
]


class CatalogService(catalog_pb2_grpc.CatalogServiceServicer):
    """Answers from the registry that workers have acknowledged."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def ListTools(  # noqa: N802
        self, request: catalog_pb2.ListToolsRequest, context: _ListContext
    ) -> catalog_pb2.ListToolsResponse:
        """List one page of tools, ordered by name."""
        await check_client(request.client, context)
        await self._established(context)
        state = self._plane.state
        tenant = tenant_of(request.tenant)
        response = catalog_pb2.ListToolsResponse(
            registry_version=state.visible.version,
            config_loaded_at=answers.timestamp(state.config_loaded_at),
            pending=pending_for(state, tenant),
        )
        wanted = set(request.servers)
        size = 0
        for name, target in state.visible.view(tenant).tools.items():
            if name <= request.page_token:
                continue
            if wanted and target.served.key.server_id not in wanted:
                continue
            tool = answers.tool(name, target)
            size += tool.ByteSize() + _TOOL_OVERHEAD
            if response.tools and size > _PAGE_SIZE:
                response.next_page_token = response.tools[-1].name
                break
            response.tools.append(tool)
        return response

    async def ResolveTools(  # noqa: N802
        self, request: catalog_pb2.ResolveToolsRequest, context: _ResolveContext
    ) -> catalog_pb2.ResolveToolsResponse:
        """Find out where names lead; waits for first starts (DESIGN §7)."""
        await check_client(request.client, context)
        if len(request.names) > _MAX_NAMES:
            message = f"{len(request.names)} names in one request; at most {_MAX_NAMES} are taken."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        await self._established(context)
        tenant = tenant_of(request.tenant)
        outcomes = [await self._find(tenant, name, context) for name in request.names]
        return catalog_pb2.ResolveToolsResponse(
            tools=[
                self._resolved(name, outcome)
                for name, outcome in zip(request.names, outcomes, strict=True)
            ],
            registry_version=self._plane.state.visible.version,
        )

    async def WatchTools(  # noqa: N802
        self, request: catalog_pb2.WatchToolsRequest, context: _WatchContext
    ) -> AsyncIterator[catalog_pb2.WatchToolsResponse]:
        """Stream what is in force: at once, then whenever tools or their workers change."""
        await check_client(request.client, context)
        tenant = tenant_of(request.tenant)
        seen: tuple[int, object] = (-1, None)
        before: dict[str, str] | None = None
        while True:
            state = self._plane.state
            view = state.visible.view(tenant)
            fleet = frozenset(
                record.hello.address
                for record in state.workers.values()
                if record.takes_work and record.subscription.acked_version >= state.visible.version
            )
            if (state.visible.version, fleet) != seen and state.visible.version:
                workers_changed = before is not None and fleet != seen[1]
                seen = (state.visible.version, fleet)
                now = {key: served.hashes.toolset for key, served in view.servers.items()}
                changed = [] if before is None else _changed(before, now)
                before = now
                yield catalog_pb2.WatchToolsResponse(
                    registry_version=state.visible.version,
                    changed_servers=changed,
                    workers_changed=workers_changed,
                )
            await self._plane.changed(_HEARTBEAT)

    async def ListServers(  # noqa: N802
        self, request: catalog_pb2.ListServersRequest, context: _ServersContext
    ) -> catalog_pb2.ListServersResponse:
        """List configured servers with their state, ordered by id."""
        await check_client(request.client, context)
        await self._established(context)
        state, now = self._plane.state, self._plane.clock()
        tenant = tenant_of(request.tenant)
        keys = (
            {*(state.servers.desired or ()), *state.servers.goods, *state.servers.refused}
            if tenant == ALL_TENANTS
            else set(variants_of(state, tenant).values())
        )
        known = {key.server_id for key in keys}
        keys |= {VariantKey(each) for each in state.servers.rejected if each not in known}
        return catalog_pb2.ListServersResponse(
            servers=[answers.server(state, key, now) for key in sorted(keys)],
            registry_version=state.visible.version,
            config_loaded_at=answers.timestamp(state.config_loaded_at),
            pending=state.pending if tenant == ALL_TENANTS else pending_for(state, tenant),
        )

    async def _established(self, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        """Wait for the first registry of a control plane that has just started."""
        while not self._plane.state.visible.version:
            left = min(
                self._plane.state.settling_left(self._plane.clock()), time_left(context, 60.0)
            )
            if left <= 0.0:
                return
            await self._plane.changed(left)

    async def _find(self, tenant: str, name: str, context: _ResolveContext) -> ToolTarget | Denied:
        while True:
            outcome = find_tool(self._plane.state, tenant, name, self._plane.clock())
            if not isinstance(outcome, Waiting):
                return outcome
            # A little before the caller gives up, so that it learns what it waited for.
            left = time_left(context, bounds.STARTUP_TIMEOUT) - 0.1
            if left <= 0.0:
                waited = ", ".join(outcome.servers[:5])
                message = f"No first result yet from: {waited}. Try again, or allow more time."
                metadata = {"server": outcome.servers[0]}
                return Denied(Reason.SERVER_NOT_READY, message, 0.5, metadata)
            await self._plane.changed(left)

    def _resolved(self, name: str, outcome: ToolTarget | Denied) -> catalog_pb2.ResolvedTool:
        if isinstance(outcome, Denied):
            return answers.resolved(name, outcome, [])
        workers = workers_for(self._plane.state, outcome.served)
        if not workers:
            return answers.resolved(name, not_served(outcome.served.key.server_id), [])
        return answers.resolved(name, outcome, workers)


def _changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
