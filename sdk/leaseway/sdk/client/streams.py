"""A call whose progress and log messages are read as a stream, or passed to callbacks.

The call runs in its own task, which puts events into `BufferedEvents`; the caller's task reads
them. So callbacks run one after another in the caller's task, and a slow one delays only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self

from leaseway.sdk.calls.requests import tool_call
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.client.options import Callbacks
from leaseway.sdk.runtime import GetScope, forget_frames, raise_error_of
from leaseway.sdk.transport.events import BufferedEvents, LogMessage, Progress
from leaseway.sdk.transport.forks import forked_after_use
from leaseway.sdk.transport.handles import ProcessHandle
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.sdk.validation import check_call

_log = logging.getLogger("leaseway.sdk")


class AsyncToolStream(ProcessHandle):
    """A running call and its events; made by `stream_tool`.

        async with client.stream_tool("build", {"target": "all"}) as stream:
            async for event in stream:
                ...  # a Progress, or a LogMessage if log_level is given
        print(stream.result.text)

    Leaving the block early cancels the call. If events are not read, the newest 64 progress
    reports and 256 log messages are kept. The call's handlers answer the server's requests,
    whether or not events are read.
    """

    def __init__(
        self,
        name: str,
        events: BufferedEvents,
        start: Callable[[BufferedEvents], Coroutine[Any, Any, ToolResult]],
        owner: object,
    ) -> None:
        self._name = name
        self._events = events
        self._start = start
        self._owner = owner  # keeps the client alive, whose collection would end the call
        self._task: asyncio.Task[ToolResult] | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("This stream was used before; call stream_tool for each call.")
        self._task = asyncio.create_task(self._start(self._events), name=f"call {self._name}")
        self._task.add_done_callback(self._on_call_ended)
        return self

    def _on_call_ended(self, task: asyncio.Task[ToolResult]) -> None:
        self._events.end()
        forget_frames(task)

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        if forked_after_use():
            return  # the call belongs to the parent process
        if self._events.dropped:
            _log.warning(
                "%d progress reports and log messages of tool '%s' were dropped: they arrived "
                "faster than they were read.",
                self._events.dropped,
                self._name,
            )
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._events.wait_for_handlers()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Progress | LogMessage:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self) -> Progress | LogMessage | None:
        """Wait for the next event; return None once the call has its result.

        Raises:
            LeasewayError: The call failed.
        """
        event = await self._next()
        assert not isinstance(event, ServerRequest)  # answered in tasks
        return event

    async def _next(self) -> Progress | LogMessage | ServerRequest | None:
        task = self._task
        if task is None:
            raise RuntimeError("Read a stream inside its `with` block.")
        event = await self._events.next()
        if event is None:
            self._raise(task)
        return event

    @property
    def result(self) -> ToolResult:
        """The call's result, after all events were read.

        Raises:
            LeasewayError: The call failed.
            RuntimeError: The call has not ended, or the block was left before it did.
        """
        task = self._task
        if task is None or not task.done() or task.cancelled():
            raise RuntimeError("The call has no result yet: read its stream to the end first.")
        self._raise(task)
        return task.result()

    @property
    def dropped(self) -> int:
        """The number of events that were dropped because they were not read in time."""
        return self._events.dropped

    async def run(self, callbacks: Callbacks) -> ToolResult:
        """Pass all events to callbacks and return the result.

        An error of a callback cancels the call and is raised. The call's deadline cancels a
        callback that takes longer; a result that has arrived by then is still returned.
        """
        async with self:
            bound = asyncio.timeout(None)
            try:
                async with bound:
                    await self._notify(callbacks, bound)
            except TimeoutError:
                if not bound.expired():
                    raise  # a callback's own
                _log.warning("A callback of tool '%s' outlasted the call's timeout.", self._name)
            return self.result

    async def _notify(self, callbacks: Callbacks, bound: asyncio.Timeout) -> None:
        def on_call_ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the block of `bound` has just ended
                bound.reschedule(self._events.deadline)

        assert self._task is not None
        self._task.add_done_callback(on_call_ended)
        try:
            async for event in self:
                returned = callbacks.notify(event)
                if inspect.isawaitable(returned):
                    await returned
        finally:
            self._task.remove_done_callback(on_call_ended)

    @staticmethod
    def _raise(task: asyncio.Task[ToolResult]) -> None:
        if task.cancelled():
            raise RuntimeError("The event loop of the call has ended.")
        raise_error_of(task)


def build_stream(
    owner: object,
    get_scope: GetScope,
    name: str,
    arguments: Mapping[str, Any] | None,
    timeout: float | None,
    events: BufferedEvents,
) -> AsyncToolStream:
    """Return the stream of a call.

    Args:
        owner: An object to keep alive until the call has ended.
        get_scope: Called now, and again when the call starts: the client may be closed meanwhile.
        name: The tool's name.
        arguments: The tool's arguments.
        timeout: Seconds, or None for the server's `call_timeout`.
        events: The buffer for the call's events.

    Raises:
        TypeError: A parameter has the wrong type.
        RuntimeError: The client is closed.
    """
    check_call(name, arguments, timeout)
    get_scope()

    def start(events: BufferedEvents) -> Coroutine[Any, Any, ToolResult]:
        runtime, session = get_scope()
        return runtime.caller.run(tool_call(session, name, arguments, timeout, events))

    return AsyncToolStream(name, events, start, owner)
