"""Calls of tools on behalf of a model: what all frameworks share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
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
from leaseway.wire.messages.admin import RELEASE_TOOL

Caller = AsyncClient | AsyncSession | Client | Session

_FOR_MODELS: Final = (InvalidArguments, PermissionDenied, ServerError, ToolNotFound)
"""Errors that a model can do something about; all others are for the service, and are raised."""


@dataclass(frozen=True)
class Answer:
    """What a model is told of a call.

    Attributes:
        items: Texts and images, in order, as `ToolResult.for_model` gives them.
        is_error: Whether the tool says that it failed, or the call was refused for a reason that
            a model can do something about.
        result: What the tool returned; None where the call was refused.
    """

    items: Sequence[Mapping[str, Any]]
    is_error: bool = False
    result: ToolResult | None = None

    @property
    def text(self) -> str:
        """Its texts; an image is a line that says so."""
        return "\n".join(
            item["text"] if item["type"] == "text" else f"[An image: {item['mime_type']}]"
            for item in self.items
        )

    @property
    def has_images(self) -> bool:
        """Whether its text is not all of it."""
        return any(item["type"] == "image" for item in self.items)


class ToolCaller:
    """Calls tools for a model.

    A model that is offered `mcp_release` is told when a call took a lease that it may release.

    Args:
        tools: Those that the model is offered.
        caller: A client, or a session, which holds the leases of one conversation.
        waits: Whether the framework calls from threads without a loop: only `Client` and its
            sessions can be used there.

    Attributes:
        tools: The same tools.

    Raises:
        TypeError: The caller is something else.
    """

    def __init__(self, tools: Iterable[Tool], caller: Caller, *, waits: bool = False) -> None:
        kinds = (Client, Session) if waits else (AsyncClient, AsyncSession, Client, Session)
        if not isinstance(caller, kinds):
            wanted = ", ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"The caller must be one of {wanted}; it is {type(caller).__name__}.")
        self.tools = tuple(tools)
        self._caller = caller
        self._reminds = any(tool.name == RELEASE_TOOL for tool in self.tools)

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> Answer:
        """Call a tool; with a synchronous caller, in a thread.

        Raises:
            LeasewayError: The call failed for a reason that no model can do anything about, such
                as LeaseLost.
        """
        if isinstance(self._caller, Client | Session):
            return await asyncio.to_thread(self.call_and_wait, tool, arguments)
        try:
            result = await self._caller.call_tool(tool.name, arguments)
        except _FOR_MODELS as error:
            return _refusal(error)
        return self._answer(result, await result.for_model())

    def call_and_wait(self, tool: Tool, arguments: Mapping[str, Any]) -> Answer:
        """Call a tool and wait for its answer.

        Raises:
            LeasewayError: As `call` does.
            TypeError: The caller is asynchronous.
        """
        if not isinstance(self._caller, Client | Session):
            raise TypeError(
                f"The tool '{tool.name}' was made with an asynchronous caller. Call it "
                "asynchronously, or make it with a Client or a session of one."
            )
        try:
            result = self._caller.call_tool(tool.name, arguments)
        except _FOR_MODELS as error:
            return _refusal(error)
        return self._answer(result, result.for_model())

    def _answer(self, result: ToolResult, content: Sequence[Mapping[str, Any]]) -> Answer:
        items = list(content)
        if not items and result.structured is not None:
            items.append(_text(json.dumps(result.structured, ensure_ascii=False)))
        if self._reminds and result.reminder:
            items.append(_text(result.reminder))
        return Answer(items, result.is_error, result)


def _refusal(error: LeasewayError) -> Answer:
    return Answer([_text(str(error))], is_error=True)


def _text(text: str) -> Mapping[str, Any]:
    return {"type": "text", "text": text}
