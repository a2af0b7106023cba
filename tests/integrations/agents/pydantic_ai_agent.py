"""An agent of Pydantic AI with a scripted model: `python pydantic_ai_agent.py ADDRESS`."""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from script import CALLS, show

from leaseway.integrations.pydantic_ai import pydantic_ai_tools
from leaseway.sdk import AsyncClient

told: list[ToolReturnPart] = []


def scripted(messages: Any, _info: Any) -> ModelResponse:
    told[:] = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
    if len(told) < len(CALLS):
        return ModelResponse(parts=[ToolCallPart(*CALLS[len(told)])])
    return ModelResponse(parts=[TextPart("done")])


async def main(address: str) -> None:
    async with AsyncClient(address, key="any") as client, client.session("pydantic") as session:
        tools = pydantic_ai_tools(await client.list_tools(), session)
        run = await Agent(FunctionModel(scripted), tools=tools).run("Go.")
    assert [part.outcome for part in told].count("failed") == 2
    show([_text(part.content) for part in told], run.output)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(
        f"{each.media_type} {each.base64}" if isinstance(each, BinaryContent) else each
        for each in content
    )


asyncio.run(main(sys.argv[1]))
