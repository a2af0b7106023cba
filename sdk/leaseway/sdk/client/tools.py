"""Calls of tools: what the asynchronous client and its sessions have in common."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar, Unpack, overload

from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.calls.typed_results import decoder_for, typed_result
from leaseway.sdk.client.approvals import OnApproval, decide, waiting
from leaseway.sdk.client.options import (
    CallOptions,
    CallOrder,
    StreamOptions,
    callbacks_of,
    stream_order,
)
from leaseway.sdk.client.streams import AsyncToolStream, make_stream
from leaseway.sdk.errors import ConfirmationRequired, error_from_fault
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.server_requests import Handlers
from leaseway.sdk.validation import check_callback
from leaseway.wire.errors import Fault

TypedT = TypeVar("TypedT")


class AsyncToolCalls(ABC):
    """The part of `AsyncClient` and `AsyncSession` that calls tools."""

    _handlers: Handlers | None = None
    """The client's own handlers of what servers ask."""

    _on_approval: OnApproval | None = None
    """The client's own way to ask a person."""

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
        result_type: None = None,
        **options: Unpack[CallOptions],
    ) -> ToolResult: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: type[TypedT],
        **options: Unpack[CallOptions],
    ) -> TypedT: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: Any,
        **options: Unpack[CallOptions],
    ) -> Any: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: Any = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call a tool.

        Callbacks and handlers may be async, and may call tools. The call's timeout goes on while
        they work, and ends them.

        Args:
            name: The tool's name, or its qualified name (`server:tool`).
            arguments: Its arguments; what JSON can hold, at most 4 MiB.
            result_type: A dataclass, TypedDict, pydantic model or other type to make of the
                result: of its structured content, or else of its text, read as JSON. Needs
                pydantic or msgspec.
            **options: `timeout`, `on_progress`, `on_log`, `log_level`, `on_elicitation`,
                `on_sampling`, `roots`, `on_approval` and `inline_media`; see `CallOptions`.

        Returns:
            The result; one with `is_error` is a result too. With `result_type`, an instance of it.

        Raises:
            LeasewayError: The call failed; InputRequired where the server asks what nobody here
                answers.
            ToolError: The result has `is_error`, and `result_type` is given.
            ResultTypeError: The result has not the shape of `result_type`.
            ImportError: `result_type` is given, and neither pydantic nor msgspec is installed.
            TypeError: A parameter is of the wrong type, or there is none of that name.
        """
        runtime, session = self._at()
        read = decoder_for(result_type) if result_type is not None else None
        timeout, inline_media, callbacks, on_approval = None, False, None, self._on_approval
        if options:  # most calls have none, and make no objects for them
            timeout = options.pop("timeout", None)
            inline_media = options.pop("inline_media", False)
            on_approval = options.pop("on_approval", None) or on_approval
            check_callback("on_approval", on_approval, may_be_async=True)
        if options or self._handlers is not None:
            callbacks = callbacks_of(options, self._handlers)
            callbacks.check(may_be_async=True)
        while True:
            try:
                if not callbacks:
                    events = CallEvents(inline_media=True) if inline_media else None
                    result = await runtime.caller.call(session, name, arguments, timeout, events)
                else:
                    order = CallOrder.with_callbacks(
                        name, arguments, timeout, callbacks, inline_media
                    )
                    stream = make_stream(self, self._at, order, tasks=True)
                    result = await stream.run(callbacks)
                break
            except Fault as fault:
                error = error_from_fault(fault)
            except ConfirmationRequired as required:
                error = required
            if not isinstance(error, ConfirmationRequired) or on_approval is None:
                raise error from None
            await self._have_approved(error, on_approval)
            on_approval = None  # one call is asked about once
        return result if read is None else typed_result(name, result, result_type, read)

    async def _have_approved(self, error: ConfirmationRequired, on_approval: OnApproval) -> None:
        """Return if a person agrees to a call."""
        if not error.may_approve:
            raise error from None
        agreed = on_approval(await waiting(self._at, error))
        if inspect.isawaitable(agreed):
            agreed = await agreed
        if agreed is None:
            raise error from None
        await decide(self._at, error.confirmation_id, "", approve=agreed is True)

    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncToolStream:
        """Call a tool and read what its server says on the way.

        What it asks is no event: the handlers answer it, whether events are read or not.

        Args:
            name: As for `call_tool`.
            arguments: As for `call_tool`.
            **options: `timeout`, `log_level`, `on_elicitation`, `on_sampling`, `roots` and
                `inline_media`; see `StreamOptions`.

        Returns:
            The call, to be used as `async with`; it begins there.
        """
        order = stream_order(name, arguments, options, self._handlers)
        order.handlers.check(may_be_async=True)
        return make_stream(self, self._at, order, tasks=True)
