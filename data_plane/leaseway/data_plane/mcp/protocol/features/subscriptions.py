"""Subscriptions to resources: one at the server for each URI, shared by its subscribers.

A task for each URI subscribes, and unsubscribes after the last subscriber has left. Legacy servers
use `resources/subscribe`, and their updates arrive in the inbox; modern ones use a
`subscriptions/listen` stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from mcp.client.session import ClientSession
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import METHOD_NOT_FOUND

from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.era import reject_call
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import RETRY

_logger = logging.getLogger(__name__)
_UNSUBSCRIBE_TIMEOUT: Final = 10.0
"""Seconds for a server's response to an unsubscribe."""


_MAX_TEXT: Final = 2048
_ENDS: Final = frozenset("/#?")


class _Subscriber:
    """A caller's subscription to a resource; a `PendingCall`."""

    def __init__(
        self, resource: _Resource, on_update: OnUpdate, done: Callable[[Outcome], None]
    ) -> None:
        self.written = True  # a repeated subscription does no harm
        self._resource = resource
        self._on_update: OnUpdate | None = on_update
        self._done = done

    def cancel(self, reason: str) -> None:
        """Unsubscribe; the last subscriber ends the subscription at the server."""
        self._on_update = None
        self._resource.remove(self)

    def notify(self, uri: str) -> None:
        """Notify of a changed URI, or by an empty URI that the subscription is confirmed."""
        if self._on_update is not None:
            self._on_update(uri)

    def fail(self, fault: Fault) -> None:
        """End the subscription."""
        if self._on_update is not None:
            self._on_update = None
            self._done(Outcome(b"", fault=fault))


