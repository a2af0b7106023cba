"""What only the leases of a session list: tools, prompts, resources; asked at the leases' workers.

The control plane does not know them (design.md#tools-of-a-lease). A session without leases asks
nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from leaseway.sdk.catalog.lease_items import LeaseItems
from leaseway.sdk.catalog.prompts_resources import (
    prompt_from_proto,
    resource_from_proto,
    template_from_proto,
)
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.catalog.targets import NameOrItem, Target, domain
from leaseway.sdk.catalog.tools import tool_from_proto
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.workers import WorkerPool, WorkerRun
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import RELIST_WAIT
from leaseway.wire.errors import Fault
from leaseway.wire.listing.definitions import ListKind
from leaseway.wire.messages.states import LEASE_ENDED
from leaseway.wire.sharing.newest import Newest
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


class _Lists:
    """In what the tools of a lease, or its other lists, differ."""

    def __init__(
        self, server_id: str, digest: str, answer: leases_pb2.ListLeaseToolsResponse
    ) -> None:
        self.digest = digest
        resources = [resource for resource in answer.resources if not resource.is_template]
        templates = [resource for resource in answer.resources if resource.is_template]
        lists: dict[ListKind, tuple[Iterable[Any], Iterable[str]]] = {
            "tools": (map(tool_from_proto, answer.tools), answer.absent),
            "prompts": (map(prompt_from_proto, answer.prompts), answer.absent_prompts),
            "resources": (map(resource_from_proto, resources), answer.absent_resources),
            "templates": (map(template_from_proto, templates), answer.absent_templates),
        }
        self._lists: dict[ListKind, LeaseItems[Any]] = {
            kind: LeaseItems(server_id, digest, tuple(items), frozenset(absent))
            for kind, (items, absent) in lists.items()
        }

    def items(self, kind: ListKind) -> LeaseItems[Any]:
        """Return in what one list differs."""
        return self._lists[kind]


class SessionLists:
    """The tools, prompts and resources of leases, for the sessions of one client.

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
        self._targets: Newest[tuple[str, NameOrItem], _Resolved] = Newest(_MAX_KEPT)
        # A list ends with its lease; leases that differ alike share one.
        self._listed: WeakKeyDictionary[ClientLease, dict[bool, _Lists]] = WeakKeyDictionary()
        self._shared: WeakValueDictionary[tuple[str, str], _Lists] = WeakValueDictionary()

    async def of_session(
        self, session: str, kind: ListKind, *, of_others: bool = False
    ) -> dict[ClientLease, LeaseItems[Any] | None]:
        """Return in what a list of each lease of a session differs; None for one that does not.

        A lease whose worker does not answer has what it told last.

        Args:
            session: The session.
            kind: Which list is meant.
            of_others: Whether leases count that only other clients of the session use.
        """
        leases = self._leases.book.held_leases(session)
        if of_others:
            leases = [*leases, *await self._leases_of_others(session)]
        lists = (self._list(lease, of_tools=kind == "tools") for lease in leases)
        found = await asyncio.gather(*lists) if leases else ()
        own = (known.items(kind) if known is not None else None for known in found)
        return dict(zip(leases, own, strict=True))

    async def wait_beyond(
        self, session: str, kind: ListKind, seen: Mapping[ClientLease, LeaseItems[Any] | None]
    ) -> None:
        """Wait until a session holds other leases than were seen, or they have other lists.

        Or until it is closed. A change of prompts also counts as one of resources.

        Args:
            session: The session.
            kind: Which list was seen.
            seen: What `of_session` has returned for it.
        """
        changed = self._leases.changes.next_of(session)
        if seen.keys() != set(self._leases.book.held_leases(session)):
            return
        of_tools = kind == "tools"
        await first_of(
            changed.wait(),
            *(
                self._wait_for_other(lease, digest_of(items), of_tools=of_tools)
                for lease, items in seen.items()
            ),
        )

    async def _wait_for_other(self, lease: ClientLease, digest: str, *, of_tools: bool) -> None:
        """Wait until a lease has other lists, or has ended, which is recorded."""
        loop, failures = asyncio.get_running_loop(), 0
        request = self._request(lease, digest, of_tools=of_tools)
        request.wait.CopyFrom(duration(_WATCH))
        while True:
            asked_at, link = loop.time(), self._pool.link(lease.worker)
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
            if answer.digest != digest and not (answer.tools and not of_tools):
                return
            failures = 0
            # An older or a busy worker answers at once.
            await asyncio.sleep(max(0.0, asked_at + _MIN_WATCH - loop.time()))

    def _request(
        self, lease: ClientLease, digest: str, *, of_tools: bool
    ) -> leases_pb2.ListLeaseToolsRequest:
        return leases_pb2.ListLeaseToolsRequest(
            client=self._identity.client_info,
            tenant=self._identity.tenant,
            session=lease.key.session,
            lease_id=lease.lease_id,
            known_digest=digest,
            prompts_resources=not of_tools,
        )

    async def _list(self, lease: ClientLease, *, of_tools: bool) -> _Lists | None:
        before = self._listed.setdefault(lease, {})
        known = before.get(of_tools)
        link = self._pool.link(lease.worker)
        digest = known.digest if known is not None else ""
        request = self._request(lease, digest, of_tools=of_tools)
        try:
            answer = await link.request(link.leases.ListLeaseTools, request, _LIST_TIMEOUT)
        except Fault:
            return known  # the worker may be too old; the end of a lease is told to its next call
        if known is not None and answer.digest == known.digest:
            return known
        before.pop(of_tools, None)
        if not answer.digest or (not of_tools and answer.tools):
            return None  # an older worker lists tools in any case
        key = lease.key.server_id, answer.digest
        lists = self._shared.get(key)
        if lists is None:
            lists = self._shared[key] = _Lists(*key, answer)
        before[of_tools] = lists
        return lists

    def cached(self, session: str, name: NameOrItem, now: float) -> Target | None:
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
        self, session: str, name: NameOrItem, user: str, *, is_known_to_all: bool
    ) -> Target | None:
        """Resolve a name at the workers of the session's leases; None if none of them has it.

        Args:
            session: The session.
            name: The tool's exposed or qualified name, or the prompt or resource.
            user: The user for whom it calls.
            is_known_to_all: Whether it may be one of all: the control plane was not asked.
        """
        version = self._resolver.registry_version.version
        held = sorted(self._leases.book.held_leases(session), key=attrgetter("key"))
        found = await self._ask_workers(held, name, of_lease=not is_known_to_all)
        if found is None and not is_known_to_all:
            others = await self._leases_of_others(session)
            found = await self._ask_workers(others, name, of_lease=True)
        if found is None:
            return None
        worker, answer = found
        tool = answer.tool
        tool.workers.add(id=worker.id, incarnation=worker.incarnation, address=worker.address)
        if not tool.of_lease:
            return self._resolver.add(name, user, tool, answer.registry_version)
        target = Target(name, tool, answer.registry_version, 0.0, user)
        self._targets[session, name] = _Resolved(target, version)
        return target

    async def _leases_of_others(self, session: str) -> list[ClientLease]:
        """Return the session's leases of servers of which this client holds none."""
        found = await self._leases.lookup.of_session(session)
        held = {lease.key.server_id for lease in self._leases.book.held_leases(session)}
        return [lease for lease in found if lease.key.server_id not in held]

    async def _ask_workers(
        self, leases: Iterable[ClientLease], name: NameOrItem, *, of_lease: bool
    ) -> tuple[WorkerRun, leases_pb2.ResolveLeasedResponse] | None:
        """Resolve a name at the workers of a session's leases, without a control plane.

        Returns None if no leased server has it, or if no worker answers.

        Args:
            leases: The leases.
            name: The name of a tool, or the prompt or resource.
            of_lease: Whether only what nobody but the lease has is meant.
        """
        kind, server_id = domain(name)
        for lease in leases:
            if server_id not in ("", lease.key.server_id):
                continue
            link = self._pool.link(lease.worker)
            request = leases_pb2.ResolveLeasedRequest(
                client=self._identity.client_info,
                tenant=self._identity.tenant,
                session=lease.key.session,
                lease_id=lease.lease_id,
                name=str(name),
                kind=kind,
            )
            try:
                answer = await link.request(link.leases.ResolveLeased, request, _LIST_TIMEOUT)
            except Fault:
                continue  # it may be another server's, or the worker too old
            if not isinstance(name, str) and answer.kind != kind:
                continue  # an older worker knows tools only
            if answer.tool.of_lease or not of_lease:
                return lease.worker, answer
        return None


def digest_of(items: LeaseItems[Any] | None) -> str:
    """Return what identifies the list in which a lease differs; empty if it does not."""
    return items.digest if items is not None else ""


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
