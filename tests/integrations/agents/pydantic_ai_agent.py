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

results: list[ToolReturnPart] = []


def scripted(messages: Any, _info: Any) -> ModelResponse:
    results[:] = [
        part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)
    ]
    if len(results) < len(CALLS):
        return ModelResponse(parts=[ToolCallPart(*CALLS[len(results)])])
    return ModelResponse(parts=[TextPart("done")])


async def main(address: str) -> None:
    async with AsyncClient(address, key="any") as client, client.session("pydantic") as session:
        tools = pydantic_ai_tools(await client.list_tools(), session)
        run = await Agent(FunctionModel(scripted), tools=tools).run("Go.")
    assert [part.outcome for part in results].count("failed") == 2
    show([_text(part.content) for part in results], run.output)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(
        f"{item.media_type} {item.base64}" if isinstance(item, BinaryContent) else item
        for item in content
    )


asyncio.run(main(sys.argv[1]))
