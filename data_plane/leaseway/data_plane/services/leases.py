"""The lease RPCs of a worker, and keep-alive for exchange streams (design.md#leases)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Final

import grpc

from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.leases.table import WorkerLease, idle_cause
from leaseway.data_plane.core.tools.prompts_resources import (
    bounded_names,
    find_prompt,
    has_no_resource,
    has_only_tools,
)
from leaseway.data_plane.core.tools.toolset import ToolPlan, tool_not_found
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.acquirer import Acquirer, bounded_client
from leaseway.data_plane.leases.holders import may_list
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.leases.own_tools import LeaseVariant
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import SEES_ALL, Principal
from leaseway.spec.model import ServerSpec
from leaseway.v1 import catalog_pb2, leases_pb2, leases_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.listed import listed_prompt, listed_resource, listed_tool
from leaseway.wire.listing.pages import one_page, page_start
from leaseway.wire.names import DEFAULT_TENANT, LeaseKey, split_qualified
from leaseway.wire.sharing.limits import UsageCounter
from leaseway.wire.status import abort, status_from_fault
from leaseway.wire.timing.durations import duration, seconds
from leaseway.wire.version import check_client_version

_MAX_RENEWALS: Final = 1024
_NO_TOOLS: Final = frozenset({catalog_pb2.NAME_KIND_PROMPT, catalog_pb2.NAME_KIND_RESOURCE})
Context = grpc.aio.ServicerContext[Any, Any]


def renew_leases(
    leases: WorkerLeaseManager, request: leases_pb2.KeepAliveRequest, principal: Principal
) -> leases_pb2.KeepAliveResponse:
    """Renew leases; return a new time to live or an error for each.

    Args:
        leases: The leases of the worker.
        request: The lease ids, and optionally their sessions.
        principal: Whoever asks: its tenant and user must own the leases, if it has them.
    """
    response = leases_pb2.KeepAliveResponse()
    sessions = request.sessions
    for index, lease_id in enumerate(request.lease_ids):
        renewal = response.renewals.add(lease_id=lease_id)
        try:
            if index >= _MAX_RENEWALS:
                raise Fault(
                    Reason.INVALID_REQUEST,
                    f"One keep-alive renews at most {_MAX_RENEWALS} leases.",
                )
            if sessions and len(sessions) != len(request.lease_ids):
                raise Fault(
                    Reason.INVALID_REQUEST,
                    "A keep-alive names the session of each lease, or none; this one has "
                    f"{len(request.lease_ids)} leases and {len(sessions)} sessions.",
                )
            leases.holders.check_tenant(lease_id, principal.tenant or "")
            leases.holders.check_principal(lease_id, principal)
            ttl = leases.renew(lease_id, sessions[index] if sessions else None)
            renewal.ttl.CopyFrom(duration(ttl))
        except Fault as fault:
            renewal.error.CopyFrom(status_from_fault(fault))
    return response


class LeaseService(leases_pb2_grpc.LeaseServiceServicer):
    """Grants, renews, releases and lists leases.

    Args:
        pool: The servers of the worker.
        leases: The leases of the worker.
        executor: Reports whether the worker drains.
        lease_message: Converts a lease to protobuf.
    """

    def __init__(
        self,
        pool: Pool,
        leases: WorkerLeaseManager,
        executor: Executor,
        lease_message: Callable[[WorkerLease], leases_pb2.Lease],
    ) -> None:
        self._pool = pool
        self._leases = leases
        self._executor = executor
        self._lease_message = lease_message
        self._waiting_lists = 0
        self._acquiring = UsageCounter(
            "acquisitions",
            "requests for a lease without an answer",
            bounds.MAX_PLACEMENTS,
            bounds.MAX_TENANT_PLACEMENTS,
            "Wait for some of them.",
        )

    async def AcquireLease(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.AcquireLeaseRequest, context: Context
    ) -> leases_pb2.AcquireLeaseResponse:
        """Grant the lease of a (tenant, session, server), or return the existing one."""
        tenant = request.tenant or DEFAULT_TENANT
        try:
            with self._counted(str(context.peer()), tenant):
                return await self._acquire(request)
        except Fault as fault:
            await abort(context, fault)

    @contextmanager
    def _counted(self, connection: str, tenant: str) -> Iterator[None]:
        try:
            self._acquiring.acquire(connection, tenant)
        except Fault as fault:
            if self._executor.meters is not None:
                self._executor.meters.limits.record(fault.metadata)
            raise
        try:
            yield
        finally:
            self._acquiring.release(connection, tenant)

    async def _acquire(
        self, request: leases_pb2.AcquireLeaseRequest
    ) -> leases_pb2.AcquireLeaseResponse:
        check_client_version(request.client, "this worker")
        if self._executor.draining:
            raise self._executor.draining_fault()
        key = LeaseKey(request.tenant or DEFAULT_TENANT, request.session, request.server_id)
        if not key.session:
            raise Fault(Reason.SESSION_REQUIRED, "A lease belongs to a session: name one.")
        await self._pool.wait_for_version(request.registry_version)
        lease, created = await self._leases.acquire(
            key,
            Acquirer(
                agent=request.client.agent,
                user=request.client.user,
                subject_token=caller().subject_token_for(
                    request.client.user, request.subject_token
                ),
                credential=caller().name,
                client=bounded_client(request.acquirer),
            ),
            ttl=seconds(request.ttl) if request.HasField("ttl") else bounds.LEASE_TTL,
            client=self._pool.context.clients.find(request.mcp_client),
        )
        return leases_pb2.AcquireLeaseResponse(lease=self._lease_message(lease), created=created)

    async def ReleaseLease(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.ReleaseLeaseRequest, context: Context
    ) -> leases_pb2.ReleaseLeaseResponse:
        """Release a lease for its holder."""
        try:
            tenant = request.tenant or DEFAULT_TENANT
            self._leases.holders.check_holder(request.lease_id, tenant, request.session, caller())
            if request.leaving_client:
                keep = seconds(request.keep) if request.HasField("keep") else 0.0
                client = bounded_client(request.leaving_client)
                left = self._leases.leave(request.lease_id, client, keep)
                return leases_pb2.ReleaseLeaseResponse(released=left)
            if request.HasField("idle"):
                return self._release_idle(request.lease_id, seconds(request.idle))
            released = self._leases.release(request.lease_id)
        except Fault as fault:
            await abort(context, fault)
        return leases_pb2.ReleaseLeaseResponse(released=released)

    def _release_idle(self, lease_id: str, limit: float) -> leases_pb2.ReleaseLeaseResponse:
        """Release a lease if no call has run on it for `limit` seconds."""
        idle = self._leases.idle_for(lease_id)
        if idle is not None and idle < limit:
            return leases_pb2.ReleaseLeaseResponse(idle=duration(idle))
        released = self._leases.release(lease_id, idle_cause(limit))
        return leases_pb2.ReleaseLeaseResponse(released=released)

    async def KeepAlive(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.KeepAliveRequest, context: Context
    ) -> leases_pb2.KeepAliveResponse:
        return renew_leases(self._leases, request, caller())

    async def ResolveLeased(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.ResolveLeasedRequest, context: Context
    ) -> leases_pb2.ResolveLeasedResponse:
        """Resolve a tool's name on the server of a lease."""
        try:
            lease = self._held_by_caller(request)
            of_all = request.kind in _NO_TOOLS
            try:
                return self._resolve(request, lease)
            except Fault:
                if not await self._wait_for_changes(lease, of_all=of_all):
                    raise
                return self._resolve(request, self._held_by_caller(request))
        except Fault as fault:
            await abort(context, fault)

    def _held_by_caller(
        self, request: leases_pb2.ResolveLeasedRequest | leases_pb2.ListLeaseToolsRequest
    ) -> WorkerLease:
        """Return the lease that a request names, which its caller must hold.

        Raises:
            Fault: LEASE_LOST and the like, PERMISSION_DENIED.
        """
        check_client_version(request.client, "this worker")
        tenant = request.tenant or DEFAULT_TENANT
        self._leases.holders.check_holder(request.lease_id, tenant, request.session, caller())
        lease = self._leases.get(request.lease_id)
        if lease is None:
            raise self._leases.holders.ended_fault(request.lease_id, tenant)
        return lease

    async def _wait_for_changes(self, lease: WorkerLease, *, of_all: bool) -> bool:
        """Wait for changed lists that a lease's server has reported; return whether it has.

        Args:
            lease: The lease.
            of_all: Whether prompts and resources count, too, and not only tools.
        """
        live = self._leases.live_instance(lease)
        if live is None or not live.changes.has_unread(of_all=of_all):
            return False
        await live.changes.wait(of_all=of_all)
        return True

    def _list_once(self, lease: WorkerLease) -> None:
        """Have the prompts and resources of a lease listed that has not listed any yet."""
        live = self._leases.live_instance(lease)
        if (
            live is not None
            and live.instance.prompts_resources is None
            and live.lists_prompts
            and not live.changes.has_unread(of_all=True)
        ):
            live.on_tools_changed(live.instance)

    def _variant_of(self, lease: WorkerLease, common: HeldVariant) -> HeldVariant:
        """Return the variant by which calls on a lease are checked."""
        own = self._leases.own_tools.find(lease)
        return own.variant if own is not None and own.base is common else common

    def _resolve(
        self, request: leases_pb2.ResolveLeasedRequest, lease: WorkerLease
    ) -> leases_pb2.ResolveLeasedResponse:
        tenant, agent = lease.key.tenant, request.client.agent
        server_id = lease.key.server_id
        generation = self._pool.resolve(server_id, tenant, agent, lease.user)
        variant = self._variant_of(lease, generation.variant)
        if request.kind in _NO_TOOLS:
            return self._resolve_request(request, lease, generation)
        toolset, policies = variant.toolset, variant.policies
        server, original = split_qualified(request.name) or ("", "")
        own = toolset.tools.get(original) if server == server_id else None
        plan = own or toolset.by_exposed_name.get(request.name)
        allowed = not policies.is_needed or (
            plan is not None and policies.find(tenant, agent, plan.original_name) is not None
        )
        if plan is None or not allowed:
            names = policies.names(tenant, agent) if policies.is_needed else toolset.by_exposed_name
            raise tool_not_found(request.name, f"Server {server_id}", names)
        return leases_pb2.ResolveLeasedResponse(
            tool=catalog_pb2.ResolvedTool(
                name=request.name,
                server_id=server_id,
                original_name=plan.original_name,
                idempotent=plan.idempotent,
                read_only=plan.read_only,
                call_timeout=duration(generation.variant.spec.call_timeout),
                of_user=bool(lease.user),
                of_lease=plan.original_name not in generation.variant.toolset.tools,
            ),
            registry_version=self._pool.registry_version,
        )

    def _resolve_request(
        self,
        request: leases_pb2.ResolveLeasedRequest,
        lease: WorkerLease,
        generation: Generation,
    ) -> leases_pb2.ResolveLeasedResponse:
        """Return the prompt or the resource that a name means on the server of a lease."""
        tenant, agent, server_id = lease.key.tenant, request.client.agent, lease.key.server_id
        common = generation.variant.toolset.prompts_resources
        variant = self._variant_of(lease, generation.variant)
        offered, policies = variant.toolset.prompts_resources, variant.policies
        if not policies.allows_all(tenant, agent):
            raise has_only_tools(server_id)
        own = self._leases.own_tools.find(lease)
        others = own.own.others if own is not None and own.variant is variant else None
        if request.kind == catalog_pb2.NAME_KIND_PROMPT:
            original = find_prompt(offered, server_id, request.name)
            of_lease = original not in common.prompts
        else:
            original = request.name
            if others is None or not others.has_uri(original):
                raise has_no_resource(server_id, original)
            if not policies.may_read(tenant, agent, original):
                raise has_no_resource(server_id, original)
            of_lease = True
        return leases_pb2.ResolveLeasedResponse(
            tool=catalog_pb2.ResolvedTool(
                name=request.name,
                server_id=server_id,
                original_name=original,
                idempotent=True,
                read_only=True,
                call_timeout=duration(generation.variant.spec.call_timeout),
                of_user=bool(lease.user),
                of_lease=of_lease,
            ),
            registry_version=self._pool.registry_version,
            kind=request.kind,
        )

    async def ListLeaseTools(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.ListLeaseToolsRequest, context: Context
    ) -> leases_pb2.ListLeaseToolsResponse:
        """List the tools in which a lease differs, once reported changes have been read."""
        try:
            lease = self._held_by_caller(request)
            of_all = request.prompts_resources
            if of_all:
                self._list_once(lease)
            if await self._wait_for_changes(lease, of_all=of_all):
                lease = self._held_by_caller(request)
            if request.HasField("wait") and self._waiting_lists < bounds.MAX_WAITING_LISTS:
                return await self._list_others(request)
            return self._list_tools(request, lease)
        except Fault as fault:
            await abort(context, fault)

    async def _list_others(
        self, request: leases_pb2.ListLeaseToolsRequest
    ) -> leases_pb2.ListLeaseToolsResponse:
        """Wait until a lease lists other tools than the caller knows, as long as it wants."""
        response = leases_pb2.ListLeaseToolsResponse(digest=request.known_digest)
        self._waiting_lists += 1
        try:
            async with asyncio.timeout(min(seconds(request.wait), bounds.MAX_LIST_WAIT)):
                while response.digest == request.known_digest:
                    lease = self._held_by_caller(request)
                    changed = self._leases.own_tools.next_change(lease)
                    response = self._list_tools(request, lease)
                    if response.digest == request.known_digest:
                        await changed.wait()
        except TimeoutError:
            pass  # the digest is the known one
        finally:
            self._waiting_lists -= 1
        return response

    def _list_tools(
        self, request: leases_pb2.ListLeaseToolsRequest, lease: WorkerLease
    ) -> leases_pb2.ListLeaseToolsResponse:
        key, agent = lease.key, request.client.agent
        generation = self._pool.resolve(key.server_id, key.tenant, agent, lease.user)
        found = self._leases.own_tools.find(lease)
        if found is None or found.base is not generation.variant:
            return leases_pb2.ListLeaseToolsResponse()
        if request.prompts_resources:
            return _list_prompts_resources(request, found, key.tenant, agent)
        own = found.own.tools
        if own is None:
            return leases_pb2.ListLeaseToolsResponse()
        is_visible = partial(found.variant.policies.is_visible, key.tenant, agent)
        changed = list(filter(is_visible, own.changed))
        absent = list(filter(is_visible, own.absent))
        digest, plans = own.digest_of(changed, absent), own.toolset.tools
        if digest == request.known_digest:
            return leases_pb2.ListLeaseToolsResponse(digest=digest)
        return leases_pb2.ListLeaseToolsResponse(
            digest=digest,
            tools=[_listed_tool(plans[name], found.variant.spec) for name in changed],
            absent=bounded_names(absent),
        )

    async def ListLeases(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.ListLeasesRequest, context: Context
    ) -> leases_pb2.ListLeasesResponse:
        """List one page of the held leases, ordered by id."""
        try:
            start = page_start("ListLeases", request)
        except Fault as fault:
            await abort(context, fault)
        held = sorted(self._leases.leases, key=attrgetter("id"))
        tenant, principal = request.tenant, caller()
        sees_all = principal.has(SEES_ALL)
        found = (
            ((lease.id,), lease)
            for lease in held
            if tenant in ("", lease.key.tenant) and (sees_all or may_list(lease, principal))
        )
        leases, token = one_page(start, found, self._lease_message)
        return leases_pb2.ListLeasesResponse(leases=leases, next_page_token=token)


