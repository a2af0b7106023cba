"""One server of a fake: where a test adds tools, prompts and resources."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from leaseway.sdk.testing.functions import make_tool
from leaseway.sdk.testing.prompts_resources import Content, FakeResource, FakeTemplate, make_prompt
from leaseway.sdk.testing.registry import FakeRegistry

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ContentT = TypeVar("ContentT", bound=Callable[..., str | bytes])


class FakeServer:
    """One server of a fake; `FakeLeaseway.server` makes it.

    Attributes:
        id: Its id.
        stateful: Whether each session leases a client of its own.
        prefix: What the exposed names of its tools begin with.
        state: What tools of a shared server remember.
    """

    def __init__(
        self,
        registry: FakeRegistry,
        server_id: str,
        *,
        stateful: bool,
        prefix: str,
        on_update: Callable[[str, str], None],
    ) -> None:
        self._registry = registry
        self._on_update = on_update
        self.id = server_id
        self.stateful = stateful
        self.prefix = prefix
        self.state: dict[str, Any] = {}
        registry.add_server(self)

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
        needs_approval: bool = False,
    ) -> FunctionT | Callable[[FunctionT], FunctionT]:
        """Make a function a tool of this server, as a decorator with or without arguments.

        It may be async, and may have a parameter annotated with `CallContext`. An exception that
        it raises is a result with `is_error`; a `LeasewayError` is that error of the call.

        Args:
            function: What runs. One that is not async runs in a thread of its own.
            name: The tool's name without the prefix; None means the function's.
            description: What it does; None means the function's docstring.
            schema: The JSON Schema of its arguments, which it then gets as they are; None makes
                one of its parameters' types and gives it arguments of those types.
            output_schema: The JSON Schema of its structured results, or None.
            annotations: Hints, such as `{"readOnlyHint": True}`.
            needs_approval: Whether a person has to agree to each call, as to those of tools
                whose `risk` is `financial`.

        Raises:
            ValueError: The name is taken, or none that tools may have.
            TypeError: No schema can be made of the parameters.
        """
        names = sys._getframe(1).f_locals  # tests define the types of arguments in functions

        def add(given: FunctionT) -> FunctionT:
            made = make_tool(
                self.id,
                self.prefix,
                given,
                name=name,
                description=description,
                schema=schema,
                output_schema=output_schema,
                annotations=annotations,
                names=names,
            )
            self._registry.add_tool(replace(made, needs_approval=needs_approval))
            return given

        return add if function is None else add(function)

    def prompt(
        self, *, name: str | None = None, completions: Mapping[str, Sequence[str]] | None = None
    ) -> Callable[[FunctionT], FunctionT]:
        """Make a function a prompt of this server, as a decorator.

        Its parameters are the prompt's arguments, which are texts; one annotated with
        `CallContext` is none. It returns a text, or MCP messages; it may be async. A
        `LeasewayError` that it raises is that error of the request, another one is a
        `ServerError`.

        Args:
            name: The prompt's name without the prefix; None means the function's.
            completions: Values that `complete` offers, by argument.

        Raises:
            ValueError: The name is none that prompts may have.
        """

        def add(given: FunctionT) -> FunctionT:
            made = make_prompt(self.id, self.prefix, given, name, completions)
            self._registry.add_prompt(made)
            return given

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
        """Offer a resource; those who follow one that was there before are told.

        Args:
            uri: Its URI.
            content: Its text or bytes, or a function that returns them, or raises as a prompt's.
            name: The server's name for it; empty means the URI.
            description: What it is.
            mime_type: The MIME type of its content.
        """
        made = FakeResource(uri, self.id, content, name or uri, description, mime_type)
        self._registry.add_resource(made)
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
        """Make a function the content of all resources that a template stands for, as a decorator.

        Its parameters are the template's variables, which are texts. It returns a text or bytes.

        Args:
            template: Such as `note://{name}`; the value of `{+path}` may have slashes.
            name: The server's name for it; empty means the function's.
            description: What it stands for; None means the function's docstring.
            mime_type: The MIME type of the content.
            completions: Values that `complete` offers, by variable.

        Raises:
            ValueError: The template has no variables.
        """

        def add(given: ContentT) -> ContentT:
            about = inspect.getdoc(given) or "" if description is None else description
            made = FakeTemplate(
                template,
                self.id,
                given,
                name or given.__name__,
                about,
                mime_type,
                dict(completions or {}),
            )
            self._registry.add_template(made)
            return given

        return add
