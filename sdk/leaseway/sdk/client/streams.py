"""One call with what its server says on the way: as a stream, or told to callbacks.

The call runs in a task of its own and puts what comes into `BufferedEvents`; the caller's task
takes it out. So callbacks run where the caller waits, one after another, and a slow one holds up
nobody but itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Self

from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.client.options import Callbacks, CallOrder
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.forks import refused
from leaseway.sdk.runtime import Runtime, forget_frames
from leaseway.sdk.transport.events import BufferedEvents, LogMessage, Progress
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.sdk.validation import check_call
from leaseway.wire.errors import Fault

_log = logging.getLogger("leaseway.sdk")


class AsyncToolStream:
    """One call with what its server says on the way; made by `stream_tool`.

        async with client.stream_tool("build", {"target": "all"}) as stream:
            async for event in stream:
                ...  # a Progress, or a LogMessage where log_level asks for them
        print(stream.result.text)

    Leaving the block early cancels the call. Of events that nobody takes, the newest 64 reports
    and 256 log messages are kept. What the server asks is answered by the call's handlers
    meanwhile, whether events are read or not.
    """

    def __init__(
        self,
        name: str,
        events: BufferedEvents,
        begin: Callable[[BufferedEvents], Coroutine[Any, Any, ToolResult]],
        owner: object,
    ) -> None:
        self._name = name
        self._events = events
        self._begin = begin
        self._owner = owner  # a client that is collected would end the call
        self._task: asyncio.Task[ToolResult] | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("This stream was used before; make one for each call.")
        self._task = asyncio.create_task(self._begin(self._events), name=f"call {self._name}")
        self._task.add_done_callback(self._ended)
        return self

    def _ended(self, task: asyncio.Task[ToolResult]) -> None:
        self._events.end()
        forget_frames(task)

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        if refused():
            return  # the call is the parent's
        if self._events.dropped:
            _log.warning(
                "%d progress reports and log messages of tool '%s' were dropped: they came faster "
                "than they were taken.",
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
        """Wait for what the server says next; None once the call has its result.

        Raises:
            LeasewayError: The call failed.
        """
        event = await self._next()
        assert not isinstance(event, ServerRequest)  # tasks answer them
        return event

    async def _next(self) -> Progress | LogMessage | ServerRequest | None:
        task = self._task
        if task is None:
            raise RuntimeError("A stream is read inside of its `with` block.")
        event = await self._events.next()
        if event is None:
            self._raise(task)
        return event

    @property
    def result(self) -> ToolResult:
        """The call's result, once all events were read.

        Raises:
            LeasewayError: The call failed.
            RuntimeError: It has not ended, or was cancelled by leaving the block.
        """
        task = self._task
        if task is None or not task.done() or task.cancelled():
            raise RuntimeError("The call has no result: read its stream to the end first.")
        self._raise(task)
        return task.result()

    @property
    def dropped(self) -> int:
        """Events that had to make room for newer ones, as nobody took them."""
        return self._events.dropped

    async def run(self, callbacks: Callbacks) -> ToolResult:
        """Tell callbacks all events and return the result.

        An error of a callback cancels the call and is raised. The call's deadline ends a
        callback that takes longer; a result that is there by then is returned all the same.
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
        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # all was told in that same moment
                bound.reschedule(self._events.deadline)

        assert self._task is not None
        self._task.add_done_callback(ended)
        try:
            async for event in self:
                returned = callbacks.notify(event)
                if inspect.isawaitable(returned):
                    await returned
        finally:
            self._task.remove_done_callback(ended)

    @staticmethod
    def _raise(task: asyncio.Task[ToolResult]) -> None:
        if task.cancelled():
            raise RuntimeError("The event loop behind the call has ended.")
        error = task.exception()
        if isinstance(error, Fault):
            raise error_from_fault(error) from None
        if error is not None:
            raise error


def make_stream(
    owner: object, at: Callable[[], tuple[Runtime, str]], order: CallOrder, *, tasks: bool
) -> AsyncToolStream:
    """Return the stream of a call.

    Args:
        owner: What has to live until the call has ended.
        at: Gives the client's working parts and the session to call in; asked when the call
            begins, as the client may be closed before.
        order: The call.
        tasks: Whether tasks in this loop answer what the server asks; else `_next` returns it.

    Raises:
        TypeError: A parameter is of the wrong type.
    """
    check_call(order.name, order.arguments, order.timeout)
    at()  # which says where the client is closed

    def begin(events: BufferedEvents) -> Coroutine[Any, Any, ToolResult]:
        runtime, session = at()
        return runtime.caller.call(session, order.name, order.arguments, order.timeout, events)

    return AsyncToolStream(order.name, order.events(tasks=tasks), begin, owner)
