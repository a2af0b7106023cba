"""A LangChain agent with a scripted model: `python langchain_agent.py ADDRESS`."""

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from script import CALLS, show

from leaseway.integrations.langchain import langchain_tools
from leaseway.sdk import AsyncClient, Client, Tool, ToolList, ToolResult


class Scripted(BaseChatModel):
    """A model that requests one call after the other."""

    def bind_tools(self, tools: Any, **_: Any) -> "Scripted":
        return self

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        done = sum(isinstance(message, ToolMessage) for message in messages)
        if done < len(CALLS):
            name, arguments = CALLS[done]
            wanted = {"name": name, "args": arguments, "id": str(done)}
            response = AIMessage(content="", tool_calls=[wanted])
        else:
            response = AIMessage(content="done")
        return ChatResult(generations=[ChatGeneration(message=response)])

    @property
    def _llm_type(self) -> str:
        return "scripted"


async def main(address: str) -> None:
    async with AsyncClient(address, key="any") as client, client.session("langchain") as session:
        tools = langchain_tools(await client.list_tools(), session)
        agent = create_agent(Scripted(), tools, checkpointer=InMemorySaver())
        thread: Any = {"recursion_limit": 50, "configurable": {"thread_id": "1"}}
        await agent.ainvoke({"messages": [("user", "Go.")]}, thread)
        state = (await agent.aget_state(thread)).values  # as the checkpointer stored it
    messages = state["messages"]
    results = [message for message in messages if isinstance(message, ToolMessage)]
    assert [message.status for message in results].count("error") == 2
    assert type(results[0].artifact) is dict
    assert ToolResult.from_dict(results[0].artifact).text == "3"
    show([_text(message.content) for message in results], messages[-1].content)


def store_results() -> None:
    """Store results and tools as LangGraph's checkpointers store the values of a graph."""
    serializer = JsonPlusSerializer()
    tool = Tool(
        name="add",
        server_id="desk",
        original_name="add",
        title="",
        description="",
        input_schema={"type": "object"},
        output_schema=None,
        annotations={},
        extra={},
        shared=True,
    )
    result = ToolResult(b'{"content":[{"type":"text","text":"3"}]}', is_error=True)
    again = serializer.loads_typed(serializer.dumps_typed(result))
    assert (again.text, again.is_error) == ("3", True)
    tools = serializer.loads_typed(serializer.dumps_typed(ToolList([tool], 7, [], None)))
    assert (tools[0], tools.registry_version) == (tool, 7)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def invoke_and_wait(address: str) -> None:
    """Call a tool without an event loop, as `invoke` does."""
    with Client(address, key="any") as client:
        tools = {tool.name: tool for tool in langchain_tools(client.list_tools(), client)}
        assert tools["add"].invoke({"a": 4}) == "6"


store_results()
invoke_and_wait(sys.argv[1])
asyncio.run(main(sys.argv[1]))
