"""Prompts, resources and templates of them, of a fake server."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.testing.context import CallContext
from leaseway.sdk.testing.faults import fault_of
from leaseway.server.faults import held_to_its_call
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import is_valid_name, qualified

Content = str | bytes | Callable[[], str | bytes]
_VARIABLE: Final = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")
_INVALID_PARAMS: Final = "-32602"
_INTERNAL_ERROR: Final = "-32603"


@dataclass(frozen=True, eq=False)
class FakePrompt:
    """One prompt of a fake.

    Attributes:
        name: The exposed name.
        server_id: Its server.
        original_name: The name that the server has for it.
        description: What it is for.
        function: Makes its text or its messages.
        arguments: Its arguments, and whether each is required.
        completions: Values that complete an argument.
        context: The parameter that takes the `CallContext`, or None.
    """

    name: str
    server_id: str
    original_name: str
    description: str
    function: Callable[..., Any]
    arguments: Mapping[str, bool]
    completions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    context: str | None = None

    @property
    def qualified_name(self) -> str:
        """`server:prompt`, by which it can be had, too."""
        return qualified(self.server_id, self.original_name)

    @property
    def definition(self) -> dict[str, Any]:
        """The prompt as its server lists it."""
        arguments = [{"name": name, "required": need} for name, need in self.arguments.items()]
        listed = {
            "name": self.original_name,
            "description": self.description,
            "arguments": arguments,
        }
        return {key: value for key, value in listed.items() if value}

    async def get(self, given: Mapping[str, str], context: CallContext) -> dict[str, Any]:
        """Return the MCP result, the arguments filled in.

        Raises:
            Fault: SERVER_ERROR, as servers answer where arguments are missing or unknown, and
                where the function raises; the error itself where it raises a `LeasewayError`.
        """
        missing = [name for name, need in self.arguments.items() if need and name not in given]
        unknown = [name for name in given if name not in self.arguments]
        if missing or unknown:
            what = f"needs {', '.join(missing)}" if missing else f"knows no {', '.join(unknown)}"
            raise Fault(
                Reason.SERVER_ERROR,
                f"Prompt '{self.name}' {what}.",
                started="yes",
                metadata={"code": _INVALID_PARAMS},
            )
        own = {} if self.context is None else {self.context: context}
        try:
            with held_to_its_call():
                made = self.function(**given, **own)
                value = await made if inspect.isawaitable(made) else made
        except Fault:
            raise
        except Exception as error:
            raise _failure(f"Prompt '{self.name}'", error) from error
        messages = [_message(value)] if isinstance(value, str) else list(value)
        return {"description": self.description, "messages": messages}


@dataclass(eq=False)
class FakeResource:
    """One resource of a fake.

    Attributes:
        uri: Its URI.
        server_id: Its server.
        content: What it holds, or a function that says so.
        name: The server's name for it.
        description: What it is.
        mime_type: The MIME type of its content.
    """

    uri: str
    server_id: str
    content: Content
    name: str
    description: str
    mime_type: str

    @property
    def definition(self) -> dict[str, Any]:
        """The resource as its server lists it."""
        return _listed(self, uri=self.uri)

    def read(self) -> dict[str, Any]:
        """Return the MCP result.

        Raises:
            Fault: As for prompts, where the function that says what it holds raises.
        """
        try:
            with held_to_its_call():
                content = self.content() if callable(self.content) else self.content
        except Exception as error:
            raise _failure(f"Resource '{self.uri}'", error) from error
        item: dict[str, Any] = {"uri": self.uri, "mimeType": self.mime_type}
        if isinstance(content, str):
            item["text"] = content
        else:
            item["blob"] = base64.b64encode(content).decode()
        return {"contents": [item]}


@dataclass(frozen=True, eq=False)
class FakeTemplate:
    """One template of resources of a fake.

    Attributes:
        template: The template; a variable is `{name}`, or `{+name}` for what may have slashes.
        server_id: Its server.
        function: Given the variables, says what the resource holds.
        name: The server's name for it.
        description: What it stands for.
        mime_type: The MIME type of the content.
        completions: Values that complete a variable.

    Raises:
        ValueError: It has no variables.
    """

    template: str
    server_id: str
    function: Callable[..., str | bytes]
    name: str
    description: str
    mime_type: str
    completions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _VARIABLE.search(self.template) is None:
            raise ValueError(
                f"'{self.template}' has no variables, such as {{name}} or {{+path}}; offer it as "
                "a resource."
            )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Texts and variables take turns: a split by two groups gives (text, plus, name) again and
        # again.
        parts = _VARIABLE.split(self.template)
        pattern = re.escape(parts[0])
        for plus, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            pattern += f"(?P<{name}>{'.+' if plus else '[^/]+'}){re.escape(text)}"
        return re.compile(pattern)

    @property
    def definition(self) -> dict[str, Any]:
        """The template as its server lists it."""
        return _listed(self, uriTemplate=self.template)

    def resource(self, uri: str) -> FakeResource | None:
        """Return the resource that it stands for by a URI, or None."""
        found = self._pattern.fullmatch(uri)
        if found is None:
            return None
        content = partial(self.function, **found.groupdict())
        return FakeResource(
            uri, self.server_id, content, self.name, self.description, self.mime_type
        )


def _listed(one: FakeResource | FakeTemplate, **place: str) -> dict[str, Any]:
    more = {"name": one.name, "description": one.description, "mimeType": one.mime_type}
    return {**place, **{key: value for key, value in more.items() if value}}


def make_prompt(
    server_id: str,
    prefix: str,
    function: Callable[..., Any],
    name: str | None,
    completions: Mapping[str, Sequence[str]] | None,
) -> FakePrompt:
    """Return a function as a prompt.

    Raises:
        ValueError: The name is none that prompts may have.
    """
    original = name or function.__name__
    if not (is_valid_name(prefix + original) and is_valid_name(original)):
        raise ValueError(
            f"'{prefix + original}' is no name for a prompt: 1 to 64 of a-z, A-Z, 0-9, _ and - "
            "are. Pass name=."
        )
    parameters = inspect.signature(function).parameters.values()
    contexts = [one.name for one in parameters if _takes_context(one.annotation)]
    return FakePrompt(
        name=prefix + original,
        server_id=server_id,
        original_name=original,
        description=inspect.getdoc(function) or "",
        function=function,
        arguments={
            one.name: one.default is inspect.Parameter.empty
            for one in parameters
            if one.name not in contexts
        },
        completions=dict(completions or {}),
        context=contexts[0] if contexts else None,
    )


def _takes_context(annotation: object) -> bool:
    if isinstance(annotation, str):  # as annotations are under `from __future__`
        return annotation.rpartition(".")[2] == CallContext.__name__
    return annotation is CallContext


def _failure(what: str, error: BaseException) -> Fault:
    """Return what a server answers whose function raised."""
    if isinstance(error, LeasewayError):
        return fault_of(error)
    text = str(error) or type(error).__name__
    return Fault(
        Reason.SERVER_ERROR,
        f"{what} failed: {text}",
        started="yes",
        metadata={"code": _INTERNAL_ERROR},
    )


def _message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}}
