"""A server class as a process, with the official client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import BlobResourceContents, CallToolResult, TextContent, TextResourceContents
from tests.conftest import BOUND
from tests.forked_servers import forked

FOLDER = Path(__file__).parent


def environment(**config: Any) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(FOLDER),
        "LEASEWAY_SERVER_CONFIG": json.dumps(config),
    }


@contextlib.asynccontextmanager
async def served(
    name: str = "Weather", mode: str = "auto", errlog: Path | None = None, **config: Any
) -> AsyncIterator[Client]:
    command, *words = forked("-m", "leaseway.server", "weather", name)
    parameters = StdioServerParameters(command=command, args=words, env=environment(**config))
    with (errlog or Path(os.devnull)).open("w") as err:
        async with (
            asyncio.timeout(BOUND),
            Client(stdio_client(parameters, errlog=err), mode=mode) as client,
        ):
            yield client


def text(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextContent))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_class_serves_modern_and_legacy_clients(mode: str, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    async with served(mode=mode, stopped=str(stopped)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"forecast", "slow", "divide"} < set(tools)
        assert tools["forecast"].description == "Tell the weather of the next days."
        assert tools["forecast"].annotations is not None
        assert tools["forecast"].annotations.read_only_hint
        result = await client.call_tool("forecast", {"city": "Oslo", "unit": "F"})
        assert result.structured_content == {"city": "Oslo", "days": 3, "unit": "F"}
        reports: list[tuple[float, str | None]] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            reports.append((progress, message))

        result = await client.call_tool("slow", {}, progress_callback=on_progress)
        assert "thread" in text(result).lower()
        assert reports == [(1, "step 1"), (2, "step 2")]
    assert stopped.read_text() == "stopped"


async def test_an_exception_of_a_tool_is_reported_with_file_and_line(tmp_path: Path) -> None:
    log = tmp_path / "err"
    async with served(errlog=log) as client:
        await client.list_tools()
        result = await client.call_tool("divide", {"by": 0})
        assert result.is_error
        line = 1 + (FOLDER / "weather.py").read_text().splitlines().index("        return 1 / by")
        assert text(result) == (
            f"The tool divide failed: {FOLDER}/weather.py, line {line}, in divide:"
            " ZeroDivisionError: division by zero"
        )
        refused = await client.call_tool("refuse", {})
        assert (refused.is_error, text(refused)) == (True, "Not on Sundays.")
        wrong = await client.call_tool("divide", {"by": "x"})
        assert text(wrong).startswith("The argument by is wrong: Input should be a valid integer")
        odd = await client.call_tool("odd", {})
        assert ", in odd: PydanticSerializationError: Unable to serialize" in text(odd)
        assert text(await client.call_tool("nope", {})) == "Unknown tool: nope"
    assert "Traceback" in log.read_text()
    assert "Not on Sundays" not in log.read_text()


async def test_the_config_is_passed_and_removed_from_the_environment() -> None:
    async with served(unit="F", nested={"a": [1]}) as client:
        result = await client.call_tool("configured", {})
        assert result.structured_content == {
            "config": {"unit": "F", "nested": {"a": [1]}},
            "in_environment": False,
        }


async def test_prints_of_a_class_do_not_reach_the_protocol(tmp_path: Path) -> None:
    log = tmp_path / "err"
    async with served(errlog=log) as client:
        assert text(await client.call_tool("prints", {})) == "done"
    assert "to stdout" in log.read_text()


async def test_a_class_may_handle_its_tools_by_name() -> None:
    async with served("ByName") as client:
        await client.list_tools()
        result = await client.call_tool("echo", {"text": "x"})
        assert result.structured_content == {"said": "x", "kind": "stdio"}
        wrong = await client.call_tool("echo", {})
        assert text(wrong) == 'The arguments are wrong: "text" is a required property.'
        own = await client.call_tool("mcp", {})
        assert (own.is_error, text(own)) == (True, "own form")


async def test_resources_are_listed_and_read() -> None:
    async with served() as client:
        assert [str(item.uri) for item in (await client.list_resources()).resources] == [
            "weather://today"
        ]
        read = await client.read_resource("weather://today")
        assert isinstance(read.contents[0], TextResourceContents)
        assert (read.contents[0].text, read.contents[0].mime_type) == ("sunny", "text/plain")
        raw = await client.read_resource("weather://raw")
        assert isinstance(raw.contents[0], BlobResourceContents)
        with pytest.raises(MCPError, match=r"weather\.py, line \d+, in read_resource: KeyError"):
            await client.read_resource("weather://none")


async def test_a_class_may_use_what_the_official_package_has_besides() -> None:
    async with served("Greeter") as client:
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["greeting"]
        prompt = await client.get_prompt("greeting", {"who": "Ann"})
        assert prompt.messages[0].content == TextContent(text="Greet Ann.")
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "note://{name}"
        (note,) = (await client.read_resource("note://Ann")).contents
        assert isinstance(note, TextResourceContents)
        assert note.text == "About Ann."
        (request,) = (await client.list_tools()).tools
        assert list(request.input_schema["properties"]) == ["loud"]
        assert text(await client.call_tool("request", {})) == "greeter False"


async def test_a_blocking_tool_does_not_block_async_tools() -> None:
    async with served() as client:
        slow = asyncio.create_task(client.call_tool("slow", {"steps": 300}))
        result = await client.call_tool("forecast", {"city": "Oslo"})  # async, so on the loop
        assert not slow.done()
        assert not result.is_error
        await slow


_FORKS = """
import json, os, sys, tempfile
from leaseway.server.running import main  # once: it imports the MCP package
for words in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv[1:] = words
            status = main()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (out, err)]
    print(json.dumps([status, *texts]), flush=True)
