"""Sandboxed servers of a worker that start together."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.system import SERVERS, python_server, running

pytestmark = pytest.mark.usefixtures("leak_guard", "bwrap")
COUNT = 30


async def test_sandboxed_servers_start_with_grpc_fork_support_enabled(tmp_path: Path) -> None:
    entry = {
        "transport": "stdio",
        "command": "sh",
        "args": [str(SERVERS / "tiny.sh")],
        "truely-stateless": True,
        "sandbox": True,
    }
    boxed = {f"s{i}": {**entry, "transform": [{"prefix": f"s{i}_"}]} for i in range(COUNT)}
    # The command disables gRPC's fork handlers; starts must also work with them.
    loud = {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "INFO"}
    async with running(tmp_path, boxed, environment=loud) as (system, client):
        for name in boxed:
            assert not (await client.call_tool(f"{name}:hello", {})).is_error
        assert not await client.problems()
        assert "fork" not in "\n".join(system.workers["worker-1"].log)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder outside of those that every sandbox empties."""
    place = next((text for text in ("/srv", "/opt", "/mnt") if os.access(text, os.W_OK)), None)
    if place is None:
        pytest.skip("No folder outside of /tmp can be written by this user.")
    folder = Path(tempfile.mkdtemp(prefix="leaseway-test-", dir=place))
    yield folder
    shutil.rmtree(folder)


async def test_servers_that_start_together_do_not_see_one_anothers_folders(
    tmp_path: Path, outside: Path
) -> None:
    names = [f"s{number}" for number in range(20)]  # more than a worker probes at once
    entries = {}
    for name in names:
        (outside / name).mkdir()
        (outside / name / "note").write_text("kept")
        entries[name] = python_server(
            "nosy.py",
            **{
                "truely-stateless": True,
                "cwd": str(outside / name),
                "sandbox": {"level": "strict", "network": False},
                "transform": [{"prefix": f"{name}_"}],
            },
        )
    async with running(tmp_path, entries) as (_, client):
        for name in names:
            seen = [
                other
                for other in names
                if json.loads(
                    (
                        await client.call_tool(
                            f"{name}:exists", {"path": str(outside / other / "note")}
                        )
                    ).text
                )
            ]
            assert seen == [name]
