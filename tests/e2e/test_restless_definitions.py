"""Servers whose definitions no two processes write alike keep their tools on every lease."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import python_server, running

LEASES = 3


@pytest.mark.usefixtures("leak_guard")
async def test_definitions_with_process_ids_times_and_random_orders_serve_every_lease(
    tmp_path: Path,
) -> None:
    server = python_server("echo_raw.py", "--restless")
    async with running(tmp_path, {"moody": server}) as (_, client):
        listed = await client.list_tools()
        async with asyncio.timeout(4 * BOUND):
            for number in range(LEASES):
                session = client.session(f"s{number}")
                result = await session.call_tool("echo", {"text": f"call {number}"})
                assert result.text == f"call {number}"
        assert (await client.list_tools()).registry_version == listed.registry_version
        assert [problem.reason for problem in await client.problems()] == []
