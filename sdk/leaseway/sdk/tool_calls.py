"""Calls of tools: what the asynchronous client and its sessions have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from leaseway.sdk.asks import Handlers, OnElicitation, OnSampling, Roots
from leaseway.sdk.callbacks import Callbacks, OnLog, OnProgress
from leaseway.sdk.checks import check_level
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.events import CallEvents
from leaseway.sdk.results import ToolResult
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.streams import AsyncToolStream, CallOrder, make_stream
from leaseway.sdk.typed import reader_of, typed_result
from leaseway.wire.fault import Fault

__all__ = ["AsyncToolCalls"]

TypedT = TypeVar("TypedT")


class AsyncToolCalls(ABC):
    """The part of `AsyncClient` and `AsyncSession` that calls tools."""

    _handlers: Handlers | None = None
    """The client's own handlers of what servers ask."""

    @abstractmethod
    def _at(self) -> tuple[Runtime, str]:
        """Return the client's working parts and the session to call in.

        Raises:
            RuntimeError: The client is closed, or the session was left.

        """

    @overload
    async def call_tool(
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
    async def call_tool(
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
    async def call_tool(
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

    async def call_tool(
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
        """Call a tool.

        Callbacks and handlers may be async, and may call tools. The call's timeout goes on while
        they work, and ends them.

        Args:
            name: The tool's name, or its qualified name (`server:tool`).
            arguments: Its arguments; what JSON can hold, at most 4 MiB.
            timeout: Seconds until the call is given up, retries included; None means the
                server's `call_timeout`, 60 unless it is configured.
            on_progress: Told (progress, total or None, message or None) as the server reports it;
                see `stream_tool` for what comes faster than it returns.
            on_log: Told (level, logger or None, data) of what the server logs meanwhile.
            log_level: The least level for `on_log`.
            on_elicitation: Answers what the server wants to know of a person: given the params of
                `elicitation/create`, it returns an MCP ElicitResult (`{"action": "accept",
                "content": {…}}`, `decline` or `cancel`) as a dict or a pydantic model. None means
                the client's own. Each question runs in a task of its own, at most 16 at a time.
                Where it raises, that is logged, the server gets an error and the call goes on.
            on_sampling: Answers what the server asks of a model, in the same way: given the params
                of `sampling/createMessage`, it returns a CreateMessageResult.
            roots: What the server may work on, should it ask: `file://` URIs, or mappings with
                `uri` and `name`. None means the client's own.
            inline_media: Whether images and sounds come in place, not as references to artifacts.
            result_type: A dataclass, TypedDict, pydantic model or other type to make of the
                result: of its structured content, or else of its text, read as JSON. Needs
                pydantic or msgspec.

        Returns:
            The result; one with `is_error` is a result too. With `result_type`, an instance of it.

        Raises:
            LeasewayError: The call failed; InputRequired where the server asks what nobody here
                answers.
            ToolError: The result has `is_error`, and `result_type` is given.
            ResultTypeError: The result has not the shape of `result_type`.
            ImportError: `result_type` is given, and neither pydantic nor msgspec is installed.
            TypeError: A parameter is of the wrong type.

        """
        runtime, session = self._at()
        read = reader_of(result_type) if result_type is not None else None
        if (
            on_progress is None
            and on_log is None
            and on_elicitation is None
            and on_sampling is None
            and roots is None
            and self._handlers is None
        ):
            events = CallEvents(inline_media=True) if inline_media else None
            try:
                result = await runtime.caller.call(session, name, arguments, timeout, events)
            except Fault as fault:
                raise error_from_fault(fault) from None
        else:
            handlers = Handlers(on_elicitation, on_sampling, roots).over(self._handlers)
            told = Callbacks(on_progress, on_log, log_level, handlers)
            told.check(may_be_async=True)
            order = CallOrder.told(name, arguments, timeout, told, inline_media)
            stream = make_stream(self, self._at, order, tasks=True)
            result = await stream.tell(told)
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
    ) -> AsyncToolStream:
        """Call a tool and read what its server says on the way.

        What it asks is no event: the handlers answer it, whether events are read or not.

        Args:
            name: As for `call_tool`.
            arguments: As for `call_tool`.
            timeout: As for `call_tool`.
            log_level: The least level of log messages wanted; None means none.
            on_elicitation: As for `call_tool`.
            on_sampling: As for `call_tool`.
            roots: As for `call_tool`.
            inline_media: As for `call_tool`.

        Returns:
            The call, to be used as `async with`; it begins there.

        """
        if log_level is not None:
            check_level(log_level)
        handlers = Handlers(on_elicitation, on_sampling, roots).over(self._handlers)
        handlers.check(may_be_async=True)
        level = log_level or ""
        order = CallOrder(name, arguments, timeout, True, level, handlers, inline_media)
        return make_stream(self, self._at, order, tasks=True)
