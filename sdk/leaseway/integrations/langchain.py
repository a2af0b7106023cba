"""LangChain, LangGraph: Leaseway's tools as tools of `langchain_core` (extra `langchain`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from langchain_core.tools import BaseTool, ToolException
from pydantic import PrivateAttr

from leaseway.integrations.calling import Answer, Caller, ToolCaller, schema_for_models
from leaseway.sdk import Tool


class LeasewayTool(BaseTool):  # type: ignore[misc]
    """A tool that is called through Leaseway.

    The `ToolMessage` contains texts and images. Its `artifact` is the result as plain data, which
    checkpointers can store; `ToolResult.from_dict(message.artifact)` reads it. If the tool reports
    an error, the message has the status `error`, and the run continues.
    """

    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True
    _calls: Any = PrivateAttr()
    _tool: Any = PrivateAttr()

    # LangChain's own parameters are not declared, so that tools may have arguments of these names.
    def _run(self, /, **arguments: Any) -> tuple[Any, dict[str, Any] | None]:
        return _message(self._calls.call_and_wait(self._tool, arguments))

    async def _arun(self, /, **arguments: Any) -> tuple[Any, dict[str, Any] | None]:
        return _message(await self._calls.call(self._tool, arguments))


def langchain_tools(tools: Iterable[Tool], caller: Caller) -> list[LeasewayTool]:
    """Return tools for LangChain's models, agents and graphs.

    Args:
        tools: The tools, as `list_tools` returns them.
        caller: Calls the tools: a client, or a session, which holds the leases of one conversation.
            An asynchronous one supports only `ainvoke` and `astream`.

    Raises:
        TypeError: The caller has another type.
    """
    calls = ToolCaller(tools, caller)
    return [_build_tool(tool, calls) for tool in calls.tools]


def _build_tool(tool: Tool, calls: ToolCaller) -> LeasewayTool:
    built = LeasewayTool(
        name=tool.name,
        description=tool.description,
        args_schema=schema_for_models(tool),
        metadata={"server_id": tool.server_id, "annotations": tool.annotations},
    )
    built._calls, built._tool = calls, tool
    return built


def _message(answer: Answer) -> tuple[Any, dict[str, Any] | None]:
    if answer.is_error:
        raise ToolException(answer.text)
    artifact = answer.result.to_dict() if answer.result is not None else None
    if not answer.has_images:
        return answer.text, artifact
    return [_block(item) for item in answer.items], artifact


def _block(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["type"] == "text":
        return {"type": "text", "text": item["text"]}
    return {"type": "image", "base64": item["data"], "mime_type": item["mime_type"]}