def _list_prompts_resources(
    request: leases_pb2.ListLeaseToolsRequest, found: LeaseVariant, tenant: str, agent: str
) -> leases_pb2.ListLeaseToolsResponse:
    policies, spec = found.variant.policies, found.variant.spec
    if found.own.others is None or not policies.allows_all(tenant, agent):
        return leases_pb2.ListLeaseToolsResponse()
    may_read = partial(policies.may_read, tenant, agent)
    own = found.own.others.seen_by(may_read)
    if own.digest == request.known_digest:
        return leases_pb2.ListLeaseToolsResponse(digest=own.digest)
    resources = [*own.resources.changed.values(), *own.templates.changed.values()]
    templates_from = len(own.resources.changed)
    return leases_pb2.ListLeaseToolsResponse(
        digest=own.digest,
        prompts=[
            listed_prompt(name, original, spec.key.server_id, definition, shared=False)
            for original, (name, definition) in own.prompts.changed.items()
        ],
        absent_prompts=bounded_names(own.prompts.absent),
        resources=[
            listed_resource(
                uri,
                spec.key.server_id,
                definition,
                is_template=number >= templates_from,
                shared=False,
            )
            for number, (uri, definition) in enumerate(resources)
        ],
        absent_resources=bounded_names(own.resources.absent),
        absent_templates=bounded_names(own.templates.absent),
    )


def _listed_tool(plan: ToolPlan, spec: ServerSpec) -> catalog_pb2.Tool:
    return listed_tool(
        plan.name,
        plan.original_name,
        spec.key.server_id,
        plan.definition,
        shared=False,
        sessions_from=spec.sessions_from,
    )
