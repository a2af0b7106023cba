"""A channel that goes on as another one: its address has changed, or its certificates have.

Stubs are made on it once. What is under way ends on the channel where it began.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import grpc


class ReplaceableChannel(grpc.aio.Channel):
    """One channel at a time; made in a running event loop.

    Args:
        channel: The first one.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._switched = asyncio.Event()
        self._retired: set[asyncio.Task[None]] = set()
        self._methods: dict[tuple[str, str], Any] = {}

    def _replace(self, channel: grpc.aio.Channel, grace: float) -> None:
        """Use another channel from now on.

        Args:
            channel: The other one.
            grace: Seconds that RPCs of the former one get to end by themselves.
        """
        task = asyncio.get_running_loop().create_task(_close(self._channel, grace))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
        self._channel = channel
        self._methods.clear()
        self._switched.set()
        self._switched = asyncio.Event()

    def _refresh(self) -> None:
        """Replace the channel where that is due; called before each RPC and try to connect."""

    def _call(self, kind: str, method: str, made: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        self._refresh()
        callable_ = self._methods.get((kind, method))
        if callable_ is None:
            callable_ = getattr(self._channel, kind)(method, *made)
            self._methods[kind, method] = callable_
        return callable_(*args, **kwargs)

    def _method(self, kind: str, method: str, *made: Any) -> Any:
        return lambda *args, **kwargs: self._call(kind, method, made, args, kwargs)

    # What stubs ask of a channel.

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what sends one request and gets one answer."""
        return self._method("unary_unary", method, *_serializers(args, kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what sends one request and gets a stream."""
        return self._method("unary_stream", method, *_serializers(args, kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what sends a stream and gets one answer."""
        return self._method("stream_unary", method, *_serializers(args, kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._method("stream_stream", method, *_serializers(args, kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection to where RPCs go now."""
        if try_to_connect:
            self._refresh()
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when the state may be another: the channel's has changed, or the channel has."""
        waits = [
            asyncio.ensure_future(self._channel.wait_for_state_change(last_observed_state)),
            asyncio.ensure_future(self._switched.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def channel_ready(self) -> None:
        """Wait until the connection stands."""
        await self._channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
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
