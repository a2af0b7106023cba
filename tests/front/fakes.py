"""Fakes of the parts of a front, and messages of its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from leaseway.front.protocol.handshake import Declared

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
INITIALIZE = {**PING, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
JSON = {"Accept": "application/json, text/event-stream"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Sdk:
    """A fake SDK client without leases."""

    def session(self, key: str, idle: float | None = None) -> Sdk:
        self.key, self.idle = key, idle
        return self

    @property
    def _client(self) -> Sdk:
        return self

    _open_runtime = None

    def leases(self) -> list[Any]:
        return []

    def _scope(self) -> tuple[Any, str]:
        return SimpleNamespace(leases=self), self.key

    async def leave_session(self, _key: str, _keep: float) -> None: ...

    async def close(self) -> None: ...


class FakeMethods:
    """Fake methods, with a catalog that never changes."""

    def __init__(self) -> None:
        self.client, self.catalog = Sdk(), self
        self.instructions = self.declaring = self.plain_calls = self

    async def text(self, _scope: str) -> str:
        return ""

    async def declared(self, _scope: str, _media: object) -> Declared:
        return Declared()

    async def settle(self, _live: object) -> None: ...

    def subscribe(self, _listener: object) -> Callable[[], None]:
        return lambda: None

    def learn_lists(self, _server: str, _listed: bytes) -> None: ...

    async def close(self) -> None: ...

    async def handle(self, _request: object) -> bytes:
        return b"{}"

    def find(self, _live: object, _scope: str, _params: bytes) -> None:
        """Say that no call is plain."""


class Pipe:
    """Stands in for `HandshakeResponder`: the lines of a client at the other end of a pipe."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.connected = asyncio.Event()
        self.on_line: Callable[[bytes | None], None]

    def connect(self, on_line: Callable[[bytes | None], None]) -> None:
        self.on_line = on_line
        self.connected.set()

    def wait_instructed(self) -> None:
        """The first starts of servers have ended."""

    async def send(self, message: Any) -> None:
        await asyncio.to_thread(self.on_line, json.dumps(message).encode())
