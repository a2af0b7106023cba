"""The methods that the asynchronous client and its sessions share.

They call tools, use prompts and resources, and read artifacts.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from leaseway.sdk.calls import requests
from leaseway.sdk.calls.prompt_results import Completion, PromptResult, ResourceResult
from leaseway.sdk.calls.requests import McpRequest, mcp_call, tool_call
from leaseway.sdk.calls.results import McpResult, ToolResult
from leaseway.sdk.calls.typed_results import decoder_for, typed_result
from leaseway.sdk.client.artifacts import AsyncArtifact, check_artifact
from leaseway.sdk.client.options import (
    NO_OPTIONS,
    Callbacks,
    CallOptions,
    OnApproval,
    StreamOptions,
    build_events,
    build_stream_events,
    parse_call_options,
)
from leaseway.sdk.client.streams import AsyncToolStream, build_stream
from leaseway.sdk.client.subscriptions import AsyncResourceUpdates
from leaseway.sdk.errors import ConfirmationRequired, error_from_fault
from leaseway.sdk.operators.operations import answer_approval, get_approval
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.handles import ProcessHandle
from leaseway.sdk.transport.server_requests import Handlers
from leaseway.sdk.validation import check_seconds
from leaseway.wire.errors import Fault

TypedT = TypeVar("TypedT")
ResultT = TypeVar("ResultT", bound=McpResult)


class AsyncCalls(ProcessHandle, ABC):
    """The methods that `AsyncClient` and `AsyncSession` share."""

    _handlers: Handlers | None = None
    """The client's default handlers of server requests."""

    _on_approval: OnApproval | None = None
    """The client's default approval callback."""

    @abstractmethod
    def _scope(self) -> tuple[Runtime, str]:
        """Return the client's runtime and the key of the session to call in.

        Raises:
            RuntimeError: The client is closed, or the session's `with` block has ended.
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

        Callbacks and handlers may be async, and may call tools. The call's timeout includes the
        time that they take, and cancels them when it passes.

        Args:
            name: The tool's name, or its qualified name (`server:tool`).
            arguments: The tool's arguments; JSON values, at most 4 MiB.
            result_type: A dataclass, TypedDict, pydantic model or other type to convert the
                result to: from its structured content, or else from its text parsed as JSON. Needs
                pydantic or msgspec.
            **options: `timeout`, `on_progress`, `on_log`, `log_level`, `on_elicitation`,
                `on_sampling`, `roots`, `on_approval`, `subject_token` and `inline_media`; see
                `CallOptions`.

        Returns:
            The result, also if the tool reports an error (`is_error`). With `result_type`, an
            instance of that type.

        Raises:
            LeasewayError: The call failed; InputRequired if the server sends the caller a request
                that no handler answers.
            ToolError: The result has `is_error`, and `result_type` is given.
            ResultTypeError: The result does not match `result_type`.
            ImportError: `result_type` is given, but neither pydantic nor msgspec is installed.
            TypeError: A parameter has the wrong type, or does not exist.
        """
        runtime, session = self._scope()
        decode = decoder_for(result_type) if result_type is not None else None
        parsed, callbacks, on_approval = NO_OPTIONS, None, self._on_approval
        if options or self._handlers is not None:  # most calls have none, and parse nothing
            parsed = parse_call_options(options, self._handlers, may_be_async=True)
            callbacks, on_approval = parsed.callbacks, parsed.on_approval or on_approval
        while True:
            try:
                if not callbacks:
                    events = None if parsed is NO_OPTIONS else parsed.events()
                    call = tool_call(session, name, arguments, parsed.timeout, events)
                    result = await runtime.caller.run(call)
                else:
                    buffer = parsed.buffer(name, callbacks, tasks=True)
                    stream = build_stream(
                        self, self._scope, name, arguments, parsed.timeout, buffer
                    )
                    result = await stream.run(callbacks)
                break
            except Fault as fault:
                error = error_from_fault(fault)
            except ConfirmationRequired as required:
                error = required
            if not isinstance(error, ConfirmationRequired) or on_approval is None:
                raise error from None
            await self._request_approval(error, on_approval)
            on_approval = None  # ask only once per call
        return result if decode is None else typed_result(name, result, result_type, decode)

    async def _request_approval(self, error: ConfirmationRequired, on_approval: OnApproval) -> None:
        """Ask a person to approve or deny a call; raise the error if neither happens."""
        if not error.may_approve:
            raise error from None
        approved = on_approval(await get_approval(self._scope, error))
        if inspect.isawaitable(approved):
            approved = await approved
        if approved is None:
            raise error from None
        await answer_approval(self._scope, error, approve=approved is True)

    def stream_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncToolStream:
        """Call a tool and read its progress and log messages while it runs.

        Requests of the server are not events: the handlers answer them, whether or not events are
        read.

        Args:
            name: As for `call_tool`.
            arguments: As for `call_tool`.
            **options: `timeout`, `log_level`, `on_elicitation`, `on_sampling`, `roots`,
                `subject_token` and `inline_media`; see `StreamOptions`.

        Returns:
            The call, to be used as `async with`; it starts at the start of the block.

        Raises:
            TypeError: A parameter has the wrong type, or does not exist.
            ValueError: `log_level` is not one of MCP's levels.
        """
        events, _ = build_stream_events(name, options, self._handlers, may_be_async=True)
        timeout = options.get("timeout")
        return build_stream(self, self._scope, name, arguments, timeout, events)

    # Prompts and resources. These requests can be repeated, and are if a worker or server is lost.

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        inline_media: bool = False,
    ) -> PromptResult:
        """Get a prompt with its arguments filled in.

        A leased server is asked on the session's lease, which is acquired if there is none. The
        client's handlers answer requests of the server. The same holds for `read_resource` and
        `complete`.

        Args:
            name: The prompt's name, or its qualified name (`server:prompt`).
            arguments: The prompt's arguments, which are texts.
            server: The id of the prompt's server; None means the server that has the name.
            timeout: Seconds, retries included; None means the server's `call_timeout`, 60 by
                default.
            inline_media: Whether images and sounds are returned in the messages instead of as
                references to artifacts.

        Raises:
            ToolNotFound: There is no such prompt.
            LeasewayError: The request failed otherwise.
        """
        build = partial(requests.get, name, arguments, server)
        return await self._request(build, timeout, PromptResult, inline_media=inline_media)

    async def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult:
        """Read a resource that a server lists, or that matches one of its templates.

        The content is always returned in place: only images and sounds of tool results and prompts
        become artifacts.

        Args:
            uri: The resource's URI.
            server: The id of the resource's server; None means the server that lists it, or has a
                template that matches; the smallest id if there are several.
            timeout: As for `get_prompt`.

        Raises:
            ToolNotFound: No server has the resource, or its server's filter hides it.
            LeasewayError: The request failed otherwise.
        """
        return await self._request(partial(requests.read, uri, server), timeout, ResourceResult)

    async def complete(
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
        """Ask a server for values that complete a prompt's argument or a template's variable.

        Args:
            argument: The name of the argument or variable.
            value: The beginning of the value; may be empty.
            prompt: The prompt's name, or its qualified name.
            template: The listed template, such as `file:///{path}`; instead of `prompt`.
            context: Other arguments whose values are known, by name.
            server: As for `get_prompt` and `read_resource`.
            timeout: As for `get_prompt`.

        Raises:
            TypeError: Neither or both of `prompt` and `template` are given.
            ToolNotFound: There is no such prompt or template.
            LeasewayError: The request failed otherwise.
        """
        build = partial(build_completion, argument, value, prompt, template, context, server)
        return await self._request(build, timeout, Completion)

    def subscribe_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> AsyncResourceUpdates:
        """Subscribe to a resource's changes.

            async with client.subscribe_resource(uri) as updates:
                async for changed in updates:
                    content = await client.read_resource(changed)

        Args:
            uri: The resource's URI.
            server: As for `read_resource`.
            timeout: Seconds until the server must have accepted the subscription; None means 60.

        Returns:
            The changes, to be used as `async with`; the subscription starts there.

        Raises:
            InvalidRequest: The URI is not valid.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        try:
            request = requests.subscribe(uri, server)
        except Fault as fault:
            raise error_from_fault(fault) from None
        self._scope()  # raises if the client is closed
        return AsyncResourceUpdates(self._scope, request, timeout)

    async def _request(
        self,
        build: Callable[[], McpRequest],
        timeout: float | None,
        result_type: type[ResultT],
        *,
        inline_media: bool = False,
    ) -> ResultT:
        if timeout is not None:
            check_seconds("timeout", timeout)
        runtime, session = self._scope()
        if self._handlers is not None:
            stream = self._stream(build, timeout, self._handlers, inline_media, tasks=True)
            return result_type._from_result(await stream.run(Callbacks()))
        events = CallEvents(inline_media=True) if inline_media else None
        try:
            result = await runtime.caller.run(mcp_call(session, build(), timeout, events))
        except Fault as fault:
            raise error_from_fault(fault) from None
        return result_type._from_result(result)

    def _stream(
        self,
        build: Callable[[], McpRequest],
        timeout: float | None,
        handlers: Handlers,
        inline_media: bool,
        *,
        tasks: bool,
    ) -> AsyncToolStream:
        """Return a request as a stream on which handlers answer the server's requests."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        self._scope()  # raises if the client is closed
        try:
            request = build()
        except Fault as fault:
            raise error_from_fault(fault) from None

        def start(events: CallEvents) -> Coroutine[Any, Any, ToolResult]:
            runtime, session = self._scope()
            return runtime.caller.run(mcp_call(session, request, timeout, events))

        name = request.item.name
        events = build_events(name, handlers, tasks=tasks, inline_media=inline_media)
        return AsyncToolStream(name, events, start, self)

    def read_artifact(self, ref: str, *, timeout: float | None = None) -> AsyncArtifact:
        """Read an image or sound that a call of this session returned by reference.

        Args:
            ref: The `artifact` of a content item.
            timeout: Seconds that the worker may take for each part; None means 30.

        Returns:
            An object to await for all bytes, or to iterate with `async for` for parts of them.
            Both raise `ArtifactLost` if the artifact no longer exists or belongs to another
            session.
        """
        check_artifact(ref, timeout)
        return AsyncArtifact(self, self._scope, ref, timeout)


def build_completion(
    argument: str,
    value: str,
    prompt: str | None,
    template: str | None,
    context: Mapping[str, Any] | None,
    server: str | None,
) -> McpRequest:
    """Return the request of `complete`."""
    params = requests.completion_params(argument, value, context)
    if prompt is not None and template is None:
        return requests.complete_prompt(prompt, params, server)
    if template is not None and prompt is None:
        return requests.complete_template(template, params, server)
    raise TypeError("Pass either prompt= or template=: what the argument belongs to.")
