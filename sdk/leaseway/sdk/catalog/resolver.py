"""Resolves names at the control plane and caches the results until the registry changes.

When the registry version changes, a name is resolved again at its next use. While the control plane
is unreachable, or knows no worker for the name, the cached result is used until its workers reject
calls, so that calls survive an outage
(design.md#names-and-versions). Workers start and stop without a new version, so
results in use are also refreshed in the background.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

import grpc

from leaseway.sdk.catalog.targets import (
    Domain,
    NameOrItem,
    PromptOrResource,
    Target,
    domain,
    serving_workers,
)
from leaseway.sdk.transport.control import CONNECT_TIMEOUT, ControlPlane
from leaseway.sdk.transport.faults import client_closed, fault_of_control_plane
from leaseway.sdk.transport.workers import ServingWorkers
from leaseway.v1 import catalog_pb2
from leaseway.wire.channels.replaceable_channel import RpcCutOff
from leaseway.wire.errors import UNANSWERED, Fault, Reason
from leaseway.wire.sharing.newest import Newest
from leaseway.wire.status import fault_from_status
from leaseway.wire.timing.backoff import RECONNECT
from leaseway.wire.timing.running_tasks import start_lasting_task

_log = logging.getLogger("leaseway.sdk")

_MAX_NAMES: Final = 1000
"""Names in one request."""
_MAX_CACHED: Final = 20_000
"""Names in the cache; the oldest are removed first."""
_MAX_SETS: Final = 64
"""Sets of workers that are kept, to which later responses refer."""
_RESTART_TIMEOUT: Final = 7.0
"""Seconds to wait for a restarting control plane that a call cannot start without."""
_REFRESH_AFTER: Final = 10.0
"""Seconds after which the workers of a name in use are refreshed in the background."""
_BATCH_TIMEOUT: Final = 1.0
"""Seconds that a batch of names waits for the slowest; then each name is resolved separately."""
_RETRY_SEPARATELY: Final = UNANSWERED | {Reason.INTERNAL}
"""Why a failed batch is resolved name by name: one of them may be the cause."""
_OF_WORKERS: Final = frozenset({Reason.SERVER_NOT_READY, Reason.SYNCING})
"""Why a name that had workers has none, as far as the control plane knows."""
_TRIES_BEFORE_WARNING: Final = 14
"""Failed connections, about 10 s, after which a failing watch is logged as a warning."""


_Key = NameOrItem | tuple[str, NameOrItem]
"""A name, or a user and a name."""


@dataclass(slots=True, eq=False)
class _Request:
    item: NameOrItem
    user: str
    name: str
    domain: Domain
    deadline: float
    future: asyncio.Future[Target]
    lists: int = 0
    """`RegistryVersion.lists` when it was sent."""


class RegistryVersion:
    """The newest known registry version, which tasks of one event loop can wait on.

    Attributes:
        version: The newest version, 0 before the first.
        lists: How often the lists for the client's own user have changed at one version.
        ended: Whether the client is closed, so that no newer version follows.
    """

    def __init__(self) -> None:
        self.version = 0
        self.lists = 0
        self.ended = False
        self._changed = asyncio.Event()

    def record(self, version: int) -> None:
        """Record a version; versions only increase, also across restarts."""
        if version > self.version:
            self.version = version
            self._wake()

    def end(self) -> None:
        """Wake all waiting tasks for the last time."""
        self.ended = True
        self._wake()

    def record_lists(self) -> None:
        """Record that lists for the client's own user have changed."""
        self.lists += 1
        self._wake()

    async def wait_beyond(self, version: int, lists: int | None = None) -> None:
        """Wait until a newer version is known, or the client is closed.

        Args:
            version: The last version.
            lists: `lists` as it was then, to wait for those changes, too.
        """
        while self.version <= version and not self.ended and lists in (None, self.lists):
            await self._changed.wait()

    def _wake(self) -> None:
        # The event is replaced, so that later tasks wait for the next version.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Resolver:
    """Resolves and caches the names that one client uses.

    Names that mean the same for all users, and those of the client's own user, are kept by name;
    the others by user and name.
    """

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._own_user = control.identity.user
        self._loop = asyncio.get_running_loop()
        self._targets: Newest[_Key, Target] = Newest(_MAX_CACHED)
        self._requests: dict[_Key, _Request] = {}
        self._worker_sets: Newest[int, ServingWorkers] = Newest(_MAX_SETS)  # by use
        self._queue: list[_Request] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self.registry_version = RegistryVersion()

    def cached(self, item: _Key, now: float) -> Target | None:
        """Return the cached target of a name, or None if it is unknown or stale.

        If it is `of_user`, only the client's own user may use it; see `cached_for`.
        """
        target = self._targets.get(item)
        if target is None or target.stale:
            return None
        if now >= target.refresh_at:
            self._refresh(target, now)
        return target

    def cached_for(self, user: str, item: NameOrItem, now: float) -> Target | None:
        """Return the cached target of a name for a user, or None if it is unknown or stale."""
        target = self.cached(item, now)
        if target is not None and (not target.of_user or user == self._own_user):
            return target
        return self.cached((user, item), now) if user != self._own_user else None

    async def resolve(self, item: NameOrItem, deadline: float, user: str | None = None) -> Target:
        """Resolve a name; names requested at the same time are sent together.

        Args:
            item: A tool's name, or a prompt or resource.
            deadline: The caller's deadline, in the event loop's time.
            user: The user for whom; None for the client's own.

        Raises:
            Fault: The name is unknown, the deadline passed, or no control plane answered.
        """
        user = self._own_user if user is None else user
        old = self._known(item, user)
        if old is None:
            return await self._request_target(item, user, deadline)
        if not self._control.connected:
            return old  # still stale: resolved again once the control plane is connected
        try:
            return await self._request_target(
                item, user, min(deadline, self._loop.time() + CONNECT_TIMEOUT)
            )
        except Fault as fault:
            if fault.reason in UNANSWERED:
                return old
            raise

    def _known(self, item: NameOrItem, user: str) -> Target | None:
        """Return what a name means for a user, stale or not; None if that is unknown."""
        if user == self._own_user:
            return self._targets.get(item)
        own = self._targets.get((user, item))
        common = self._targets.get(item)
        return own or (common if common is not None and not common.of_user else None)

    async def _request_target(self, item: NameOrItem, user: str, deadline: float) -> Target:
        while True:
            request = self._request(item, user, deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.shield(request.future)
            except TimeoutError:
                raise Fault(
                    Reason.DEADLINE_EXCEEDED,
                    f"The timeout passed while the control plane resolved '{item}'; its server "
                    "may still be starting.",
                ) from None
            except Fault as fault:
                # A caller with an earlier deadline made the request; this one has time left.
                late = fault.reason is Reason.DEADLINE_EXCEEDED and request.deadline < deadline
                if not late:
                    raise fault from None

    def is_unknown(self, item: NameOrItem, user: str) -> bool:
        """Return whether a name is not cached and the control plane is not connected."""
        return self._known(item, user) is None and not self._control.connected

    def add(
        self, name: NameOrItem, user: str, tool: catalog_pb2.ResolvedTool, version: int
    ) -> Target:
        """Add a name that a worker resolved; the control plane refreshes it at its next use."""
        return self._keep(Target(name, tool, version, 0.0, user))

    def _keep(self, target: Target) -> Target:
        key: _Key = target.item
        if target.of_user and target.user != self._own_user:
            key = (target.user, target.item)
        self._targets[key] = target
        return target

    def invalidate(self, target: Target, *, at_once: bool) -> None:
        """Resolve a name again, because its target failed.

        Args:
            target: The target.
            at_once: Whether the next use waits for the result; otherwise that use continues with
                the cached target while it is refreshed in the background.
        """
        if at_once:
            target.stale = target.refused = True
        else:
            target.refresh_at = 0.0

    def record_version(
        self,
        version: int,
        *,
        workers_changed: bool = False,
        changed: Collection[str] | None = None,
    ) -> None:
        """Record a registry version; names that it may have changed become stale.

        Args:
            version: The registry's current version.
            changed: The servers that changed since the version recorded last, if that is known;
                names of others stay valid. A URI may belong to another server since.
            workers_changed: Whether other workers serve the tools; then every name is refreshed
                in the background at its next use.
        """
        # A version becomes visible in steps, with the workers that acknowledge it.
        is_further_step = bool(changed) and version == self.registry_version.version
        if is_further_step:
            self.registry_version.record_lists()
        self.registry_version.record(version)
        for target in self._targets.values():
            if (target.registry_version < version or is_further_step) and (
                changed is None or target.server_id in changed or _is_uri(target.item)
            ):
                target.stale = True
            elif workers_changed:
                target.refresh_at = 0.0

    def record_users(self, users: Collection[str]) -> None:
        """Record that names and lists of some users have changed.

        Args:
            users: These users; an empty text means all. A client that names no user hears only of
                its credential's, unless that may name users.
        """
        everybody = "" in users
        for target in self._targets.values():
            if target.of_user and (everybody or not target.user or target.user in users):
                target.stale = True
        if users and (everybody or not self._own_user or self._own_user in users):
            self.registry_version.record_lists()

    def watch(self) -> RegistryVersion:
        """Start watching the registry, and return its version, which tasks can wait on."""
        if self._watch is None and not self.registry_version.ended:
            self._watch = start_lasting_task(
                _watch_registry(weakref.ref(self), self._control), "leaseway watch"
            )
        return self.registry_version

    async def close(self) -> None:
        """Cancel the watch and all requests."""
        tasks = [*self._tasks, *([self._watch] if self._watch is not None else [])]
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """Cancel the watch and all requests, without waiting."""
        self.registry_version.end()
        if self._watch is not None:
            self._watch.cancel()
        for task in self._tasks:
            task.cancel()

    def _refresh(self, target: Target, now: float) -> None:
        target.refresh_at = now + _REFRESH_AFTER
        if self._control.connected:
            request = self._request(target.item, target.user, now + _REFRESH_AFTER)
            request.future.add_done_callback(_retrieve)

    def _request(self, item: NameOrItem, user: str, deadline: float) -> _Request:
        key: _Key = item if user == self._own_user else (user, item)
        request = self._requests.get(key)
        if request is None:
            request = _Request(
                item=item,
                user=user,
                name=str(item),
                domain=domain(item),
                deadline=deadline,
                future=self._loop.create_future(),
            )
            request.future.add_done_callback(_retrieve)
            self._requests[key] = request
            if not self._queue:
                self._loop.call_soon(self._flush)
            self._queue.append(request)
            self.watch()
        return request

    def _flush(self) -> None:
        by_domain = attrgetter("domain", "user")
        queue, self._queue = sorted(self._queue, key=by_domain), []
        if self.registry_version.ended:
            for request in queue:
                self._fail(request, client_closed(sent=False))
            return
        for _, group in groupby(queue, by_domain):
            requests = list(group)
            for start in range(0, len(requests), _MAX_NAMES):
                self._start(requests[start : start + _MAX_NAMES])

    def _start(self, requests: list[_Request]) -> None:
        task = self._loop.create_task(self._send(requests), name="leaseway resolve")
        self._tasks.add(task)
        task.add_done_callback(partial(self._end_requests, requests))

    def _end_requests(self, requests: list[_Request], task: asyncio.Task[None]) -> None:
        """Fail what a cancelled task has left, also if it was cancelled before its first step."""
        self._tasks.discard(task)
        if task.cancelled():
            for request in requests:
                self._fail(request, client_closed(sent=False))

    async def _send(self, requests: list[_Request]) -> None:
        """Resolve names of one kind and server; if a batch fails, resolve each name separately."""
        batched = len(requests) > 1
        for request in requests:
            request.lists = self.registry_version.lists
        try:
            sets = dict(self._worker_sets)
            response = await self._request_targets(requests, sets)
            tools = {tool.name: tool for tool in response.tools}
            sets |= {sent.id: serving_workers(sent.workers) for sent in response.worker_sets}
            missing = [request for request in requests if request.name not in tools]
            for request in requests:
                if request.name in tools:
                    tool = tools[request.name]
                    self._handle_tool(request, tool, response.registry_version, sets, batched)
            if missing and len(missing) < len(requests):
                self._start(missing)  # the response was full
            else:
                for request in missing:
                    why = f"The control plane's response does not resolve '{request.name}'."
                    self._fail(request, Fault(Reason.INTERNAL, why))
        except Exception as error:  # noqa: BLE001 - later uses of the name would wait for ever
            # Any error: every later use of the name would wait for an unanswered request.
            if isinstance(error, Fault):
                fault = error
            else:
                _log.error("Names could not be resolved.", exc_info=error)
                fault = Fault(
                    Reason.INTERNAL,
                    f"This client could not resolve a name ({type(error).__name__}); its log has "
                    "the error.",
                )
            separately = batched and fault.reason in _RETRY_SEPARATELY
            for request in requests:
                if not request.future.done():
                    self._start([request]) if separately else self._fail(request, fault)

    async def _request_targets(
        self, requests: list[_Request], sets: Iterable[int]
    ) -> catalog_pb2.ResolveToolsResponse:
        kind, server = requests[0].domain
        deadline = max(request.deadline for request in requests)
        if len(requests) > 1:
            deadline = min(deadline, self._loop.time() + _BATCH_TIMEOUT)
        return await self._control.request(
            self._control.catalog.ResolveTools,
            catalog_pb2.ResolveToolsRequest(
                client=self._control.identity.client_info_for(requests[0].user),
                tenant=self._control.identity.tenant,
                names=[request.name for request in requests],
                kind=kind,
                server_id=server,
                takes_worker_sets=True,
                known_worker_sets=sets,
            ),
            deadline,
            bound=_RESTART_TIMEOUT,
        )

    def _handle_tool(
        self,
        request: _Request,
        tool: catalog_pb2.ResolvedTool,
        version: int,
        sets: Mapping[int, ServingWorkers],
        batched: bool,
    ) -> None:
        if tool.HasField("error"):
            fault = fault_from_status(tool.error)
            if batched and fault.reason is Reason.SERVER_NOT_READY:
                self._start([request])
                return
            old = self._known(request.item, request.user)
            if fault.reason in _OF_WORKERS and old is not None and not old.refused:
                # The control plane may be cut off from a worker that this client reaches.
                old.stale = False
                old.refresh_at = self._loop.time() + _REFRESH_AFTER
                self._complete(request, old)
                return
            if old is not None:
                self._forget(old)
            self._fail(request, fault)
            return
        workers = None
        if tool.worker_set:
            workers = sets.get(tool.worker_set)
            if workers is None:
                why = f"The control plane's response lacks the workers of '{request.name}'."
                self._fail(request, Fault(Reason.INTERNAL, why))
                return
            self._worker_sets[tool.worker_set] = workers
        refresh_at = self._loop.time() + _REFRESH_AFTER
        target = Target(request.item, tool, version, refresh_at, request.user, workers)
        newest = self.registry_version
        # A change that became known first may be missing in the response, and is not told again.
        target.stale = version < newest.version or request.lists != newest.lists
        self._complete(request, self._keep(target))

    def _forget(self, target: Target) -> None:
        for key in (target.item, (target.user, target.item)):
            if self._targets.get(key) is target:
                del self._targets[key]

    def _pop_request(self, request: _Request) -> None:
        is_own = request.user == self._own_user
        self._requests.pop(request.item if is_own else (request.user, request.item), None)

    def _complete(self, request: _Request, target: Target) -> None:
        self._pop_request(request)
        if not request.future.done():
            request.future.set_result(target)

    def _fail(self, request: _Request, fault: Fault) -> None:
        self._pop_request(request)
        if not request.future.done():
            request.future.set_exception(replace(fault))


async def _watch_registry(reference: weakref.ref[Resolver], control: ControlPlane) -> None:
    """Record registry versions for as long as the resolver is in use.

    A failure that persists is logged as a warning, once per reason until the watch works again: a
    wrong key or version does not fix itself.
    """
    identity = control.identity
    request = catalog_pb2.WatchToolsRequest(
        client=identity.client_info_for(identity.user), tenant=identity.tenant
    )
    attempt = 0
    missed = False  # whether workers may have changed between two streams
    logged: set[Reason] = set()
    while reference() is not None:
        try:
            with control.in_flight():
                stream = control.catalog.WatchTools(request, metadata=control.identity.metadata)
                async for message in stream:
                    if not _record(reference(), message, missed=missed):
                        return
                    attempt = 0
                    logged.clear()
                    missed = False
        except RpcCutOff:
            attempt = 0
        except grpc.aio.AioRpcError as error:
            fault = fault_of_control_plane(error, control.identity.address)
            control.switch_leader(fault)
            warns = attempt >= _TRIES_BEFORE_WARNING and fault.reason not in logged
            logged.update((fault.reason,) if warns else ())
            _log.log(
                logging.WARNING if warns else logging.DEBUG,
                "Changes of tools are not received; the cached tools stay in use: %s",
                fault,
            )
        except Exception:  # noqa: BLE001 - or else no later change would become known
            _log.log(
                logging.DEBUG if Reason.INTERNAL in logged else logging.ERROR,
                "Changes of tools could not be followed in this client.",
                exc_info=True,
            )
            logged.add(Reason.INTERNAL)
        missed = True
        await asyncio.sleep(RECONNECT.delay(attempt) + 0.02)
        attempt += 1


def _record(
    resolver: Resolver | None, message: catalog_pb2.WatchToolsResponse, *, missed: bool
) -> bool:
    """Record what the control plane tells; return whether the resolver is still in use."""
    if resolver is None:
        return False
    named = not missed and message.names_changed_servers
    resolver.record_version(
        message.registry_version,
        workers_changed=missed or message.workers_changed,
        changed=message.changed_servers if named else None,
    )
    resolver.record_users(("",) if missed else message.users_changed)
    return True


def _is_uri(item: NameOrItem) -> bool:
    return isinstance(item, PromptOrResource) and item.kind == catalog_pb2.NAME_KIND_RESOURCE


def _retrieve(future: asyncio.Future[Target]) -> None:
    """Retrieve an exception for which no caller may be waiting."""
    if not future.cancelled():
        future.exception()
