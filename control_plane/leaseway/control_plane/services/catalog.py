"""What tools, prompts and resources exist, and where: the part that callers ask (DESIGN §4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import Any

import grpc

from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS
from leaseway.control_plane.core.catalog.snapshot import NamedTarget, ResourceTarget, View
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.queries.place import (
    not_served,
    pending_for,
    variants_of,
    workers_for,
)
from leaseway.control_plane.core.queries.resolve import find_name, find_resource, unknown_server
from leaseway.control_plane.core.workers.records import VisibleState
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages, pages
from leaseway.control_plane.services import messages as answers
from leaseway.control_plane.services.requests import (
    check_client,
    counted,
    page_of,
    placements,
    tenant_of,
    time_left,
    watchers,
)
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import SEES_ALL
from leaseway.spec.model import VariantKey
from leaseway.v1 import catalog_pb2, catalog_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.pages import fitting, one_page
from leaseway.wire.names import ALL_TENANTS
from leaseway.wire.status import abort

_MAX_NAMES = 1_000
_FIRST_ACK = 2.0
"""Seconds for which callers wait until a worker that is there has taken the first registry."""
_TOGETHER = 0.05
"""Seconds for which a watcher that was told something is told nothing more."""

_Outcome = NamedTarget | ResourceTarget | Denial
_ListContext = grpc.aio.ServicerContext[catalog_pb2.ListToolsRequest, catalog_pb2.ListToolsResponse]
_PromptsContext = grpc.aio.ServicerContext[
    catalog_pb2.ListPromptsRequest, catalog_pb2.ListPromptsResponse
]
_ResourcesContext = grpc.aio.ServicerContext[
    catalog_pb2.ListResourcesRequest, catalog_pb2.ListResourcesResponse
]
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
        self._resolving = placements()
        self._watchers = watchers()

    async def ListTools(  # noqa: N802
        self, request: catalog_pb2.ListToolsRequest, context: _ListContext
    ) -> catalog_pb2.ListToolsResponse:
        """List one page of tools, ordered by name."""
        await check_client(request.client, context, request.tenant)
        start = await page_of("ListTools", request, context)
        await self._established(context)
        state = self._plane.state
        tenant = tenant_of(request.tenant)
        wanted = await self._wanted(tenant, request.servers, context)
        named = state.visible.view(tenant, request.client.agent).tools
        names = (((name,), name) for name in named if _is_wanted(named[name], wanted))
        tools, token = one_page(start, names, lambda name: messages.tool(name, named[name]))
        return catalog_pb2.ListToolsResponse(
            tools=tools,
            registry_version=state.visible.version,
            config_loaded_at=answers.timestamp(state.config_loaded_at),
            pending=pending_for(state, tenant),
            next_page_token=token,
        )

    async def ListPrompts(  # noqa: N802
        self, request: catalog_pb2.ListPromptsRequest, context: _PromptsContext
    ) -> catalog_pb2.ListPromptsResponse:
        """List one page of prompts, ordered by name."""
        await check_client(request.client, context, request.tenant)
        start = await page_of("ListPrompts", request, context)
        await self._established(context)
        state = self._plane.state
        tenant = tenant_of(request.tenant)
        wanted = await self._wanted(tenant, request.servers, context)
        named = state.visible.view(tenant, request.client.agent).prompts
        names = (((name,), name) for name in named if _is_wanted(named[name], wanted))
        prompts, token = one_page(start, names, lambda name: messages.prompt(name, named[name]))
        return catalog_pb2.ListPromptsResponse(
            prompts=prompts,
            registry_version=state.visible.version,
            pending=pending_for(state, tenant),
            next_page_token=token,
        )

    async def ListResources(  # noqa: N802
        self, request: catalog_pb2.ListResourcesRequest, context: _ResourcesContext
    ) -> catalog_pb2.ListResourcesResponse:
        """List one page of resources, ordered by server and URI; templates after them."""
        await check_client(request.client, context, request.tenant)
        start = await page_of("ListResources", request, context)
        await self._established(context)
        state = self._plane.state
        tenant = tenant_of(request.tenant)
        wanted = await self._wanted(tenant, request.servers, context)
        places = _places(state.visible.view(tenant, request.client.agent))
        targets = ((place, target) for place, target in places if _is_wanted(target, wanted))
        resources, token = one_page(start, targets, messages.resource)
        return catalog_pb2.ListResourcesResponse(
            resources=resources,
            registry_version=state.visible.version,
            pending=pending_for(state, tenant),
            next_page_token=token,
        )

    async def ResolveTools(  # noqa: N802
        self, request: catalog_pb2.ResolveToolsRequest, context: _ResolveContext
    ) -> catalog_pb2.ResolveToolsResponse:
        """Find out where names lead; waits for first starts (DESIGN §7)."""
        await check_client(request.client, context, request.tenant)
        if len(request.names) > _MAX_NAMES:
            message = f"{len(request.names)} names in one request; at most {_MAX_NAMES} are taken."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        tenant = tenant_of(request.tenant)
        async with counted(self._resolving, tenant, context, self._plane):
            await self._established(context)
            version, outcomes = await self._find(tenant, request, context)
        found = zip(request.names, outcomes, strict=True)
        tools = fitting(self._resolved(name, outcome) for name, outcome in found)
        return catalog_pb2.ResolveToolsResponse(tools=tools, registry_version=version)

    async def WatchTools(  # noqa: N802
        self, request: catalog_pb2.WatchToolsRequest, context: _WatchContext
    ) -> AsyncIterator[catalog_pb2.WatchToolsResponse]:
        """Stream what is in now_visible: at once, then whenever tools or their workers change."""
        await check_client(request.client, context, request.tenant)
        tenant = tenant_of(request.tenant)
        async with counted(self._watchers, tenant, context, self._plane):
            async for change in self._changes(tenant):
                yield change

    async def _changes(self, tenant: str) -> AsyncIterator[catalog_pb2.WatchToolsResponse]:
        seen = VisibleState()
        before: Mapping[str, str] | None = None
        while True:
            now_visible = await self._plane.wait_for_visible(seen)
            if not now_visible.version:
                seen = now_visible
                continue
            now = self._plane.state.visible.view(tenant).toolsets
            yield catalog_pb2.WatchToolsResponse(
                registry_version=now_visible.version,
                changed_servers=[] if before is None else _changed(before, now),
                workers_changed=before is not None and now_visible.workers != seen.workers,
            )
            seen, before = now_visible, now
            # A fleet takes a change one worker after the other: what follows soon is told together.
            await asyncio.sleep(_TOGETHER)

    async def ListServers(  # noqa: N802
        self, request: catalog_pb2.ListServersRequest, context: _ServersContext
    ) -> catalog_pb2.ListServersResponse:
        """List one page of configured servers with their state, ordered by id."""
        await check_client(request.client, context, request.tenant)
        start = await page_of("ListServers", request, context)
        await self._established(context)
        state, now = self._plane.state, self._plane.clock()
        tenant = tenant_of(request.tenant)
        keys = (
            {*(state.servers.desired or ()), *state.servers.last_known_good, *state.servers.refused}
            if tenant == ALL_TENANTS
            else set(variants_of(state, tenant).values())
        )
        known = {key.server_id for key in keys}
        if not state.visible.is_restricted or caller().has(SEES_ALL):
            # Whose they are to be is not known: an entry that is refused grants nothing.
            keys |= {VariantKey(each) for each in state.servers.rejected if each not in known}
        servers, token = pages.servers(state, sorted(keys), now, start)
        return catalog_pb2.ListServersResponse(
            servers=servers,
            registry_version=state.visible.version,
            config_loaded_at=answers.timestamp(state.config_loaded_at),
            pending=state.pending_servers if tenant == ALL_TENANTS else pending_for(state, tenant),
            next_page_token=token,
        )

    async def _wanted(
        self,
        tenant: str,
        servers: Collection[str],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> set[str]:
        """Return the servers that a list is to be of, none for all; refuse one that is unknown."""
        denied = unknown_server(self._plane.state, tenant, servers, self._plane.clock())
        if denied is not None:
            await abort(context, answers.denial(denied))
        return set(servers)

    async def _established(self, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        """Wait for the first registry of a control plane that has just started."""
        state = self._plane.state
        patient_until = self._plane.clock().mono + _FIRST_ACK
        while not state.visible.version:
            now = self._plane.clock()
            left = state.settling_remaining(now)
            if state.roster.connected:  # one of them is about to take the first registry
                left = max(left, patient_until - now.mono)
            left = min(left, time_left(context, 60.0))
            if left <= 0.0:
                return
            await self._plane.wait_for_change(left)

    async def _find(
        self, tenant: str, request: catalog_pb2.ResolveToolsRequest, context: _ResolveContext
    ) -> tuple[int, list[_Outcome]]:
        """Return where names lead, and the version for which all of that holds or is newer."""
        while True:
            # Taken first: callers keep the answers until they hear of a version above it.
            version = self._plane.state.visible.version
            outcomes = []
            for name in request.names:
                outcomes.append(self._look_for(tenant, name, request))
                if isinstance(outcomes[-1], Denial):
                    await asyncio.sleep(0)  # it was looked for long: others have a turn
            late = [
                name
                for name, outcome in zip(request.names, outcomes, strict=True)
                if isinstance(outcome, PendingServers)
            ]
            if not late or _patience(context) <= 0.0:
                return version, [_ended(outcome) for outcome in outcomes]
            for name in late:
                await self._first_result(tenant, name, request, context)

    async def _first_result(
        self,
        tenant: str,
        name: str,
        request: catalog_pb2.ResolveToolsRequest,
        context: _ResolveContext,
    ) -> None:
        """Wait until a name can be looked for in vain, for as long as the caller waits."""
        while isinstance(self._look_for(tenant, name, request), PendingServers):
            left = _patience(context)
            if left <= 0.0:
                return
            await self._plane.wait_for_change(left)

    def _look_for(
        self, tenant: str, name: str, request: catalog_pb2.ResolveToolsRequest
    ) -> _Outcome | PendingServers:
        state, now = self._plane.state, self._plane.clock()
        match request.kind:
            case catalog_pb2.NAME_KIND_RESOURCE:
                return find_resource(state, tenant, name, now, request.server_id)
            case catalog_pb2.NAME_KIND_PROMPT:
                return find_name(state, tenant, name, now, PROMPTS, request.server_id)
            case _:
                return find_name(state, tenant, name, now, TOOLS, request.server_id)

    def _resolved(self, name: str, outcome: _Outcome) -> catalog_pb2.ResolvedTool:
        if isinstance(outcome, Denial):
            return messages.resolved(name, outcome, [])
        workers = workers_for(self._plane.state, outcome.served)
        if not workers:
            refusal = not_served(self._plane.state, outcome.served.key)
            return messages.resolved(name, refusal, [])
        return messages.resolved(name, outcome, workers)


def _patience(context: _ResolveContext) -> float:
    """Return for how long to wait: the caller is told for what, a little before it gives up."""
    return time_left(context, bounds.STARTUP_TIMEOUT) - 0.1


def _ended(outcome: _Outcome | PendingServers) -> _Outcome:
    """Return an outcome as the caller is told it, who waits no longer."""
    if not isinstance(outcome, PendingServers):
        return outcome
    waited = ", ".join(outcome.servers[:5])
    message = f"No first result yet from: {waited}. Try again, or allow more time."
    return Denial(Reason.SERVER_NOT_READY, message, 0.5, {"server": outcome.servers[0]})


def _is_wanted(target: NamedTarget | ResourceTarget, servers: set[str]) -> bool:
    return not servers or target.served.key.server_id in servers


def _places(view: View) -> Iterator[tuple[tuple[str, str, str], ResourceTarget]]:
    """Yield what a view lists, each with its place: the templates come after all resources."""
    for key, target in view.resources.items():
        yield ("resource", *key), target
    for key, target in view.templates.items():
        yield ("template", *key), target


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    if before is now:  # as in most cases: only workers have moved
        return []
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
