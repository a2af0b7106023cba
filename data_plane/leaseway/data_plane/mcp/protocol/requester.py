"""Requests of the worker's own, as the official session and `Peer` make them.

Handshake, negotiation, listing and pings run over it; tool calls do not, see `peer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.shared.dispatcher import CallOptions, Dispatcher
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, REQUEST_TIMEOUT

from leaseway.data_plane.mcp.protocol.messages.codec import (
    encode_notification,
    encode_request,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY, Era
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost, Pending, RawRequest
from leaseway.data_plane.mcp.protocol.messages.server_requests import (
    LEGACY_CAPABILITIES,
    ROOTS_ALONE,
)
from leaseway.wire.errors import Fault, Started


class Requester(Dispatcher[TransportContext]):
    """The side of a connection that sends requests and notifications, and waits for answers.

    Attributes:
        server: The server's id, for messages.
        era: What requests carry; set once negotiated.
        closed: Set when the connection has ended, whoever ended it.
        leased: Whether one session has the connection for itself; set before the handshake.
        roots: What the server is told that asks for its roots, whatever its callers say; None
            leaves that to them. Set before the handshake.
    """

    correlates = False
    """Whether what a server sends says by its stream which call it belongs to."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.era: Era = LEGACY
        self.closed = asyncio.Event()
        self.leased = False
        self.roots: bytes | None = None
        self._asking = 0
        self._requests: dict[object, RawRequest] = {}
        self._next_id = 0

    # What is added to it.

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        raise NotImplementedError

    def _abandon(self, key: object, entry: Pending, reason: str, notify: bool) -> None:
        """Stop a request that nobody waits for; tell the server if it was written."""
        raise NotImplementedError

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        raise NotImplementedError

    def _is_call(self, key: object) -> bool:
        raise NotImplementedError

    def _wake_in_doubt(self) -> None:
        """See whether the server is to be asked for a sign of life."""
        raise NotImplementedError

    def _ended_fault(self, started: Started) -> Fault:
        raise NotImplementedError

    # What it does with that.

    async def ping(self) -> None:
        """Ask for a sign of life, in the way of the era.

        Raises:
            ConnectionLost: The connection ended or could not be made.
            MCPError: The server answered with an error, which is a sign, too.
        """
        await self._ask("server/discover" if self.era.modern else "ping", None, notify=False)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send any request and return its result.

        Raises:
            ConnectionLost: The connection ended or could not be made.
            MCPError: The server answered with an error, or not within `opts["timeout"]`.
        """
        if method == "initialize":
            can_ask = self.leased or self.correlates
            alone = {} if self.roots is None else ROOTS_ALONE
            params = {**(params or {}), "capabilities": LEGACY_CAPABILITIES if can_ask else alone}
        payload = await self._round_trip(method, params, opts or {}, None)
        try:
            result = msgspec.json.decode(payload)
        except ValueError:
            result = None
        if not isinstance(result, dict):
            raise MCPError(code=INTERNAL_ERROR, message=f"The result of {method} is no object")
        return result

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> bytes:
        """Send any request with what the era asks for and return its result as sent.

        Raises:
            ConnectionLost: The connection ended.
            MCPError: The server answered with an error.
        """
        self._asking += 1
        try:
            return await self._ask(method, params)
        finally:
            self._asking -= 1
            self._wake_in_doubt()

    async def _ask(
        self, method: str, params: Mapping[str, Any] | None, *, notify: bool = True
    ) -> bytes:
        opts: CallOptions = {"headers": {**self.era.headers}, "cancel_on_abandon": notify}
        if self.era.modern:
            opts["headers"]["mcp-method"] = method
        return await self._round_trip(method, params, opts, self.era)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification; after the connection has ended it is dropped."""
        if not self.closed.is_set():
            await self._notify(encode_notification(method, params), (opts or {}).get("headers"))

    async def _round_trip(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions, era: Era | None
    ) -> bytes:
        if self.closed.is_set():
            raise ConnectionLost(self._ended_fault("no"))
        wire_id = opts.get("request_id") or self._mint()
        key = request_key(wire_id)
        if key in self._requests or self._is_call(key):
            raise ValueError(f"request id {wire_id!r} is already in flight")
        entry = self._requests[key] = RawRequest(self.server)
        line = encode_request(wire_id, method, params, era)
        try:
            async with asyncio.timeout(opts.get("timeout")):
                self._send(key, line, opts.get("headers") or {}, entry)
                return await entry.answer
        except TimeoutError:
            message = f"The server {self.server} did not answer {method} in time"
            raise MCPError(code=REQUEST_TIMEOUT, message=message) from None
        finally:
            if self._requests.pop(key, None) is not None:
                self._abandon(key, entry, "no longer wanted", opts.get("cancel_on_abandon", True))

    def _mint(self) -> int:
        self._next_id += 1
        return self._next_id
