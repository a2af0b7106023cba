"""Server classes for tests: tools by type hints, by schema and by name, and failures."""

from __future__ import annotations

import asyncio
import datetime
import os
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal, TypedDict

from mcp.server.mcpserver import Context, MCPServer

from leaseway.server import BaseMCPServer, Resource, Tool, ToolError, ToolResult, tool


class Forecast(TypedDict):
    city: str
    days: int
    unit: str


class Weather(BaseMCPServer):
    """Tools with type hints, and resources."""

    server_name = "weather"
    server_version = "1.2"

    async def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        path = self.config.get("stopped")
        if path:
            Path(path).write_text("stopped")

    @tool(annotations={"readOnlyHint": True})
    async def forecast(self, city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> Forecast:
        """Tell the weather of the next days."""
        assert self.started
        return {"city": city, "days": days, "unit": unit}

    @tool(name="slow", description="Block for a while.")
    def slow_one(self, steps: int = 2) -> str:
        for step in range(steps):
            self.report_progress(step + 1, steps, f"step {step + 1}")
            time.sleep(0.01)
        return threading.current_thread().name

    @tool
    def divide(self, by: int) -> float:
        return 1 / by

    @tool
    def refuse(self) -> None:
        raise ToolError("Not on Sundays.")

    @tool
    def configured(self) -> dict[str, object]:
        return {"config": self.config, "in_environment": "LEASEWAY_SERVER_CONFIG" in os.environ}

    @tool
    def count(self) -> int:
        self.counted = getattr(self, "counted", 0) + 1
        return self.counted

    @tool
    def prints(self) -> str:
        print("to stdout")
        return "done"

    @tool
    def odd(self) -> object:
        return object()

    @tool
    async def crash(self) -> None:
        os._exit(7)

    @tool
    async def exits_later(self) -> None:
        async def leave() -> None:
            sys.exit(3)

        task = asyncio.create_task(leave())
        await asyncio.Event().wait()
        task.cancel()

    def list_resources(self) -> list[Resource]:
        return [Resource("weather://today", "today", mime_type="text/plain")]

    def read_resource(self, uri: str) -> str | bytes:
        contents: dict[str, str | bytes] = {"weather://today": "sunny", "weather://raw": b"\x00"}
        return contents[uri]


class Harsh(BaseMCPServer):
    """Tools with unsendable results, errors and notifications, and with exits."""

    server_name = "harsh"

    @tool
    def broken_text(self) -> str:
        return "\ud800"

    @tool
    def broken_structure(self) -> ToolResult:
        return ToolResult("text", {"a": object()})

    @tool
    def other_type(self) -> Forecast:
        return {"city": "Oslo"}  # type: ignore[typeddict-item]

    @tool
    def broken_refusal(self) -> str:
        raise ToolError("no file \udcff")

    @tool
    def broken_progress(self) -> str:
        self.report_progress(1, 2, "\ud800")
        return "done"

    @tool
    def leaves(self) -> str:
        raise SystemExit(3)

    @tool
    async def leaves_the_loop(self) -> str:
        raise SystemExit(3)

    @tool
    def interrupts(self) -> str:
        raise KeyboardInterrupt

    @tool
    def closes(self) -> str:
        raise GeneratorExit

    @tool
    async def closes_the_loop(self) -> str:
        raise GeneratorExit

    @tool
    async def fails_in_a_task(self, *, is_told: bool = False) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fail(ToolError("There is no such city.")))
            if not is_told:
                group.create_task(self._fail(KeyError("unit")))
        return "never"

    async def _fail(self, error: Exception) -> None:
        raise error

    @tool
    async def awaits_what_was_cancelled(self) -> str:
        task = asyncio.ensure_future(asyncio.sleep(60, "done"))
        task.cancel()
        return await task

    @tool
    def cancels(self) -> str:
        raise asyncio.CancelledError

    @tool
    def parts(self, count: int) -> Iterator[str]:
        for _ in range(count):
            yield threading.current_thread().name

    @tool
    async def later_parts(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    @tool
    def day(self, date: datetime.date) -> str:
        return date.strftime("%A")

    @staticmethod
    @tool(name="fixed")
    def a_static_one(number: int) -> int:
        return number

    @tool(name="of_the_class")
    @classmethod
    def a_class_one(cls, number: int) -> str:
        return f"{cls.server_name} {number}"


class Threaded(BaseMCPServer):
    """What belongs to a thread, and tasks that cancel themselves."""

    server_name = "threaded"

    def start(self) -> None:
        self.database = sqlite3.connect(":memory:")

    @tool
    def answer(self) -> int:
        return int(self.database.execute("select 42").fetchone()[0])

    @tool
    async def cancels_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @tool
    def reports_from_a_thread(self) -> str:
        thread = threading.Thread(target=self.report_progress, args=(1,))
        thread.start()
        thread.join()
        return "done"


class Quits(Weather):
    async def start(self) -> None:
        sys.exit("Set WEATHER_KEY.")


class ByName(BaseMCPServer):
    """Takes transport and config, and uses handle_tool."""

    def __init__(self, transport: object, config: dict[str, object]) -> None:
        super().__init__(transport, config)  # type: ignore[arg-type]

    @property
    def server_name(self) -> str:
        return "by-name"

    async def list_tools(self) -> list[object]:
        return [
            Tool("echo", "Say it again.", {"type": "object", "required": ["text"]}),
            {"name": "mcp", "inputSchema": {"type": "object"}},
        ]

    async def handle_tool(self, name: str, arguments: dict[str, object]) -> dict[str, object]:
        await asyncio.sleep(0)
        if name == "mcp":
            return {"content": [{"type": "text", "text": "own form"}], "isError": True}
        assert self._transport is not None
        return {"said": arguments["text"], "kind": self._transport.transport_type}


class Greeter(BaseMCPServer):
    """Uses what the official package has besides."""

    server_name = "greeter"

    def register(self, server: MCPServer) -> None:
        server.prompt()(self.greeting)
        server.resource("note://{name}")(self.note)

    def greeting(self, who: str) -> str:
        return f"Greet {who}."

    def note(self, name: str) -> str:
        return f"About {name}."

    @tool
    async def request(self, context: Context, loud: bool = False) -> str:
        return f"{context.mcp_server.name} {loud}"


class NoName(BaseMCPServer):
    def list_tools(self) -> list[Tool]:
        return []


class BadList(Weather):
    def list_tools(self) -> list[object]:
        return [Tool("a"), Tool("a")]


class NoBase(BaseMCPServer):
    server_name = "no-base"

    def __init__(self, **_: object) -> None:
        pass


class BadName(Weather):
    @tool(name="no name")
    def named_badly(self) -> None: ...


class BadHint(Weather):
    @tool
    def hinted(self, when: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...


class BadStart(Weather):
    async def start(self) -> None:
        raise ValueError("no such database")


class BadTools(Weather):
    def list_tools(self) -> list[object]:
        raise KeyError("no tools today")


def not_a_class() -> None: ...
