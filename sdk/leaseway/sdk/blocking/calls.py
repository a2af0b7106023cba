"""The methods that the synchronous client and its sessions share; see `client.calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from leaseway.sdk.blocking.loop_thread import LOOP_THREAD, run_in_thread
from leaseway.sdk.blocking.streams import Artifact, ResourceUpdates, ToolStream
from leaseway.sdk.calls import requests
from leaseway.sdk.calls.prompt_results import Completion, PromptResult, ResourceResult
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.calls.results import McpResult, ToolResult
from leaseway.sdk.calls.typed_results import decoder_for, typed_result
from leaseway.sdk.client.artifacts import AsyncArtifact, check_artifact
from leaseway.sdk.client.calls import AsyncCalls, build_completion
from leaseway.sdk.client.options import (
    NO_OPTIONS,
    Callbacks,
    CallOptions,
    OnApproval,
    StreamOptions,
    build_stream_events,
    parse_call_options,
)
from leaseway.sdk.client.streams import AsyncToolStream, build_stream
from leaseway.sdk.client.subscriptions import AsyncResourceUpdates
from leaseway.sdk.errors import ConfirmationRequired
from leaseway.sdk.operators.operations import answer_approval, get_approval
from leaseway.sdk.transport.events import BufferedEvents
from leaseway.sdk.transport.handles import ProcessHandle
from leaseway.sdk.transport.server_requests import Handlers
from leaseway.sdk.validation import checked_return

TypedT = TypeVar("TypedT")
ResultT = TypeVar("ResultT", bound=McpResult)


class Calls(ProcessHandle):
    """The methods that `Client` and `Session` share."""

    _inner: AsyncCalls
    """The asynchronous twin. It has no handlers, which must not run in the loop's thread."""

    _handlers: Handlers | None = None
    """The client's default handlers of server requests."""

    _on_approval: OnApproval | None = None
    """The client's default approval callback."""

    _run_in_thread = staticmethod(run_in_thread)
    """How coroutines of integrations call it."""

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

        Callbacks and handlers run in the calling thread, one at a time, where no timeout can
        interrupt them.
        """
        inner = self._inner
        decode = decoder_for(result_type) if result_type is not None else None
        parsed, callbacks, on_approval = NO_OPTIONS, None, self._on_approval
        call = partial(inner.call_tool, name, arguments)
        if options or self._handlers is not None:  # most calls have none, and parse nothing
            parsed = parse_call_options(options, self._handlers, may_be_async=False)
            callbacks, on_approval = parsed.callbacks, parsed.on_approval or on_approval
            call = partial(call, **parsed.plain())
        while True:
            try:
                if not callbacks:
                    result = LOOP_THREAD.run(call)
                else:
                    events = parsed.buffer(name, callbacks, tasks=False)
                    stream = self._build_stream(
                        name, arguments, parsed.timeout, events, callbacks.handlers
                    )
                    result = stream.run(callbacks)
                break
            except ConfirmationRequired as error:
                if on_approval is None:
                    raise
                self._request_approval(error, on_approval)
                on_approval = None  # ask only once per call
        return result if decode is None else typed_result(name, result, result_type, decode)

    def _request_approval(self, error: ConfirmationRequired, on_approval: OnApproval) -> None:
        """Ask a person, in this thread, to approve or deny a call; raise the error otherwise."""
        if not error.may_approve:
            raise error
        get_scope = self._inner._scope
        approval = LOOP_THREAD.run(partial(get_approval, get_scope, error))
        approved = checked_return("on_approval", on_approval(approval))
        if approved is None:
            raise error
        LOOP_THREAD.run(partial(answer_approval, get_scope, error, approve=approved is True))

    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[StreamOptions],
    ) -> ToolStream:
        """Call a tool and read its events while it runs; see `AsyncClient.stream_tool`.

        Handlers run in the thread that reads the events, while it waits for one.
        """
        events, handlers = build_stream_events(name, options, self._handlers, may_be_async=False)
        return self._build_stream(name, arguments, options.get("timeout"), events, handlers)

    def _build_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        events: BufferedEvents,
        handlers: Handlers,
    ) -> ToolStream:
        inner = self._inner

        async def build() -> AsyncToolStream:  # it must be built in the client's loop
            return build_stream(inner, inner._scope, name, arguments, timeout, events)

        return ToolStream(LOOP_THREAD.run(build), handlers)

    def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        inline_media: bool = False,
    ) -> PromptResult:
        """Get a prompt with its arguments filled in; see `AsyncClient.get_prompt`."""
        build = partial(requests.get, name, arguments, server)
        return self._request(build, timeout, PromptResult, inline_media=inline_media)

    def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult:
        """Read a resource; see `AsyncClient.read_resource`."""
        return self._request(partial(requests.read, uri, server), timeout, ResourceResult)

    def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
        server: str | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Ask a server for values that complete an argument; see `AsyncClient.complete`."""
        build = partial(build_completion, argument, value, prompt, template, context, server)
        return self._request(build, timeout, Completion)

    def subscribe_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceUpdates:
        """Subscribe to a resource's changes; see `AsyncClient.subscribe_resource`.

        with client.subscribe_resource(uri) as updates:
            for changed in updates:
                content = client.read_resource(changed)
        """
        inner = self._inner

        async def build() -> AsyncResourceUpdates:  # it must be built in the client's loop
            return inner.subscribe_resource(uri, server=server, timeout=timeout)

        return ResourceUpdates(LOOP_THREAD.run(build))

    def _request(
        self,
        build: Callable[[], McpRequest],
        timeout: float | None,
        result_type: type[ResultT],
        *,
        inline_media: bool = False,
    ) -> ResultT:
        inner, handlers = self._inner, self._handlers
        if handlers is None:
            return LOOP_THREAD.run(
                partial(inner._request, build, timeout, result_type, inline_media=inline_media)
            )

        async def build_stream() -> AsyncToolStream:  # it must be built in the client's loop
            return inner._stream(build, timeout, handlers, inline_media, tasks=False)

        result = ToolStream(LOOP_THREAD.run(build_stream), handlers).run(Callbacks())
        return result_type._from_result(result)

    def read_artifact(self, ref: str, *, timeout: float | None = None) -> Artifact:
        """Read an image or sound that a call of this session returned by reference.

        Args:
            ref: The `artifact` of a content item.
            timeout: Seconds that the worker may take for each part; None means 30.

        Returns:
            An object to iterate for parts, with `read()` for all bytes. Both raise `ArtifactLost`
            if the artifact no longer exists or belongs to another session.
        """
        check_artifact(ref, timeout)
        return Artifact(AsyncArtifact(self, self._inner._scope, ref, timeout))
