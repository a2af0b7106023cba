"""A channel to whichever control plane leads, of several that are known.

Stubs are made on it once. A control plane that does not lead says who does (NOT_LEADER); the
channel goes there, and back to the addresses that it was given when that one is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import grpc

from leaseway.wire.endpoint import parse_endpoint

LEADER: Final = "leader"
"""The fact of a NOT_LEADER fault that holds the leader's address; empty where nobody leads yet."""

_GRACE: Final = 30.0
"""Seconds that RPCs of a channel that was left get to end by themselves."""


class LeaderChannel(grpc.aio.Channel):
    """One channel at a time, and which one that is.

    Args:
        addresses: Of control planes; a name may stand for several of them.
        make: Makes a channel to an address.

    Attributes:
        address: Where RPCs go now.
    """

    def __init__(self, addresses: Sequence[str], make: Callable[[str], grpc.aio.Channel]) -> None:
        self._addresses = tuple(addresses)
        self._make = make
        self._next = 1
        self._switched = asyncio.Event()
        self._retired: set[asyncio.Task[None]] = set()
        self._methods: dict[tuple[str, str], Any] = {}
        self.address = self._addresses[0]
        self._channel = make(self.address)

    def follow(self, leader: str) -> bool:
        """Go where a control plane said that the leader is; return whether that is elsewhere.

        Where it knows none, or names itself, the next of the given addresses is asked.
        """
        if leader and leader != self.address and _is_address(leader):
            self._switch(leader)
            return True
        return self.leave()

    def leave(self) -> bool:
        """Leave an address that does not answer; return whether there is another one."""
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        if address == self.address:
            return False
        self._switch(address)
        return True

    def _switch(self, address: str) -> None:
        task = asyncio.get_running_loop().create_task(_close(self._channel))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
        self.address = address
        self._channel = self._make(address)
        self._methods.clear()
        self._switched.set()
        self._switched = asyncio.Event()

    def _call(self, kind: str, method: str, made: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
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
        """Return what sends a stream and gets one."""
        return self._method("stream_stream", method, *_serializers(args, kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection to where RPCs go now."""
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
        """Close it, and those that were left."""
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


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return parse_endpoint(text) is not None
    return False


async def _close(channel: grpc.aio.Channel) -> None:
    try:
        await channel.close(_GRACE)
    except asyncio.CancelledError:
        await channel.close()
        raise
