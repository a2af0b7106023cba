"""What a synchronous client iterates: call events, resource updates, tool lists, artifacts."""

from __future__ import annotations

from functools import partial
from typing import Generic, Self

from leaseway.sdk.blocking.loop_thread import LOOP_THREAD, BlockingContext
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.catalog.tools import ToolList
from leaseway.sdk.client.artifacts import AsyncArtifact
from leaseway.sdk.client.listings import CatalogListT
from leaseway.sdk.client.options import Callbacks
from leaseway.sdk.client.streams import AsyncToolStream
from leaseway.sdk.client.subscriptions import AsyncResourceUpdates
from leaseway.sdk.client.watches import AsyncListWatch
from leaseway.sdk.transport.events import LogMessage, Progress
from leaseway.sdk.transport.handles import ProcessHandle
from leaseway.sdk.transport.server_requests import Handlers, ServerRequest
from leaseway.sdk.validation import checked_return


class ToolStream(ProcessHandle, BlockingContext):
    """A running call and its events; made by `stream_tool`. See `AsyncToolStream`.

        with client.stream_tool("build", {"target": "all"}) as stream:
            for event in stream:
                ...
        print(stream.result.text)

    Handlers of server requests run in the thread that reads the events, while it waits for one.
    """

    _inner: AsyncToolStream

    def __init__(self, inner: AsyncToolStream, handlers: Handlers) -> None:
        self._inner = inner
        self._handlers = handlers

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Progress | LogMessage:
        while True:
            event = LOOP_THREAD.run(self._inner._next)
            if event is None:
                raise StopIteration
            if not isinstance(event, ServerRequest):
                return event
            event.answer_in(LOOP_THREAD.loop)
            self._handlers.answer_sync(self._inner._name, event)

    @property
    def result(self) -> ToolResult:
        """The call's result, after all events were read; see `AsyncToolStream.result`."""
        return self._inner.result

    @property
    def dropped(self) -> int:
        """The number of events that were dropped because they were not read in time."""
        return self._inner.dropped

    def run(self, callbacks: Callbacks) -> ToolResult:
        """Pass all events to callbacks, in this thread, and return the result."""
        with self:
            for event in self:
                name = "on_log" if isinstance(event, LogMessage) else "on_progress"
                checked_return(name, callbacks.notify(event))
            return self.result


class ResourceUpdates(ProcessHandle, BlockingContext):
    """A subscription to a resource's changes; see `AsyncResourceUpdates`.

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
        return LOOP_THREAD.run(partial(self._inner.next, timeout))


class ListWatch(ProcessHandle, Generic[CatalogListT]):
    """What a tenant or a session sees of one kind, as it changes: an iterator that blocks.

    See `AsyncListWatch`. To end it, close the client or the session from another thread.
    """

    def __init__(self, inner: AsyncListWatch[CatalogListT]) -> None:
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CatalogListT:
        items = LOOP_THREAD.run(self._next)
        if items is None:
            raise StopIteration
        return items

    async def _next(self) -> CatalogListT | None:
        # A StopAsyncIteration raised in a coroutine would become a RuntimeError.
        return await anext(self._inner, None)


class ToolWatch(ListWatch[ToolList]):
    """The tools that a tenant or a session sees, as they change. See `ListWatch`."""


class Artifact(ProcessHandle):
    """An image or sound; made by `read_artifact`. Iterate it for parts of at most 256 KiB.

    It can be read once. Reading may stop early without clean-up. See `AsyncArtifact`.

    Attributes:
        ref: The reference.
    """

    def __init__(self, inner: AsyncArtifact) -> None:
        self._inner = inner
        self.ref = inner.ref

    @property
    def mime_type(self) -> str:
        """The MIME type; raises a RuntimeError before the first part was read."""
        return self._inner.mime_type

    @property
    def byte_length(self) -> int:
        """The size in bytes; raises a RuntimeError before the first part was read."""
        return self._inner.byte_length

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        part = LOOP_THREAD.run(self._next)
        if part is None:
            raise StopIteration
        return part

    async def _next(self) -> bytes | None:
        return await anext(self._inner, None)

    def read(self) -> bytes:
        """Return all bytes that were not read yet; see `AsyncArtifact.read`."""
        return LOOP_THREAD.run(self._inner.read)

    def close(self) -> None:
        """Stop reading and end the stream."""
        LOOP_THREAD.run_exit(self._inner.close)
