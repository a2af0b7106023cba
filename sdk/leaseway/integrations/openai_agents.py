"""The OpenAI Agents SDK: Leaseway's tools as tools of `agents` (extra `openai-agents`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agents import FunctionTool, ToolOutputImage, ToolOutputText

from leaseway.integrations.calling import Caller, ToolCaller, schema_for_models
from leaseway.sdk import Tool


def openai_agents_tools(tools: Iterable[Tool], caller: Caller) -> list[FunctionTool]:
    """Return tools for `Agent(tools=...)`.

    An error that a tool reports is passed to the model. The schemas are those of the servers, which
    are not strict in OpenAI's sense.

    Args:
        tools: The tools, as `list_tools` returns them.
        caller: Calls the tools: a client, or a session, which holds the leases of one conversation.

    Raises:
        TypeError: The caller has another type.
    """
    calls = ToolCaller(tools, caller)
    return [_build_tool(tool, calls) for tool in calls.tools]


def _build_tool(tool: Tool, calls: ToolCaller) -> FunctionTool:
    async def invoke(_context: Any, text: str) -> Any:
        try:
            arguments = json.loads(text or "{}")
        except ValueError as error:
            return f"The arguments are not JSON: {error}. Call the tool again with a JSON object."
        if not isinstance(arguments, dict):
            return "The arguments are not a JSON object. Call the tool again with one."
        answer = await calls.call(tool, arguments)
        if not answer.has_images:
            return answer.text
        return [_output(item) for item in answer.items]

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=schema_for_models(tool),
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


def _output(item: Any) -> Any:
    if item["type"] == "text":
        return ToolOutputText(text=item["text"])
    return ToolOutputImage(image_url=f"data:{item['mime_type']};base64,{item['data']}")
