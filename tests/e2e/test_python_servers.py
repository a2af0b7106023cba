"""Servers that are Python classes, and the kit, in a whole system."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.system import System, eventually, running

from leaseway.sdk import AsyncClient, LeasewayError, ServerLost

FOLDER = Path(__file__).parents[1] / "server"


def weather(name: str = "Weather", **settings: object) -> dict[str, object]:
    return {
        "transport": "python",
        "module": "weather",
        "class": name,
        "env": {"PYTHONPATH": str(FOLDER)},
        "truely-stateless": True,
        "transform": [{"prefix": "{server}_"}],
        **settings,
    }


def builtin(root: Path, *tools: str, **settings: object) -> dict[str, object]:
    return {
        "transport": "builtin",
        "tools": list(tools),
        "roots": [str(root)],
        "truely-stateless": True,
        **settings,
    }


@pytest.fixture(scope="module")
async def both(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[System, AsyncClient]]:
    """Run a system with a shared and a leased class and the kit."""
    docs = tmp_path_factory.mktemp("docs")
    (docs / "a.md").write_text("hello")
    config = {"unit": "${UNIT:-C}", "token": {"secret": "WEATHER_TOKEN"}, "list": [1, None]}
    servers = {
        "weather": weather(config=config),
        "state": {**weather(), "truely-stateless": False},
        "kit": builtin(docs, "read_file", "list_files"),
    }
    environment = {"WEATHER_TOKEN": "token-5309"}
    before = descendants(os.getpid()).keys()
    async with running(tmp_path_factory.mktemp("system"), servers, environment=environment) as both:
        yield both
    await eventually(lambda: descendants(os.getpid()).keys() <= before)


async def test_the_kit_serves_its_chosen_tools_and_folders(
    both: tuple[System, AsyncClient],
) -> None:
    _, client = both
    names = {tool.qualified_name for tool in await client.list_tools()}
    assert {"kit:read_file", "kit:list_files", "weather:forecast"} <= names
    assert "kit:write_file" not in names
    assert (await client.call_tool("kit:read_file", {"path": "a.md"})).text == "hello"
    rejected = await client.call_tool("kit:read_file", {"path": "../mcp.yaml"})
    assert rejected.is_error
    assert "outside the allowed folders: " in rejected.text


async def test_a_class_gets_its_config_and_reports_its_exceptions(
    both: tuple[System, AsyncClient],
) -> None:
    system, client = both
    configured = (await client.call_tool("weather:configured", {})).structured
    assert configured == {
        "config": {"unit": "C", "token": "token-5309", "list": [1, None]},
        "in_environment": False,
    }
    failed = await client.call_tool("weather:divide", {"by": 0})
    assert failed.is_error
    assert f"{FOLDER}/weather.py, line " in failed.text
    async with client.session("one") as one, client.session("two") as two:
        counts = [(await session.call_tool("state:count", {})).text for session in (one, one, two)]
    assert counts == ["1", "2", "1"]
    assert "token-5309" not in system.logs()
    await eventually(client.problems)
    (problem,) = await client.problems()
    assert (problem.reason, problem.severity) == ("CALL_RAISED", "warning")
    assert f"{FOLDER}/weather.py, line " in problem.message
    assert "in divide: ZeroDivisionError" in problem.message


async def test_a_class_that_blocks_or_dies_affects_no_other(
    both: tuple[System, AsyncClient],
) -> None:
    _, client = both
    async with asyncio.timeout(4 * BOUND):
        blocked = asyncio.create_task(client.call_tool("weather:slow", {"steps": 20_000}))
        assert (await client.session("other").call_tool("state:count", {})).text == "1"
        assert not (await client.call_tool("kit:list_files", {})).is_error
        assert not blocked.done()
        with pytest.raises(ServerLost, match="7"):
            await client.call_tool("weather:crash", {})
        with pytest.raises(ServerLost):
            await blocked

        async def is_restarted() -> bool:
            return not (await client.call_tool("weather:forecast", {"city": "Oslo"})).is_error

        await eventually(is_restarted)


@pytest.mark.usefixtures("leak_guard")
async def test_a_traceback_is_a_problem_with_file_and_line(tmp_path: Path) -> None:
    servers = {
        "start": weather("BadStart"),
        "tools": weather("BadTools"),
        "missing": weather("Wether"),
    }
    async with running(tmp_path, servers) as (_, client):
        problems = {problem.server_id: problem for problem in await client.problems()}
        assert set(problems) == {"start", "tools", "missing"}
        source = (FOLDER / "weather.py").read_text().splitlines()
        for server, raising, words in (
            ("start", "no such database", "ValueError: no such database"),
            ("tools", "no tools today", "KeyError: 'no tools today'"),
        ):
            line = 1 + next(i for i, text in enumerate(source) if raising in text)
            assert f"{FOLDER}/weather.py, line {line}, in " in problems[server].message
            assert words in problems[server].message
        assert "has no class Wether: did you mean Weather?" in problems["missing"].message


@pytest.mark.usefixtures("leak_guard")
async def test_a_changed_config_starts_a_new_process_and_lets_calls_end_in_the_old_one(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"weather": weather(config={"n": 1})}) as (system, client):
        slow = asyncio.create_task(client.call_tool("weather:slow", {"steps": 300}))
        system.write({"weather": weather(config={"n": 2})})

        async def is_new() -> bool:
            configured = (await client.call_tool("weather:configured", {})).structured
            return configured is not None and configured["config"] == {"n": 2}

        await eventually(is_new)
        assert not (await slow).is_error


@pytest.mark.usefixtures("bwrap", "leak_guard")
async def test_a_sandboxed_kit_writes_only_to_its_writable_folders(tmp_path: Path) -> None:
    docs, notes = tmp_path / "docs", tmp_path / "notes"
    docs.mkdir()
    notes.mkdir()
    (docs / "a.md").write_text("hello")
    tools = ("read_file", "write_file")
    servers = {
        "read": builtin(docs, *tools, sandbox=True, transform=[{"prefix": "r_"}]),
        "write": builtin(notes, *tools, sandbox={"writable": [str(notes)]}),
    }
    async with running(tmp_path, servers) as (_, client):
        assert (await client.call_tool("read:read_file", {"path": "a.md"})).text == "hello"
        rejected = await client.call_tool("read:write_file", {"path": "b.md", "content": "x"})
        assert "Read-only file system" in rejected.text
        written = await client.call_tool("write:write_file", {"path": "b.md", "content": "x"})
        assert not written.is_error, written.text
        assert (notes / "b.md").read_text() == "x"


@pytest.mark.usefixtures("leak_guard")
async def test_an_edited_module_or_import_replaces_the_process_of_its_server(
    tmp_path: Path,
) -> None:
    module = tmp_path / "edited.py"
    (tmp_path / "words").mkdir()
    word = tmp_path / "words" / "third.py"
    word.write_text("WORD = 'third'\n")
    source = (
        "from leaseway.server import BaseMCPServer, tool\n"
        "from words import third\n"
        "class Edited(BaseMCPServer):\n"
        "    server_name = 'edited'\n"
        "    @tool\n"
        "    def answer(self) -> str:\n"
        "        return 'first'\n"
    )
    module.write_text(source)
    entry = weather("Edited", module="edited", env={"PYTHONPATH": str(tmp_path)})
    async with running(tmp_path, {"edited": entry}) as (_, client):

        async def answers(wanted: str, tool: str = "answer") -> bool:
            try:
                return (await client.call_tool(f"edited:{tool}", {})).text == wanted
            except LeasewayError:
                return False

        await eventually(lambda: answers("first"))
        _replace(module, source.replace("'first'", "'second'").replace("answer", "reply"))
        await eventually(lambda: answers("second", "reply"))  # its tools are listed again
        _replace(module, source.replace("'first'", "third.WORD"))
        await eventually(lambda: answers("third"))
        _replace(word, "WORD = 'fourth'\n")
        await eventually(lambda: answers("fourth"))
        _replace(module, "def broken(:\n")

        async def is_reported() -> bool:
            return "CHANGED_VALUE_FAILED" in [problem.reason for problem in await client.problems()]

        await eventually(is_reported)
        assert await answers("fourth")


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
