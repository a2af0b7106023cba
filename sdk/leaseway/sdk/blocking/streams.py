"""Calls, resource updates and tool lists followed by a synchronous client."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Self

from leaseway.sdk.blocking.loop_thread import Blocking, background
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.catalog.tools import ToolList
from leaseway.sdk.client.options import Callbacks
from leaseway.sdk.client.streams import AsyncToolStream
from leaseway.sdk.client.subscriptions import AsyncResourceUpdates
from leaseway.sdk.client.watches import AsyncToolWatch, AsyncToolWatches
from leaseway.sdk.transport.events import LogMessage, Progress
from leaseway.sdk.transport.server_requests import Handlers, ServerRequest


class ToolStream(Blocking):
    """One call with what its server says on the way; see `AsyncToolStream`.

        with client.stream_tool("build", {"target": "all"}) as stream:
            for event in stream:
                ...
        print(stream.result.text)

    What the server asks is answered in the thread that reads the events, while it waits for one.
    """

    _inner: AsyncToolStream

    def __init__(self, inner: AsyncToolStream, handlers: Handlers) -> None:
        self._inner = inner
        self._handlers = handlers

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Progress | LogMessage:
        while True:
            event = background().run(self._inner._next)
            if event is None:
                raise StopIteration
            if not isinstance(event, ServerRequest):
                return event
            event.answer_in(background().loop)
            self._handlers.answer_sync(self._inner._name, event)

    @property
    def result(self) -> ToolResult:
        """The call's result, once all events were read; see `AsyncToolStream.result`."""
        return self._inner.result

    @property
    def dropped(self) -> int:
        """Events that had to make room for newer ones, as nobody took them."""
        return self._inner.dropped

    def run(self, callbacks: Callbacks) -> ToolResult:
        """Tell callbacks all events, in this thread, and return the result."""
        with self:
            for event in self:
                callbacks.notify(event)
            return self.result


class ResourceUpdates(Blocking):
    """Changes of one resource; see `AsyncResourceUpdates`.

    with client.subscribe_resource(uri) as updates:
        for changed in updates:
            ...
    """

    _inner: AsyncResourceUpdates

    def __init__(self, inner: AsyncResourceUpdates) -> None:
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        return self.next()

    def next(self, timeout: float | None = None) -> str:
        """Wait for the next change; see `AsyncResourceUpdates.next`."""
        return background().run(lambda: self._inner.next(timeout))


class ToolWatch:
    """The tools that a tenant sees, as often as they change: an iterator that blocks.

    Otherwise the same as `AsyncToolWatch`; another thread may close the client to end it.
    """

    def __init__(self, inner: AsyncToolWatch) -> None:
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ToolList:
        tools = background().run(self._next)
        if tools is None:
            raise StopIteration
        return tools

    async def _next(self) -> ToolList | None:
        # A StopAsyncIteration that left the coroutine would become a RuntimeError.
        return await anext(self._inner, None)


class ToolWatches(ABC):
    """The part of `Client` that watches tools."""

    _inner: AsyncToolWatches

    def watch_tools(self, servers: Sequence[str] | None = None) -> ToolWatch:
        """Watch the tools that the tenant sees; see `AsyncClient.watch_tools`."""
        inner = self._inner

        async def make() -> AsyncToolWatch:  # in the loop, which the client belongs to
            return inner.watch_tools(servers)

        return ToolWatch(background().run(make))
