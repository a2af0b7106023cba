"""Tool watches report each change of the configuration, and no restart."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import python_server, running

from leaseway.sdk import AsyncToolWatch, project_tools

pytestmark = pytest.mark.usefixtures("leak_guard")

ONE = {"one": python_server("counter.py", transform=[{"prefix": "one_"}])}
TWO = {"two": python_server("counter.py", transform=[{"prefix": "two_"}])}


def owners(tools: object) -> set[str]:
    return {tool.server_id for tool in tools} - {"mcp_admin"}  # type: ignore[attr-defined]


async def until_owned(watch: AsyncToolWatch, servers: set[str]) -> int:
    """Read lists until one has exactly these servers; return the number of lists before it."""
    async with asyncio.timeout(BOUND):
        before = 0
        async for tools in watch:
            if owners(tools) == servers and not tools.pending:
                return before
            before += 1
    raise AssertionError("The watch has ended.")


async def test_a_watch_reports_changes_of_the_configuration_across_restarts(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, ONE) as (system, client):
        watch = client.watch_tools()
        assert await until_owned(watch, {"one"}) == 0
        system.write({**ONE, **TWO})
        await until_owned(watch, {"one", "two"})
        following = asyncio.create_task(until_owned(watch, {"two"}))
        for _ in range(2):
            assert system.control_plane is not None
            await system.control_plane.end(signal.SIGKILL)
            await system.start_control_plane()
            await system.ready()
        assert not following.done()
        system.write(TWO)
        assert await following == 0  # no list from the restarts
        await client.close()
        assert [tools async for tools in watch] == []


async def test_a_rejection_by_a_provider_is_a_problem(tmp_path: Path) -> None:
    async with running(tmp_path, ONE) as (_, client):
        tools = await client.list_tools(["one"])
        offered, problems = project_tools("openai", tools)
        assert (len(offered), problems) == (len(tools), [])
        message = "Invalid schema for function 'one_add': no such keyword"
        for _ in range(2):
            await client.report_refusal("openai", message, offered=tools, session="chat-7")
        (problem,) = [
            each_problem
            for each_problem in await client.problems()
            if each_problem.scope == "client"
        ]
    assert (problem.reason, problem.server_id, problem.count) == ("PROVIDER_REFUSED", "one", 2)
    assert all(part in problem.message for part in ("openai", "chat-7", "one_add", message))
