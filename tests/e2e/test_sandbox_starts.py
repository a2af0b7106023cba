"""All sandboxed servers of a worker start at the first attempt."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.system import SERVERS, running

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
