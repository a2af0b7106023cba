"""`subscriptions/listen`: the stream on which modern clients get change notifications."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from leaseway.front.calling.requests import Request
from leaseway.front.catalog import CatalogCache
from leaseway.front.handshake import SERVER_META, SUBSCRIPTION_KEY
from leaseway.front.messages import (
    JsonRpcError,
    ListenFilter,
    decode,
    encode,
    notification,
)
from leaseway.front.sessions.live_session import LiveSession, ResourceSubscription
from leaseway.front.sessions.own_lists import ChangedList
from leaseway.sdk import AsyncClient, AsyncSession
from leaseway.wire.messages.mcp import INVALID_PARAMS

_EMPTY: Final = b"{}"
_CHANGED: Final = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resources",
}
"""The `list_changed` notification for each kind of list."""

_MAX_LISTENED: Final = 256
"""Resources in one `subscriptions/listen`."""


def changed_notification(kind: str, meta: dict[str, Any] | None = None) -> bytes:
    params = encode({"_meta": meta}) if meta else _EMPTY
    return notification(f"notifications/{_CHANGED[kind]}/list_changed", params)


async def listen(
    request: Request,
    filters: ListenFilter,
    catalog: CatalogCache,
    session: AsyncClient | AsyncSession,
    ending: asyncio.Event,
    live: LiveSession | None = None,
) -> bytes:
    """Send change notifications until the client cancels its request, or the front ends.

    Args:
        request: The client's request.
        filters: The changes that it subscribes to.
        catalog: Knows the lists.
        session: Subscribes to resources.
        ending: Set when the front ends.
        live: The client's session, to which its servers may list otherwise; None without one.
    """
    if len(filters.resource_subscriptions) > _MAX_LISTENED:
        text = f"A stream has at most {_MAX_LISTENED} resource subscriptions."
        raise JsonRpcError(INVALID_PARAMS, text)
    meta = {SUBSCRIPTION_KEY: decode(request.message.id)}
    send = request.listener.send
    kinds = {
        "tools": filters.tools_list_changed,
        "prompts": filters.prompts_list_changed,
        "resources": filters.resources_list_changed,
        "templates": filters.resources_list_changed,
    }

    def on_list_changed(kind: str, servers: frozenset[str], client: bytes) -> None:
        if client and client != request.listener.mcp_client:
            return
        if kinds[kind] and (not request.scope or request.scope in servers):
            send(changed_notification(kind, meta))

    def on_resource_updated(uri: str) -> None:
        params = encode({"uri": uri, "_meta": meta})
        send(notification("notifications/resources/updated", params))

    def on_own_list_changed(kind: ChangedList) -> None:
        if kinds[kind]:
            send(changed_notification(kind, meta))

    async with contextlib.AsyncExitStack() as stack:
        if live is not None:
            live.on_lists_changed.append(on_own_list_changed)
            stack.callback(live.on_lists_changed.remove, on_own_list_changed)
        for kind in [kind for kind, is_enabled in kinds.items() if is_enabled]:
            await catalog.listing(kind)  # changes are found by comparing with the cache
        stack.callback(catalog.subscribe(on_list_changed))
        for uri in dict.fromkeys(filters.resource_subscriptions):
            resource = await catalog.resource(uri, request.scope)
            subscription = ResourceSubscription(session, resource, on_resource_updated)
            stack.push_async_callback(subscription.stop)
            await subscription.confirmed()
        params = encode({"notifications": filters, "_meta": meta})
        send(notification("notifications/subscriptions/acknowledged", params))
        await ending.wait()
    return encode({"resultType": "complete", "_meta": meta | SERVER_META})
