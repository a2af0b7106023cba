"""Pydantic AI: Leaseway's tools as tools of `pydantic_ai` (extra `leaseway[pydantic-ai]`)."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from pydantic_ai import BinaryContent
from pydantic_ai import Tool as AgentTool
from pydantic_ai.exceptions import ToolFailed

from leaseway.integrations.calling import Caller, ToolCaller, schema_for_models
from leaseway.sdk import Tool


def pydantic_ai_tools(tools: Iterable[Tool], caller: Caller) -> list[AgentTool[Any]]:
    """Return tools for `Agent(tools=...)` or a `FunctionToolset`.

    An error that a tool reports is passed to the model, and does not count as one of the agent's
    retries.

    Args:
        tools: The tools, as `list_tools` returns them.
        caller: Calls the tools: a client, or a session, which holds the leases of one conversation.

    Raises:
        TypeError: The caller has another type.
    """
    calls = ToolCaller(tools, caller)
    return [_build_tool(tool, calls) for tool in calls.tools]


def _build_tool(tool: Tool, calls: ToolCaller) -> AgentTool[Any]:
    async def run(**arguments: Any) -> Any:
        answer = await calls.call(tool, arguments)
        if answer.is_error:
            raise ToolFailed(answer.text)
        if not answer.has_images:
            return answer.text
        return [_part(item) for item in answer.items]

    return AgentTool.from_schema(run, tool.name, tool.description, schema_for_models(tool))


def _part(item: Any) -> Any:
    if item["type"] == "text":
        return item["text"]
    return BinaryContent(base64.b64decode(item["data"]), media_type=item["mime_type"])
