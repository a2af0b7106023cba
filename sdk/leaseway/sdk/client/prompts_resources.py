"""Prompts, resources and completions: what the asynchronous client and its sessions share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from leaseway.sdk.calls import requests
from leaseway.sdk.calls.prompt_results import (
    Completion,
    PromptResult,
    ResourceResult,
)
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.calls.results import McpResult, ToolResult
from leaseway.sdk.client.options import Callbacks
from leaseway.sdk.client.streams import AsyncToolStream
from leaseway.sdk.client.subscriptions import AsyncResourceUpdates
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.events import BufferedEvents, CallEvents
from leaseway.sdk.transport.server_requests import AnswerTasks, Handlers
from leaseway.sdk.validation import check_seconds
from leaseway.wire.errors import Fault

ResultT = TypeVar("ResultT", bound=McpResult)


class AsyncPromptsResources(ABC):
    """The part of `AsyncClient` and `AsyncSession` that uses prompts and resources.

    A server that is leased is asked on the session's lease, which is acquired where there is none.
    All of it can be repeated and is, where a worker or server is lost meanwhile. What the server
    asks meanwhile is answered by the client's own handlers.
    """

    _handlers: Handlers | None = None

    @abstractmethod
    def _at(self) -> tuple[Runtime, str]:
        """Return the client's working parts and the session to ask in.

        Raises:
            RuntimeError: The client is closed, or the session was left.
        """

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

        Args:
            name: The prompt's name, or its qualified name (`server:prompt`).
            arguments: Its arguments: texts, as MCP has it.
            server: The id of the server that is meant; None means whichever has the name.
            timeout: Seconds until it is given up, retries included; None means the server's
                `call_timeout`, 60 unless it is configured.
            inline_media: Whether images and sounds of its messages come in place, not as
                references to artifacts.

        Raises:
            ToolNotFound: There is no such prompt.
            LeasewayError: It failed otherwise.
        """
        request = partial(requests.get, name, arguments, server)
        return await self._request(request, timeout, PromptResult, inline_media=inline_media)

    async def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult:
        """Read a resource: one that is listed, or that a template stands for.

        Its bytes come in place, whatever they are: only images and sounds of results and prompts
        become artifacts.

        Args:
            uri: Its URI.
            server: The id of the server that is meant; None means the one that lists it, or has a
                template for it, of several the smallest id.
            timeout: As for `get_prompt`.

        Raises:
            ToolNotFound: No server has it, or its server's filter keeps it back.
            LeasewayError: It failed otherwise.
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
        """Ask how an argument of a prompt, or a variable of a template, may go on.

        Args:
            argument: Which one.
            value: What it begins with; may be empty.
            prompt: The prompt's name, or its qualified name.
            template: The template as it is listed, such as `file:///{path}`; instead of `prompt`.
            context: Arguments that are known already, by name.
            server: As for `get_prompt` and `read_resource`.
            timeout: As for `get_prompt`.

        Raises:
            TypeError: Neither or both of `prompt` and `template` are given.
            ToolNotFound: There is no such prompt or template.
            LeasewayError: It failed otherwise.
        """
        request = partial(completion_request, argument, value, prompt, template, context, server)
        return await self._request(request, timeout, Completion)

    def subscribe_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> AsyncResourceUpdates:
        """Follow a resource's changes.

            async with client.subscribe_resource(uri) as updates:
                async for changed in updates:
                    content = await client.read_resource(changed)

        Args:
            uri: Its URI.
            server: As for `read_resource`.
            timeout: Seconds until its server has to have agreed; None means 60.

        Returns:
            Its changes, to be used as `async with`: it holds from there on.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        try:
            request = requests.subscribe(uri, server)
        except Fault as fault:
            raise error_from_fault(fault) from None
        self._at()  # which says where the client is closed
        return AsyncResourceUpdates(self._at, request, timeout)

    async def _request(
        self,
        make: Callable[[], McpRequest],
        timeout: float | None,
        result: type[ResultT],
        *,
        inline_media: bool = False,
    ) -> ResultT:
        if timeout is not None:
            check_seconds("timeout", timeout)
        runtime, session = self._at()
        if self._handlers is not None:
            stream = self._stream(make, timeout, self._handlers, inline_media, tasks=True)
            answer = await stream.run(Callbacks())
            return result._from_result(answer)
        events = CallEvents(inline_media=True) if inline_media else None
        try:
            answer = await runtime.caller.request(session, make(), timeout, events)
        except Fault as fault:
            raise error_from_fault(fault) from None
        return result._from_result(answer)

    def _stream(
        self,
        make: Callable[[], McpRequest],
        timeout: float | None,
        handlers: Handlers,
        inline_media: bool,
        *,
        tasks: bool,
    ) -> AsyncToolStream:
        """Return a request as a stream, on which handlers answer what its server asks."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        self._at()  # which says where the client is closed
        try:
            request = make()
        except Fault as fault:
            raise error_from_fault(fault) from None

        def begin(events: CallEvents) -> Coroutine[Any, Any, ToolResult]:
            runtime, session = self._at()
            return runtime.caller.request(session, request, timeout, events)

        name = request.item.name
        answering = AnswerTasks(handlers, name) if tasks else None
        events = BufferedEvents(
            answers=handlers.methods, tasks=answering, inline_media=bool(inline_media)
        )
        return AsyncToolStream(name, events, begin, self)


def completion_request(
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
    raise TypeError("Give either prompt= or template=: what the argument belongs to.")
