"""A fake client with fixed responses, for commands that connect to a system."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self

import pytest
from tests.cli.fakes import FakeClient, install_client

from leaseway.sdk import (
    InstanceLog,
    LeaseInfo,
    LeasewayError,
    LimitInfo,
    ProblemInfo,
    ServerInfo,
    Status,
    Tool,
    ToolList,
    ToolResult,
    WorkerInfo,
)
from leaseway.wire.messages.states import ServerState

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOOL = Tool("time_now", "time", "now", "", "Tells the time.\nIn zones.", {}, None, {}, {}, True)
SERVER = ServerInfo(
    "time",
    "",
    ServerState.READY,
    "stdio",
    True,
    1,
    "",
    "",
    "2025-11-25",
    "l1",
    "e1",
    ("w1", "w2"),
    (),
)
LEASE = LeaseInfo("i-1", "time", "w1", "default", "s1", "", 60.0, 3.5, "n1", "l1")
WORKER = WorkerInfo("w1", "i", "127.0.0.1:1", "connected", 512, 1, 2, 9, 9, "", "p/1", {})
PROBLEM = ProblemInfo("server", "time", "", "w1", "EXITED", "It ended.", "error", 2, NOW, NOW)
LIMIT = LimitInfo("agent", "calls", "acme", "", "w1", "", 60, 60.0, 12, 7.25)
LOG = InstanceLog("w1", "n1", "running", 42, ("first", "second"))


def status_with(**changes: Any) -> Status:
    facts: dict[str, Any] = {
        "ready": True,
        "registry_version": 9,
        "config_loaded_at": NOW,
        "pending": (),
        "workers": 1,
        "package_version": "leaseway-python/9.9",
        "protocol_version": 1,
        "epoch": 1,
        "settling": False,
    }
    return Status(**(facts | changes))


class MemoryClient(FakeClient):
    """Returns fixed responses, and records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: LeasewayError | None = None
        self.payload = b'{"content": [{"type": "text", "text": "noon"}]}'
        self.is_error = False
        self.statuses = [status_with()]
        self.listed: dict[str, list[Any]] = {
            "servers": [SERVER],
            "leases": [LEASE],
            "workers": [WORKER],
            "tenants": [LIMIT],
            "problems": [PROBLEM],
        }
        self.pending: tuple[str, ...] = ()

    def _record(self, *request: Any) -> None:
        self.asked.append(request)
        if self.error is not None:
            raise self.error

    async def servers(self, *, load: bool = False) -> list[Any]:
        self._record("servers")
        return self.listed["servers"]

    async def leases(self, *, idle: bool = False) -> list[Any]:
        self._record("leases")
        return self.listed["leases"]

    async def workers(self, *, load: bool = False) -> list[Any]:
        self._record("workers")
        return self.listed["workers"]

    async def limits(self) -> list[Any]:
        self._record("limits")
        return self.listed["tenants"]

    async def problems(self) -> list[Any]:
        self._record("problems")
        return self.listed["problems"]

    async def logs(self, server: str, lines: int) -> list[InstanceLog]:
        self._record("logs", server, lines)
        return [LOG]

    async def status(self) -> Status:
        self._record("status")
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    async def list_tools(self, servers: list[str] | None = None) -> ToolList:
        self._record("list_tools", servers)
        return ToolList([TOOL], 9, self.pending, NOW)

    async def describe_tool(self, name: str) -> dict[str, Any]:
        self.asked.append(("describe_tool", name))
        return {"inputSchema": {"properties": {"zip": {"type": "string"}}}}

    async def call_tool(
        self, name: str, arguments: Any, *, timeout: float | None, **callbacks: Any
    ) -> ToolResult:
        self._record("call_tool", name, arguments, timeout)
        if "on_progress" in callbacks:
            callbacks["on_progress"](1.0, 3.0, "half\x1b[2J way")
            callbacks["on_progress"](2.5, None, None)
        if "on_log" in callbacks:
            callbacks["on_log"](callbacks["log_level"], "db", {"slow": True})
        return ToolResult(self.payload, self.is_error)

    def session(self, key: str) -> Self:
        self.asked.append(("session", key))
        return self


def answering(monkeypatch: pytest.MonkeyPatch) -> MemoryClient:
    """Make commands use a `MemoryClient`, and return it."""
    return install_client(monkeypatch, MemoryClient())
