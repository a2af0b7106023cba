"""Draws the figures of runs: calls, leases, and how a control plane grows. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # before pyplot is imported
from matplotlib import pyplot

from benchmarks.figures import Figures, Load, spread
from benchmarks.report import ShownRow, shown_rows
from benchmarks.specials.leases import AT_ONCE, WAYS

__all__ = ["draw", "draw_growth"]

Results = Mapping[str, Sequence[Figures]]
_OWN: Final = "#2a9d8f"
_COLUMNS: Final = 3


def draw(results: Results, folder: Path) -> None:
    """Write the charts of what was measured, as `calls.svg` and `leases.svg`, and as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    _draw_calls(results, folder)
    _draw_leases(results, folder)


def _draw_calls(results: Results, folder: Path) -> None:
    """Calls per second and CPU of each row with calls."""
    rows = [row for row in shown_rows(results) if "1m" not in row.name]
    if not rows:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 0.42 * len(rows) + 1.6), sharey=True)
    names = [row.title for row in rows]
    _bars(left, [_median(results[row.name], lambda load: load.rate) for row in rows], rows)
    left.set_xlabel("calls per second, 32 in flight (more is better)")
    left.set_yticks(range(len(rows)), names)
    left.invert_yaxis()
    cpu = [_median(results[row.name], lambda load: load.client_cpu) for row in rows]
    worker = [_median(results[row.name], lambda load: load.worker_cpu) for row in rows]
    right.barh(range(len(rows)), cpu, color="#8ecae6", label="caller")
    bars = right.barh(range(len(rows)), worker, left=cpu, color="#fb8500", label="between")
    sums = [f"{caller + between:,.0f}" for caller, between in zip(cpu, worker, strict=True)]
    right.bar_label(bars, sums, padding=3, fontsize=8)
    right.set_xlabel("CPU µs per call, 32 in flight (less is better)")
    right.margins(x=0.12)
    right.legend()
    _save(figure, folder, "calls")


def _median(rounds: Sequence[Figures], figure: Callable[[Load], float]) -> float:
    found = spread(figure(measured.loads[32]) for measured in rounds if 32 in measured.loads)
    return found.median if found else 0.0


def _bars(axes: Any, values: Sequence[float], rows: Sequence[ShownRow]) -> None:
    colours = [_colour(row) for row in rows]
    bars = axes.barh(range(len(values)), values, color=colours)
    axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.margins(x=0.12)


def _colour(row: ShownRow) -> str:
    if row.title.startswith("Leaseway"):
        return _OWN
    return "#e76f51" if row.is_peer else "#9a9a9a"


def _draw_leases(results: Results, folder: Path) -> None:
    """p50 and p99 of each way to acquire a lease, by how many are acquired at once."""
    bars = [
        (f"{title}, {at_once} at once", f"{way}_{at_once}", results[f"leases_{way}"])
        for way, title in WAYS.items()
        if f"leases_{way}" in results
        for at_once in AT_ONCE
    ]
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(bars) + 1.2))
    places = range(len(bars))
    p50, p99 = (
        [_special(rounds, f"{name}_{share}_ms") for _, name, rounds in bars]
        for share in ("p50", "p99")
    )
    axes.barh(places, p99, color="#8ecae6", label="p99")
    drawn = axes.barh(places, p50, color=_OWN, label="p50")
    labels = [f"{low:,.0f} / {high:,.0f} ms" for low, high in zip(p50, p99, strict=True)]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.set_yticks(places, [title for title, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel("ms to acquire a lease: p50 / p99 (less is better)")
    axes.legend()
    _save(figure, folder, "leases")


def _special(rounds: Sequence[Figures], name: str) -> float:
    found = spread(measured.more[name] for measured in rounds if name in measured.more)
    return found.median if found else 0.0


def draw_growth(rows: Mapping[str, Mapping[str, Mapping[str, float]]], folder: Path) -> None:
    """Write `scale.svg` and `scale.png`: each figure of each row over the sizes.

    Args:
        rows: Figures by name, size and row.
        folder: Where the charts are written.
    """
    lines = -(-len(rows) // _COLUMNS)
    figure, grid = pyplot.subplots(
        lines, _COLUMNS, figsize=(5 * _COLUMNS, 3.6 * lines), squeeze=False
    )
    panels = list(grid.flat)
    for panel, (row, sizes) in zip(panels, rows.items(), strict=False):
        names = list(sizes)
        for name in sizes[names[0]]:
            values = [sizes[size].get(name, 0.0) for size in names]
            if any(values):
                panel.plot(names, values, marker="o", label=name)
        panel.set_title(row)
        panel.set_yscale("log", nonpositive="mask")  # a figure of zero has no place on it
        panel.legend(fontsize=7)
        panel.grid(alpha=0.3)
    for panel in panels[len(rows) :]:
        panel.set_axis_off()
    _save(figure, folder, "scale")


def _save(figure: Any, folder: Path, name: str) -> None:
    figure.tight_layout()
    for kind in ("png", "svg"):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(folder / f"{name}.{kind}", dpi=110, metadata=metadata)
    pyplot.close(figure)
