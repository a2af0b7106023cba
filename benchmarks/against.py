"""Compare this checkout with another revision: `python -m benchmarks.against REVISION`.

A folder with another checkout, whose modules may be compiled, can stand for the revision.

Both stacks (SDK and planes) run at the same time and are measured in turn, with the same driver and
dependencies, because two runs minutes apart differ by more than a change does. For each row it
prints the ratios of the rate and the CPU time of a call, with a 95 % interval. A row whose system
the other revision cannot start, because it lacks an option of it, is named instead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Load
from benchmarks.pairs import Pair, compare, measure_pairs
from benchmarks.rows import front, own

__all__ = ["main"]

_REPOSITORY = Path(__file__).resolve().parents[1]
_ROOTS = ("sdk", "cli", "front", "control_plane", "data_plane")
_DEFAULT_ROWS = "stdio,leased,http,stdio_16k,unary,sync,traced"
_START_TIMEOUT = 120.0
_ROWS = {row.name: row for row in (*own.ROWS, *front.ROWS)}
"""Not the whole catalogue: special measurements import what an older revision may lack."""
_FIGURES = ("rate_ratio", "client_cpu_ratio", "cpu_ratio")


async def _drive(name: str) -> None:
    """Open a row and measure a load for each line `IN_FLIGHT SECONDS` on standard input."""
    async with _ROWS[name].open() as driver:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            in_flight, seconds = line.split()
            load = await driver.load(int(in_flight), float(seconds))
            print(json.dumps(dataclasses.asdict(load)), flush=True)


class _ExitedError(Exception):
    """The process of a row has exited; its error is on standard error."""


class _NoBaseError(Exception):
    """The other revision cannot run the row."""


class _Driver:
    """A row of one revision, opened in its own process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def load(self, in_flight: int, seconds: float) -> Load:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{in_flight} {seconds}\n".encode())
        return Load(**json.loads(await self._line()))

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_TIMEOUT):
            line = await self._process.stdout.readline()
        if not line:
            raise _ExitedError("The process of a row has exited; its error is above.")
        return line

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, row: str, sources: Path) -> AsyncIterator[_Driver]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.against", "--drive", row),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=_REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(str(sources / root) for root in _ROOTS),
                "LEASEWAY_LOG_LEVEL": "error",
            },
        )
        driver = cls(process)
        try:
            await driver._line()  # "ready"
            yield driver
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


@contextlib.asynccontextmanager
async def _open_base(row: str, sources: Path) -> AsyncIterator[_Driver]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            driver = await stack.enter_async_context(_Driver.open(row, sources))
        except _ExitedError as error:
            raise _NoBaseError from error
        yield driver


async def _compare(
    row: str, sources: Path, *, in_flight: int, seconds: float, starts: int, pairs: int
) -> list[Pair]:
    measured: list[Pair] = []
    for _ in range(starts):
        async with _Driver.open(row, _REPOSITORY) as now, _open_base(row, sources) as before:
            measured += await measure_pairs(
                partial(now.load, in_flight, seconds),
                partial(before.load, in_flight, seconds),
                pairs,
            )
    return measured


def _extract(revision: str, folder: Path) -> None:
    """Write the sources of a revision into a folder.

    Raises:
        SystemExit: Git does not know the revision.
    """
    listing = subprocess.run(
        ["git", "ls-tree", "--name-only", revision, *_ROOTS],
        cwd=_REPOSITORY,
        capture_output=True,
        check=False,
    )
    roots = listing.stdout.decode().split()  # an older revision may have fewer
    archive = subprocess.run(
        ["git", "archive", revision, *roots], cwd=_REPOSITORY, capture_output=True, check=False
    )
    if archive.returncode:
        sys.exit(f"git archive {revision} failed: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
        sources.extractall(folder, filter="data")


def _ratio(figures: dict[str, float], name: str) -> str:
    low, high = figures[f"{name}_low"], figures[f"{name}_high"]
    return f"{figures[name]:.3f} ({low:.3f}–{high:.3f})"


def main(words: Sequence[str] | None = None) -> int:
    """Compare and print; return the exit status."""
    parser = argparse.ArgumentParser("python -m benchmarks.against", description=__doc__)
    parser.add_argument(
        "revision", nargs="?", help="the revision, or folder, to compare this checkout with"
    )
    parser.add_argument("--drive", metavar="ROW", help=argparse.SUPPRESS)
    parser.add_argument("--rows", default=_DEFAULT_ROWS, help="comma-separated names of rows")
    parser.add_argument("--in-flight", type=int, default=32, help="concurrent calls")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each load")
    parser.add_argument("--starts", type=int, default=3, help="times that both stacks are started")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of loads per start")
    options = parser.parse_args(words)
    if options.drive:
        asyncio.run(_drive(options.drive))
        return 0
    if not options.revision:
        parser.error("name the revision to compare with")
    rows = options.rows.split(",")
    if unknown := [row for row in rows if row not in _ROWS]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(_ROWS)}")
    table = Table(title=f"This checkout divided by {options.revision}: ratio (95 % interval)")
    for column in ("row", "calls/s", "CPU of the client", "CPU of planes", "calls/s now", "before"):
        table.add_column(column, justify="left" if column == "row" else "right")
    console = Console(width=None if sys.stdout.isatty() else 140)
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(options.revision).resolve()
        if not sources.is_dir():
            sources = Path(folder)
            _extract(options.revision, sources)
        for row in rows:
            try:
                pairs = asyncio.run(
                    _compare(
                        row,
                        Path(folder),
                        in_flight=options.in_flight,
                        seconds=options.seconds,
                        starts=options.starts,
                        pairs=options.pairs,
                    )
                )
            except _NoBaseError:
                console.print(f"{row}: {options.revision} cannot run it; its error is above.")
                table.add_row(row, *["–"] * 5)
                continue
            figures = compare(pairs)
            ratios = [_ratio(figures, name) for name in _FIGURES]
            rates = [f"{figures[name]:,.0f}" for name in ("calls_s", "other_calls_s")]
            table.add_row(row, *ratios, *rates)
            console.print(f"{row}: {ratios[0]}")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
