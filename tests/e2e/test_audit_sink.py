"""The audit in an S3 server, whose workers are killed and lose their disks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.e2e.system import LEASEWAY, System, eventually, python_server
from tests.s3_server import s3_server

from leaseway.data_plane.audit.anchors import LOST_AFTER, Anchors
from leaseway.data_plane.audit.sinks.addresses import open_sink
from leaseway.data_plane.audit.verifying import verify_sink
from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.sdk.operators.observe import fetch_audit_anchors

CALLS = 80


async def verify_by_command(system: System, sink: str, environment: dict[str, str]) -> int:
    """Run `leaseway audit verify` with the anchors of the system; return its status."""
    process = await asyncio.create_subprocess_exec(
        *(*LEASEWAY, "audit", "verify", sink, "--address", system.address),
        env={**os.environ, **environment},
    )
    return await process.wait()


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
            await system.workers["worker-1"].end()
            told = await fetch_audit_anchors(client)
            assert await verify_by_command(system, store.sink, environment) == 0
        sink, anchors = open_sink(store.sink), Anchors.of(told.anchors, told.time)
        [killed] = [anchor for anchor in told.anchors if not anchor.head.has_ended]
        assert killed.lost_at is not None
        reports = await verify_sink(sink, store.sink, anchors)
        assert len(reports) == 2
        assert not [fault for report in reports.values() for fault in report.faults]
        [ended] = [anchor for anchor in told.anchors if anchor.head.has_ended]
        assert ended.head.shipped.seq == ended.head.written.seq == reports[ended.head.run].last
        later = Anchors.of(told.anchors, told.time + LOST_AFTER + 1)
        [fault] = (await verify_sink(sink, store.sink, later))[killed.head.run].faults
        assert "Worker worker-1 has vanished" in fault
        contents = [await sink.get(stored.name) async for stored in sink.objects()]
    records = [json.loads(line) for content in contents for line in content.splitlines()]
    begun = [record["arguments"]["number"] for record in records if record["event"] == "begin"]
    assert answered <= set(begun)
    number_of = {
        (record["run"], record["call"]): record["arguments"]["number"]
        for record in records
        if record["event"] == "begin"
    }
    ends = [(record["run"], record["call"]) for record in records if record["event"] == "call"]
    assert len(ends) == len(set(ends))
    assert answered <= {number_of[end] for end in ends}
    calls_of = [(record["run"], record["call"]) for record in records if record["event"] == "begin"]
    assert len(calls_of) == len(set(calls_of))
    assert len(answered) >= CALLS // 2
