"""`python -m benchmarks.scale`: measures how the control plane grows, prints and saves it."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.options import at_least_one
from benchmarks.scale.content import TOOLS
from benchmarks.scale.row import SIZES, ScaleRow, growth
from benchmarks.scale.rows.commits import COMMITS
from benchmarks.scale.rows.herds import HERDS
from benchmarks.scale.rows.loss import LOSS
from benchmarks.scale.rows.questions import QUESTIONS
from benchmarks.scale.rows.reports import REPORTS
from benchmarks.scale.rows.rest import REST
from benchmarks.scale.rows.restart import RESTART
from benchmarks.scale.rows.start import START

__all__ = ["main"]

_ROWS: tuple[ScaleRow, ...] = (
    RESTART,
    REPORTS,
    QUESTIONS,
    LOSS,
    REST,
    *HERDS,
    START,
    COMMITS,
)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rows", default="*", help="names, comma-separated, * matches any run")
    parser.add_argument(
        "--sizes", type=at_least_one, default=len(SIZES), help="how many, the smallest first"
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to; others stay in it")
    return parser.parse_args(words)


async def _measure(
    rows: Sequence[ScaleRow], sizes: int, path: Path | None, console: Console
) -> None:
    for row in rows:
        figures: dict[str, Mapping[str, float]] = {}
        for size in row.sizes[:sizes]:
            start = time.monotonic()
            figures[size.name] = await row.measure(size)
            console.print(f"{row.name}, {size.name}: {time.monotonic() - start:.0f} s")
        console.print(_table(row, figures))
        if path is not None:
            _save(path, row, figures)


def _table(row: ScaleRow, figures: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title=f"{row.title}: workers × servers ({TOOLS} tools each), and growth")
    table.add_column("figure")
    for size in figures:
        table.add_column(size, justify="right")
    for name in next(iter(figures.values())):
        values = [measured[name] for measured in figures.values()]
        cells = (
            f"{value:,.4g}" if ratio is None else f"{value:,.4g}  (× {ratio:.1f})"
            for value, ratio in zip(values, growth(values), strict=True)
        )
        table.add_row(name, *cells)
    return table


def _save(path: Path, row: ScaleRow, figures: Mapping[str, Mapping[str, float]]) -> None:
    known = json.loads(path.read_text())["rows"] if path.exists() else {}
    sizes = {size.name for size in row.sizes}  # figures of earlier sizes cannot be compared
    kept = {size: measured for size, measured in known.get(row.name, {}).items() if size in sizes}
    known[row.name] = {**kept, **figures}
    document = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "rows": known,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    from benchmarks.charts import draw_growth  # only a run that draws needs matplotlib

    draw_growth(known, path.parent)


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    options = _arguments(sys.argv[1:] if words is None else words)
    if options.json is not None and importlib.util.find_spec("matplotlib") is None:
        print("--json also draws a chart, for which matplotlib is missing: install the dependency")
        print("group 'bench' (make scale does), or run without --json.")
        return 2
    console = Console(width=None if sys.stdout.isatty() else 140)
    patterns = options.rows.split(",")
    for pattern in patterns:
        if not fnmatch.filter([row.name for row in _ROWS], pattern):
            known = ", ".join(row.name for row in _ROWS)
            console.print(f"No row matches {pattern}; there are: {known}.", style="red")
            return 2
    rows = [
        row for row in _ROWS if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns)
    ]
    asyncio.run(_measure(rows, options.sizes, options.json, console))
    return 0


if __name__ == "__main__":
    sys.exit(main())
