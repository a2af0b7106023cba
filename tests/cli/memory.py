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
TOOL = Tool(
    name="time_now",
    server_id="time",
    original_name="now",
    title="",
    description="Tells the time.\nIn zones.",
    input_schema={},
    output_schema=None,
    annotations={},
    extra={},
    shared=True,
)
SERVER = ServerInfo(
    id="time",
    tenant="",
    state=ServerState.READY,
    transport="stdio",
    shared=True,
    tool_count=1,
    description="",
    problem="",
    protocol_version="2025-11-25",
    launch_hash="l1",
    exposure_hash="e1",
    workers=("w1", "w2"),
    instances=(),
)
LEASE = LeaseInfo(
    id="i-1",
    server_id="time",
    worker="w1",
    tenant="default",
    session="s1",
    agent="",
    ttl=60.0,
    age=3.5,
    instance_id="n1",
    launch_hash="l1",
)
WORKER = WorkerInfo(
    id="w1",
    incarnation="i",
    address="127.0.0.1:1",
    state="connected",
    capacity=512,
    leases=1,
    instances=2,
    sent_version=9,
    acked_version=9,
    last_error="",
    package_version="p/1",
    labels={},
)
PROBLEM = ProblemInfo(
    scope="server",
    server_id="time",
    tenant="",
    worker="w1",
    reason="EXITED",
    message="It ended.",
    severity="error",
    count=2,
    first_seen=NOW,
    last_seen=NOW,
)
LIMIT = LimitInfo(
    scope="agent",
    quota="calls",
    tenant="acme",
    server_id="",
    agent="w1",
    tool="",
    limit=60,
    period=60.0,
    remaining=12,
    renews_in=7.25,
)
LOG = InstanceLog(worker="w1", instance_id="n1", state="running", pid=42, lines=("first", "second"))


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
        self.of_tenants: list[Any] = []
        self.pending: tuple[str, ...] = ()

    def _record(self, *request: Any) -> None:
        self.asked.append(request)
        if self.error is not None:
            raise self.error

    async def servers(self, *, load: bool = False, all_tenants: bool = False) -> list[Any]:
        self._record("servers")
        return [*self.listed["servers"], *(self.of_tenants if all_tenants else ())]

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
