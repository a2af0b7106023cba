"""A gRPC channel that can be replaced: for another address, or for other certificates.

Stubs are created on it once. RPCs complete on the channel on which they started, unless they
outlast the time that it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

import grpc

from leaseway.wire.timing.running_tasks import is_cancelled, start_lasting_task


class RpcCutOff(grpc.aio.AioRpcError):
    """An RPC has ended because the channel on which it started was replaced long ago."""

    def __init__(self) -> None:
        nothing = grpc.aio.Metadata()
        details = "its connection, which a newer one has replaced, was closed"
        super().__init__(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details)


class ReplaceableChannel(grpc.aio.Channel):
    """Forwards RPCs to the current channel; created in a running event loop.

    Args:
        channel: The first channel.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._is_closed = False
        self._replaced = asyncio.Event()
        self._retired: set[asyncio.Task[None]] = set()
        self._methods: dict[tuple[str, str], Any] = {}

    def _replace(self, channel: grpc.aio.Channel, grace: float) -> None:
        """Use another channel for new RPCs.

        Args:
            grace: Seconds for the RPCs of the old channel to complete.
        """
        task = start_lasting_task(_close(self._channel, grace))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
        self._channel = channel
        self._methods.clear()
        self._replaced.set()
        self._replaced = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Raise `RpcCutOff` where an RPC ends with the channel on which it started.

        gRPC raises `CancelledError` there, as if the task that waits were cancelled.
        """
        try:
            yield
        except asyncio.CancelledError:
            if self._is_closed or is_cancelled():
                raise
            raise RpcCutOff from None

    def _refresh(self) -> None:
        """Replace the channel if necessary; called before each RPC and connection attempt."""

    def _call(
        self, kind: str, method: str, serializers: tuple[Any, ...], *args: Any, **kwargs: Any
    ) -> Any:
        self._refresh()
        callable_ = self._methods.get((kind, method))
        if callable_ is None:
            callable_ = getattr(self._channel, kind)(method, *serializers)
            self._methods[kind, method] = callable_
        return callable_(*args, **kwargs)

    def _method(self, kind: str, method: str, *serializers: Any) -> Any:
        return partial(self._call, kind, method, serializers)

    # The methods that stubs call.

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the callable of a method with one request and one response."""
        return self._method("unary_unary", method, *_serializers(args, kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the callable of a method with a streamed response."""
        return self._method("unary_stream", method, *_serializers(args, kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the callable of a method with streamed requests."""
        return self._method("stream_unary", method, *_serializers(args, kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._method("stream_stream", method, *_serializers(args, kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the current channel."""
        if try_to_connect:
            self._refresh()
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the state may have changed: the channel's state, or the channel itself."""
        waits = [
            asyncio.ensure_future(self._channel.wait_for_state_change(last_observed_state)),
            asyncio.ensure_future(self._replaced.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def channel_ready(self) -> None:
        """Wait until the channel is connected."""
        await self._channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        self._is_closed = True
        self._replaced.set()  # whoever waits for a connection
        for task in tuple(self._retired):
            task.cancel()
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def _serializers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    given = [*args, None, None]
    return (
        kwargs.get("request_serializer", given[0]),
        kwargs.get("response_deserializer", given[1]),
    )


async def _close(channel: grpc.aio.Channel, grace: float) -> None:
    try:
        await channel.close(grace)
    except asyncio.CancelledError:
        await channel.close()
        raise
