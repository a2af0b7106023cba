"""Random edits of the configuration, many of them invalid, while clients call tools."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.e2e.counting import memory
from tests.e2e.storm import Edits, edit_and_call, fresh_start, served_state, server_processes
from tests.e2e.system import System, eventually

from leaseway.sdk import AsyncClient

SECONDS = float(os.environ.get("LEASEWAY_SOAK_SECONDS", "600"))
MAX_GROWTH = 1.25
"""Growth of memory since a third of the time."""


async def storm(
    folder: Path, edits: Edits, *, least_edits: int, least_versions: int, seconds: float = 0.0
) -> None:
    """Edit a running system at random and compare it with a freshly started one."""
    system = System(folder, {}, workers=2)
    system.write_text(edits.text())
    plateau: list[float] = []

    def memories() -> list[float]:
        assert system.control_plane is not None
        return [memory(part) for part in (system.control_plane, *system.workers.values())]

    async with system:
        traffic = await edit_and_call(
            system,
            edits,
            least_edits=least_edits,
            least_versions=least_versions,
            seconds=seconds,
            on_plateau=lambda: plateau.extend(memories()),
        )
        print(f"memory in MiB (control plane, workers): {plateau}, then {memories()}")
        if seconds:
            for before, after in zip(plateau, memories(), strict=True):
                assert after < before * MAX_GROWTH
        assert traffic.failures == []
        assert traffic.answered > least_edits
        await eventually(lambda: not any(server_processes(system, edits).values()))
        good = edits.text()
        async with AsyncClient(system.address) as client:
            system.write_text("version: 1\nservers: {x: [\n")

            async def is_reported() -> bool:
                return any(problem.scope == "workspace" for problem in await client.problems())

            await eventually(is_reported)
            served = await served_state(client)
    assert served == await fresh_start(folder / "fresh", good)


@pytest.mark.usefixtures("leak_guard")
async def test_random_edits_fail_no_call_and_end_in_the_state_of_a_fresh_start(
    tmp_path: Path,
) -> None:
    edits = Edits(seed=3, steady=("alpha", "beta"), loose=("delta", "gamma"))
    await storm(tmp_path, edits, least_edits=25, least_versions=15)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
@pytest.mark.usefixtures("leak_guard")
async def test_random_edits_for_a_long_time_fail_no_call_and_leak_no_memory(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", "1"))
    edits = Edits(seed, ("alpha", "beta", "eta"), ("delta", "gamma", "iota", "zeta"))
    await storm(tmp_path, edits, least_edits=200, least_versions=30, seconds=SECONDS)
