"""A crew of CrewAI with a scripted model: `python crewai_agent.py ADDRESS`."""

import json
import sys
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from script import CALLS, show

from leaseway.integrations.crewai import crewai_tools
from leaseway.sdk import Client, Tool

results: list[str] = []


class Scripted(BaseLLM):
    """A model that requests one call after the other, in the text form that CrewAI parses."""

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        texts = [str(message.get("content")) for message in messages]
        results[:] = [
            # CrewAI sometimes appends the list of tools.
            text.partition("Observation:")[2].partition("\n\n\n")[0].strip()
            for text in texts
            if "Observation:" in text
        ][1:]
        if len(results) < len(CALLS):
            name, arguments = CALLS[len(results)]
            return f"Thought: on\nAction: {name}\nAction Input: {json.dumps(arguments)}\n"
        return "Thought: I now know the final answer\nFinal Answer: done"

    def supports_function_calling(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 8192


def check_unsupported_schema() -> None:
    """Check that a tool is skipped if CrewAI does not support its schema."""
    schema = {"type": "object", "properties": {"a": {"const": {"b": 1}}}}
    odd = Tool(
        name="odd",
        server_id="s",
        original_name="odd",
        title="",
        description="",
        input_schema=schema,
        output_schema=None,
        annotations={},
        extra={},
        shared=True,
    )
    with Client("127.0.0.1:1") as client:
        assert crewai_tools([odd], client) == []


def main(address: str) -> None:
    with Client(address, key="any") as client, client.session("crewai") as session:
        agent = Agent(
            role="r",
            goal="g",
            backstory="b",
            llm=Scripted(model="scripted"),
            tools=crewai_tools(client.list_tools(), session),
        )
        task = Task(description="Go.", expected_output="Any.", agent=agent)
        answer = Crew(agents=[agent], tasks=[task]).kickoff()
    show(results, answer)


check_unsupported_schema()
main(sys.argv[1])