"""
"""Runs `python -m leaseway.server` once for each list of words, as forks of one process."""
STARTS = [
    ("wether", "Weather", "among the installed packages. Did you mean weather?"),
    ("qqqqqqqqqqqqqq", "Weather", "Module qqqqqqqqqqqqqq was not found in "),
    (
        "weather",
        "Wether",
        "The module weather has no class Wether: did you mean Weather?",
    ),
    ("weather", "not_a_class", "The module weather has no class not_a_class: it has "),
    ("weather", "NoName", "TypeError: Can't instantiate abstract class NoName with"),
    ("weather", "NoBase", "does not call super().__init__(transport, config)"),
    ("weather", "BadList", "list_tools() has a tool named 'a' twice."),
    (
        "weather",
        "BadName",
        "weather.py, line {named_badly}: list_tools() has a tool",
    ),
    ("weather", "BadHint", "weather.py, line {hinted}: name 'Unknown' is not defined"),
    ("weather", "BadStart", ", in start: ValueError: no such database"),
    ("weather", "Quits", "Set WEATHER_KEY."),
    ("broken", "Weather", "broken.py, line 2: SyntaxError: invalid syntax"),
    ("needs", "Weather", "needs.py, line 1, in <module>: ModuleNotFoundError: No module named"),
]


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Any]]:
    """Start all of `STARTS`; returns the exit status, the output and the errors of each."""
    folder = tmp_path_factory.mktemp("starts")
    (folder / "broken.py").write_text("x = 1\ny = = 2\n")
    (folder / "needs.py").write_text("import absent_library\n")
    words = [(module, name) for module, name, _ in STARTS]
    ended = subprocess.run(
        [sys.executable, "-c", _FORKS, json.dumps(words)],
        capture_output=True,
        text=True,
        input="",
        env=environment(),
        cwd=folder,
        timeout=BOUND,
        check=True,
    )
    return dict(zip(words, map(json.loads, ended.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(("module", "name", "message"), STARTS)
def test_the_last_line_gives_the_start_error(
    starts: dict[tuple[str, str], list[Any]], module: str, name: str, message: str
) -> None:
    status, output, errors = starts[module, name]
    for method in ("named_badly", "hinted"):
        message = message.replace("{" + method + "}", location_of(method))
    assert message in errors.splitlines()[-1]
    assert (status, output) == (1, "")


def location_of(method: str) -> str:
    """Return the line of a method's decorator in weather.py."""
    lines = (FOLDER / "weather.py").read_text().splitlines()
    above = next(at for at, line in enumerate(lines) if f"def {method}(" in line)
    return f"{above}, in {method}"


