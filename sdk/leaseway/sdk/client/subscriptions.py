"""A subscription to the changes of one resource.

A task keeps the subscription for as long as the `with` block lasts, and renews it after the loss
of a worker or a shared server. A change is kept once for each URI until it is read.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Final, Self

from leaseway.sdk.calls.requests import McpRequest, mcp_call
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.runtime import GetScope, Runtime, forget_frames, raise_error_of
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.forks import forked_after_use
from leaseway.sdk.transport.handles import ProcessHandle
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import CALL_TIMEOUT, LEASE_TTL, MAX_CALL_TIMEOUT
from leaseway.wire.errors import OF_ONE_WORKER, SETTLING, UNANSWERED, Fault, Reason
from leaseway.wire.timing.backoff import RECONNECT

_MAX_PARTS: Final = 1024
"""Limit of a resource's changed parts; above it, the resource itself counts as changed."""
_TRANSIENT: Final = OF_ONE_WORKER | UNANSWERED | SETTLING | {Reason.SERVER_NOT_READY}
"""Reasons for which a subscription ends although its resource may still exist."""
_MAX_FAILURES: Final = 20
"""Limit of failed tries in a row; they take a few minutes."""


class _Changes(CallEvents):
    """The URIs that have changed and were not read yet."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.accepted = asyncio.Event()
        self.ended = False
        self._uri = uri
        self._changed: dict[str, None] = {}
        self._ready = asyncio.Event()

    def handle_update(self, frame: execution_pb2.ResourceUpdate) -> None:
        """Keep a change. A frame without a URI means that the subscription is accepted.

        After a renewal the resource itself counts as changed: changes may have been missed.
        """
        uri = frame.uri
        if not uri:
            if not self.accepted.is_set():
                self.accepted.set()
                return
            uri = self._uri
        if len(self._changed) >= _MAX_PARTS and uri not in self._changed:
            uri = self._uri
        self._changed[uri] = None
        self._ready.set()

    def end(self) -> None:
        """Wake all waiters: the subscription has ended."""
        self.ended = True
        self.accepted.set()
        self._ready.set()

    async def next_change(self) -> str | None:
        """Wait for a change; return None if the subscription has ended."""
        while not self._changed:
            if self.ended:
                return None
            self._ready.clear()
            await self._ready.wait()
        uri = next(iter(self._changed))
        del self._changed[uri]
        return uri


class AsyncResourceUpdates(ProcessHandle):
    """A subscription to a resource's changes; made by `subscribe_resource`.

        async with client.subscribe_resource(uri) as updates:
            async for changed in updates:
                ...  # the URI of the resource, or of a part of it

    No change is missed inside the block, but unread changes of the same URI count as one.
    Iterating raises a `LeasewayError` when the subscription ends: with its lease, or because the
    server ends it.
    """

    def __init__(
        self,
        get_scope: GetScope,
        request: McpRequest,
        timeout: float | None,
    ) -> None:
        self._get_scope = get_scope  # keeps the client alive, whose end would end this
        self._request = request
        self._timeout = CALL_TIMEOUT if timeout is None else timeout
        self._changes = _Changes(request.item.name)
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("This subscription was used before; call subscribe_resource again.")
        subscribing = self._subscribe(*self._get_scope())
        self._task = asyncio.create_task(subscribing, name=f"follow {self._request.item.name}")
        self._task.add_done_callback(self._on_ended)
        try:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._changes.accepted.wait()
            except TimeoutError:
                raise error_from_fault(self._timeout_fault()) from None
            if self._task.done():
                raise_error_of(self._task)  # perhaps a DeadlineExceeded, which is a TimeoutError
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await self.next()

    async def next(self, timeout: float | None = None) -> str:
        """Wait for the next change and return the URI of what changed.

        Args:
            timeout: Seconds to wait; None means no limit.

        Raises:
            TimeoutError: Nothing changed in that time; the subscription continues.
            LeasewayError: The subscription has ended; the error is the reason.
            RuntimeError: The `with` block has not started, or has ended.
        """
        if self._task is None:
            raise RuntimeError("Read a subscription inside its `with` block.")
        async with asyncio.timeout(timeout):
            uri = await self._changes.next_change()
        if uri is None:
            raise_error_of(self._task)
            raise RuntimeError("This subscription has ended with its `with` block.")
        return uri

    async def _stop(self) -> None:
        assert self._task is not None
        self._stopped = True
        # After a fork, the task belongs to the parent process.
        if not self._task.done() and not forked_after_use():
            self._task.cancel()
            await asyncio.wait([self._task])

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._changes.end()
        forget_frames(task)

    def __del__(self) -> None:
        if self._task is not None and not self._stopped and not forked_after_use():
            name = self._request.item.name
            message = f"The `with` block of a subscription to {name[:300]!r} was never ended."
            warnings.warn(message, ResourceWarning, stacklevel=2)

    async def _subscribe(self, runtime: Runtime, session: str) -> None:
        failures = 0
        while True:
            started_at = runtime.loop.time()
            try:
                await self._acquire_lease(runtime, session)
                call = mcp_call(session, self._request, MAX_CALL_TIMEOUT, self._changes)
                await runtime.caller.run(call)
                return  # servers have no way to end a subscription without an error
            except Fault as fault:
                lasted = runtime.loop.time() - started_at > RECONNECT.maximum
                failures = 1 if lasted else failures + 1
                if not self._can_retry(fault) or failures > _MAX_FAILURES:
                    raise
            await asyncio.sleep(RECONNECT.delay(failures - 1))

    def _can_retry(self, fault: Fault) -> bool:
        # A leased server's state is lost with the lease, and the resource may be part of it.
        target = self._request.target
        if not self._changes.accepted.is_set() or target is None:
            return False
        lasts = target.shared or fault.reason is Reason.DEADLINE_EXCEEDED
        return lasts and fault.reason in _TRANSIENT

    async def _acquire_lease(self, runtime: Runtime, session: str) -> None:
        """Acquire the lease of a leased server now: a call reports a new lease when it ends."""
        deadline = runtime.loop.time() + self._timeout
        item = self._request.item
        user = runtime.users.of(session)
        target = runtime.resolver.cached_for(user, item, runtime.loop.time())
        if target is None:
            target = await runtime.resolver.resolve(item, deadline, user)
        if not target.shared and not runtime.leases.book.tracks(session, target.server_id):
            key = runtime.leases.key(session, target.server_id)
            await runtime.leases.acquire(key, LEASE_TTL, None, target.registry_version)

    def _timeout_fault(self) -> Fault:
        return Fault(
            Reason.DEADLINE_EXCEEDED,
            f"The subscription to {self._request.item.name[:300]} was not accepted "
            f"within {self._timeout:g} s.",
            "unknown",
        )
