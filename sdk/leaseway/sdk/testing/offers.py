"""Prompts and resources of a fake server."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leaseway.v1 import catalog_pb2
from leaseway.wire.fault import Fault
from leaseway.wire.names import is_valid_name, qualified
from leaseway.wire.reasons import Reason

__all__ = ["FakePrompt", "FakeResource", "make_prompt"]

Content = str | bytes | Callable[[], str | bytes]


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
    """

    name: str
    server_id: str
    original_name: str
    description: str
    function: Callable[..., Any]
    arguments: Mapping[str, bool]
    completions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def qualified_name(self) -> str:
        """`server:prompt`, by which it can be had, too."""
        return qualified(self.server_id, self.original_name)

    def message(self, *, shared: bool) -> catalog_pb2.Prompt:
        """Return it for the wire."""
        arguments = [{"name": name, "required": need} for name, need in self.arguments.items()]
        return catalog_pb2.Prompt(
            name=self.name,
            original_name=self.original_name,
            server_id=self.server_id,
            description=self.description,
            arguments=json.dumps(arguments).encode() if arguments else b"",
            shared=shared,
        )

    async def get(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the MCP result, the arguments filled in.

        Raises:
            Fault: SERVER_ERROR, as servers answer where arguments are missing or unknown.

        """
        missing = [name for name, need in self.arguments.items() if need and name not in given]
        unknown = [name for name in given if name not in self.arguments]
        if missing or unknown:
            what = f"needs {', '.join(missing)}" if missing else f"knows no {', '.join(unknown)}"
            raise Fault(
                Reason.SERVER_ERROR,
                f"Prompt '{self.name}' {what}.",
                started="yes",
                metadata={"code": "-32602"},
            )
        made = self.function(**given)
        value = await made if inspect.isawaitable(made) else made
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

    def message(self, *, shared: bool) -> catalog_pb2.Resource:
        """Return it for the wire."""
        return catalog_pb2.Resource(
            uri=self.uri,
            server_id=self.server_id,
            name=self.name,
            description=self.description,
            mime_type=self.mime_type,
            shared=shared,
        )

    def read(self) -> dict[str, Any]:
        """Return the MCP result."""
        content = self.content() if callable(self.content) else self.content
        item: dict[str, Any] = {"uri": self.uri, "mimeType": self.mime_type}
        if isinstance(content, str):
            item["text"] = content
        else:
            item["blob"] = base64.b64encode(content).decode()
        return {"contents": [item]}


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
    return FakePrompt(
        name=prefix + original,
        server_id=server_id,
        original_name=original,
        description=inspect.getdoc(function) or "",
        function=function,
        arguments={p.name: p.default is inspect.Parameter.empty for p in parameters},
        completions=dict(completions or {}),
    )


def _message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}}
