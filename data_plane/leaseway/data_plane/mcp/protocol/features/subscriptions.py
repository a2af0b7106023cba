"""Who follows which resource of one instance: one subscription at the server for each URI.

A task for each URI subscribes, stays, and takes the subscription back when the last caller has
gone. Legacy servers are asked by `resources/subscribe`, and what they report comes by the inbox;
modern ones by a `subscriptions/listen` stream of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from mcp.client.session import ClientSession
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import METHOD_NOT_FOUND

from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.era import refuse
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff

_logger = logging.getLogger(__name__)
_FAREWELL: Final = 10.0
"""Seconds that a server has to take a subscription back."""

_AGAIN: Final = Backoff(initial=0.5, maximum=30.0)
"""Between two streams of a modern server that ends them."""

_MAX_TEXT: Final = 2048


class _Follower:
    """A caller that follows a resource; a `PendingCall`."""

    def __init__(
        self, resource: _Resource, on_update: OnUpdate, done: Callable[[Outcome], None]
    ) -> None:
        self.written = True  # asking twice harms nobody, so it need not be known better
        self._resource = resource
        self._on_update: OnUpdate | None = on_update
        self._done = done

    def cancel(self, reason: str) -> None:
        """Follow no longer; the last one to do so ends the subscription at the server."""
        self._on_update = None
        self._resource.leave(self)

    def notify(self, uri: str) -> None:
        """Pass on that something changed, or by an empty URI that the subscription holds."""
        if self._on_update is not None:
            self._on_update(uri)

    def fail(self, fault: Fault) -> None:
        """Called when nothing more will come."""
        if self._on_update is not None:
            self._on_update = None
            self._done(Outcome(b"", fault=fault))


class _Resource:
    """One URI that is followed.

    Attributes:
        changed: Set when somebody left, or the subscription is to be made anew.
        anew: Whether it is to be made anew: the server has forgotten it.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.changed = asyncio.Event()
        self.anew = False
        self._holds = False
        self._was_held = False
        self._followers: dict[_Follower, None] = {}

    @property
    def is_followed(self) -> bool:
        return bool(self._followers)

    @property
    def is_settled(self) -> bool:
        return self.is_followed and not self.anew

    def join(self, on_update: OnUpdate, done: Callable[[Outcome], None]) -> _Follower:
        """Add a follower, who hears at once where the subscription holds."""
        follower = _Follower(self, on_update, done)
        self._followers[follower] = None
        if self._holds:
            asyncio.get_running_loop().call_soon(follower.notify, "")
        return follower

    def leave(self, follower: _Follower) -> None:
        """Take a follower out."""
        if follower in self._followers:
            del self._followers[follower]
            if not self._followers:
                self.changed.set()

    def begin(self) -> None:
        """Note that the subscription is being made."""
        self.anew, self._holds = False, False
        self._was_held = self._was_held and self.is_followed
        self.changed.clear()

    def confirm(self) -> None:
        """Note that it holds; what changed between two of them is not known, so all is said to."""
        self._holds = True
        for follower in tuple(self._followers):
            follower.notify("")
        if self._was_held:
            self.notify(self.uri)
        self._was_held = True

    def renew(self) -> None:
        self.anew = True
        self.changed.set()

    def notify(self, uri: str) -> None:
        for follower in tuple(self._followers):
            follower.notify(uri)

    def covers(self, uri: str) -> bool:
        own = self.uri.rstrip("/")
        return uri.startswith(own) and (len(uri) == len(own) or uri[len(own)] in "/#?")

    def fail(self, fault: Fault) -> None:
        """Notify all followers that nothing more will come."""
        followers, self._followers = self._followers, {}
        for follower in followers:
            follower.fail(fault)
        self.changed.set()


