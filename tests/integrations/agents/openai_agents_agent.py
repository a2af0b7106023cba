"""An agent of the OpenAI Agents SDK, scripted: `python openai_agents_agent.py ADDRESS`."""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from script import CALLS, show

from leaseway.integrations.openai_agents import openai_agents_tools
from leaseway.sdk import AsyncClient, Client


class Scripted(Model):
    """A model that requests one call after the other; `results` are what it received."""

    results: tuple[Any, ...] = ()

    async def get_response(self, **asked: Any) -> Any:
        self.results = tuple(
            item["output"]
            for item in asked["input"]
            if isinstance(item, dict) and item.get("type") == "function_call_output"
        )
        done = len(self.results)
        if done < len(CALLS):
            name, arguments = CALLS[done]
            response: Any = ResponseFunctionToolCall(
                type="function_call", call_id=str(done), name=name, arguments=json.dumps(arguments)
            )
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            response = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        return ModelResponse(output=[response], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


async def main(address: str) -> None:
    set_tracing_disabled(True)
    model = Scripted()
    async with AsyncClient(address, key="any") as client, client.session("openai") as session:
        tools = openai_agents_tools(await client.list_tools(), session)
        run = await Runner.run(Agent(name="a", model=model, tools=tools), "Go.", max_turns=20)
    results = [item if isinstance(item, str) else json.dumps(item) for item in model.results]
    with Client(address, key="any") as waiting:
        add = next(t for t in openai_agents_tools(waiting.list_tools(), waiting) if t.name == "add")
        assert await add.on_invoke_tool(None, '{"a": 4}') == "6"
        assert "not JSON" in await add.on_invoke_tool(None, "nonsense")
    show(results, run.final_output)


asyncio.run(main(sys.argv[1]))
