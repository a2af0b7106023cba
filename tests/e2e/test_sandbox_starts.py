"""Sandboxed servers of a real worker come up, all of them, at the first try."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.system import SERVERS, running

pytestmark = pytest.mark.usefixtures("leak_guard", "bwrap")
COUNT = 30


async def test_no_start_in_a_sandbox_is_spoilt_by_the_workers_own_grpc(tmp_path: Path) -> None:
    entry = {
        "transport": "stdio",
        "command": "sh",
        "args": [str(SERVERS / "tiny.sh")],
        "truely-stateless": True,
        "sandbox": True,
    }
    boxed = {f"s{i}": {**entry, "transform": [{"prefix": f"s{i}_"}]} for i in range(COUNT)}
    # gRPC's handlers of forks, which the command turns off, are on: nothing may rest on that.
    loud = {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "INFO"}
    async with running(tmp_path, boxed, environment=loud) as (system, client):
        for name in boxed:
            assert not (await client.call_tool(f"{name}:hello", {})).is_error
        assert not await client.problems()
        assert "fork" not in "\n".join(system.workers["worker-1"].log)
