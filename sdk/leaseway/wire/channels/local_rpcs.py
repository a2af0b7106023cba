"""RPCs within one process: a server's handlers behind a channel that has no connection.

Handlers and stubs are those of gRPC. A request passes the server's interceptor as the bytes that
gRPC would send, so that credentials, limits and errors are the same; only the socket is missing.
Streams of requests are not carried: exchanges have a seam of their own (`local`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context as Variables
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, Protocol, Self, TypeAlias

import grpc

from leaseway.wire import bounds

__all__ = ["LocalChannel", "LocalRpcs"]

_logger = logging.getLogger(__name__)
_Code = grpc.StatusCode
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
_Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class _Interceptor(Protocol):
    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None: ...


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, as a server receives it (`grpc.HandlerCallDetails`, and what follows it).

    Attributes:
        method: The path of the RPC.
        invocation_metadata: The sender's metadata.
        content: The serialized request.
        peer: Stands for the address of the sender.
        deadline: When the sender stops waiting, in the loop's time, or None.
    """

    method: str
    invocation_metadata: _Metadata
    content: bytes
    peer: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class _Status:
    """How an RPC has ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: _Metadata = ()

    def error(self) -> grpc.aio.AioRpcError:
        trailing = grpc.aio.Metadata(*self.trailing)
        return grpc.aio.AioRpcError(self.code, grpc.aio.Metadata(), trailing, self.details)


_OK: Final = _Status(_Code.OK)
_CANCELLED: Final = _Status(_Code.CANCELLED, "The RPC was cancelled.")
_CLOSED: Final = _Status(_Code.CANCELLED, "The channel is closed.")
_TOO_LATE: Final = _Status(_Code.DEADLINE_EXCEEDED, "The RPC took too long.")


class _Context:
    """What handlers use of `grpc.aio.ServicerContext`.

    Attributes:
        write: Takes a response of a stream.
        ended: How the handler has aborted the RPC, or None.
    """

    def __init__(self, request: _Request, write: Callable[[Any], Awaitable[None]]) -> None:
        self._request = request
        self._is_read = False
        self._trailing: _Metadata = ()
        self.write = write
        self.ended: _Status | None = None

    def peer(self) -> str:
        return self._request.peer

    def invocation_metadata(self) -> _Metadata:
        return self._request.invocation_metadata

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return nothing: without a connection, a credential is in the metadata."""
        return {}

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, or None without one."""
        deadline = self._request.deadline
        if deadline is None:
            return None
        return max(0.0, deadline - asyncio.get_running_loop().time())

    async def read(self) -> Any:
        """Return the request, then the end of the requests."""
        if self._is_read:
            return grpc.aio.EOF
        self._is_read = True
        return self._request.content

    def set_trailing_metadata(self, trailing_metadata: _Metadata) -> None:
        self._trailing = trailing_metadata

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: _Metadata = ()
    ) -> NoReturn:
        """End the RPC with an error.

        Raises:
            grpc.aio.AbortError: Always.
        """
        self.ended = _Status(code, details, trailing_metadata or self._trailing)
        raise grpc.aio.AbortError


class LocalRpcs:
    """The handlers of a server, for senders in its process.

    Args:
        interceptor: Authenticates and authorizes each RPC, as that of the server.
        register: Adds the handlers of a service to what it gets, as to a server.
    """

    def __init__(self, interceptor: _Interceptor, *register: Callable[[Any], None]) -> None:
        self._interceptor = interceptor
        self._handlers: dict[str, _Handler] = {}
        for add_service in register:
            add_service(self)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[object]) -> None:
        """Do nothing: generated code also registers each method."""

    def add_registered_method_handlers(
        self, service: str, method_handlers: Mapping[str, _Handler]
    ) -> None:
        """Add the handlers of a service, by method; the last one of a method is used."""
        for method, handler in method_handlers.items():
            self._handlers[f"/{service}/{method}"] = handler

    async def serve(self, request: _Request, write: _Write) -> _Status:
        """Serve one RPC; return how it ended.

        Args:
            write: Takes the serialized responses, one of a unary RPC.
        """
        details: Any = request
        handler: Any = await self._interceptor.intercept_service(self._find, details)
        serialize = handler.response_serializer or bytes

        async def write_message(message: Any) -> None:
            await write(serialize(message))

        context = _Context(request, write_message)
        # An interceptor makes a handler of any of the four kinds; it reads its request by itself.
        behaviour = (
            handler.unary_unary
            or handler.stream_unary
            or handler.unary_stream
            or handler.stream_stream
        )
        try:
            response = await behaviour(request.content, context)
            if not handler.response_streaming:
                await write_message(response)
        except grpc.aio.AbortError:
            return context.ended or _CANCELLED
        except Exception as error:
            _logger.exception("%s failed in its handler.", request.method)
            return _Status(_Code.UNKNOWN, f"Its handler failed with {type(error).__name__}.")
        return _OK

    async def _find(self, details: grpc.HandlerCallDetails) -> _Handler | None:
        return self._handlers.get(details.method)


class _Call:
    """One RPC, as its sender sees it: `read` and `cancel` of `grpc.aio.UnaryStreamCall`.

    Its handler runs in a task of its own, without the variables of the sender. It waits until a
    response has been read before it writes the next one.

    Args:
        rpcs: The server's handlers.
        parse: Parses a response.
        places: Limits the RPCs of the channel.
    """

    def __init__(
        self,
        rpcs: LocalRpcs,
        request: _Request,
        parse: Callable[[bytes], Any],
        places: asyncio.Semaphore,
    ) -> None:
        self._rpcs = rpcs
        self._request = request
        self._parse = parse
        self._places = places
        self._responses: deque[bytes] = deque()
        self._changed, self._taken = asyncio.Event(), asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(
            self._serve(), name=f"leaseway local {request.method}", context=Variables()
        )
        self.task.add_done_callback(self._end)

    async def read(self) -> Any:
        """Return the next response, or `grpc.aio.EOF` after the last one.

        Raises:
            grpc.aio.AioRpcError: The RPC ended with an error, or its deadline has passed.
        """
        try:
            async with asyncio.timeout_at(self._request.deadline):
                while not self._responses and not self.task.done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.cancel()
            raise _TOO_LATE.error() from None
        if self._responses:
            self._taken.set()
            return self._parse(self._responses.popleft())
        status = _CANCELLED if self.task.cancelled() else self.task.result()
        if status is not _OK:
            raise status.error()
        return grpc.aio.EOF

    def cancel(self) -> None:
        """End the RPC, without waiting for its handler."""
        self.task.cancel()

    async def _serve(self) -> _Status:
        async with self._places:
            return await self._rpcs.serve(self._request, self._write)

    async def _write(self, response: bytes) -> None:
        while self._responses:
            self._taken.clear()
            await self._taken.wait()
        self._responses.append(response)
        self._changed.set()

    def _end(self, _task: asyncio.Task[_Status]) -> None:
        self._changed.set()


class LocalChannel(grpc.aio.Channel):
    """A channel for senders in the server's process; it counts as one connection.

    Args:
        rpcs: The server's handlers.
        peer: Stands for the address of the sender, where servers count by connection.
    """

    def __init__(self, rpcs: LocalRpcs, peer: str) -> None:
        self._rpcs = rpcs
        self._peer = peer
        self._places = asyncio.Semaphore(bounds.MAX_RPCS)
        self._calls: set[asyncio.Task[_Status]] = set()
        self._is_closed = False

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = bytes,
        response_deserializer: Any = bytes,
        **_options: Any,
    ) -> Any:
        """Return the callable of a method with one request and one response."""
        start = partial(self._start, method, request_serializer, response_deserializer)

        async def send(request: Any, **options: Any) -> Any:
            call = start(request, **options)
            try:
                return await call.read()
            finally:
                call.cancel()

        return send

    def unary_stream(
        self,
        method: str,
        request_serializer: Any = bytes,
        response_deserializer: Any = bytes,
        **_options: Any,
    ) -> Any:
        """Return the callable of a method with a streamed response."""
        return partial(self._start, method, request_serializer, response_deserializer)

    def stream_unary(self, method: str, *_serializers: Any, **_options: Any) -> Any:
        """Return a callable that refuses: streams of requests are not carried."""
        return partial(_refuse, method)

    def stream_stream(self, method: str, *_serializers: Any, **_options: Any) -> Any:
        """Return a callable that refuses: streams of requests are not carried."""
        return partial(_refuse, method)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return READY until the channel is closed."""
        closed, ready = grpc.ChannelConnectivity.SHUTDOWN, grpc.ChannelConnectivity.READY
        return closed if self._is_closed else ready

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return if the state differs; otherwise never, since only its owner closes it."""
        if self.get_state() is last_observed_state:
            await asyncio.get_running_loop().create_future()

    async def channel_ready(self) -> None:
        """Return at once."""

    async def close(self, grace: float | None = None) -> None:
        """Refuse new RPCs, and cancel those in flight after `grace` seconds."""
        self._is_closed = True
        if grace and self._calls:
            await asyncio.wait(self._calls, timeout=grace)
        for call in self._calls:
            call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def _start(
        self,
        method: str,
        serialize: Callable[[Any], bytes],
        parse: Callable[[bytes], Any],
        request: Any,
        *,
        timeout: float | None = None,
        metadata: _Metadata = (),
    ) -> _Call:
        if self._is_closed:
            raise _CLOSED.error()
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        received = _Request(method, metadata, serialize(request), self._peer, deadline)
        call = _Call(self._rpcs, received, parse, self._places)
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)
        return call


def _refuse(method: str, *_requests: Any, **_options: Any) -> NoReturn:
    raise _Status(
        _Code.UNIMPLEMENTED, f"{method} has a stream of requests, which is not carried."
    ).error()
