"""The tools that only the leases of a session have: listed and resolved at the leases' workers.

The control plane does not know them (design.md#tools-of-a-lease). A session without leases asks
nobody.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from leaseway.sdk.catalog.lease_tools import LeaseTools
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.catalog.targets import Target
from leaseway.sdk.catalog.tools import tool_from_proto
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.workers import WorkerPool
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import RELIST_WAIT
from leaseway.wire.errors import Fault

_MAX_KEPT: Final = 4096
"""Names of sessions that are remembered; the oldest are removed first."""
_LIST_TIMEOUT: Final = RELIST_WAIT + 2.0


class _Resolved(NamedTuple):
    target: Target
    version: int
    """The registry version at which nobody else had the name."""


class SessionTools:
    """The tools of leases, for the sessions of one client.

    Args:
        identity: The client's names.
        leases: Its leases.
        pool: Connections to the workers.
        resolver: Resolves the names that are not of one lease.
    """

    def __init__(
        self,
        identity: ClientIdentity,
        leases: LeaseManager,
        pool: WorkerPool,
        resolver: Resolver,
    ) -> None:
        self._identity = identity
        self._leases = leases
        self._pool = pool
        self._resolver = resolver
        self._targets: dict[tuple[str, str], _Resolved] = {}
        # A list ends with its lease; leases that differ alike share one.
        self._listed: WeakKeyDictionary[ClientLease, LeaseTools] = WeakKeyDictionary()
        self._shared: WeakValueDictionary[tuple[str, str], LeaseTools] = WeakValueDictionary()

    async def of_session(self, session: str) -> list[LeaseTools]:
        """Return the tools in which the leases of a session differ; of most, none.

        A lease whose worker does not answer has those that it told last.
        """
        leases = self._leases.book.held_leases(session)
        found = await asyncio.gather(*map(self._list, leases)) if leases else ()
        return [tools for tools in found if tools is not None]

    async def _list(self, lease: ClientLease) -> LeaseTools | None:
        known = self._listed.get(lease)
        link = self._pool.link(lease.worker)
        request = leases_pb2.ListLeaseToolsRequest(
            client=self._identity.client_info,
            tenant=self._identity.tenant,
            session=lease.key.session,
            lease_id=lease.lease_id,
            known_digest=known.digest if known is not None else "",
        )
        try:
            answer = await link.request(link.leases.ListLeaseTools, request, _LIST_TIMEOUT)
        except Fault:
            return known  # the worker may be too old; the end of a lease is told to its next call
        if known is not None and answer.digest == known.digest:
            return known
        self._listed.pop(lease, None)
        if not answer.digest:
            return None
        key = lease.key.server_id, answer.digest
        tools = self._shared.get(key)
        if tools is None:
            listed = tuple(map(tool_from_proto, answer.tools))
            tools = self._shared[key] = LeaseTools(*key, listed, frozenset(answer.absent))
        self._listed[lease] = tools
        return tools

    def cached(self, session: str, name: str, now: float) -> Target | None:
        """Return the cached target of a name that only a lease of the session has, or None."""
        resolved = self._targets.get((session, name))
        if resolved is None:
            return None
        target = resolved.target
        if (
            target.stale
            or resolved.version != self._resolver.registry_version.version
            or self._leases.book.find_held(session, target.server_id, now) is None
        ):
            del self._targets[session, name]
            return None
        return target

    async def resolve(
        self, session: str, name: str, user: str, *, is_known_to_all: bool
    ) -> Target | None:
        """Resolve a name at the workers of the session's leases; None if none of them has it.

        Args:
            session: The session.
            name: The tool's exposed or qualified name.
            user: The user for whom it calls.
            is_known_to_all: Whether it may be a tool of all: the control plane was not asked.
        """
        version = self._resolver.registry_version.version
        found = await self._leases.resolve_on_workers(session, name, not is_known_to_all)
        if found is None:
            return None
        worker, answer = found
        tool = answer.tool
        tool.workers.add(id=worker.id, incarnation=worker.incarnation, address=worker.address)
        if not tool.of_lease:
            return self._resolver.add(name, user, tool, answer.registry_version)
        target = Target(name, tool, answer.registry_version, 0.0, user)
        self._targets[session, name] = _Resolved(target, version)
        if len(self._targets) > _MAX_KEPT:
            del self._targets[next(iter(self._targets))]
        return target
