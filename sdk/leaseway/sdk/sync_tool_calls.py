"""Calls of tools: what the synchronous client and its sessions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from leaseway.sdk.asks import Handlers, OnElicitation, OnSampling, Roots
from leaseway.sdk.background import background
from leaseway.sdk.callbacks import Callbacks, OnLog, OnProgress
from leaseway.sdk.checks import check_level
from leaseway.sdk.results import ToolResult
from leaseway.sdk.streams import AsyncToolStream, CallOrder, ToolStream, make_stream
from leaseway.sdk.tool_calls import AsyncToolCalls
from leaseway.sdk.typed import reader_of, typed_result

__all__ = ["ToolCalls"]

TypedT = TypeVar("TypedT")


class ToolCalls:
    """The part of `Client` and `Session` that calls tools."""

    _inner: AsyncToolCalls
    _handlers: Handlers | None = None
    """The client's own handlers of what servers ask; `_inner` has none, for its loop's thread is
    not where they run."""

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        log_level: str = "info",
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        inline_media: bool = False,
        result_type: None = None,
    ) -> ToolResult: ...

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        log_level: str = "info",
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        inline_media: bool = False,
        result_type: type[TypedT],
    ) -> TypedT: ...

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        log_level: str = "info",
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        inline_media: bool = False,
        result_type: Any,
    ) -> Any: ...

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        log_level: str = "info",
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        inline_media: bool = False,
        result_type: Any = None,
    ) -> Any:
        """Call a tool; see `AsyncClient.call_tool`.

        The callbacks and handlers run in the calling thread, one at a time; no deadline can
        interrupt them there.
        """
        inner = self._inner
        read = reader_of(result_type) if result_type is not None else None
        if (
            on_progress is None
            and on_log is None
            and on_elicitation is None
            and on_sampling is None
            and roots is None
            and self._handlers is None
        ):
            result = background().run(
                lambda: inner.call_tool(name, arguments, timeout=timeout, inline_media=inline_media)
            )
        else:
            handlers = Handlers(on_elicitation, on_sampling, roots).over(self._handlers)
            told = Callbacks(on_progress, on_log, log_level, handlers)
            told.check(may_be_async=False)
            order = CallOrder.told(name, arguments, timeout, told, inline_media)
            result = _open(inner, order).tell(told)
        return result if read is None else typed_result(name, result, result_type, read)

    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        log_level: str | None = None,
        on_elicitation: OnElicitation | None = None,
        on_sampling: OnSampling | None = None,
        roots: Roots | None = None,
        inline_media: bool = False,
    ) -> ToolStream:
        """Call a tool and read what its server says on the way; see `AsyncClient.stream_tool`.

        The handlers run in the thread that reads the events, while it waits for one.
        """
        if log_level is not None:
            check_level(log_level)
        handlers = Handlers(on_elicitation, on_sampling, roots).over(self._handlers)
        handlers.check(may_be_async=False)
        level = log_level or ""
        order = CallOrder(name, arguments, timeout, True, level, handlers, inline_media)
        return _open(self._inner, order)


def _open(inner: AsyncToolCalls, order: CallOrder) -> ToolStream:
    async def make() -> AsyncToolStream:  # in the loop, which the client belongs to
        return make_stream(inner, inner._at, order, tasks=False)

    return ToolStream(background().run(make), order.handlers)
