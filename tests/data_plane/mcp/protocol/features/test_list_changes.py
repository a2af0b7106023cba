"""Hearing of changed lists must go on after a failure that nobody foresaw."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from mcp.client.session import ClientSession
from mcp_types import ServerCapabilities, ToolsCapability
from tests.conftest import BOUND

from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features import list_changes as listening
from leaseway.data_plane.mcp.protocol.messages.era import Era
from leaseway.wire.timing.backoff import Backoff


class Session:
    """A session with a server that tells of changed tools."""

    server_capabilities = ServerCapabilities(tools=ToolsCapability(list_changed=True))


async def test_a_stream_of_changes_that_fails_oddly_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = asyncio.Event()
    failures = [RuntimeError("What is this?")]

    class Listening:
        async def __aenter__(self) -> Any:
            if failures:
                raise failures.pop()
            opened.set()
            await asyncio.Event().wait()

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(listening, "listen", lambda *_, **__: Listening())
    monkeypatch.setattr(listening, "_RELISTEN", Backoff(0.0))
    peer = Peer("odd", lambda: None)
    peer.era = Era("2026-07-28", modern=True)
    session = cast("ClientSession", Session())
    hearing = asyncio.create_task(listening.listen_to_changes(session, peer, lambda: None))
    async with asyncio.timeout(BOUND):
        await asyncio.wait(
            (hearing, asyncio.create_task(opened.wait())), return_when=asyncio.FIRST_COMPLETED
        )
    assert opened.is_set()
    assert "What is this?" in caplog.text
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
