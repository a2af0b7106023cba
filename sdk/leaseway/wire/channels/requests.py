"""How servers read requests, and what they release when an RPC fails.

A handler that reads its own request is not given one before it asks: until then gRPC receives no
more of it than the window of its stream. So a request is read after its headers have been accepted.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.decoding import MessageDecoder

Context = grpc.aio.ServicerContext[Any, Any]

_INLINE: Final = 256 * bounds.KIB
"""Larger messages are decoded in a thread."""


async def read_request(context: Context, decode: MessageDecoder, given: object = None) -> Any:
    """Return the one request of a unary RPC.

    Args:
        context: The RPC, whose handler decodes nothing by itself.
        decode: Decodes the request.
        given: The request's bytes, if gRPC has read them already; anything else means that not.

    Raises:
        Fault: INVALID_REQUEST: there is none, or it is too large or not valid.
    """
    return await _decoded(given if isinstance(given, bytes) else await context.read(), decode)


async def read_in_time(
    context: Context,
    decode: MessageDecoder,
    timeout: float,
    given_up: asyncio.Future[Any] | None = None,
) -> Any:
    """Return the one request of a unary RPC, unless it takes too long.

    Args:
        decode: Reads its request.
        timeout: Seconds that it may take to arrive.
        given_up: Is done when it need not arrive any more, or None.

    Raises:
        Fault: INVALID_REQUEST: it is missing or not valid; OVERLOADED: it took too long.
    """
    # Never cancelled: gRPC ends it with the RPC, and loses memory if it is cancelled before.
    read = asyncio.ensure_future(context.read())
    read.add_done_callback(_retrieve)
    ends = {read} if given_up is None else {read, given_up}
    await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if not read.done():
        message = "The request arrived too slowly. Send it in one piece."
        raise Fault(Reason.OVERLOADED, message, retry_delay=1.0)
    return await _decoded(read.result(), decode)


async def _decoded(content: Any, decode: MessageDecoder) -> Any:
    if content is grpc.aio.EOF:
        raise Fault(Reason.INVALID_REQUEST, "The stream has ended without a request.")
    if len(content) <= _INLINE:
        return decode(content)
    return await asyncio.to_thread(decode, content)


class OpenReads:
    """The reads of requests from callers without a credential.

    Reading a valid request takes a moment, so of more than `limit` reads the oldest is given up:
    clients that send slowly keep nobody else out.

    Args:
        limit: Reads at the same time.
        timeout: Seconds that one may take.
    """

    def __init__(
        self, limit: int = bounds.MAX_OPEN_READS, timeout: float = bounds.OPEN_READ_TIMEOUT
    ) -> None:
        self._limit = limit
        self._timeout = timeout
        self._ends: dict[asyncio.Future[None], None] = {}  # in order of their start

    async def read(self, context: Context, decode: MessageDecoder) -> Any:
        """Return the one request of a unary RPC.

        Raises:
            Fault: INVALID_REQUEST: it is missing or not valid; OVERLOADED: it took too long.
        """
        given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends[given_up] = None
        if len(self._ends) > self._limit:
            oldest = next(iter(self._ends))
            del self._ends[oldest]
            oldest.set_result(None)
        try:
            return await read_in_time(context, decode, self._timeout, given_up)
        finally:
            self._ends.pop(given_up, None)


def _retrieve(read: asyncio.Future[Any]) -> None:
    """Retrieve the error of a read that nobody awaits, or asyncio logs it."""
    if not read.cancelled():
        read.exception()


def release(error: BaseException) -> None:
    """Drop the traceback of an error, whose frames hold the request of a failed RPC.

    gRPC keeps the error of an aborted RPC in the RPC, to which the frames of its handler refer.
    Only a collection of garbage would end that cycle, after many megabytes of other requests.
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        cause = errors.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        errors += (cause.__cause__, cause.__context__)
        if isinstance(cause, BaseExceptionGroup):
            errors.extend(cause.exceptions)
        cause.__traceback__ = cause.__cause__ = cause.__context__ = None
