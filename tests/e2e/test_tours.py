"""Official clients use everything of official everything servers: through the front as directly.

Each program in tests/clients calls every tool, answers what servers ask, reads, completes,
subscribes and cancels, and prints what it got.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ServerCommand
from tests.e2e.clients import CLIENTS, node, output_of
from tests.e2e.mcp_front import front
from tests.e2e.servers import http_server
from tests.e2e.system import SERVERS, running
from tests.ports import free_port

pytestmark = pytest.mark.npm

DATA_URI = "data:text/plain;base64,aGVsbG8="
NPM_PLAN: dict[str, Any] = {
    "tools": {
        "echo": {"message": "hi"},
        "get-annotated-message": {"messageType": "success", "includeImage": True},
        "get-resource-links": {"count": 2},
        "get-resource-reference": {"resourceType": "Text", "resourceId": 1},
        "get-structured-content": {"location": "Chicago"},
        "get-sum": {"a": 2, "b": 3},
        "gzip-file-as-resource": {"name": "hello.gz", "data": DATA_URI},
        "trigger-long-running-operation": {"duration": 0.4, "steps": 4},
        "trigger-sampling-request": {"prompt": "a haiku"},
        "trigger-url-elicitation": {"url": "http://127.0.0.1/consent", "message": "Open it."},
    },
    "skip": ["simulate-research-query", "toggle-subscriber-updates"],
    "prompts": {
        "simple-prompt": {},
        "args-prompt": {"city": "Basel", "state": "BS"},
        "completable-prompt": {"department": "Engineering", "name": "Alice"},
        "resource-prompt": {"resourceType": "Text", "resourceId": "1"},
    },
    "completions": [
        [
            {"type": "ref/prompt", "name": "completable-prompt"},
            {"name": "department", "value": "Eng"},
        ],
    ],
    "read": ["demo://resource/dynamic/text/1", "demo://resource/static/document/features.md"],
    "watch": {"uri": "demo://resource/dynamic/text/1", "tool": "toggle-subscriber-updates"},
    "cancel": "trigger-long-running-operation",
    "last": "echo",
}
PYTHON_PLAN: dict[str, Any] = {
    "tools": {
        "test_sampling": {"prompt": "a haiku"},
        "test_elicitation": {"message": "Who?"},
        "json_schema_2020_12_tool": {"contactMethod": "email", "email": "a@b"},
        "test_x_mcp_header": {},
    },
    "skip": ["test_trigger_tool_change", "test_trigger_prompt_change"],
    "prompts": {
        "test_simple_prompt": {},
        "test_prompt_with_arguments": {"arg1": "a", "arg2": "b"},
        "test_prompt_with_image": {},
    },
    "completions": [
        [
            {"type": "ref/prompt", "name": "test_prompt_with_arguments"},
            {"name": "arg1", "value": "par"},
        ],
    ],
    "read": ["test://static-text", "test://static-binary", "test://template/7/data"],
    "watch": None,
    "cancel": None,
    "last": "test_simple_text",
}
TASK_ONLY = "simulate-research-query"
"""Runs only as a task, which the front does not pass."""
ADDED = "demo://resource/session/hello.gz"
"""A resource that a tool adds for its session: it can be read and is not listed (docs/mcp.md)."""
VOLATILE = {"tool get-env": "result", "tool toggle-simulated-logging": "logs"}
"""Members of steps that differ from run to run."""
OF_ONE_CLIENT = "tool get-roots-list"
"""Says what a server has asked its client outside of calls; a shared one has no client to ask."""
OUTSIDE = re.compile(r"Roots updated|Received (Uns|S)ubscribe|Fulfilling input required")
"""What a server logs, and a client reports as progress, outside of what a call says itself."""
TIMES = re.compile(r"\d{1,2}:\d\d:\d\d( [AP]M)?")
SESSIONS = re.compile(r"session \S+|[0-9a-f]{8}-[0-9a-f-]{27}")


@dataclass(frozen=True)
class Everything:
    """A server, and how it is started."""

    plan: dict[str, Any]
    stdio: list[str]
    http: list[str]


def comparable(value: Any) -> Any:
    """Return what a client got without times and sessions, and in one form for both eras."""
    if isinstance(value, str):
        return SESSIONS.sub("...", TIMES.sub("...", value))
    if isinstance(value, list):
        return [comparable(item) for item in value if not _may_be_missing(item)]
    if isinstance(value, dict):
        framed = ("_meta", "resultType", "ttlMs", "cacheScope")
        return {name: comparable(item) for name, item in value.items() if name not in framed}
    return value


def _may_be_missing(item: Any) -> bool:
    """Return whether a member of a list may be there directly or through the front only."""
    if isinstance(item, list):  # what a client heard; some drop the progress of the last moment
        is_last = len(item) == 3 and item[0] == item[1]
        return item == ["roots"] or is_last or OUTSIDE.search(str(item)) is not None
    if isinstance(item, dict):
        return str(item.get("text")).startswith("\nSession: ")
    return item in (TASK_ONLY, ADDED)


def differences(direct: dict[str, Any], through: dict[str, Any]) -> dict[str, Any]:
    """Return the steps of which the client got something else through the front."""
    for step, member in VOLATILE.items():
        for report in (direct, through):
            report.get(step, {}).pop(member, None)
    return {
        step: {"directly": comparable(direct.get(step)), "through": comparable(through.get(step))}
        for step in direct.keys() | through.keys()
        if comparable(direct.get(step)) != comparable(through.get(step))
    }


@pytest.fixture(scope="module")
def servers(npm_server: ServerCommand) -> dict[str, Everything]:
    (command,) = npm_server("mcp-server-everything")
    script = [sys.executable, str(SERVERS / "everything.py")]
    return {
        "npm": Everything(NPM_PLAN, [command], [command, "streamableHttp"]),
        "python": Everything(PYTHON_PLAN, [*script, "--stdio"], [*script, "{port}"]),
    }


@asynccontextmanager
async def serving(server: Everything) -> AsyncIterator[str]:
    """Run a server over HTTP; yields its URL."""
    port = free_port()
    command = [part.format(port=port) for part in server.http]
    async with http_server(*command, port=port, PORT=str(port)):
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def front_of(folder: Path, server: Everything, mode: str) -> AsyncIterator[str]:
    """Run a front of a server, leased over stdio or shared over HTTP; yields its URL."""
    async with AsyncExitStack() as stack:
        if mode == "shared":
            url = await stack.enter_async_context(serving(server))
            entry: dict[str, Any] = {"transport": "streamable_http", "url": url}
        else:
            command, *args = server.stdio
            entry = {"transport": "stdio", "command": command, "args": args}
        entry["truely-stateless"] = mode == "shared"
        system, _ = await stack.enter_async_context(running(folder, {"everything": entry}))
        yield await stack.enter_async_context(front(system))


async def tour(command: list[str], era: str, plan: dict[str, Any], *target: str) -> dict[str, Any]:
    """Return what a client got."""
    report: dict[str, Any] = json.loads(
        (await output_of(*command, era, json.dumps(plan), *target)).splitlines()[-1]
    )
    return report


@dataclass(frozen=True)
class Visitor:
    """A client program and the era in which it speaks.

    Attributes:
        has_session: Whether its requests without arguments say a session, too.
    """

    command: list[str]
    era: str
    has_session: bool = True

    async def tour(self, era: str, plan: dict[str, Any], *target: str) -> dict[str, Any]:
        """Return what the client got of a server."""
        output = await output_of(*self.command, era, json.dumps(plan), *target)
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report


@pytest.fixture(scope="module")
def visitors(conformance_folder: Path) -> dict[str, Visitor]:
    python = [sys.executable, str(CLIENTS / "tour.py")]
    program = str(CLIENTS / "tour.mjs")
    typescript = [node(conformance_folder), program, str(conformance_folder)]
    environment = str(conformance_folder / "env" / "bin" / "python")
    return {
        "python": Visitor(python, "legacy"),
        "modern python": Visitor(python, "2026-07-28"),
        "typescript": Visitor(typescript, "legacy"),
        "modern typescript": Visitor(typescript, "2026-07-28", has_session=False),
        "fastmcp": Visitor([environment, str(CLIENTS / "tour_fastmcp.py")], "legacy"),
    }


QUICK = {
    ("npm", "leased"): ("python", "modern typescript"),
    ("python", "shared"): ("modern python", "fastmcp"),
}
"""Tours of each run of the tests; `make soak` runs all."""


@pytest.mark.parametrize(
    ("name", "mode", "chosen"),
    [
        *((*case, chosen) for case, chosen in QUICK.items()),
        *(
            pytest.param(name, mode, (), marks=[pytest.mark.soak, pytest.mark.timeout(900)])
            for name in ("npm", "python")
            for mode in ("leased", "shared")
        ),
    ],
)
async def test_clients_get_through_the_front_what_they_get_directly(
    tmp_path: Path,
    servers: dict[str, Everything],
    visitors: dict[str, Visitor],
    name: str,
    mode: str,
    chosen: tuple[str, ...],
) -> None:
    server = servers[name]
    found: dict[tuple[str, str], Any] = {}
    async with front_of(tmp_path, server, mode) as url, serving(server) as upstream:
        target = server.stdio if mode == "leased" else [upstream]
        for visitor_name in chosen or visitors:
            visitor = visitors[visitor_name]
            directly = "legacy" if name == "npm" else visitor.era  # it has no other era
            is_watching = visitor.has_session or mode == "shared"
            plan = server.plan if is_watching else {**server.plan, "watch": None}
            direct = await visitor.tour(directly, plan, *target)
            through = await visitor.tour(visitor.era, plan, url)
            if mode == "shared":
                direct.pop(OF_ONE_CLIENT, None)
                through.pop(OF_ONE_CLIENT, None)
            assert len(direct) > 20
            found |= {
                (visitor_name, step): both for step, both in differences(direct, through).items()
            }
    for k, v in found.items():
        print(k, *[str(x)[:900] for x in v.values()], sep="\n   ")
    assert not found
