"""The audit log of workers that are killed during calls."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path

from tests.e2e.system import System, eventually, python_server

from leaseway.data_plane.audit.chain import verify_run
from leaseway.data_plane.audit.log import runs_in
from leaseway.sdk import AsyncClient, LeasewayError

CALLS = 200
KILLS = 1


async def test_each_call_that_reached_the_server_has_a_record_and_changed_bytes_are_detected(
    tmp_path: Path,
) -> None:
    seen = tmp_path / "seen"
    seen.touch()
    witness = python_server("witness.py", str(seen), **{"truely-stateless": True})
    environment = {"LEASEWAY_AUDIT": str(tmp_path / "audit")}
    remaining = iter(range(CALLS))

    async def call_repeatedly(client: AsyncClient) -> None:
        for number in remaining:
            try:
                await client.call_tool("note", {"number": number}, timeout=30)
            except LeasewayError:
                continue  # its worker may have been killed

    async with (
        System(tmp_path, {"witness": witness}, environment=environment) as system,
        AsyncClient(system.address) as client,
    ):
        calls = asyncio.gather(*(call_repeatedly(client) for _ in range(8)))
        for kill in range(1, KILLS + 1):
            part = CALLS * kill // (KILLS + 1)
            await eventually(lambda part=part: calls.done() or len(numbers(seen)) >= part)
            await system.workers["worker-1"].end(signal.SIGKILL)
            await system.start_worker("worker-1")
        await calls
    runs = runs_in(tmp_path / "audit")
    assert len(runs) == KILLS + 1
    recorded = set()
    for files in runs.values():
        lines = [line for path in files for line in path.read_bytes().splitlines(True)]
        assert not verify_run([("audit", lines)]).faults
        whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
        recorded |= {
            record["arguments"]["number"] for record in whole if record["event"] == "begin"
        }
    assert set(numbers(seen)) <= recorded
    assert len(recorded) >= CALLS // 2
    await asyncio.to_thread(
        check_flips, max(runs.values(), key=lambda files: files[0].stat().st_size)
    )


def numbers(seen: Path) -> list[int]:
    return [int(line) for line in seen.read_text().splitlines()]


def check_flips(files: list[Path]) -> None:
    """Change single bytes at many places: the check detects each."""
    content = b"".join(path.read_bytes() for path in files)
    whole = content[: content.rindex(b"\n") + 1]
    draw = random.Random(16)
    for _ in range(60):
        place = draw.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        verdict = verify_run([("audit", bytes(flipped).splitlines(True))])
        last = whole.rindex(b"\n", 0, len(whole) - 1)
        # In the last line a changed byte may look like a cut-off line, which is a remark.
        assert verdict.faults or (place > last and verdict.remarks), place
