"""The prompts, resources and resource templates of a fake server."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.testing.context import CallContext
from leaseway.sdk.testing.functions import check_name
from leaseway.sdk.testing.values import fault_from_error
from leaseway.server.faults import contained_exits
from leaseway.wire.errors import Fault, Reason

Content = str | bytes | Callable[[], str | bytes]
_VARIABLE: Final = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")
_INVALID_PARAMS: Final = "-32602"
_INTERNAL_ERROR: Final = "-32603"


@dataclass(frozen=True, eq=False)
class FakePrompt:
    """A function that a fake server serves as a prompt.

    Attributes:
        arguments: The names of its arguments, and whether each is required.
        completions: Values that complete an argument, by argument.
        context: The parameter that takes the `CallContext`, or None.
    """

    name: str
    original_name: str
    description: str
    function: Callable[..., Any]
    arguments: Mapping[str, bool]
    completions: Mapping[str, Sequence[str]]
    context: str | None

    @property
    def definition(self) -> dict[str, Any]:
        """The prompt as its server lists it."""
        arguments = [
            {"name": name, "required": required} for name, required in self.arguments.items()
        ]
        optional = {"description": self.description, "arguments": arguments}
        return {
            "name": self.original_name,
            **{key: value for key, value in optional.items() if value},
        }

    async def get(self, arguments: Mapping[str, str], context: CallContext) -> dict[str, Any]:
        """Return the MCP result of `prompts/get`.

        Raises:
            Fault: SERVER_ERROR if arguments are missing or unknown, or the function raised; the
                raised error if it is a `LeasewayError`.
        """
        missing = [
            name for name, required in self.arguments.items() if required and name not in arguments
        ]
        unknown = [name for name in arguments if name not in self.arguments]
        if missing or unknown:
            problem = (
                f"needs the arguments {', '.join(missing)}"
                if missing
                else f"has no arguments {', '.join(unknown)}"
            )
            raise Fault(
                Reason.SERVER_ERROR,
                f"Prompt '{self.name}' {problem}.",
                started="yes",
                metadata={"code": _INVALID_PARAMS},
            )
        extra = {} if self.context is None else {self.context: context}
        try:
            with contained_exits():
                returned = self.function(**arguments, **extra)
                value = await returned if inspect.isawaitable(returned) else returned
        except Fault:
            raise
        except Exception as error:
            raise _fault(f"Prompt '{self.name}'", error) from error
        if isinstance(value, str):
            value = [{"role": "user", "content": {"type": "text", "text": value}}]
        return {"description": self.description, "messages": list(value)}


@dataclass(frozen=True, eq=False)
class FakeResource:
    """A resource of a fake server; its content is fixed, or returned by a function."""

    uri: str
    content: Content
    name: str
    description: str
    mime_type: str

    @property
    def definition(self) -> dict[str, Any]:
        """The resource as its server lists it."""
        return {"uri": self.uri, **_description(self)}

    def read(self) -> dict[str, Any]:
        """Return the MCP result of `resources/read`.

        Raises:
            Fault: The function of the content raised, as for prompts.
        """
        try:
            with contained_exits():
                content = self.content() if callable(self.content) else self.content
        except Exception as error:
            raise _fault(f"Resource '{self.uri}'", error) from error
        item: dict[str, Any] = {"uri": self.uri, "mimeType": self.mime_type}
        if isinstance(content, str):
            item["text"] = content
        else:
            item["blob"] = base64.b64encode(content).decode()
        return {"contents": [item]}


@dataclass(frozen=True, eq=False)
class FakeTemplate:
    """A resource template of a fake server.

    Attributes:
        template: A URI with variables: `{name}`, or `{+name}` for a value with slashes.
        function: Returns a resource's content; its parameters are the variables.
        completions: Values that complete a variable, by variable.

    Raises:
        ValueError: The template has no variables.
    """

    template: str
    function: Callable[..., str | bytes]
    name: str
    description: str
    mime_type: str
    completions: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if _VARIABLE.search(self.template) is None:
            raise ValueError(
                f"'{self.template}' has no variables, such as {{name}} or {{+path}}. Add it with "
                "`resource` instead."
            )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # The split repeats (text, plus, name), one triple for each variable, after the first text.
        first, *rest = _VARIABLE.split(self.template)
        pattern = re.escape(first)
        for plus, name, text in zip(rest[0::3], rest[1::3], rest[2::3], strict=True):
            pattern += f"(?P<{name}>{'.+' if plus else '[^/]+'}){re.escape(text)}"
        return re.compile(pattern)

    @property
    def definition(self) -> dict[str, Any]:
        """The template as its server lists it."""
        return {"uriTemplate": self.template, **_description(self)}

    def resource(self, uri: str) -> FakeResource | None:
        """Return the resource of a URI, or None if the URI does not match the template."""
        match = self._pattern.fullmatch(uri)
        if match is None:
            return None
        content = partial(self.function, **match.groupdict())
        return FakeResource(
            uri=uri,
            content=content,
            name=self.name,
            description=self.description,
            mime_type=self.mime_type,
        )


def build_prompt(
    function: Callable[..., Any],
    prefix: str,
    name: str | None,
    completions: Mapping[str, Sequence[str]] | None,
) -> FakePrompt:
    """Return a function as a prompt.

    Raises:
        ValueError: The name is not a valid prompt name.
    """
    original = name or function.__name__
    check_name("prompt", prefix + original, original)
    parameters = inspect.signature(function).parameters.values()
    contexts = [p.name for p in parameters if _is_context(p.annotation)]
    return FakePrompt(
        name=prefix + original,
        original_name=original,
        description=inspect.getdoc(function) or "",
        function=function,
        arguments={
            p.name: p.default is inspect.Parameter.empty
            for p in parameters
            if p.name not in contexts
        },
        completions=completions or {},
        context=contexts[0] if contexts else None,
    )


def _is_context(annotation: object) -> bool:
    if isinstance(annotation, str):  # as annotations are under `from __future__`
        return annotation.rpartition(".")[2] == CallContext.__name__
    return annotation is CallContext


def _description(item: FakeResource | FakeTemplate) -> dict[str, str]:
    fields = {"name": item.name, "description": item.description, "mimeType": item.mime_type}
    return {key: value for key, value in fields.items() if value}


def _fault(subject: str, error: BaseException) -> Fault:
    """Return the fault of a request whose function raised."""
    if isinstance(error, LeasewayError):
        return fault_from_error(error)
    return Fault(
        Reason.SERVER_ERROR,
        f"{subject} failed: {str(error) or type(error).__name__}",
        started="yes",
        metadata={"code": _INTERNAL_ERROR},
    )
