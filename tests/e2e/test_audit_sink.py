"""The audit in an S3 server, whose workers are killed and lose their disks."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path

import pytest
from tests.e2e.system import System, eventually, python_server
from tests.s3_server import s3_server

from leaseway.data_plane.audit.sinks.addresses import open_sink
from leaseway.data_plane.audit.verifying import verify_sink
from leaseway.sdk import AsyncClient, LeasewayError

CALLS = 200


async def test_each_call_that_was_answered_is_in_the_sink_once_after_sigkill_and_a_wiped_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, folder = tmp_path / "seen", tmp_path / "audit"
    seen.touch()
    witness = python_server("witness.py", str(seen), **{"truely-stateless": True})
    remaining, answered = iter(range(CALLS)), set[int]()

    async def call_repeatedly(client: AsyncClient) -> None:
        for number in remaining:
            try:
                await client.call_tool("note", {"number": number}, timeout=30)
            except LeasewayError:
                continue  # its worker may have been killed
            answered.add(number)

    async with s3_server() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        environment = {
            **store.environment,
            "LEASEWAY_AUDIT": str(folder),
            "LEASEWAY_AUDIT_SINK": store.sink,
            "LEASEWAY_AUDIT_POLICY": "block",
        }
        async with (
            System(tmp_path, {"witness": witness}, environment=environment) as system,
            AsyncClient(system.address) as client,
        ):
            calls = asyncio.gather(*(call_repeatedly(client) for _ in range(8)))
            await eventually(lambda: calls.done() or len(answered) >= CALLS // 2)
            await system.workers["worker-1"].end(signal.SIGKILL)
            await asyncio.to_thread(shutil.rmtree, folder)
            await system.start_worker("worker-1")
            await calls
        sink = open_sink(store.sink)
        reports = await verify_sink(sink)
        assert len(reports) == 2
        assert not [fault for report in reports.values() for fault in report.faults]
        contents = [await sink.get(each.name) async for each in sink.objects()]
    records = [json.loads(line) for content in contents for line in content.splitlines()]
    begun = [each["arguments"]["number"] for each in records if each["event"] == "begin"]
    assert answered <= set(begun)
    calls_of = [(each["run"], each["call"]) for each in records if each["event"] == "begin"]
    assert len(calls_of) == len(set(calls_of))
    assert len(answered) >= CALLS // 2
