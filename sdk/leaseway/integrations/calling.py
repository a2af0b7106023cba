"""Tool calls of a model: the part that all frameworks share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    Client,
    InvalidArguments,
    LeasewayError,
    PermissionDenied,
    ServerError,
    Session,
    Tool,
    ToolNotFound,
    ToolResult,
)
from leaseway.wire.advice import Reader, advice_for
from leaseway.wire.listing.model_schemas import with_plain_root
from leaseway.wire.messages.admin import RELEASE_TOOL

Caller = AsyncClient | AsyncSession | Client | Session

_FOR_MODELS: Final = (InvalidArguments, PermissionDenied, ServerError, ToolNotFound)
"""Errors that are reported to the model, which can react to them. All others are raised."""


@dataclass(frozen=True)
class Answer:
    """The answer to a model's tool call.

    Attributes:
        items: Texts and images, in order, as `ToolResult.for_model` returns them.
        is_error: Whether the tool reported an error, or the call failed with an error that a model
            can react to.
        result: The tool's result, or None if the call failed.
    """

    items: Sequence[Mapping[str, Any]]
    is_error: bool = False
    result: ToolResult | None = None

    @property
    def text(self) -> str:
        """The texts, one a line. An image is replaced by a line with its MIME type."""
        return "\n".join(
            item["text"] if item["type"] == "text" else f"[An image: {item['mime_type']}]"
            for item in self.items
        )

    @property
    def has_images(self) -> bool:
        """Whether there are images, which `text` does not contain."""
        return any(item["type"] == "image" for item in self.items)


class ToolCaller:
    """Calls tools for a model.

    If the model's tools include `mcp_release`, answers contain the reminder to release a new lease.

    Args:
        tools: The tools that the model can call.
        caller: A client, or a session, which holds the leases of one conversation.
        waits: Whether the framework calls tools in threads without an event loop, so that the
            caller must be a `Client` or a session of one.

    Raises:
        TypeError: The caller has another type.
    """

    def __init__(self, tools: Iterable[Tool], caller: Caller, *, waits: bool = False) -> None:
        types = (Client, Session) if waits else (AsyncClient, AsyncSession, Client, Session)
        if not isinstance(caller, types):
            expected = ", ".join(cls.__name__ for cls in types)
            raise TypeError(f"The caller must be one of {expected}; it is {type(caller).__name__}.")
        self.tools = tuple(tools)
        self._caller = caller
        self._can_release = any(tool.name == RELEASE_TOOL for tool in self.tools)

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> Answer:
        """Call a tool; a synchronous caller is used in a thread. A cancellation cancels the call.

        Raises:
            LeasewayError: The call failed with an error that a model cannot react to, such as
                LeaseLost.
        """
        if isinstance(self._caller, Client | Session):
            return await self._caller._run_in_thread(self.call_and_wait, tool, arguments)
        own = tool.for_models.server_arguments(arguments)
        try:
            result = await self._caller.call_tool(tool.name, own)
        except _FOR_MODELS as error:
            return _error_answer(error)
        return self._answer(result, await result.for_model())

    def call_and_wait(self, tool: Tool, arguments: Mapping[str, Any]) -> Answer:
        """Call a tool in this thread; the caller must be a synchronous one.

        Raises:
            LeasewayError: As `call` does.
            TypeError: The caller is asynchronous.
        """
        if not isinstance(self._caller, Client | Session):
            raise TypeError(
                f"The tool '{tool.name}' was made with an asynchronous caller. Call it "
                "asynchronously, or make it with a Client or a session of one."
            )
        own = tool.for_models.server_arguments(arguments)
        try:
            result = self._caller.call_tool(tool.name, own)
        except _FOR_MODELS as error:
            return _error_answer(error)
        return self._answer(result, result.for_model())

    def _answer(self, result: ToolResult, content: Sequence[Mapping[str, Any]]) -> Answer:
        items = list(content)
        if not items and result.structured is not None:
            items.append(_text(json.dumps(result.structured, ensure_ascii=False)))
        if self._can_release and result.reminder:
            items.append(_text(result.reminder))
        return Answer(items, result.is_error, result)


def schema_for_models(tool: Tool) -> dict[str, Any]:
    """Return a copy of a tool's input schema, as the APIs of models accept it."""
    return deepcopy(with_plain_root(tool.for_models.schema))


def _error_answer(error: LeasewayError) -> Answer:
    text = f"{error}{advice_for(Reader.MODEL, error.metadata)}"
    return Answer([_text(text)], is_error=True)


def _text(text: str) -> Mapping[str, Any]:
    return {"type": "text", "text": text}
