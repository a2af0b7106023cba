"""Changes of one resource, as its server tells of them.

A task of its own asks for them for as long as the block lasts, and again where a worker or a
shared server was lost meanwhile. What comes is kept once for each URI until somebody takes it.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Final, Self

from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.forks import refused
from leaseway.sdk.leases.book import SessionLeaseKey
from leaseway.sdk.runtime import Runtime, forget_frames
from leaseway.sdk.transport.events import CallEvents
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import CALL_TIMEOUT, LEASE_TTL, MAX_CALL_TIMEOUT
from leaseway.wire.errors import OF_ONE_WORKER, SETTLING, UNANSWERED, Fault, Reason
from leaseway.wire.timing.backoff import Backoff

_MOST_PARTS: Final = 1024
"""Parts of a resource whose changes are kept; of more, the resource itself is named."""
_PASSING: Final = OF_ONE_WORKER | UNANSWERED | SETTLING | {Reason.SERVER_NOT_READY}
"""How a subscription that held may end without an end of what it is about."""
_AGAIN: Final = Backoff(initial=0.1, maximum=10.0)
_MAX_FAILURES: Final = 20
"""Tries in a row that make no subscription, before it is given up; minutes, all in all."""


class _Changes(CallEvents):
    """What has changed and was not taken yet."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.ended = False
        self._uri = uri
        self._changed: dict[str, None] = {}
        self._ready = asyncio.Event()

    def handle_update(self, frame: execution_pb2.ResourceUpdate) -> None:
        """Keep a change, or note that the subscription holds.

        What changed between two subscriptions nobody knows: then the resource counts as changed.
        """
        uri = frame.uri
        if not uri:
            if not self.held.is_set():
                self.held.set()
                return
            uri = self._uri
        if len(self._changed) >= _MOST_PARTS and uri not in self._changed:
            uri = self._uri
        self._changed[uri] = None
        self._ready.set()

    def end(self) -> None:
        """Note that nothing more will come."""
        self.ended = True
        self.held.set()
        self._ready.set()

    async def next_change(self) -> str | None:
        """Wait for a change; None means that there will be no more."""
        while not self._changed:
            if self.ended:
                return None
            self._ready.clear()
            await self._ready.wait()
        uri = next(iter(self._changed))
        del self._changed[uri]
        return uri


class AsyncResourceUpdates:
    """Changes of one resource; made by `subscribe_resource`.

        async with client.subscribe_resource(uri) as updates:
            async for changed in updates:
                ...  # the resource's URI, or that of a part of it

    In the block no change is missed, but several of the same URI count as one while nobody takes
    them. Iterating raises where the subscription ends: with its lease, or because its server does
    not tell of changes any more.
    """

    def __init__(
        self,
        at: Callable[[], tuple[Runtime, str]],
        request: McpRequest,
        timeout: float | None,
    ) -> None:
        self._at = at  # and with it its client, whose end would be the subscription's
        self._request = request
        self._timeout = CALL_TIMEOUT if timeout is None else timeout
        self._changes = _Changes(request.item.name)
        self._task: asyncio.Task[None] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("This subscription was used before; make another one.")
        following = self._follow(*self._at())
        self._task = asyncio.create_task(following, name=f"follow {self._request.item.name}")
        self._task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._timeout):
                await self._changes.held.wait()
            if self._task.done():
                self._raise(self._task)
        except TimeoutError:
            await self._leave()
            raise error_from_fault(self._late()) from None
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await self.next()

    async def next(self, timeout: float | None = None) -> str:
        """Wait for the next change and return the URI of what changed.

        Args:
            timeout: Seconds to wait; None means as long as the subscription lasts.

        Raises:
            TimeoutError: Nothing changed in that time; the subscription goes on.
            LeasewayError: The subscription has ended, and why.
        """
        if self._task is None:
            raise RuntimeError("A subscription is read inside of its `with` block.")
        async with asyncio.timeout(timeout):
            uri = await self._changes.next_change()
        if uri is None:
            self._raise(self._task)
            raise RuntimeError("This subscription has ended: its `with` block was left.")
        return uri

    async def _leave(self) -> None:
        assert self._task is not None
        self._left = True
        # In a child that is refused it is its parent's.
        if not self._task.done() and not refused():
            self._task.cancel()
            await asyncio.wait([self._task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._changes.end()
        forget_frames(task)

    def __del__(self) -> None:
        if self._task is not None and not self._left and not refused():
            name = self._request.item.name
            message = f"The `with` block of a subscription to {name[:300]!r} was never left."
            warnings.warn(message, ResourceWarning, stacklevel=2)

    async def _follow(self, runtime: Runtime, session: str) -> None:
        failures = 0
        while True:
            began = runtime.loop.time()
            try:
                await self._hold_lease(runtime, session)
                await runtime.caller.request(
                    session, self._request, MAX_CALL_TIMEOUT, self._changes
                )
                return  # no server ends it in order
            except Fault as fault:
                lasted = runtime.loop.time() - began > _AGAIN.maximum
                failures = 1 if lasted else failures + 1
                if not self._passes(fault) or failures > _MAX_FAILURES:
                    raise
            await asyncio.sleep(_AGAIN.delay(failures - 1))

    def _passes(self, fault: Fault) -> bool:
        """Return whether to subscribe anew; what a lease's server kept is gone with the lease."""
        target = self._request.target
        if not self._changes.held.is_set() or target is None:
            return False
        lasts = target.shared or fault.reason is Reason.DEADLINE_EXCEEDED
        return lasts and fault.reason in _PASSING

    async def _hold_lease(self, runtime: Runtime, session: str) -> None:
        """Acquire the lease where the server is leased: a call would name it at its end only."""
        deadline = runtime.loop.time() + self._timeout
        item = self._request.item
        target = runtime.resolver.cached(item, runtime.loop.time())
        if target is None:
            target = await runtime.resolver.resolve(item, deadline)
        key = SessionLeaseKey(session, target.server_id)
        if not target.shared and not runtime.leases.book.tracks(*key):
            await runtime.leases.acquire(key, LEASE_TTL, None, target.registry_version)

    def _late(self) -> Fault:
        return Fault(
            Reason.DEADLINE_EXCEEDED,
            f"The subscription to {self._request.item.name[:300]} did not hold within "
            f"{self._timeout:g} s.",
            "unknown",
        )

    @staticmethod
    def _raise(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Fault):
            raise error_from_fault(error) from None
        if error is not None:
            raise error
