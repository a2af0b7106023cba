"""The tools that only the leases of a session have: listed and resolved at the leases' workers.

The control plane does not know them (design.md#tools-of-a-lease). A session without leases asks
nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from leaseway.sdk.catalog.lease_tools import LeaseTools
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.catalog.targets import Target
from leaseway.sdk.catalog.tools import tool_from_proto
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.leases.releases import LEASE_ENDED
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.workers import WorkerPool
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import RELIST_WAIT
from leaseway.wire.errors import Fault
from leaseway.wire.timing.backoff import RECONNECT
from leaseway.wire.timing.durations import duration

_MAX_KEPT: Final = 4096
"""Names of sessions that are remembered; the oldest are removed first."""
_LIST_TIMEOUT: Final = RELIST_WAIT + 2.0
_WATCH: Final = 30.0
"""Seconds that one request waits for a lease to have other tools."""
_MIN_WATCH: Final = 5.0
"""Seconds between two such requests if a worker does not wait."""


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

    async def of_session(self, session: str) -> dict[ClientLease, LeaseTools | None]:
        """Return the tools in which each lease of a session differs; None for one that does not.

        A lease whose worker does not answer has those that it told last.
        """
        leases = self._leases.book.held_leases(session)
        found = await asyncio.gather(*map(self._list, leases)) if leases else ()
        return dict(zip(leases, found, strict=True))

    async def wait_beyond(
        self, session: str, seen: Mapping[ClientLease, LeaseTools | None]
    ) -> None:
        """Wait until a session holds other leases than were seen, or they have other tools.

        Or until it is closed.

        Args:
            session: The session.
            seen: What `of_session` has returned.
        """
        changed = self._leases.changes.next_of(session)
        if seen.keys() != set(self._leases.book.held_leases(session)):
            return
        await first_of(
            changed.wait(),
            *(self._wait_for_other(lease, digest_of(tools)) for lease, tools in seen.items()),
        )

    async def _wait_for_other(self, lease: ClientLease, digest: str) -> None:
        """Wait until a lease has other tools, or has ended, which is recorded."""
        loop, failures = asyncio.get_running_loop(), 0
        request = self._request(lease, digest)
        request.wait.CopyFrom(duration(_WATCH))
        link = self._pool.link(lease.worker)
        while True:
            asked_at = loop.time()
            try:
                answer = await link.request(
                    link.leases.ListLeaseTools, request, _WATCH + _LIST_TIMEOUT
                )
            except Fault as fault:
                if fault.reason in LEASE_ENDED:
                    self._leases.book.end(lease.lease_id, fault, loop.time())
                    return
                # An unreachable worker may come back; otherwise its leases expire.
                await asyncio.sleep(RECONNECT.delay(failures) + 0.02)
                failures += 1
                continue
            if answer.digest != digest:
                return
            failures = 0
            # An older or a busy worker answers at once.
            await asyncio.sleep(max(0.0, asked_at + _MIN_WATCH - loop.time()))

    def _request(self, lease: ClientLease, digest: str) -> leases_pb2.ListLeaseToolsRequest:
        return leases_pb2.ListLeaseToolsRequest(
            client=self._identity.client_info,
            tenant=self._identity.tenant,
            session=lease.key.session,
            lease_id=lease.lease_id,
            known_digest=digest,
        )

    async def _list(self, lease: ClientLease) -> LeaseTools | None:
        known = self._listed.get(lease)
        link = self._pool.link(lease.worker)
        request = self._request(lease, digest_of(known))
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


def digest_of(tools: LeaseTools | None) -> str:
    """Return what identifies the tools in which a lease differs; empty if it does not."""
    return tools.digest if tools is not None else ""


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of several waits ends, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
