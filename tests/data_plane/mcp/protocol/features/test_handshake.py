"""How long a server may take to show its era."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features.handshake import negotiate


class Session:
    """An official session that answers `server/discover` late."""

    def __init__(self) -> None:
        self.greetings: list[str] = []

    async def discover(self) -> None:
        answered = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, answered.set)
        await answered.wait()
        self.greetings.append("server/discover")

    async def initialize(self) -> None:
        self.greetings.append("initialize")


@pytest.mark.parametrize(
    ("postponed", "greetings"), [("", ["initialize"]), ("later", ["server/discover"])]
)
async def test_a_server_that_wants_the_greeting_later_is_waited_for(
    postponed: str, greetings: list[str]
) -> None:
    session, peer = Session(), Peer("remote", lambda: None)
    peer.postponed = postponed
    async with asyncio.timeout(BOUND):
        await negotiate(cast("Any", session), peer, "auto", startup_timeout=0.02)
    assert session.greetings == greetings
