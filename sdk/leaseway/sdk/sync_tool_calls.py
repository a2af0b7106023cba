"""Calls of tools: what the synchronous client and its sessions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leaseway.sdk.background import background
from leaseway.sdk.results import ToolResult
from leaseway.sdk.streams import AsyncToolStream, Callbacks, OnLog, OnProgress, ToolStream
from leaseway.sdk.tool_calls import AsyncToolCalls

__all__ = ["ToolCalls"]


class ToolCalls:
    """The part of `Client` and `Session` that calls tools."""

    _inner: AsyncToolCalls

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        log_level: str = "info",
    ) -> ToolResult:
        """Call a tool; see `AsyncClient.call_tool`.

        The callbacks run in the calling thread, which no deadline can interrupt.
        """
        inner = self._inner
        if on_progress is not None or on_log is not None:
            callbacks = Callbacks(on_progress, on_log, log_level)
            return _tell(inner, name, arguments, timeout, callbacks)
        return background().run(lambda: inner.call_tool(name, arguments, timeout=timeout))

    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        log_level: str | None = None,
    ) -> ToolStream:
        """Call a tool and read what its server says on the way; see `AsyncClient.stream_tool`."""
        return _open(self._inner, name, arguments, timeout, log_level)


def _tell(
    inner: AsyncToolCalls,
    name: str,
    arguments: Mapping[str, Any] | None,
    timeout: float | None,
    callbacks: Callbacks,
) -> ToolResult:
    callbacks.check(may_be_async=False)
    log_level = callbacks.log_level if callbacks.on_log is not None else None
    return _open(inner, name, arguments, timeout, log_level).tell(callbacks)


def _open(
    inner: AsyncToolCalls,
    name: str,
    arguments: Mapping[str, Any] | None,
    timeout: float | None,
    log_level: str | None,
) -> ToolStream:
    async def make() -> AsyncToolStream:  # in the loop, which the client belongs to
        return inner.stream_tool(name, arguments, timeout=timeout, log_level=log_level)

    return ToolStream(background().run(make))
