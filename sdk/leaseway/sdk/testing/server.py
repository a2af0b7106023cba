"""`FakeServer`: where a test adds tools, prompts and resources."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from leaseway.sdk.testing.functions import FakeTool, check_name, describe_parameters
from leaseway.sdk.testing.prompts_resources import (
    Content,
    FakeResource,
    FakeTemplate,
    build_prompt,
)
from leaseway.sdk.testing.registry import FakeRegistry, Offers

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ContentT = TypeVar("ContentT", bound=Callable[..., str | bytes])


class FakeServer:
    """An MCP server made of functions; made by `FakeLeaseway.server`.

    Attributes:
        id: The server's id.
        stateful: Whether the server is leased: each session gets its own instance and state.
        prefix: The prefix of the exposed names of its tools and prompts.
    """

    def __init__(
        self,
        registry: FakeRegistry,
        server_id: str,
        *,
        stateful: bool,
        prefix: str,
        instructions: str,
        extensions: Sequence[str],
        on_update: Callable[[str, str], None],
    ) -> None:
        self._registry = registry
        self._on_update = on_update
        self._offers = Offers(
            id=server_id,
            stateful=stateful,
            prefix=prefix,
            instructions=instructions,
            extensions=tuple(extensions),
        )
        self.id = server_id
        self.stateful = stateful
        self.prefix = prefix
        registry.add_server(self._offers)

    @property
    def state(self) -> dict[str, Any]:
        """The `CallContext.state` of its tools, if the server is shared."""
        return self._offers.state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._offers.state = state

    @overload
    def tool(self, function: FunctionT, /) -> FunctionT: ...

    @overload
    def tool(
        self,
        *,
        name: str | None = ...,
        description: str | None = ...,
        schema: Mapping[str, Any] | None = ...,
        output_schema: Mapping[str, Any] | None = ...,
        annotations: Mapping[str, Any] | None = ...,
        meta: Mapping[str, Any] | None = ...,
        needs_approval: bool = ...,
    ) -> Callable[[FunctionT], FunctionT]: ...

    def tool(
        self,
        function: FunctionT | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        needs_approval: bool = False,
    ) -> FunctionT | Callable[[FunctionT], FunctionT]:
        """Serve a function as a tool; a decorator, with or without arguments.

        The function may have a parameter annotated with `CallContext`. If it raises a
        `LeasewayError`, the call fails with that error; any other exception becomes a result with
        `is_error`. A tool of the same server and name is replaced.

        Args:
            function: The function. An async one runs in the worker's event loop, any other one in
                a thread.
            name: The tool's name without the prefix; None means the function's name.
            description: The tool's description; None means the function's docstring.
            schema: The JSON Schema of the arguments, which the function then receives unconverted.
                None derives a schema from the parameters' types, and converts arguments to them.
            output_schema: The JSON Schema of structured results, or None.
            annotations: MCP tool annotations, such as `{"readOnlyHint": True}`.
            meta: The `_meta` of its definition, such as `{"ui": {"resourceUri": "ui://a/b"}}`.
            needs_approval: Whether a person must approve each call, as for tools whose `risk` is
                `financial`.

        Raises:
            ValueError: Another server has a tool of this name, or the name is not a valid one.
            TypeError: The parameters cannot be described by a schema.
        """
        scope = sys._getframe(1).f_locals  # tests define argument types inside functions

        def add(function: FunctionT) -> FunctionT:
            original = name or function.__name__
            exposed = self.prefix + original
            check_name("tool", exposed, original)
            input_schema, metadata, context = describe_parameters(exposed, function, schema, scope)
            about = inspect.getdoc(function) or "" if description is None else description
            tool = FakeTool(
                name=exposed,
                original_name=original,
                description=about,
                function=function,
                input_schema=input_schema,
                output_schema=output_schema,
                annotations=annotations,
                meta=meta,
                needs_approval=needs_approval,
                context=context,
                metadata=metadata,
            )
            self._registry.add_tool(self._offers, tool)
            return function

        return add if function is None else add(function)

    def prompt(
        self, *, name: str | None = None, completions: Mapping[str, Sequence[str]] | None = None
    ) -> Callable[[FunctionT], FunctionT]:
        """Serve a function as a prompt; a decorator.

        The function's parameters are the prompt's arguments, which are texts, except one
        annotated with `CallContext`. It returns text or a list of MCP messages, and may be async.
        If it raises a `LeasewayError`, the request fails with that error; any other exception
        becomes a `ServerError`.

        Args:
            name: The prompt's name without the prefix; None means the function's name.
            completions: Values that `complete` offers, by argument.

        Raises:
            ValueError: The name is not a valid prompt name.
        """

        def add(function: FunctionT) -> FunctionT:
            prompt = build_prompt(function, self.prefix, name, completions)
            self._registry.add_prompt(self._offers, prompt)
            return function

        return add

    def resource(
        self,
        uri: str,
        content: Content,
        *,
        name: str = "",
        description: str = "",
        mime_type: str = "text/plain",
    ) -> None:
        """Serve a resource. Replacing one notifies its subscribers.

        Args:
            uri: The resource's URI.
            content: Text, bytes, or a function that returns either. An exception that the function
                raises is treated as for `prompt`.
            name: The resource's name; empty means the URI.
            description: The resource's description.
            mime_type: The MIME type of the content.
        """
        resource = FakeResource(
            uri=uri, content=content, name=name or uri, description=description, mime_type=mime_type
        )
        self._registry.add_resource(self._offers, resource)
        self._on_update(self.id, uri)

    def resource_template(
        self,
        template: str,
        *,
        name: str = "",
        description: str | None = None,
        mime_type: str = "text/plain",
        completions: Mapping[str, Sequence[str]] | None = None,
    ) -> Callable[[ContentT], ContentT]:
        """Serve all resources whose URIs match a template; a decorator.

        The function's parameters are the template's variables, which are texts. It returns text
        or bytes.

        Args:
            template: A URI with variables, such as `note://{name}`; the value of `{+path}` may
                contain slashes.
            name: The template's name; empty means the function's name.
            description: The template's description; None means the function's docstring.
            mime_type: The MIME type of the content.
            completions: Values that `complete` offers, by variable.

        Raises:
            ValueError: The template has no variables.
        """

        def add(function: ContentT) -> ContentT:
            about = inspect.getdoc(function) or "" if description is None else description
            item = FakeTemplate(
                template=template,
                function=function,
                name=name or function.__name__,
                description=about,
                mime_type=mime_type,
                completions=completions or {},
            )
            self._registry.add_template(self._offers, item)
            return function

        return add
