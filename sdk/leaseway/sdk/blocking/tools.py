"""Calls of tools: what the synchronous client and its sessions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, Unpack, overload

from leaseway.sdk.blocking.loop_thread import background
from leaseway.sdk.blocking.streams import ToolStream
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
from leaseway.sdk.client.tools import AsyncToolCalls
from leaseway.sdk.errors import ConfirmationRequired
from leaseway.sdk.transport.server_requests import Handlers
from leaseway.sdk.validation import check_callback

TypedT = TypeVar("TypedT")


class ToolCalls:
    """The part of `Client` and `Session` that calls tools."""

    _inner: AsyncToolCalls
    _handlers: Handlers | None = None
    """The client's own handlers of what servers ask; `_inner` has none, for its loop's thread is
    not where they run."""

    _on_approval: OnApproval | None = None
    """The client's own way to ask a person; `_inner` has none, likewise."""

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: None = None,
        **options: Unpack[CallOptions],
    ) -> ToolResult: ...

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: type[TypedT],
        **options: Unpack[CallOptions],
    ) -> TypedT: ...

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: Any,
        **options: Unpack[CallOptions],
    ) -> Any: ...

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: Any = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call a tool; see `AsyncClient.call_tool`.

        The callbacks and handlers run in the calling thread, one at a time; no deadline can
        interrupt them there.
        """
        inner = self._inner
        read = decoder_for(result_type) if result_type is not None else None
        timeout, inline_media, callbacks, on_approval = None, False, None, self._on_approval
        if options:
            timeout = options.pop("timeout", None)
            inline_media = options.pop("inline_media", False)
            on_approval = options.pop("on_approval", None) or on_approval
            check_callback("on_approval", on_approval, may_be_async=False)
        if options or self._handlers is not None:
            callbacks = callbacks_of(options, self._handlers)
            callbacks.check(may_be_async=False)
        while True:
            try:
                if not callbacks:
                    result = background().run(
                        lambda: inner.call_tool(
                            name, arguments, timeout=timeout, inline_media=inline_media
                        )
                    )
                else:
                    order = CallOrder.with_callbacks(
                        name, arguments, timeout, callbacks, inline_media
                    )
                    result = _open(inner, order).run(callbacks)
                break
            except ConfirmationRequired as error:
                if on_approval is None:
                    raise
                _have_approved(inner, error, on_approval)
                on_approval = None  # one call is asked about once
        return result if read is None else typed_result(name, result, result_type, read)

    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[StreamOptions],
    ) -> ToolStream:
        """Call a tool and read what its server says on the way; see `AsyncClient.stream_tool`.

        The handlers run in the thread that reads the events, while it waits for one.
        """
        order = stream_order(name, arguments, options, self._handlers)
        order.handlers.check(may_be_async=False)
        return _open(self._inner, order)


def _have_approved(
    inner: AsyncToolCalls, error: ConfirmationRequired, on_approval: OnApproval
) -> None:
    """Return if a person agrees to a call; the person is asked in this thread."""
    if not error.may_approve:
        raise error
    agreed = on_approval(background().run(lambda: waiting(inner._at, error)))
    if agreed is None:
        raise error
    approval, agrees = error.confirmation_id, agreed is True
    background().run(lambda: decide(inner._at, approval, "", approve=agrees))


def _open(inner: AsyncToolCalls, order: CallOrder) -> ToolStream:
    async def make() -> AsyncToolStream:  # in the loop, which the client belongs to
        return make_stream(inner, inner._at, order, tasks=False)

    return ToolStream(background().run(make), order.handlers)