async def test_an_unsendable_result_or_exit_fails_only_its_call() -> None:
    async with served("Harsh") as client:
        for name, message in [
            ("broken_text", ", in broken_text: PydanticSerializationError: "),
            ("broken_structure", ", in broken_structure: PydanticSerializationError: "),
            ("other_type", ", in other_type: TypeError: a result that does not match its type"),
            ("broken_refusal", "no file \\udcff"),
            ("broken_progress", ", in broken_progress: PydanticSerializationError: "),
            ("leaves", ", in leaves: SystemExit: 3"),
            ("leaves_the_loop", ", in leaves_the_loop: SystemExit: 3"),
            ("interrupts", ", in interrupts: KeyboardInterrupt"),
            ("closes", ", in closes: GeneratorExit"),
            ("closes_the_loop", ", in closes_the_loop: GeneratorExit"),
            ("fails_in_a_task", ", in _fail: KeyError: 'unit'"),
            ("awaits_what_was_cancelled", ", in awaits_what_was_cancelled: CancelledError"),
            ("cancels", ", in cancels: CancelledError"),
        ]:
            result = await client.call_tool(name, {})
            assert result.is_error
            assert message in text(result)
        told = await client.call_tool("fails_in_a_task", {"is_told": True})
        assert text(told) == "There is no such city."
        assert text(await client.call_tool("fixed", {"number": 1})) == "1"


async def test_a_task_that_exits_ends_the_process_and_the_calls_in_flight(tmp_path: Path) -> None:
    log, stopped = tmp_path / "err", tmp_path / "stopped"
    async with served(errlog=log, stopped=str(stopped)) as client:
        with pytest.raises(MCPError, match="closed"):
            await client.call_tool("exits_later", {})
    assert "SystemExit: 3" in log.read_text()
    assert "a call raised" not in log.read_text()
    assert stopped.read_text() == "stopped"


async def test_synchronous_methods_share_one_thread_and_what_belongs_to_it() -> None:
    async with served("Threaded") as client:
        answers = [client.call_tool("answer", {}) for _ in range(8)]
        assert {text(answer) for answer in await asyncio.gather(*answers)} == {"42"}


async def test_a_tool_that_cancels_its_own_task_fails_alone() -> None:
    async with served("Threaded") as client:
        result = await client.call_tool("cancels_itself", {})
        assert ", in cancels_itself: CancelledError" in text(result)
        assert text(await client.call_tool("answer", {})) == "42"


async def test_a_notification_that_belongs_to_no_call_is_told_of_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "err"
    async with served("Threaded", errlog=log) as client:
        assert text(await client.call_tool("reports_from_a_thread", {})) == "done"
    assert "belongs to no call and is dropped" in log.read_text()


async def test_a_generator_runs_in_a_thread_and_its_items_become_a_list() -> None:
    async with served("Harsh") as client:
        parts = json.loads(text(await client.call_tool("parts", {"count": 2})))
        assert [part == "MainThread" for part in parts] == [False, False]
        assert text(await client.call_tool("later_parts", {"count": 2})) == "[0, 1]"
        many = await client.call_tool("later_parts", {"count": 100_001})
        assert text(many) == "The tool yields more than 100,000 parts."
        assert (await client.call_tool("parts", {"count": 100_001})).is_error


async def test_an_argument_of_the_wrong_type_is_a_tool_error(tmp_path: Path) -> None:
    log = tmp_path / "err"
    async with served("Harsh", errlog=log) as client:
        assert text(await client.call_tool("day", {"date": "2024-01-01"})) == "Monday"
        wrong = await client.call_tool("day", {"date": "soon"})
        assert wrong.is_error
        assert text(wrong).startswith("The argument date is wrong: Input should be a valid date")
    assert "a call raised" not in log.read_text()


async def test_static_and_class_methods_may_be_tools() -> None:
    async with served("Harsh") as client:
        assert text(await client.call_tool("of_the_class", {"number": 2})) == "harsh 2"
        assert text(await client.call_tool("fixed", {"number": 1})) == "1"


def test_importing_the_package_imports_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import leaseway.server;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True
    )
    assert ended.stdout.strip() == "['leaseway']"
