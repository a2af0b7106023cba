"""What the RPCs of one caller hold in memory: requests, and responses that it does not read.

gRPC keeps a response until its caller has read it, and a request until the last byte has come.
Neither needs a handler, so that no limit of a service counts it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import grpc

from leaseway.identity.principal import Principal
from leaseway.wire import bounds
from leaseway.wire.channels.requests import read_in_time
from leaseway.wire.messages.decoding import MessageDecoder
from leaseway.wire.sharing.limits import LimitScope, over_limit

Context = grpc.aio.ServicerContext[Any, Any]

_SMALL: Final = 16 * bounds.KIB
"""Bytes of a message up to which it does not count."""


def _client_of(principal: Principal, context: Context) -> tuple[LimitScope, str]:
    """Return whose RPCs count together: a tenant's, or those of a connection."""
    if principal.tenant is not None:
        return "tenant", principal.tenant
    return "connection", str(context.peer())


class CallerMemory:
    """Counts the messages of unary RPCs, each until its RPC has ended.

    Args:
        limit: The bytes of one caller.
    """

    def __init__(self, limit: int = bounds.MAX_RPC_HELD) -> None:
        self._limit = limit
        self._held: Counter[tuple[LimitScope, str]] = Counter()

    def hold(self, message: Any, principal: Principal, context: Context) -> None:
        """Count a request or a response.

        Raises:
            Fault: OVERLOADED: its caller has too many.
        """
        size = len(message) if isinstance(message, bytes) else message.ByteSize()
        if size <= _SMALL:
            return
        client = _client_of(principal, context)
        if self._held[client] + size > self._limit:
            scope, _ = client
            raise over_limit(
                "held",
                scope,
                f"The RPCs of this {scope} hold more than {self._limit} bytes of requests and of "
                "responses that were not read yet. Send fewer at once, and read responses as they "
                "arrive.",
                started="unknown",
            )
        self._held[client] += size

        def release(_context: object) -> None:
            self._held[client] -= size
            if not self._held[client]:
                del self._held[client]

        context.add_done_callback(release)  # type: ignore[arg-type] # it gets the context


class CallerReads:
    """Reads the requests of unary RPCs: a bounded number of one caller at once, each in time.

    Args:
        limit: Requests of one caller that are read at once.
        timeout: Seconds that one may take.
    """

    def __init__(
        self, limit: int = bounds.MAX_RPC_READS, timeout: float = bounds.RPC_READ_TIMEOUT
    ) -> None:
        self._limit = limit
        self._timeout = timeout
        self._turns: dict[tuple[LimitScope, str], _Turns] = {}

    async def read(self, context: Context, decode: MessageDecoder, principal: Principal) -> Any:
        """Return the one request of a unary RPC.

        Raises:
            Fault: INVALID_REQUEST: it is missing or not valid; OVERLOADED: it took too long.
        """
        client = _client_of(principal, context)
        turns = self._turns.setdefault(client, _Turns(self._limit))
        turns.users += 1
        try:
            async with turns.semaphore:
                return await read_in_time(context, decode, self._timeout)
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[client]


class _Turns:
    """The reads of one caller.

    Attributes:
        semaphore: Lets some read at once.
        users: Those that read or wait for that.
    """

    def __init__(self, limit: int) -> None:
        self.semaphore = asyncio.Semaphore(limit)
        self.users = 0
