"""The catalog service: lists, resolves and watches tools, prompts and resources.

It also lists what servers say about themselves.

See design.md#names-and-versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS
from leaseway.control_plane.core.catalog.snapshot import NamedTarget, ResourceTarget, View
from leaseway.control_plane.core.catalog.subjects import ALL_USERS, Reader
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.queries.awaited import find_awaited
from leaseway.control_plane.core.queries.list_for import request as request_listing
from leaseway.control_plane.core.queries.list_for import unlisted
from leaseway.control_plane.core.queries.place import (
    not_served,
    workers_for,
)
from leaseway.control_plane.core.queries.resolve import find_name, find_resource, unknown_server
from leaseway.control_plane.core.workers.records import VisibleState
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages, pages
from leaseway.control_plane.services.requests import (
    check_client,
    counted,
    page_of,
    placements,
    tenant_of,
    time_left,
    watchers,
)
from leaseway.control_plane.services.worker_sets import WorkerSets
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import SEES_ALL
from leaseway.spec.model import VariantKey
from leaseway.v1 import catalog_pb2, catalog_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.pages import PageStart, fitting, one_page
from leaseway.wire.names import ALL_TENANTS, split_qualified
from leaseway.wire.status import abort

_MAX_NAMES = 1_000
_FIRST_ACK_TIMEOUT = 2.0
"""Seconds that callers wait for a connected worker to acknowledge the first registry."""
_SUBJECT_LISTING_WAIT = 3.0
"""Seconds that a list waits for servers that list for its tenant or user first: one that hangs must
not keep the tools of the others back for long."""
_MAX_USERS_CHANGED = 256
_MAX_SETS = 16
"""Sets of workers in a response."""
_WATCH_INTERVAL = 0.05
"""Minimum seconds between two messages of a watch."""

_MessageT = TypeVar("_MessageT", bound=Message)
_Outcome = NamedTarget | ResourceTarget | Denial
_Context = grpc.aio.ServicerContext[Any, Any]
_CallerListRequest = (
    catalog_pb2.ListToolsRequest
    | catalog_pb2.ListPromptsRequest
    | catalog_pb2.ListResourcesRequest
    | catalog_pb2.ListIntroductionsRequest
)
_ListRequest = _CallerListRequest | catalog_pb2.ListServersRequest


@dataclass(frozen=True)
class _CallerList:
    """A list of what a caller sees.

    Attributes:
        start: The start of the page that the caller wants.
        servers: The servers that it names; none stands for all.
        version: The registry version of that.
        pending: The servers that have not been listed yet, in general or for the caller.
    """

    start: PageStart
    servers: Set[str]
    view: View
    version: int
    pending: Sequence[str]

    def includes(self, server_id: str) -> bool:
        """Return whether the caller lists a server."""
        return not self.servers or server_id in self.servers

    def page_of_named(
        self, targets: Mapping[str, NamedTarget], message: Callable[[str, NamedTarget], _MessageT]
    ) -> tuple[list[_MessageT], str]:
        """Return a page of targets, which are ordered by name, and the next page's token."""
        names = (
            ((name,), name)
            for name, target in targets.items()
            if self.includes(target.served.key.server_id)
        )
        return one_page(self.start, names, lambda name: message(name, targets[name]))


