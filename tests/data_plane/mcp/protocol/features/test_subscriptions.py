"""Subscribers are notified of an unexpected failure."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from mcp.client.session import ClientSession
from mcp_types import ResourcesCapability, ServerCapabilities
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import Outcome
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features.subscriptions import InstanceSubscriptions
from leaseway.wire.errors import Reason


class Session:
    """A session with a server that supports subscriptions."""

    server_capabilities = ServerCapabilities(resources=ResourcesCapability(subscribe=True))


class FailingPeer(Peer):
    """A connection whose first request fails unexpectedly."""

    failures = 1

    async def request(self, method: str, params: Any = None) -> bytes:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("What is this?")
        return b"{}"


async def test_a_subscriber_is_notified_of_an_unexpected_failure_and_may_subscribe_again() -> None:
    peer = FailingPeer("odd", lambda: None)
    subscriptions = InstanceSubscriptions("odd", cast("ClientSession", Session()), peer, 5)
    ends: asyncio.Queue[Outcome] = asyncio.Queue()
    updates: asyncio.Queue[str] = asyncio.Queue()
    subscriptions.follow("note://a", updates.put_nowait, ends.put_nowait)
    async with asyncio.timeout(BOUND):
        fault = (await ends.get()).fault
        assert fault is not None
        assert (fault.reason, fault.started) == (Reason.INTERNAL, "unknown")
        subscriptions.follow("note://a", updates.put_nowait, ends.put_nowait)
        assert await updates.get() == ""
        await subscriptions.aclose()


async def test_a_change_is_told_to_those_who_follow_the_resource_or_what_it_is_a_part_of() -> None:
    peer = FailingPeer("odd", lambda: None)
    peer.failures = 0
    subscriptions = InstanceSubscriptions("odd", cast("ClientSession", Session()), peer, 5)
    told: list[tuple[str, str]] = []

    def tell(uri: str, change: str) -> None:
        told.append((uri, change))

    followed = ["file:///a", "file:///a/", "file:///a/b", "file:///a/b/c", "note://", "file:///aa"]
    calls = [subscriptions.follow(uri, partial(tell, uri), print) for uri in followed]
    for uri in ("file:///a/b", "file:///a#x", "file:///ab", "note://x", "file:///a/"):
        peer.resource_updated.emit(uri)
    changes = [(uri, change) for uri, change in told if change]
    assert sorted(changes) == sorted(
        [
            ("file:///a", "file:///a/b"),
            ("file:///a/", "file:///a/b"),
            ("file:///a/b", "file:///a/b"),
            ("file:///a", "file:///a#x"),
            ("file:///a/", "file:///a#x"),
            ("note://", "note://x"),
            ("file:///a", "file:///a/"),
            ("file:///a/", "file:///a/"),
        ]
    )
    await asyncio.sleep(0)  # until they are subscribed to
    for call in calls:
        call.cancel("enough")
    await subscriptions.aclose()
    assert not subscriptions._lengths
