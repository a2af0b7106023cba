"""Calls of tools: what the asynchronous client and its sessions have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.results import ToolResult
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.streams import (
    AsyncToolStream,
    Callbacks,
    OnLog,
    OnProgress,
    open_stream,
    told_call,
)
from leaseway.wire.fault import Fault

__all__ = ["AsyncToolCalls"]


class AsyncToolCalls(ABC):
    """The part of `AsyncClient` and `AsyncSession` that calls tools."""

    @abstractmethod
    def _at(self) -> tuple[Runtime, str]:
        """Return the client's working parts and the session to call in.

        Raises:
            RuntimeError: The client is closed, or the session was left.

        """

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        log_level: str = "info",
    ) -> ToolResult:
        """Call a tool.

        Args:
            name: The tool's name, or its qualified name (`server:tool`).
            arguments: Its arguments; what JSON can hold, at most 4 MiB.
            timeout: Seconds until the call is given up, retries included; None means the
                server's `call_timeout`, 60 unless it is configured.
            on_progress: Told (progress, total or None, message or None) as the server reports it.
                It may be async; see `stream_tool` for what comes faster than it returns.
            on_log: Told (level, logger or None, data) of what the server logs meanwhile.
            log_level: The least level for `on_log`.

        Returns:
            The result; one with `is_error` is a result too.

        """
        runtime, session = self._at()
        if on_progress is not None or on_log is not None:
            told = Callbacks(on_progress, on_log, log_level)
            return await told_call(self, runtime, session, name, arguments, timeout, told)
        try:
            return await runtime.caller.call(session, name, arguments, timeout)
        except Fault as fault:
            raise error_from_fault(fault) from None

    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        log_level: str | None = None,
    ) -> AsyncToolStream:
        """Call a tool and read what its server says on the way.

        Args:
            name: As for `call_tool`.
            arguments: As for `call_tool`.
            timeout: As for `call_tool`.
            log_level: The least level of log messages wanted; None means none.

        Returns:
            The call, to be used as `async with`; it begins there.

        """
        runtime, session = self._at()
        return open_stream(self, runtime, session, name, arguments, timeout, log_level)
