"""CrewAI: Leaseway's tools as tools of `crewai` (extra `leaseway[crewai]`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from crewai.tools import BaseTool
from crewai.utilities.pydantic_schema_utils import create_model_from_schema
from pydantic import BaseModel, PrivateAttr

from leaseway.integrations.calling import ToolCaller, schema_for_models
from leaseway.sdk import Client, Session, Tool

_logger = logging.getLogger(__name__)


def _never(*_: Any) -> bool:
    return False


class _Arguments(BaseModel):
    def model_dump(self, **options: Any) -> dict[str, Any]:
        # Without this, CrewAI sends null for each argument that the model did not pass.
        arguments: dict[str, Any] = super().model_dump(**{"exclude_unset": True, **options})
        return arguments


class LeasewayTool(BaseTool):  # type: ignore[misc]
    """A tool that is called through Leaseway. CrewAI accepts text only; images are named in it."""

    # By default CrewAI caches results by their arguments, which is wrong for most tools.
    cache_function: Callable[..., bool] = _never
    _calls: Any = PrivateAttr()
    _tool: Any = PrivateAttr()

    def _run(self, /, **arguments: Any) -> str:
        answer = self._calls.call_and_wait(self._tool, arguments)
        return f"The tool failed: {answer.text}" if answer.is_error else answer.text


def crewai_tools(tools: Iterable[Tool], caller: Client | Session) -> list[LeasewayTool]:
    """Return tools for `Agent(tools=...)`.

    A tool whose schema CrewAI does not support is skipped, with a warning in the log.

    Args:
        tools: The tools, as `list_tools` returns them.
        caller: Calls the tools: a `Client`, or a session of one, which holds the leases of one
            conversation. CrewAI calls tools in its own threads, where no event loop runs.

    Raises:
        TypeError: The caller has another type, such as `AsyncClient`.
    """
    calls = ToolCaller(tools, caller, waits=True)
    built = (_build_tool(tool, calls) for tool in calls.tools)
    return [tool for tool in built if tool is not None]


def _build_tool(tool: Tool, calls: ToolCaller) -> LeasewayTool | None:
    try:
        arguments = create_model_from_schema(
            schema_for_models(tool), model_name=f"{tool.name}_arguments", __base__=_Arguments
        )
    except Exception as error:  # whatever CrewAI raises for this schema, keep the other tools
        _logger.warning(
            f"The tool '{tool.name}' of server '{tool.server_id}' is skipped: CrewAI does not "
            f"support its input schema ({type(error).__name__}).",
            exc_info=True,
        )
        return None
    built = LeasewayTool(
        name=tool.name,
        description=tool.description or tool.title or tool.name,
        args_schema=arguments,
    )
    built._calls, built._tool = calls, tool
    return built