class CatalogService(catalog_pb2_grpc.CatalogServiceServicer):
    """Serves the registry that workers have acknowledged."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._inspector = Inspector(plane)
        self._worker_sets = WorkerSets()
        self._resolving = placements()
        self._watchers = watchers()

    async def ListTools(  # noqa: N802
        self, request: catalog_pb2.ListToolsRequest, context: _Context
    ) -> catalog_pb2.ListToolsResponse:
        """List one page of tools, ordered by name."""
        listing = await self._start_caller_list("ListTools", request, context)
        tools, token = listing.page_of_named(listing.view.tools, messages.tool)
        return catalog_pb2.ListToolsResponse(
            tools=tools,
            registry_version=listing.version,
            config_loaded_at=messages.timestamp(self._plane.state.config_loaded_at),
            pending=listing.pending,
            next_page_token=token,
        )

    async def ListPrompts(  # noqa: N802
        self, request: catalog_pb2.ListPromptsRequest, context: _Context
    ) -> catalog_pb2.ListPromptsResponse:
        """List one page of prompts, ordered by name."""
        listing = await self._start_caller_list("ListPrompts", request, context)
        prompts, token = listing.page_of_named(listing.view.prompts, messages.prompt)
        return catalog_pb2.ListPromptsResponse(
            prompts=prompts,
            registry_version=listing.version,
            pending=listing.pending,
            next_page_token=token,
        )

    async def ListResources(  # noqa: N802
        self, request: catalog_pb2.ListResourcesRequest, context: _Context
    ) -> catalog_pb2.ListResourcesResponse:
        """List one page of resources, then templates, ordered by server and URI."""
        listing = await self._start_caller_list("ListResources", request, context)
        targets = (
            (key, target)
            for key, target in _resources(listing.view)
            if listing.includes(target.served.key.server_id)
        )
        resources, token = one_page(listing.start, targets, messages.resource)
        return catalog_pb2.ListResourcesResponse(
            resources=resources,
            registry_version=listing.version,
            pending=listing.pending,
            next_page_token=token,
        )

    async def ListIntroductions(  # noqa: N802
        self, request: catalog_pb2.ListIntroductionsRequest, context: _Context
    ) -> catalog_pb2.ListIntroductionsResponse:
        """List one page of what servers say about themselves, ordered by server."""
        listing = await self._start_caller_list("ListIntroductions", request, context)
        entries = (
            ((server_id,), (server_id, introduction))
            for server_id, introduction in listing.view.introductions.items()
            if listing.includes(server_id)
        )
        introductions, token = one_page(listing.start, entries, messages.introduction)
        return catalog_pb2.ListIntroductionsResponse(
            introductions=introductions,
            registry_version=listing.version,
            pending=listing.pending,
            next_page_token=token,
        )

    async def ListServers(  # noqa: N802
        self, request: catalog_pb2.ListServersRequest, context: _Context
    ) -> catalog_pb2.ListServersResponse:
        """List one page of configured servers with their state, ordered by id."""
        start, tenant = await self._start_list("ListServers", request, context)
        state, now = self._plane.state, self._plane.clock()
        all_tenants = tenant == ALL_TENANTS
        keys = (
            state.servers.known if all_tenants else set(state.servers.variants_of(tenant).values())
        )
        known = {key.server_id for key in keys}
        if not state.visible.is_restricted or caller().has(SEES_ALL):
            # The tenants of a rejected entry are unknown, as it grants nothing.
            keys |= {
                VariantKey(server_id)
                for server_id in state.servers.rejected
                if server_id not in known
            }
        servers, token = pages.servers(state, sorted(keys), now, start)
        if request.load and caller().has(SEES_ALL):  # the counts include calls of all tenants
            loads = await self._inspector.loads()
            for server in servers:
                server.load.CopyFrom(loads.of_server(server.server_id))
        return catalog_pb2.ListServersResponse(
            servers=servers,
            registry_version=state.visible.version,
            config_loaded_at=messages.timestamp(state.config_loaded_at),
            pending=state.pending.servers if all_tenants else state.pending.of(tenant),
            next_page_token=token,
        )

    async def ResolveTools(  # noqa: N802
        self, request: catalog_pb2.ResolveToolsRequest, context: _Context
    ) -> catalog_pb2.ResolveToolsResponse:
        """Resolve names; wait for servers without a first result (design.md#errors)."""
        await check_client(request.client, context, request.tenant)
        if len(request.names) > _MAX_NAMES:
            message = f"The request has {len(request.names)} names; the limit is {_MAX_NAMES}."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        tenant = tenant_of(request.tenant)
        async with counted(self._resolving, tenant, context, self._plane):
            await self._wait_for_registry(context)
            await self._list_for_names(tenant, request, context)
            version, outcomes = await self._resolve_all(tenant, request, context)
        found = zip(request.names, outcomes, strict=True)
        sent: dict[int, catalog_pb2.WorkerSet] = {}
        tools = fitting(self._resolved(name, outcome, request, sent) for name, outcome in found)
        used = {tool.worker_set for tool in tools} - {*request.known_worker_sets}
        return catalog_pb2.ResolveToolsResponse(
            tools=tools,
            registry_version=version,
            worker_sets=[workers for number, workers in sent.items() if number in used],
        )

    async def WatchTools(  # noqa: N802
        self, request: catalog_pb2.WatchToolsRequest, context: _Context
    ) -> AsyncIterator[catalog_pb2.WatchToolsResponse]:
        """Stream the visible version: at once, then whenever tools or their workers change."""
        await check_client(request.client, context, request.tenant)
        tenant = tenant_of(request.tenant)
        async with counted(self._watchers, tenant, context, self._plane):
            async for change in self._changes(_reader(tenant, request.client)):
                yield change

    async def _changes(self, reader: Reader) -> AsyncIterator[catalog_pb2.WatchToolsResponse]:
        seen, seen_content = VisibleState(), None
        while True:
            now_visible = await self._plane.wait_for_visible(seen)
            if not now_visible.version:
                seen = now_visible
                continue
            users = self._users_changed(seen, reader) if seen.version else ()
            if now_visible[:2] != seen[:2] or users:
                registry = self._plane.state.registry
                changed = registry.changed_since(seen_content, reader.tenant)
                seen_content = registry.visible
                yield catalog_pb2.WatchToolsResponse(
                    registry_version=now_visible.version,
                    workers_changed=bool(seen.version) and now_visible.workers != seen.workers,
                    users_changed=users,
                    names_changed_servers=changed is not None,
                    changed_servers=sorted(changed or ()),
                )
            seen = now_visible
            # Workers apply a change one after another; this merges their changes.
            await asyncio.sleep(_WATCH_INTERVAL)

    def _users_changed(self, seen: VisibleState, reader: Reader) -> Collection[str]:
        """Return the users for whom something changed, of those that a caller may name."""
        users = self._plane.state.subjects.changed_since(seen.subjects, reader.tenant)
        if ALL_USERS in users or len(users) > _MAX_USERS_CHANGED:
            return (ALL_USERS,)
        return sorted(users if caller().names_users else users & {reader.user})

    async def _start_list(
        self, name: str, request: _ListRequest, context: _Context
    ) -> tuple[PageStart, str]:
        """Check a list request and wait for the first registry; return its page and tenant."""
        lists_all = request.tenant == ALL_TENANTS and caller().has(SEES_ALL)
        await check_client(request.client, context, "" if lists_all else request.tenant)
        start = await page_of(name, request, context)
        await self._wait_for_registry(context)
        return start, tenant_of(request.tenant)

    async def _start_caller_list(
        self, name: str, request: _CallerListRequest, context: _Context
    ) -> _CallerList:
        """Start a list of what a caller sees; wait for servers that are first listed for it."""
        start, tenant = await self._start_list(name, request, context)
        state = self._plane.state
        denied = unknown_server(state, tenant, request.servers, self._plane.clock())
        if denied is not None:
            await abort(context, messages.denial(denied))
        servers, reader = frozenset(request.servers), _reader(tenant, request.client)
        timeout = time_left(context, _SUBJECT_LISTING_WAIT) - 0.1
        waiting = await self._list_for(reader, servers, timeout)
        state = self._plane.state  # another one, if this plane has begun to follow meanwhile
        return _CallerList(
            start=start,
            servers=servers,
            view=state.view(reader),
            version=state.visible.version,
            pending=(*state.pending.of(tenant), *waiting),
        )

    async def _list_for(
        self, reader: Reader, servers: Collection[str], timeout: float
    ) -> list[str]:
        """Have servers listed for a caller; return those that have not answered in time."""
        plane = self._plane
        if not unlisted(plane.state, reader, servers, plane.clock()):
            return []
        with plane.transition() as (state, now):
            for served, subject in unlisted(state, reader, servers, now).values():
                request_listing(state, served, subject, now)
        until = plane.clock().mono + timeout
        while (left := until - (now := plane.clock()).mono) > 0.0:
            missing = unlisted(plane.state, reader, servers, now)
            requests = plane.state.subjects.requests
            if not any(requests.is_open(subject, now) for _, subject in missing.values()):
                return []
            await plane.wait_for_change(left)
        return sorted(unlisted(plane.state, reader, servers, plane.clock()))

    async def _wait_for_registry(self, context: _Context) -> None:
        """Wait for the first visible registry after a start."""
        state = self._plane.state
        first_ack_due = self._plane.clock().mono + _FIRST_ACK_TIMEOUT
        while not state.visible.version:
            now = self._plane.clock()
            remaining = state.settling_remaining(now)
            if state.roster.connected:  # one of these workers is about to acknowledge
                remaining = max(remaining, first_ack_due - now.mono)
            remaining = min(remaining, time_left(context, 60.0))
            if remaining <= 0.0:
                return
            await self._plane.wait_for_change(remaining)

    async def _list_for_names(
        self, tenant: str, request: catalog_pb2.ResolveToolsRequest, context: _Context
    ) -> None:
        """Have servers listed for the caller if they may have a name that is not found otherwise.

        Names of other servers do not wait for them.
        """
        state, reader = self._plane.state, _reader(tenant, request.client)
        base = state.visible.view(tenant)
        if not base.of_people:
            return
        servers: set[str] = set()
        for name in request.names:
            outcome = self._resolve(tenant, name, request)
            if not isinstance(outcome, NamedTarget | ResourceTarget):
                servers.update(base.of_people)
                await asyncio.sleep(0)
            elif outcome.served.spec.part.auth.is_of_people:
                servers.add(outcome.served.key.server_id)
        if servers:
            timeout = _remaining_wait(context)
            await self._list_for(reader, servers, timeout)

    async def _resolve_all(
        self, tenant: str, request: catalog_pb2.ResolveToolsRequest, context: _Context
    ) -> tuple[int, list[_Outcome]]:
        """Return what the names resolve to, at the returned version or a newer one."""
        while True:
            # Read first: callers cache the outcomes until they see a higher version.
            version = self._plane.state.visible.version
            outcomes = []
            for name in request.names:
                outcomes.append(self._resolve(tenant, name, request))
                if isinstance(outcomes[-1], Denial):
                    await asyncio.sleep(0)  # finding similar names is slow: let other tasks run
            waiting = [
                name
                for name, outcome in zip(request.names, outcomes, strict=True)
                if isinstance(outcome, PendingServers)
            ]
            if not waiting or _remaining_wait(context) <= 0.0:
                return version, [_final(outcome) for outcome in outcomes]
            for name in waiting:
                await self._wait_until_resolved(tenant, name, request, context)

    async def _wait_until_resolved(
        self, tenant: str, name: str, request: catalog_pb2.ResolveToolsRequest, context: _Context
    ) -> None:
        """Wait until a name is found or denied, or until the caller's deadline."""
        self._plane.hurry_probes(find_awaited(self._plane.state, tenant, name, request.server_id))
        while isinstance(self._resolve(tenant, name, request), PendingServers):
            remaining = _remaining_wait(context)
            if remaining <= 0.0:
                return
            await self._plane.wait_for_first_results(remaining)

    def _resolve(
        self, tenant: str, name: str, request: catalog_pb2.ResolveToolsRequest
    ) -> _Outcome | PendingServers:
        state, now = self._plane.state, self._plane.clock()
        reader = _reader(tenant, request.client)
        if request.kind == catalog_pb2.NAME_KIND_RESOURCE:
            return find_resource(state, reader, name, now, request.server_id)
        kind = PROMPTS if request.kind == catalog_pb2.NAME_KIND_PROMPT else TOOLS
        return find_name(state, reader, name, now, kind, request.server_id)

    def _resolved(
        self,
        name: str,
        outcome: _Outcome,
        request: catalog_pb2.ResolveToolsRequest,
        sent: dict[int, catalog_pb2.WorkerSet],
    ) -> catalog_pb2.ResolvedTool:
        """Return the message of a resolved name.

        Args:
            sent: Gets the set of its workers, if the caller takes sets.
        """
        if isinstance(outcome, Denial):
            return messages.resolved(name, outcome)
        served = outcome.served
        workers = workers_for(self._plane.state, served)
        if not workers:
            return messages.resolved(name, not_served(self._plane.state, served.key))
        known = self._worker_sets.of(workers)
        # In a rollout many sets may differ.
        if request.takes_worker_sets and (known.id in sent or len(sent) < _MAX_SETS):
            sent[known.id] = known
            found = messages.resolved(name, outcome, worker_set=known.id)
        else:
            found = messages.resolved(name, outcome, known.workers)
        if request.server_id or split_qualified(name) is not None:
            found.of_user = served.spec.part.auth.acts_for_users
        else:
            found.of_user = self._plane.state.visible.view(tenant_of(request.tenant)).acts_for_users
        return found


def _reader(tenant: str, client: catalog_pb2.ClientInfo) -> Reader:
    principal = caller()
    sees_all = principal.names_users and principal.tenant is None
    return Reader(tenant, client.agent, client.user, sees_all)


def _remaining_wait(context: _Context) -> float:
    """Return how long to wait, which leaves time to answer before the caller's deadline."""
    return time_left(context, bounds.STARTUP_TIMEOUT) - 0.1


def _final(outcome: _Outcome | PendingServers) -> _Outcome:
    """Return an outcome, or a denial if it is still pending."""
    if not isinstance(outcome, PendingServers):
        return outcome
    servers = ", ".join(outcome.servers)
    message = f"No first result yet from: {servers}. Try again, or allow more time."
    return Denial(Reason.SERVER_NOT_READY, message, 0.5, {"server": outcome.servers[0]})


def _resources(view: View) -> Iterator[tuple[tuple[str, str, str], ResourceTarget]]:
    """Yield a view's resources and then its templates, each with its sort key."""
    for key, target in view.resources.items():
        yield ("resource", *key), target
    for key, target in view.templates.items():
        yield ("template", *key), target
