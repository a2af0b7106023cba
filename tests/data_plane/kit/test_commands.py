"""Programs of an allow-list: which command lines are on it, and what becomes of what runs."""

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

from leaseway.data_plane.kit.commands import MAX_OUTPUT, Allowed, allow_list, execute_command
from leaseway.data_plane.kit.roots import Roots
from leaseway.server import ToolError, ToolResult

PYTHON = sys.executable


async def run(
    *words: str, roots: Roots | None = None, environment: dict[str, str] | None = None, **more: Any
) -> ToolResult:
    allowed = allow_list([f"{PYTHON} *"], os.environ["PATH"], roots, writes=False)
    function = execute_command(allowed, roots, environment or {}).function
    assert function is not None
    async with asyncio.timeout(BOUND):
        result = await function({"command": PYTHON, "args": list(words), **more})
    assert isinstance(result, ToolResult)
    assert result.structured is not None
    return result


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_only_the_words_of_an_entry_are_allowed_and_more_only_after_a_star(
    words: list[str], more: list[str]
) -> None:
    entry = ("git", *words)
    closed, open_end = Allowed(entry, "/git", False), Allowed(entry, "/git", True)
    assert closed.permits(entry)
    assert closed.permits([*entry, *more]) == (not more)
    assert open_end.permits([*entry, *more])
    assert not open_end.permits([" ".join(entry), *more]) or entry == ("git",)
    assert not open_end.permits(["xgit", *words, *more])


async def test_output_and_status_are_told() -> None:
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


async def test_output_is_bounded_and_the_program_runs_to_its_end() -> None:
    result = await run("-c", f"print('x' * {2 * MAX_OUTPUT}); raise SystemExit(0)")
    assert result.structured is not None
    assert not result.is_error
    assert len(result.structured["stdout"]) == MAX_OUTPUT
    assert result.structured["truncated"]


async def test_a_program_gets_few_variables_and_no_input(tmp_path: Path) -> None:
    code = "import os, sys; print(sorted(os.environ), sys.stdin.read() == '', os.getcwd())"
    environment = {"PATH": "/bin", "TOKEN": "x", "LD_PRELOAD": "x", "PYTHONPATH": "x", "LANG": "C"}
    result = await run("-I", "-c", code, roots=Roots([tmp_path]), environment=environment)
    assert result.text == f"['LANG', 'PATH'] True {tmp_path}" or "LC_CTYPE" in result.text


async def test_what_a_program_leaves_running_is_ended_and_not_waited_for() -> None:
    code = "import os, signal; child = os.fork(); print(child) if child else signal.pause()"
    result = await run("-u", "-c", code)
    assert not result.is_error
    pid = int(result.text)
    async with asyncio.timeout(BOUND):
        while _lives(pid):
            await asyncio.sleep(0.01)


async def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(ToolError, match=r"longer than 0\.5 s; pass a longer timeout"):
        await run("-c", "import signal; signal.pause()", timeout=0.5)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
