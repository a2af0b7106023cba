"""`python -m benchmarks`: measures rows, prints and saves the figures, draws plots."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import fnmatch
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.catalogue import ALL, find_row
from benchmarks.figures import Figures, figures_from_json
from benchmarks.options import at_least_one, positive
from benchmarks.processes import ending_with_parent
from benchmarks.report import show
from benchmarks.rows import peers
from benchmarks.rows.row import Row
from benchmarks.specials.special import Special

__all__ = ["main"]

_TIMEOUT = 900.0
_RESULTS = Path(__file__).with_name("results")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", default="*", help="names, comma-separated, * matches any run")
    parser.add_argument(
        "--rounds", type=at_least_one, default=2, help="how often each row is measured"
    )
    parser.add_argument("--seconds", type=positive, default=1.0, help="length of each load")
    parser.add_argument("--peers", action="store_true", help="also install and measure the peers")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=_named_peer,
        metavar="NAME=COMMAND",
        help="also measure a gateway that serves MCP at /mcp or / of the port {port}, in front of "
        "the server that {python} {script} runs",
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--show", type=Path, help="only print the figures of this file")
    parser.add_argument("--plots", type=Path, default=_RESULTS, help="folder for the plots")
    parser.add_argument("--list", action="store_true", help="print the names of all rows")
    return parser.parse_args(words)


def _named_peer(option: str) -> tuple[str, str]:
    name, separator, command = option.partition("=")
    if not (name and separator and command.strip()):
        raise argparse.ArgumentTypeError("write NAME=COMMAND")
    try:
        program = shlex.split(command)[0]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{command!r} is no command: {error}") from None
    if "{" not in program and shutil.which(program) is None:
        raise argparse.ArgumentTypeError(f"there is no program {program!r}")
    return f"{peers.NAMED}{name}", command


def _select(patterns: str, with_peers: bool, commands: Mapping[str, str]) -> list[Row | Special]:
    """Return the rows to measure, those of named peers last.

    Raises:
        ValueError: A pattern matches no row.
    """
    known = [row for row in ALL if with_peers or not (isinstance(row, Row) and row.peer)]
    known += [find_row(name, command) for name, command in commands.items()]
    words = patterns.split(",")
    for word in words:
        if not fnmatch.filter([row.name for row in known], word):
            raise ValueError(f"no row matches {word}; --list prints all, --peers adds the peers'")
    return [
        row
        for row in known
        if row.name in commands or any(fnmatch.fnmatchcase(row.name, word) for word in words)
    ]


async def _measure(
    rows: Sequence[Row | Special],
    commands: Mapping[str, str],
    rounds: int,
    seconds: float,
    console: Console,
) -> dict[str, list[Figures]]:
    """Measure all rows in each round, so that compared figures are close in time.

    Args:
        rows: The rows.
        commands: The commands of named peers, by row.
        rounds: The number of rounds.
        seconds: The length of each load.
        console: Prints the progress.
    """
    results: dict[str, list[Figures]] = {}
    for number in range(rounds):
        for row in rows:
            if isinstance(row, Special) and number >= row.rounds:
                continue
            start = time.monotonic()
            figures = await _measure_row(row.name, seconds, commands.get(row.name))
            if figures is None:
                console.print(f"{row.name} failed; see above.", style="red")
                continue
            results.setdefault(row.name, []).append(figures)
            console.print(f"round {number + 1}: {row.name}, {time.monotonic() - start:.0f} s")
    return results


async def _measure_row(name: str, seconds: float, command: str | None) -> Figures | None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.run_row", name, str(seconds)),
        *([command] if command is not None else []),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "LEASEWAY_LOG_LEVEL": "error"},
        preexec_fn=ending_with_parent(),
    )
    try:
        async with asyncio.timeout(_TIMEOUT):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return figures_from_json(json.loads(out)) if process.returncode == 0 else None


def _document(results: Mapping[str, Sequence[Figures]], seconds: float) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "seconds": seconds,
        "rows": {
            name: [dataclasses.asdict(measured) for measured in rounds]
            for name, rounds in results.items()
        },
    }


def _read(path: Path) -> dict[str, list[Figures]]:
    """Return the figures in a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It has none, or those of another program.
    """
    try:
        rows = json.loads(path.read_text())["rows"]
        return {name: list(map(figures_from_json, rounds)) for name, rounds in rows.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it has no figures as --json writes them") from error


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return the exit status: 1 if a row failed in every round."""
    options = _arguments(sys.argv[1:] if words is None else words)
    console = Console(width=None if sys.stdout.isatty() else 180)
    if options.list:
        console.print("\n".join(f"{row.name:26}{row.title}" for row in ALL))
        return 0
    if options.show is not None:
        try:
            results, failed = _read(options.show), []
        except (OSError, ValueError) as error:
            console.print(f"{options.show} cannot be shown: {error}.", style="red")
            return 2
    else:
        commands = dict(options.peer)
        try:
            if len(commands) < len(options.peer):
                raise ValueError("two of --peer have the same name")
            rows = _select(options.rows, options.peers, commands)
        except ValueError as error:
            console.print(f"{error}.", style="red")
            return 2
        if options.peers:
            peers.install()
        measuring = _measure(rows, commands, options.rounds, options.seconds, console)
        results = asyncio.run(measuring)
        failed = [row.name for row in rows if row.name not in results]
    if results and options.json is not None:
        document = _document(results, options.seconds)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if results:
        show(results, console)
    if results and (options.json is not None or options.show is not None):
        from benchmarks.charts import draw  # only a run that draws needs matplotlib

        draw(results, options.plots)
    if failed:
        console.print(f"Without figures, because they failed: {', '.join(failed)}.", style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
