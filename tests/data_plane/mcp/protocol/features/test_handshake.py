"""How long a server may take to show its era."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from tests.conftest import BOUND

from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.features.handshake import negotiate
from leaseway.data_plane.mcp.protocol.messages.pending import Pending, RawRequest
from leaseway.data_plane.mcp.protocol.messages.reading import read
from leaseway.wire.errors import Fault, Reason

DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {},
    "ttlMs": 0,
    "cacheScope": "private",
    "resultType": "complete",
}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "serverInfo": {"name": "s", "version": "0"},
}


class SlowServer(Peer):
    """A connection to a server that answers `server/discover` late, and `initialize` at once."""

    def __init__(self, *, wants_it_later: bool) -> None:
        super().__init__("remote", lambda: None)
        self.greetings: list[str] = []
        self._wants_it_later = wants_it_later

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        method = json.loads(line)["method"]
        self.greetings.append(method)
        if method == "initialize":
            self._answer(key, INITIALIZED)
            return
        if self._wants_it_later:
            assert isinstance(entry, RawRequest)
            entry.postpone("later")
        asyncio.get_running_loop().call_later(0.1, self._answer, key, DISCOVERED)

    def _answer(self, key: object, result: dict[str, Any]) -> None:
        self._handle_response(
            read(json.dumps({"jsonrpc": "2.0", "id": key, "result": result}).encode())
        )

    def _abandon(self, key: object, entry: Pending, reason: str, notify: bool) -> None:
        pass

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        pass


@pytest.mark.parametrize(
    ("protocol", "wants_it_later", "seconds", "greetings"),
    [
        ("auto", False, 0.02, ["server/discover", "initialize"]),
        ("auto", True, 0.02, ["server/discover"]),
        ("2026-07-28", False, BOUND, ["server/discover"]),
    ],
)
async def test_a_server_that_wants_the_greeting_later_or_must_be_modern_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    wants_it_later: bool,
    seconds: float,
    greetings: list[str],
) -> None:
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.01)
    peer = SlowServer(wants_it_later=wants_it_later)
    async with asyncio.timeout(BOUND), ClientSession(dispatcher=peer) as session:
        await negotiate(session, peer, protocol, startup_timeout=seconds)
        peer.end(None)
    assert peer.greetings == greetings


class StrictServer(SlowServer):
    """A connection to a server that refuses capabilities by a status, and later says otherwise."""

    def __init__(self, status: int) -> None:
        super().__init__(wants_it_later=False)
        self.leased = True
        self.declared: list[Any] = []
        self._status = status

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        declared = json.loads(line)["params"]["capabilities"]
        self.declared.append(declared)
        status = str(self._status if len(self.declared) == 1 else 400)
        facts = {"http_status": status}
        if declared:
            entry.fail(Fault(Reason.SERVER_ERROR, f"number {len(self.declared)}", metadata=facts))
        else:
            self._answer(key, INITIALIZED)


async def test_what_is_declared_lessens_until_the_server_takes_it() -> None:
    peer = StrictServer(400)
    async with asyncio.timeout(BOUND), ClientSession(dispatcher=peer) as session:
        await negotiate(session, peer, "legacy", startup_timeout=BOUND)
        peer.end(None)
    plain = {"roots": {"listChanged": False}, "sampling": {}, "elicitation": {}}
    assert peer.declared[1:] == [plain, {}]


async def test_a_refusal_that_is_about_something_else_is_told_at_once() -> None:
    peer = StrictServer(403)
    async with asyncio.timeout(BOUND), ClientSession(dispatcher=peer) as session:
        with pytest.raises(MCPError, match="number 1"):
            await negotiate(session, peer, "legacy", startup_timeout=BOUND)
        peer.end(None)
    assert len(peer.declared) == 1
