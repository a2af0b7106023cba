"""Random edits, many of them broken, of the file of a system that is called all the while."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.e2e.counting import memory
from tests.e2e.storm import Edits, fresh_start, rage, server_processes, what_is_served
from tests.e2e.system import System, eventually

from leaseway.sdk import AsyncClient

SECONDS = float(os.environ.get("LEASEWAY_SOAK_SECONDS", "600"))
MOST_GROWTH = 1.25
"""Of memory since a third of the time was over."""


async def storm(folder: Path, edits: Edits, *, least_edits: int, seconds: float = 0.0) -> None:
    """Let a storm pass over a system and compare it with one that never saw it."""
    system = System(folder, {}, workers=2)
    system.write_text(edits.text())
    plateau: list[float] = []

    def memories() -> list[float]:
        assert system.control_plane is not None
        return [memory(part) for part in (system.control_plane, *system.workers.values())]

    async with system:
        traffic = await rage(
            system,
            edits,
            least_edits=least_edits,
            least_versions=30,
            seconds=seconds,
            on_plateau=lambda: plateau.extend(memories()),
        )
        print(f"memory in MiB (control plane, workers): {plateau}, then {memories()}")
        if seconds:
            for before, after in zip(plateau, memories(), strict=True):
                assert after < before * MOST_GROWTH
        assert traffic.failures == []
        assert traffic.answered > least_edits
        await eventually(lambda: not any(server_processes(system, edits).values()))
        good = edits.text()
        async with AsyncClient(system.address) as client:
            system.write_text("version: 1\nservers: {x: [\n")

            async def told() -> bool:
                return any(problem.scope == "workspace" for problem in await client.problems())

            await eventually(told)
            served = await what_is_served(client)
    assert served == await fresh_start(folder / "fresh", good)


@pytest.mark.usefixtures("leak_guard")
async def test_a_storm_of_edits_fails_no_call_and_ends_like_a_fresh_start(tmp_path: Path) -> None:
    edits = Edits(seed=3, steady=("alpha", "beta"), loose=("delta", "gamma"))
    await storm(tmp_path, edits, least_edits=40)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
@pytest.mark.usefixtures("leak_guard")
async def test_a_long_storm_does_no_more_harm_than_a_short_one(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", "1"))
    edits = Edits(seed, ("alpha", "beta", "eta"), ("delta", "gamma", "iota", "zeta"))
    await storm(tmp_path, edits, least_edits=200, seconds=SECONDS)
