"""What becomes of followers when a subscription fails in a way that nobody foresaw."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from mcp.client.session import ClientSession
from mcp_types import ResourcesCapability, ServerCapabilities
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import Outcome
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features.subscriptions import Subscriptions
from leaseway.wire.errors import Reason


class Session:
    """A session with a server that can be subscribed to."""

    server_capabilities = ServerCapabilities(resources=ResourcesCapability(subscribe=True))


class Odd(Peer):
    """A connection that fails as none should, once."""

    failures = 1

    async def request(self, method: str, params: Any = None) -> bytes:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("What is this?")
        return b"{}"


async def test_who_follows_learns_of_an_unforeseen_failure_and_may_follow_again() -> None:
    peer = Odd("odd", lambda: None)
    subscriptions = Subscriptions("odd", cast("ClientSession", Session()), peer, 5)
    ends: asyncio.Queue[Outcome] = asyncio.Queue()
    told: asyncio.Queue[str] = asyncio.Queue()
    subscriptions.follow("note://a", told.put_nowait, ends.put_nowait)
    async with asyncio.timeout(BOUND):
        fault = (await ends.get()).fault
        assert fault is not None
        assert (fault.reason, fault.started) == (Reason.INTERNAL, "unknown")
        subscriptions.follow("note://a", told.put_nowait, ends.put_nowait)
        assert await told.get() == ""
        await subscriptions.aclose()
