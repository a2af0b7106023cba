"""LangChain and LangGraph: tools as `langchain_core` has them (extra `leaseway[langchain]`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Literal

from langchain_core.tools import BaseTool, ToolException
from pydantic import PrivateAttr

from leaseway.integrations.calling import Answer, Caller, ToolCaller
from leaseway.sdk import Tool, ToolResult


class LeasewayTool(BaseTool):  # type: ignore[misc]
    """A tool that is called through Leaseway.

    Its message for the model has texts and images, and its `artifact` is the `ToolResult`. Where a
    tool says that it failed, the message has the status `error`, and the run goes on.
    """

    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True
    _calls: Any = PrivateAttr()
    _tool: Any = PrivateAttr()

    # Without LangChain's own parameters, so that a tool may have some of their names.
    def _run(self, **arguments: Any) -> tuple[Any, ToolResult | None]:
        return _message(self._calls.call_and_wait(self._tool, arguments))

    async def _arun(self, **arguments: Any) -> tuple[Any, ToolResult | None]:
        return _message(await self._calls.call(self._tool, arguments))


def langchain_tools(tools: Iterable[Tool], caller: Caller) -> list[LeasewayTool]:
    """Return tools as LangChain's models, agents and graphs take them.

    Args:
        tools: As `list_tools` returns them, or some of them.
        caller: What calls them: a client, or a session, which holds the leases of one conversation.
            An asynchronous one serves `ainvoke` and `astream` only, a synchronous one all.

    Raises:
        TypeError: The caller is something else.
    """
    calls = ToolCaller(tools, caller)
    return [_tool(tool, calls) for tool in calls.tools]


def _tool(tool: Tool, calls: ToolCaller) -> LeasewayTool:
    made = LeasewayTool(
        name=tool.name,
        description=tool.description,
        args_schema=deepcopy(tool.input_schema),
        metadata={"server_id": tool.server_id, "annotations": tool.annotations},
    )
    made._calls, made._tool = calls, tool
    return made


def _message(answer: Answer) -> tuple[Any, ToolResult | None]:
    if answer.is_error:
        raise ToolException(answer.text)
    if not answer.has_images:
        return answer.text, answer.result
    return [_block(item) for item in answer.items], answer.result


def _block(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["type"] == "text":
        return {"type": "text", "text": item["text"]}
    return {"type": "image", "base64": item["data"], "mime_type": item["mime_type"]}
