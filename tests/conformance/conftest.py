"""The official conformance suite.

`make conformance` installs the suite and a Node that runs it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.e2e.clients import node

HERE = Path(__file__).parent


def marked(
    cases: Sequence[tuple[str, ...]], cross_section: Collection[tuple[str, ...]]
) -> list[Any]:
    """Return cases for `parametrize`; those beyond a cross-section run in `make conformance` only.

    The cross-section has one of each kind: the suite takes too long for every run.
    """
    assert set(cases) >= set(cross_section)
    return [
        pytest.param(*case, marks=() if case in cross_section else (pytest.mark.conformance,))
        for case in cases
    ]


@dataclass(frozen=True)
class Suite:
    """The command that runs the suite."""

    command: tuple[str, ...]

    async def run(self, *arguments: str, patience: int = 1) -> tuple[int, str]:
        """Run the suite, its time limits multiplied; return its exit status and output."""
        program, *script = self.command
        process = await asyncio.create_subprocess_exec(
            *(program, "--import", (HERE / "patient.mjs").as_uri(), *script, *arguments),
            env=os.environ | {"PATIENCE": str(patience)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(5 * BOUND):
                output = (await process.stdout.read()).decode()
                return await process.wait(), output
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture(scope="module")
def suite(conformance_folder: Path) -> Suite:
    program = conformance_folder / "node_modules" / ".bin" / "conformance"
    return Suite((node(conformance_folder), str(program)))
