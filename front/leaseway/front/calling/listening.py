"""`subscriptions/listen`: the stream on which modern clients get change notifications."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from leaseway.front.calling.requests import Request, admit_leased
from leaseway.front.catalog import CatalogCache
from leaseway.front.protocol.handshake import SERVER_META, SUBSCRIPTION_KEY
from leaseway.front.protocol.messages import (
    JsonRpcError,
    ListenFilter,
    decode,
    encode,
    notification,
)
from leaseway.front.sessions.live_session import LiveSession, ResourceSubscription
from leaseway.front.sessions.own_lists import ChangedList, changed_notification
from leaseway.sdk import AsyncClient, AsyncSession, LeasewayError
from leaseway.wire.messages.mcp import INVALID_PARAMS

REFUSED_KEY: Final = "leaseway/refused"
"""The key in `_meta` of an acknowledgement with the resources that were refused, and why."""
_MAX_LISTENED: Final = 256
"""Resources in one `subscriptions/listen`."""


def _acknowledgement(
    filters: ListenFilter, refused: Mapping[str, LeasewayError], meta: dict[str, Any]
) -> bytes:
    """Return the answer to a client: what it is told of, and why it is not told of the rest."""
    accepted = [uri for uri in filters.resource_subscriptions if uri not in refused]
    why = {uri: str(error) for uri, error in refused.items()}
    params = {
        "notifications": structs.replace(filters, resource_subscriptions=accepted),
        "_meta": {**meta, REFUSED_KEY: why} if why else meta,
    }
    return notification("notifications/subscriptions/acknowledged", encode(params))


class _Told:
    """What a client is told on one stream; the acknowledgement is first.

    Args:
        request: The client's request.
        filters: The changes that it subscribes to.
    """

    def __init__(self, request: Request, filters: ListenFilter) -> None:
        self.meta: dict[str, Any] = {SUBSCRIPTION_KEY: decode(request.message.id)}
        self.kinds = {
            "tools": filters.tools_list_changed,
            "prompts": filters.prompts_list_changed,
            "resources": filters.resources_list_changed,
            "templates": filters.resources_list_changed,
        }
        self._request = request
        self._early: dict[bytes, None] | None = {}

    def begin(self, acknowledgement: bytes) -> None:
        """Send the acknowledgement, then what was to be told before it."""
        early, self._early = self._early or {}, None
        for message in (acknowledgement, *early):
            self._send(message)

    def on_list_changed(self, kind: str, servers: frozenset[str], client: bytes) -> None:
        """Tell of a list that has changed for all clients, or for one that is as this one."""
        request = self._request
        if client and client != request.listener.mcp_client:
            return
        if self.kinds[kind] and (not request.scope or request.scope in servers):
            self._send(changed_notification(kind, self.meta))

    def on_own_list_changed(self, kind: ChangedList) -> None:
        """Tell of a list that has changed for the client's session."""
        if self.kinds[kind]:
            self._send(changed_notification(kind, self.meta))

    def on_resource_updated(self, uri: str) -> None:
        """Tell of an updated resource."""
        params = encode({"uri": uri, "_meta": self.meta})
        self._send(notification("notifications/resources/updated", params))

    def _send(self, message: bytes) -> None:
        if self._early is None:
            self._request.listener.send(message)
        else:
            self._early[message] = None


async def listen(
    request: Request,
    filters: ListenFilter,
    catalog: CatalogCache,
    session: AsyncClient | AsyncSession,
    ending: asyncio.Event,
    live: LiveSession | None = None,
) -> bytes:
    """Send change notifications until the client cancels its request, or the front ends.

    A resource that is refused costs nothing else: the acknowledgement says which are accepted.

    Args:
        request: The client's request.
        filters: The changes that it subscribes to.
        catalog: Knows the lists.
        session: Subscribes to resources.
        ending: Set when the front ends.
        live: The client's session, to which its servers may list otherwise; None without one.

    Raises:
        LeasewayError: All that it subscribes to was refused.
    """
    if len(filters.resource_subscriptions) > _MAX_LISTENED:
        text = f"A stream has at most {_MAX_LISTENED} resource subscriptions."
        raise JsonRpcError(INVALID_PARAMS, text)
    told = _Told(request, filters)
    async with contextlib.AsyncExitStack() as stack:
        if live is not None:
            live.on_lists_changed.append(told.on_own_list_changed)
            stack.callback(live.on_lists_changed.remove, told.on_own_list_changed)
        for kind in [kind for kind, is_enabled in told.kinds.items() if is_enabled]:
            await catalog.listing(kind)  # changes are found by comparing with the cache
        stack.callback(catalog.subscribe(told.on_list_changed))
        subscriptions: dict[str, ResourceSubscription] = {}
        for uri in dict.fromkeys(filters.resource_subscriptions):
            resource = await catalog.resource(uri, request.scope, request.session_id)
            subscription = ResourceSubscription(session, resource, told.on_resource_updated)
            subscriptions[uri] = subscription
            stack.push_async_callback(subscription.stop)
        refused = await _refused(subscriptions)
        if live is not None:
            await admit_leased(request, live)
        if refused and len(refused) == len(subscriptions) and not any(told.kinds.values()):
            raise next(iter(refused.values()))
        told.begin(_acknowledgement(filters, refused, told.meta))
        await ending.wait()
    return encode({"resultType": "complete", "_meta": told.meta | SERVER_META})


async def _refused(
    subscriptions: Mapping[str, ResourceSubscription],
) -> dict[str, LeasewayError]:
    """Wait for all subscriptions; return the errors of those that were refused, by URI."""
    refused: dict[str, LeasewayError] = {}
    for uri, subscription in subscriptions.items():
        try:
            await subscription.confirmed()
        except LeasewayError as error:
            refused[uri] = error
    return refused