class Subscriptions:
    """The resources of one instance that callers follow.

    Args:
        server: The server's id, for messages.
        session: The negotiated session.
        peer: Its connection.
        patience: Seconds that the server has to confirm a subscription.
    """

    def __init__(self, server: str, session: ClientSession, peer: Peer, patience: float) -> None:
        self._server = server
        self._session = session
        self._peer = peer
        self._patience = patience
        self._resources: dict[str, _Resource] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        capabilities = session.server_capabilities
        offered = capabilities.resources if capabilities is not None else None
        self._offered = offered is not None and bool(offered.subscribe)
        if not peer.era.modern:
            peer.hear_updates(self._updated, self._renew)

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        """Notify of a resource's changes until cancelled, or until it fails for good.

        Args:
            uri: The resource.
            on_update: Told an empty text once the subscription holds, then the URI of what
                changed: this one or a part of it.
            done: Told why there will be no more; not called after `cancel`.
        """
        if not self._offered:
            return refuse(done, self._not_offered())
        resource = self._resources.get(uri)
        if resource is None:
            resource = self._resources[uri] = _Resource(uri)
            task = asyncio.get_running_loop().create_task(self._keep(resource))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return resource.join(on_update, done)

    async def aclose(self) -> None:
        """Notify all followers that the connection has ended."""
        fault = replace(self._peer.fault or self._closed(), started="yes")
        for resource in tuple(self._resources.values()):
            resource.fail(fault)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _updated(self, uri: str) -> None:
        for resource in self._resources.values():
            if resource.covers(uri):
                resource.notify(uri)

    def _renew(self) -> None:
        for resource in self._resources.values():
            resource.renew()

    async def _keep(self, resource: _Resource) -> None:
        hold = self._listen if self._peer.era.modern else self._subscribe
        try:
            while resource.is_followed:
                resource.begin()
                await hold(resource)
        except ConnectionLost as error:
            resource.fail(error.fault)
        except MCPError as error:
            resource.fail(self._refused(resource.uri, error.error.code, error.error.message))
        except TimeoutError:
            resource.fail(self._mute(resource.uri))
        except SubscriptionLost:
            what = "it ended the stream before it confirmed the subscription"
            resource.fail(self._refused(resource.uri, METHOD_NOT_FOUND, what))
        except Exception:  # whoever follows must learn that it is in vain
            _logger.exception("A subscription at the server %s failed.", self._server)
            resource.fail(self._broken(resource.uri))
        finally:
            del self._resources[resource.uri]

    async def _subscribe(self, resource: _Resource) -> None:
        params = {"uri": resource.uri}
        async with asyncio.timeout(self._patience):
            await self._peer.request("resources/subscribe", params)
        resource.confirm()
        while resource.is_settled:
            resource.changed.clear()
            await resource.changed.wait()
        if not resource.is_followed:
            # Who comes meanwhile waits: a server could see the two in the wrong order.
            resource.begin()
            with contextlib.suppress(MCPError, TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await self._peer.request("resources/unsubscribe", params)

    async def _listen(self, resource: _Resource) -> None:
        failures = 0
        while resource.is_settled:
            try:
                if await self._listen_once(resource):
                    failures = 0
            except SubscriptionLost:
                if not failures:
                    raise
            failures += 1
            if resource.is_settled:
                await self._pause(resource, _AGAIN.ceiling(failures - 1))

    async def _listen_once(self, resource: _Resource) -> bool:
        """Read one stream to its end; say whether it told of anything."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self._patience):
                stream = await stack.enter_async_context(
                    listen(self._session, resource_subscriptions=[resource.uri])
                )
            if not stream.honored.resource_subscriptions:
                raise MCPError(METHOD_NOT_FOUND, "it did not take the subscription")
            resource.confirm()
            reading = asyncio.ensure_future(_read(stream, resource))
            try:
                while resource.is_settled and not reading.done():
                    resource.changed.clear()
                    await _either(reading, resource.changed.wait())
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            return not reading.cancelled() and reading.exception() is None and reading.result()

    @staticmethod
    async def _pause(resource: _Resource, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while resource.is_settled:
                    resource.changed.clear()
                    await resource.changed.wait()

    # Why not.

    def _closed(self) -> Fault:
        return Fault(
            Reason.SERVER_LOST,
            f"The connection to the server {self._server} was closed.",
            metadata={"server": self._server},
        )

    def _not_offered(self) -> Fault:
        return Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} does not report changes of its resources. Read them "
            "again instead of subscribing.",
            metadata={"server": self._server, "code": str(METHOD_NOT_FOUND)},
        )

    def _refused(self, uri: str, code: int, message: str) -> Fault:
        message = message[:_MAX_TEXT]
        return Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} refused a subscription to {uri[:300]} with error {code}: "
            f"{message or 'no message'}",
            "yes",
            metadata={"server": self._server, "code": str(code), "message": message},
        )

    def _broken(self, uri: str) -> Fault:
        return Fault(
            Reason.INTERNAL,
            f"The subscription to {uri[:300]} of the server {self._server} failed in the worker; "
            "its log says why.",
            "unknown",
            metadata={"server": self._server},
        )

    def _mute(self, uri: str) -> Fault:
        return Fault(
            Reason.DEADLINE_EXCEEDED,
            f"The server {self._server} did not confirm a subscription to {uri[:300]} within "
            f"{self._patience:g} s.",
            "yes",
            metadata={"server": self._server},
        )


async def _read(stream: Subscription, resource: _Resource) -> bool:
    told = False
    try:
        async for event in stream:
            if isinstance(event, ResourceUpdated):
                told = True
                resource.notify(event.uri)
    except SubscriptionLost:
        pass  # as if it had been ended in order: another stream is opened
    return told


async def _either(reading: asyncio.Future[bool], other: Any) -> None:
    waiting = asyncio.ensure_future(other)
    try:
        await asyncio.wait((reading, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
