"""Prompts, resources and completions: what the synchronous client and its sessions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from leaseway.sdk.blocking.loop_thread import background
from leaseway.sdk.blocking.streams import ResourceUpdates, ToolStream
from leaseway.sdk.calls import requests
from leaseway.sdk.calls.prompt_results import (
    Completion,
    PromptResult,
    ResourceResult,
)
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.calls.results import McpResult
from leaseway.sdk.client.options import Callbacks
from leaseway.sdk.client.prompts_resources import AsyncPromptsResources, completion_request
from leaseway.sdk.client.streams import AsyncToolStream
from leaseway.sdk.client.subscriptions import AsyncResourceUpdates
from leaseway.sdk.transport.server_requests import Handlers

ResultT = TypeVar("ResultT", bound=McpResult)


class PromptsResources:
    """The part of `Client` and `Session` that uses prompts and resources."""

    _inner: AsyncPromptsResources
    _handlers: Handlers | None = None

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
        request = partial(requests.get, name, arguments, server)
        return self._request(request, timeout, PromptResult, inline_media=inline_media)

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
        """Ask how an argument or a variable may go on; see `AsyncClient.complete`."""
        request = partial(completion_request, argument, value, prompt, template, context, server)
        return self._request(request, timeout, Completion)

    def subscribe_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceUpdates:
        """Follow a resource's changes; see `AsyncClient.subscribe_resource`.

        with client.subscribe_resource(uri) as updates:
            for changed in updates:
                content = client.read_resource(changed)
        """
        inner = self._inner

        async def make() -> AsyncResourceUpdates:  # in the loop, which the client belongs to
            return inner.subscribe_resource(uri, server=server, timeout=timeout)

        return ResourceUpdates(background().run(make))

    def _request(
        self,
        make: Callable[[], McpRequest],
        timeout: float | None,
        result: type[ResultT],
        *,
        inline_media: bool = False,
    ) -> ResultT:
        inner, handlers = self._inner, self._handlers
        if handlers is None:
            return background().run(
                lambda: inner._request(make, timeout, result, inline_media=inline_media)
            )

        async def open_stream() -> AsyncToolStream:  # in the loop, which the client belongs to
            return inner._stream(make, timeout, handlers, inline_media, tasks=False)

        answer = ToolStream(background().run(open_stream), handlers).run(Callbacks())
        return result._from_result(answer)
