"""CrewAI: tools as `crewai` has them (extra `leaseway[crewai]`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from crewai.tools import BaseTool
from crewai.utilities.pydantic_schema_utils import create_model_from_schema
from pydantic import BaseModel, PrivateAttr

from leaseway.integrations.calling import ToolCaller
from leaseway.sdk import Client, Session, Tool

_logger = logging.getLogger(__name__)


def _never(*_: Any) -> bool:
    return False


class _Arguments(BaseModel):
    def model_dump(self, **options: Any) -> dict[str, Any]:
        # CrewAI would send null for each argument that the model left out.
        given: dict[str, Any] = super().model_dump(**{"exclude_unset": True, **options})
        return given


class LeasewayTool(BaseTool):  # type: ignore[misc]
    """A tool that is called through Leaseway; CrewAI takes text, in which images are named."""

    # CrewAI keeps results by their arguments, and no server says that this is right.
    cache_function: Callable[..., bool] = _never
    _calls: Any = PrivateAttr()
    _tool: Any = PrivateAttr()

    def _run(self, **arguments: Any) -> str:
        answer = self._calls.call_and_wait(self._tool, arguments)
        return f"The tool failed: {answer.text}" if answer.is_error else answer.text


def crewai_tools(tools: Iterable[Tool], caller: Client | Session) -> list[LeasewayTool]:
    """Return tools for `Agent(tools=...)`.

    A tool whose schema CrewAI cannot take is left out, with a warning in the log.

    Args:
        tools: As `list_tools` returns them, or some of them.
        caller: What calls them: a `Client`, or a session of one, which holds the leases of one
            conversation. CrewAI calls tools in threads of its own, where no event loop runs.

    Raises:
        TypeError: The caller is something else, such as an `AsyncClient`.
    """
    calls = ToolCaller(tools, caller, waits=True)
    return [made for tool in calls.tools if (made := _tool(tool, calls)) is not None]


def _tool(tool: Tool, calls: ToolCaller) -> LeasewayTool | None:
    try:
        arguments = create_model_from_schema(
            deepcopy(tool.input_schema), model_name=f"{tool.name}_arguments", __base__=_Arguments
        )
    except Exception as error:  # whatever CrewAI makes of a schema, the other tools remain
        _logger.warning(
            f"The tool '{tool.name}' of server '{tool.server_id}' is left out: CrewAI cannot take "
            f"its input schema ({type(error).__name__}).",
            exc_info=True,
        )
        return None
    made = LeasewayTool(
        name=tool.name,
        description=tool.description or tool.title or tool.name,
        args_schema=arguments,
    )
    made._calls, made._tool = calls, tool
    return made
