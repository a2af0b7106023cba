"""A server that exits unless its first message is `initialize` is listed, called and leased."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.system import python_server, running

pytestmark = pytest.mark.usefixtures("leak_guard")


async def test_the_second_start_is_paid_once(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    servers = {"strict": python_server("initialize_first.py", "exits", str(log))}
    async with running(tmp_path, servers) as (_, client):
        assert [tool.name for tool in await client.list_tools(["strict"])] == ["hello"]
        for key in ("one", "two", "three"):
            async with client.session(key) as session:
                assert (await session.call_tool("hello", {})).text == "hello"
    starts = log.read_text().split("start\n")[1:]
    assert starts[0].startswith("server/discover")
    assert all(start.startswith("initialize") for start in starts[1:])
    assert len(starts) >= 4
