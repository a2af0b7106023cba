"""Where names lead: asked of the control plane once, then known until the registry moves.

A name whose registry version has moved is asked again at its next use; while the control plane
is unreachable, or knows no worker for it, the old answer goes on serving until its workers refuse
themselves, so that calls outlive it (DESIGN §4). Workers come and go without a new version, so an
answer in use is also refreshed in the background.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from dataclasses import replace
from itertools import groupby
from typing import Final

from leaseway.sdk.catalog.registry_watch import RegistryVersion, follow_registry
from leaseway.sdk.catalog.targets import Domain, NameOrItem, Target, domain
from leaseway.sdk.transport.control import CONNECT_BOUND, ControlPlane
from leaseway.v1 import catalog_pb2
from leaseway.wire.errors import UNANSWERED, Fault, Reason
from leaseway.wire.status import fault_from_status

_logger = logging.getLogger(__name__)

_MAX_NAMES: Final = 1000
_MAX_CACHED: Final = 20_000
"""Names in the cache; beyond it the oldest is asked again when it is needed."""
_RESTART_BOUND: Final = 7.0
"""Seconds that a control plane is waited for without which a call cannot begin; it may restart."""
_REFRESH_AFTER: Final = 10.0
"""Seconds after which the workers of a name in use are asked again in the background."""
_TOGETHER_BOUND: Final = 1.0
"""Seconds that names asked together wait for the slowest; then each waits by itself."""
_ALONE: Final = UNANSWERED | {Reason.INTERNAL}
"""Why names asked together are asked again one by one: one of them may be the cause."""


class _Request:
    __slots__ = ("asked", "deadline", "future", "name")

    def __init__(self, asked: NameOrItem, deadline: float, future: asyncio.Future[Target]) -> None:
        self.asked = asked
        self.name = str(asked)
        self.deadline = deadline
        self.future = future


class Resolver:
    """The names that one client has used."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._targets: dict[NameOrItem, Target] = {}
        self._requests: dict[NameOrItem, _Request] = {}
        self._queue: list[_Request] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self.registry_version = RegistryVersion()

    def cached(self, asked: NameOrItem, now: float) -> Target | None:
        """Return where a name leads if that is known and fresh."""
        target = self._targets.get(asked)
        if target is None or target.stale:
            return None
        if now >= target.refresh_at:
            self._refresh(target, now)
        return target

    async def resolve(self, asked: NameOrItem, deadline: float) -> Target:
        """Ask where a name leads; requests of the same moment go out together.

        Args:
            asked: A tool's name, or the offer of a prompt or a resource.
            deadline: When it is given up, on the loop's clock.

        Raises:
            Fault: It leads nowhere, the deadline passed, or nobody can say.
        """
        old = self._targets.get(asked)
        if old is None:
            return await self._resolved(asked, deadline)
        if not self._control.connected:
            return old  # still stale: asked again as soon as there is somebody to ask
        try:
            return await self._resolved(asked, min(deadline, self._loop.time() + CONNECT_BOUND))
        except Fault as fault:
            if fault.reason in UNANSWERED:
                return old
            raise

    async def _resolved(self, asked: NameOrItem, deadline: float) -> Target:
        while True:
            request = self._request(asked, deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.shield(request.future)
            except TimeoutError:
                raise _late(str(asked)) from None
            except Fault as fault:
                # Somebody with less time asked; this caller has some left.
                late = fault.reason is Reason.DEADLINE_EXCEEDED and request.deadline < deadline
                if not late:
                    raise fault from None

    def is_unknown(self, asked: NameOrItem) -> bool:
        """Return whether nothing is known of a name, and there is nobody to ask at the moment."""
        return asked not in self._targets and not self._control.connected

    def learn(self, name: str, tool: catalog_pb2.ResolvedTool, version: int) -> Target:
        """Record where a name leads as a worker says; it is asked again when that is possible."""
        target = self._targets[name] = Target(name, tool, version, 0.0)
        return target

    def doubt(self, target: Target, *, at_once: bool) -> None:
        """Resolve a name again, since what it led to has failed.

        Args:
            target: Where it led.
            at_once: Whether its next use waits for the answer; else that use goes on with what
                is known and the answer comes in the background.
        """
        if at_once:
            target.stale = target.refused = True
        else:
            target.refresh_at = 0.0

    def moved(self, version: int, *, workers_changed: bool = False) -> None:
        """Note a registry version: what was resolved at an older one is asked again.

        Args:
            version: The version now in force.
            workers_changed: Whether others serve the tools: then every name is asked again in
                the background of its next use.
        """
        self.registry_version.record(version)
        for target in self._targets.values():
            if target.registry_version < version:
                target.stale = True
            elif workers_changed:
                target.refresh_at = 0.0

    def watch(self) -> RegistryVersion:
        """Follow the registry's versions from now on, and return where they are noted."""
        if self._watch is None and not self.registry_version.ended:
            self._watch = self._loop.create_task(
                follow_registry(weakref.ref(self), self._control), name="leaseway watch"
            )
        return self.registry_version

    async def close(self) -> None:
        """End the watch and all requests."""
        tasks = [*self._tasks, *([self._watch] if self._watch is not None else [])]
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """Begin to end, without waiting."""
        self.registry_version.end()
        if self._watch is not None:
            self._watch.cancel()
        for task in self._tasks:
            task.cancel()

    def _refresh(self, target: Target, now: float) -> None:
        target.refresh_at = now + _REFRESH_AFTER
        if self._control.connected:
            request = self._request(target.asked, now + _REFRESH_AFTER)
            request.future.add_done_callback(_seen)

    def _request(self, asked: NameOrItem, deadline: float) -> _Request:
        request = self._requests.get(asked)
        if request is None:
            request = _Request(asked, deadline, self._loop.create_future())
            request.future.add_done_callback(_seen)
            self._requests[asked] = request
            if not self._queue:
                self._loop.call_soon(self._flush)
            self._queue.append(request)
            self.watch()
        return request

    def _flush(self) -> None:
        queue, self._queue = sorted(self._queue, key=_domain), []
        for _, group in groupby(queue, _domain):
            alike = list(group)
            for start in range(0, len(alike), _MAX_NAMES):
                self._spawn(alike[start : start + _MAX_NAMES])

    def _spawn(self, requests: list[_Request]) -> None:
        task = self._loop.create_task(self._ask(requests), name="leaseway resolve")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, requests: list[_Request]) -> None:
        """Ask for names together; those that hold up the others are asked again one by one.

        All are of the same kind and server.
        """
        together = len(requests) > 1
        try:
            response = await self._answer(requests)
            answers = {tool.name: tool for tool in response.tools}
            left = [request for request in requests if request.name not in answers]
            for request in requests:
                if request.name in answers:
                    tool = answers[request.name]
                    self._take(request, tool, response.registry_version, together)
            if left and len(left) < len(requests):
                self._spawn(left)  # the answer was full
            else:
                for request in left:
                    self._fail(request, _unanswered(request.name))
        except asyncio.CancelledError:
            for request in requests:
                self._fail(request, Fault(Reason.CANCELLED, "The client was closed."))
            raise
        except Exception as error:
            # Whatever it is: a request that nobody answers would be waited for by each later use.
            fault = error if isinstance(error, Fault) else _broken(error)
            again = together and fault.reason in _ALONE
            for request in requests:
                if not request.future.done():
                    self._spawn([request]) if again else self._fail(request, fault)

    async def _answer(self, requests: list[_Request]) -> catalog_pb2.ResolveToolsResponse:
        kind, server = _domain(requests[0])
        deadline = max(request.deadline for request in requests)
        if len(requests) > 1:
            deadline = min(deadline, self._loop.time() + _TOGETHER_BOUND)
        return await self._control.ask(
            self._control.catalog.ResolveTools,
            catalog_pb2.ResolveToolsRequest(
                client=self._control.identity.client_info,
                tenant=self._control.identity.tenant,
                names=[request.name for request in requests],
                kind=kind,
                server_id=server,
            ),
            deadline,
            bound=_RESTART_BOUND,
        )

    def _take(
        self, request: _Request, tool: catalog_pb2.ResolvedTool, version: int, together: bool
    ) -> None:
        if tool.HasField("error"):
            fault = fault_from_status(tool.error)
            if together and fault.reason is Reason.SERVER_NOT_READY:
                self._spawn([request])
                return
            old = self._targets.get(request.asked)
            if fault.reason is Reason.SERVER_NOT_READY and old is not None and not old.refused:
                # The control plane may be cut off from a worker that this client reaches.
                old.stale = False
                old.refresh_at = self._loop.time() + _REFRESH_AFTER
                self._answer_with(request, old)
                return
            self._targets.pop(request.asked, None)
            self._fail(request, fault)
            return
        target = Target(request.asked, tool, version, self._loop.time() + _REFRESH_AFTER)
        self._targets.pop(request.asked, None)
        self._targets[request.asked] = target
        if len(self._targets) > _MAX_CACHED:
            del self._targets[next(iter(self._targets))]
        self._answer_with(request, target)

    def _answer_with(self, request: _Request, target: Target) -> None:
        self._requests.pop(request.asked, None)
        if not request.future.done():
            request.future.set_result(target)

    def _fail(self, request: _Request, fault: Fault) -> None:
        self._requests.pop(request.asked, None)
        if not request.future.done():
            request.future.set_exception(replace(fault))


def _domain(request: _Request) -> Domain:
    return domain(request.asked)


def _seen(future: asyncio.Future[Target]) -> None:
    """Look at a failure that its askers may not have waited for."""
    if not future.cancelled():
        future.exception()


def _broken(error: Exception) -> Fault:
    """Return why names could not even be asked for, and have the log tell the rest."""
    _logger.error("Names could not be resolved.", exc_info=error)
    return Fault(
        Reason.INTERNAL,
        f"This client could not ask the control plane where a name leads ({type(error).__name__}); "
        "its log says why.",
    )


def _unanswered(name: str) -> Fault:
    return Fault(
        Reason.INTERNAL, f"The control plane was asked where '{name}' leads and did not say."
    )


def _late(name: str) -> Fault:
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"The timeout passed while the control plane was asked where '{name}' leads; its server "
        "may still be starting.",
    )
