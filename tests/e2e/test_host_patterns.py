"""How hosts speak to a front: a program without Leaseway plays it and counts processes."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import ROOT
from tests.e2e.clients import output_of
from tests.e2e.mcp_front import front
from tests.e2e.system import running

HOSTS = ROOT / "tools" / "hosts"
AT_MOST = 16
"""Sessions of one client program (`--sessions-per-client`)."""


@dataclass(frozen=True)
class Row:
    """A call: the process that answered, its count, and how many there are."""

    host: str
    pid: int
    count: int
    processes: int


@dataclass(frozen=True)
class Place:
    url: str
    word: str

    async def play(self, host: str, calls: int, *more: str) -> list[Row]:
        program = [sys.executable, str(HOSTS / "play.py"), self.url, "--json"]
        chosen = ["--host", host, "--calls", str(calls), "--word", self.word]
        output = await output_of(*program, *chosen, *more)
        return [Row(*json.loads(line)) for line in output.splitlines()]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Run a front whose counters can be told from those of other tests."""
    word = f"counter of {tmp_path}"
    counter = {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(HOSTS / "counter.py"), word],
    }
    async with running(tmp_path, {"counter": counter}) as (system, _), front(system) as url:
        yield Place(url, word)


@pytest.mark.parametrize(
    "host",
    [
        "keeps-its-session",
        "names-its-conversations",
        "passes-the-argument",
        "is-modern",
        "returns-cookies",
        "renews-and-passes",
    ],
)
async def test_each_conversation_of_a_host_has_one_process(place: Place, host: str) -> None:
    check_processes(await place.play(host, 8))


def check_processes(rows: list[Row]) -> None:
    """Check that two conversations by turns have a process each."""
    assert [row.count for row in rows] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert {row.pid for row in rows[::2]} == {rows[0].pid}
    assert {row.pid for row in rows[1::2]} == {rows[1].pid}
    assert rows[0].pid != rows[1].pid
    assert max(row.processes for row in rows) == 2


@pytest.mark.parametrize("host", ["initializes-before-each-call", "sends-no-session"])
async def test_calls_of_a_host_that_says_no_conversation_leave_few_processes(
    place: Place, host: str
) -> None:
    rows = await place.play(host, 24, "--until", str(AT_MOST))
    assert [row.count for row in rows] == [1] * 24
    assert len({row.pid for row in rows}) == 24
    assert max(row.processes for row in rows) < 24  # those that make room take time to exit