class _Resource:
    """A URI with subscribers, and the state of its subscription at the server.

    Attributes:
        uri: The URI.
        stem: What the URIs of its parts begin with, before one of `_ENDS`.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.stem = uri.rstrip("/")
        self._changed = asyncio.Event()
        self._must_renew = False
        self._is_confirmed = False
        self._was_confirmed = False
        self._subscribers: dict[_Subscriber, None] = {}

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscribers)

    @property
    def is_current(self) -> bool:
        return self.has_subscribers and not self._must_renew

    def add(self, on_update: OnUpdate, done: Callable[[Outcome], None]) -> _Subscriber:
        """Add a subscriber; notify it if the subscription is already confirmed."""
        subscriber = _Subscriber(self, on_update, done)
        self._subscribers[subscriber] = None
        if self._is_confirmed:
            asyncio.get_running_loop().call_soon(subscriber.notify, "")
        return subscriber

    def remove(self, subscriber: _Subscriber) -> None:
        if subscriber in self._subscribers:
            del self._subscribers[subscriber]
            if not self._subscribers:
                self._changed.set()

    def reset(self) -> None:
        """Reset before subscribing at the server."""
        self._must_renew, self._is_confirmed = False, False
        self._was_confirmed = self._was_confirmed and self.has_subscribers
        self._changed.clear()

    def confirm(self) -> None:
        """Confirm the subscription. After a renewal, report a change: updates may be lost."""
        self._is_confirmed = True
        self.notify("")
        if self._was_confirmed:
            self.notify(self.uri)
        self._was_confirmed = True

    def renew(self) -> None:
        """Require a renewal: the server has lost the subscription."""
        self._must_renew = True
        self._changed.set()

    async def until_outdated(self) -> None:
        """Wait until the last subscriber has left, or the subscription must be renewed."""
        while self.is_current:
            self._changed.clear()
            await self._changed.wait()

    def notify(self, uri: str) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber.notify(uri)

    def fail(self, fault: Fault) -> None:
        """End all subscriptions with a fault."""
        subscribers, self._subscribers = self._subscribers, {}
        for subscriber in subscribers:
            subscriber.fail(fault)
        self._changed.set()


class InstanceSubscriptions:
    """The subscriptions of one instance; the server has `timeout` seconds to confirm each."""

    def __init__(self, server: str, session: ClientSession, peer: Peer, timeout: float) -> None:
        self._server = server
        self._session = session
        self._peer = peer
        self._timeout = timeout
        self._resources: dict[str, _Resource] = {}
        self._by_stem: dict[str, set[_Resource]] = {}
        self._lengths: Counter[int] = Counter()  # of stems
        self._tasks: set[asyncio.Task[None]] = set()
        capabilities = session.server_capabilities
        offered = capabilities.resources if capabilities is not None else None
        self._offered = offered is not None and bool(offered.subscribe)
        if not peer.era.modern:
            peer.resource_updated.connect(self._updated)
            peer.reopened.connect(self._renew)

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Subscribe to a resource until cancelled or failed.

        Args:
            uri: The resource.
            on_update: Called with an empty text once the subscription is confirmed, then with
                each changed URI: the resource or a part of it.
            done: Called when the subscription fails; not after `cancel`.
        """
        if not self._offered:
            return reject_call(done, self._not_offered())
        resource = self._resources.get(uri)
        if resource is None:
            resource = self._resources[uri] = _Resource(uri)
            self._by_stem.setdefault(resource.stem, set()).add(resource)
            self._lengths[len(resource.stem)] += 1
            task = asyncio.get_running_loop().create_task(self._keep(resource))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return resource.add(on_update, done)

    async def aclose(self) -> None:
        """End all subscriptions: the connection has ended."""
        fault = self._peer.ended_fault("yes")
        for resource in tuple(self._resources.values()):
            resource.fail(fault)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _updated(self, uri: str) -> None:
        # By the beginnings of the URI: callers of a shared server may follow thousands of others.
        for length in self._lengths:
            if length == len(uri) or uri[length : length + 1] in _ENDS:
                for resource in self._by_stem.get(uri[:length], ()):
                    resource.notify(uri)

    def _renew(self) -> None:
        for resource in self._resources.values():
            resource.renew()

    async def _keep(self, resource: _Resource) -> None:
        hold = self._listen if self._peer.era.modern else self._subscribe
        try:
            while resource.has_subscribers:
                resource.reset()
                await hold(resource)
        except ConnectionLost as error:
            resource.fail(error.fault)
        except MCPError as error:
            resource.fail(self._rejected(resource.uri, error.error.code, error.error.message))
        except TimeoutError:
            resource.fail(self._timed_out(resource.uri))
        except SubscriptionLost:
            text = "it ended the stream before it confirmed the subscription"
            resource.fail(self._rejected(resource.uri, METHOD_NOT_FOUND, text))
        except Exception:  # subscribers must be notified of any failure
            _logger.exception("A subscription at the server %s failed.", self._server)
            resource.fail(self._failed(resource.uri))
        finally:
            self._forget(resource)

    def _forget(self, resource: _Resource) -> None:
        del self._resources[resource.uri]
        alike, length = self._by_stem[resource.stem], len(resource.stem)
        alike.remove(resource)
        if not alike:
            del self._by_stem[resource.stem]
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]

    async def _subscribe(self, resource: _Resource) -> None:
        params = {"uri": resource.uri}
        async with asyncio.timeout(self._timeout):
            await self._peer.request("resources/subscribe", params)
        resource.confirm()
        await resource.until_outdated()
        if not resource.has_subscribers:
            # New subscribers wait: the server could receive the two requests in the wrong order.
            resource.reset()
            with contextlib.suppress(MCPError, TimeoutError):
                async with asyncio.timeout(_UNSUBSCRIBE_TIMEOUT):
                    await self._peer.request("resources/unsubscribe", params)

    async def _listen(self, resource: _Resource) -> None:
        failures = 0
        while resource.is_current:
            try:
                if await self._listen_once(resource):
                    failures = 0
            except SubscriptionLost:
                if not failures:
                    raise
            failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY.ceiling(failures - 1)):
                    await resource.until_outdated()

    async def _listen_once(self, resource: _Resource) -> bool:
        """Read one stream to its end; return whether it had an update."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self._timeout):
                stream = await stack.enter_async_context(
                    listen(self._session, resource_subscriptions=[resource.uri])
                )
            if not stream.honored.resource_subscriptions:
                raise MCPError(METHOD_NOT_FOUND, "it did not accept the subscription")
            resource.confirm()
            reading = asyncio.ensure_future(_read(stream, resource))
            outdated = asyncio.ensure_future(resource.until_outdated())
            try:
                await asyncio.wait((reading, outdated), return_when=asyncio.FIRST_COMPLETED)
            finally:
                reading.cancel()
                outdated.cancel()
                await asyncio.gather(reading, outdated, return_exceptions=True)
            return not reading.cancelled() and reading.exception() is None and reading.result()

    # Faults.

    def _not_offered(self) -> Fault:
        return Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} does not support subscriptions to resources. Read them "
            "again instead.",
            metadata={"server": self._server, "code": str(METHOD_NOT_FOUND)},
        )

    def _rejected(self, uri: str, code: int, message: str) -> Fault:
        message = message[:_MAX_TEXT]
        return Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} rejected a subscription to {uri[:300]} with error {code}: "
            f"{message or 'no message'}",
            "yes",
            metadata={"server": self._server, "code": str(code), "message": message},
        )

    def _failed(self, uri: str) -> Fault:
        return Fault(
            Reason.INTERNAL,
            f"The subscription to {uri[:300]} of the server {self._server} failed in the worker; "
            "see its log.",
            "unknown",
            metadata={"server": self._server},
        )

    def _timed_out(self, uri: str) -> Fault:
        return Fault(
            Reason.DEADLINE_EXCEEDED,
            f"The server {self._server} did not confirm a subscription to {uri[:300]} within "
            f"{self._timeout:g} s.",
            "yes",
            metadata={"server": self._server},
        )


async def _read(stream: Subscription, resource: _Resource) -> bool:
    updated = False
    try:
        async for event in stream:
            if isinstance(event, ResourceUpdated):
                updated = True
                resource.notify(event.uri)
    except SubscriptionLost:
        pass  # like an orderly end: another stream is opened
    return updated
