"""`execute_command`: its allow-list, results, limits and clean-up."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND

from leaseway.data_plane.kit.commands import (
    MAX_OUTPUT,
    AllowedCommand,
    build_allow_list,
    execute_command,
)
from leaseway.data_plane.kit.roots import AllowedFolders
from leaseway.server import ToolError, ToolResult

PYTHON = sys.executable


async def run(
    *words: str,
    roots: AllowedFolders | None = None,
    environment: dict[str, str] | None = None,
    **more: Any,
) -> ToolResult:
    allowed = build_allow_list([f"{PYTHON} *"], os.environ["PATH"], roots, writes=False)
    function = execute_command(allowed, roots, environment or {}).function
    assert function is not None
    async with asyncio.timeout(BOUND):
        result = await function({"command": PYTHON, "args": list(words), **more})
    assert isinstance(result, ToolResult)
    assert result.structured is not None
    return result


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_an_entry_allows_its_words_and_more_only_with_a_star(
    words: list[str], more: list[str]
) -> None:
    entry = ("git", *words)
    exact, more_allowed = AllowedCommand(entry, "/git", False), AllowedCommand(entry, "/git", True)
    assert exact.allows(entry)
    assert exact.allows([*entry, *more]) == (not more)
    assert more_allowed.allows([*entry, *more])
    assert not more_allowed.allows([" ".join(entry), *more]) or entry == ("git",)
    assert not more_allowed.allows(["xgit", *words, *more])


async def test_a_result_has_the_output_and_the_exit_status() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    result = await run("-c", code)
    assert result.is_error
    assert result.structured == {
        "exit_status": 3,
        "stdout": "out\n",
        "stderr": "err\n",
        "truncated": False,
    }
    assert result.text == "out\n\n[stderr]\nerr\n\n[exit status 3]"


async def test_output_is_truncated_and_the_program_runs_to_its_end() -> None:
    result = await run("-c", f"print('x' * {2 * MAX_OUTPUT}); raise SystemExit(0)")
    assert result.structured is not None
    assert not result.is_error
    assert len(result.structured["stdout"]) == MAX_OUTPUT
    assert result.structured["truncated"]


async def test_a_program_gets_few_variables_and_no_input(tmp_path: Path) -> None:
    code = "import os, sys; print(sorted(os.environ), sys.stdin.read() == '', os.getcwd())"
    environment = {"PATH": "/bin", "TOKEN": "x", "LD_PRELOAD": "x", "PYTHONPATH": "x", "LANG": "C"}
    result = await run("-I", "-c", code, roots=AllowedFolders([tmp_path]), environment=environment)
    assert result.text == f"['LANG', 'PATH'] True {tmp_path}" or "LC_CTYPE" in result.text


async def test_leftover_child_processes_are_killed() -> None:
    code = "import os, signal; child = os.fork(); print(child) if child else signal.pause()"
    result = await run("-u", "-c", code)
    assert not result.is_error
    pid = int(result.text)
    async with asyncio.timeout(BOUND):
        while _is_alive(pid):
            await asyncio.sleep(0.01)


async def test_a_call_that_is_cancelled_while_its_program_starts_leaves_nothing_open() -> None:
    await run("-c", "")  # what the loop keeps open for processes is open from now on
    open_files = Path("/proc/self/fd")
    before = sorted(open_files.iterdir())
    call = asyncio.ensure_future(run("-c", "import time; time.sleep(600)"))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert sorted(open_files.iterdir()) == before


async def test_a_program_is_killed_after_the_timeout() -> None:
    with pytest.raises(ToolError, match=r"longer than 0\.5 s; pass a longer timeout"):
        await run("-c", "import signal; signal.pause()", timeout=0.5)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
