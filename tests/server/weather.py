"""Server classes for tests: tools by type hints, by schema and by name, and what can fail."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Literal, TypedDict

from leaseway.server import BaseMCPServer, Resource, Tool, ToolError, tool


class Forecast(TypedDict):
    city: str
    days: int
    unit: str


class Weather(BaseMCPServer):
    """What its tests need."""

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

    def list_resources(self) -> list[Resource]:
        return [Resource("weather://today", "today", mime_type="text/plain")]

    def read_resource(self, uri: str) -> str | bytes:
        contents: dict[str, str | bytes] = {"weather://today": "sunny", "weather://raw": b"\x00"}
        return contents[uri]


class ByName(BaseMCPServer):
    """In the form of its own transport and config, with handle_tool."""

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


class NoName(BaseMCPServer):
    def list_tools(self) -> list[Tool]:
        return []


class BadList(Weather):
    def list_tools(self) -> list[object]:
        return [Tool("a"), Tool("a")]


class NoBase(BaseMCPServer):
    server_name = "no-base"

    def __init__(self) -> None:
        pass


class BadStart(Weather):
    async def start(self) -> None:
        raise ValueError("no such database")


class BadTools(Weather):
    def list_tools(self) -> list[object]:
        raise KeyError("no tools today")


def not_a_class() -> None: ...
