"""The kit as a server process, with the official client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import TextContent
from tests.conftest import BOUND

from leaseway.data_plane.kit.__main__ import parse_options
from leaseway.data_plane.kit.server import build_tools
from leaseway.telemetry.trace_file import TraceCollector, otlp_environment, read_spans

TRACE = "0af7651916cd43dd8448eb211c80319c"


def client(root: Path, mode: str = "auto", **environment: str) -> Client:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "leaseway.data_plane.kit", str(root)],
        env={"PATH": os.environ["PATH"], **environment},
    )
    return Client(stdio_client(parameters), mode=mode)


async def text(kit: Client, tool: str, arguments: dict[str, object]) -> tuple[str, bool]:
    result = await kit.call_tool(tool, arguments)
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text, bool(result.is_error)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_kit_serves_modern_and_legacy_clients(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.md").write_text("hello")
    async with asyncio.timeout(BOUND), client(tmp_path, mode) as kit:
        tools = {tool.name: tool for tool in (await kit.list_tools()).tools}
        assert sorted(tools) == ["current_time", "list_files", "read_file"]
        for tool in tools.values():
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint
            assert tool.annotations.idempotent_hint
            assert tool.description
        assert tools["current_time"].output_schema is not None
        # The official client checks structured results against their schema.
        result = await kit.call_tool("current_time", {"timezone": "Asia/Tokyo"})
        assert result.structured_content is not None
        assert result.structured_content["datetime"].endswith("+09:00")
        assert await text(kit, "read_file", {"path": "a.md"}) == ("hello", False)
        assert await text(kit, "list_files", {}) == ("a.md", False)


async def test_an_error_of_a_call_is_a_sentence_for_the_model(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND), client(tmp_path) as kit:
        await kit.list_tools()
        message, is_error = await text(kit, "read_file", {})
        assert is_error
        assert message == 'The arguments are wrong: "path" is a required property.'
        message, is_error = await text(kit, "current_time", {"timezone": 5})
        assert is_error
        assert message.startswith("The argument timezone is wrong")
        message, is_error = await text(kit, "read_file", {"path": "../x"})
        assert is_error
        assert "outside the allowed folders" in message
        assert await text(kit, "nope", {}) == ("Unknown tool: nope", True)


async def test_the_kits_spans_join_the_callers_trace(tmp_path: Path) -> None:
    traces = tmp_path / "trace.jsonl"
    meta: Any = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    async with (
        asyncio.timeout(BOUND),
        TraceCollector(traces) as collector,
        client(tmp_path, **otlp_environment(collector.endpoint)) as kit,
    ):
        await kit.list_tools()
        await kit.call_tool("current_time", {}, meta=meta)
    spans = [span for span in read_spans(traces) if span.name == "tools/call current_time"]
    assert [(span.trace_id, span.kind, span.service) for span in spans] == [
        (TRACE, "server", "leaseway-kit")
    ]
    assert spans[0].parent_span_id == "b7ad6b7169203331"


def test_an_error_at_start_is_reported_without_a_traceback(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    ended = subprocess.run(
        [sys.executable, "-m", "leaseway.data_plane.kit", missing],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=BOUND,
    )
    assert ended.returncode == 2
    assert ended.stderr == f"The folder {missing} does not exist.\n"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["current_time"]),
        (["{root}"], ["current_time", "list_files", "read_file"]),
        (["--tool", "current_time"], ["current_time"]),
        (["--root", "{root}", "--tool", "write_file"], ["write_file"]),
        (["{root}", "--tool", "get_file_info", "--tool", "get_env"], ["get_env", "get_file_info"]),
    ],
)
def test_each_tool_is_off_unless_it_is_named(
    tmp_path: Path, options: list[str], names: list[str]
) -> None:
    arguments = [option.format(root=tmp_path) for option in options]
    assert sorted(tool.name for tool in build_tools(parse_options(arguments))) == names


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--tool reed_file", "There is no tool 'reed_file'; there are: read_file, write_file"),
        ("--tool read_file", "The tool read_file needs a folder: add one"),
        ("--tool execute_command", "needs commands"),
        ("--tool execute_command --tool edit_file --root / --command true", "not be on together"),
        ("--tool execute_command --command absent", "is not on this machine's PATH"),
        ("--tool execute_command --command bin/ls", "a name or an absolute path"),
        ("--tool execute_command --command 'a", "can't be read"),
        ("--tool execute_command --command *", "names no program"),
        ("--tool http_get --host http://example.com/x", "is not a host"),
    ],
)
def test_invalid_options_are_rejected(options: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        build_tools(parse_options(options.split()))


def test_it_starts_with_propagators_of_traces_that_are_not_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leaseway.data_plane.kit", str(tmp_path)],
        env={**os.environ, "OTEL_PROPAGATORS": "b3"},
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "OTEL_PROPAGATORS is ignored" in done.stderr
