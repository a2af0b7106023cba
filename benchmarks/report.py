"""The table and the goals of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.catalogue import ROWS, SPECIALS
from benchmarks.figures import Figures, Load, Spread, spread
from benchmarks.goals import GoalResult, judge
from benchmarks.rows.peers import NAMED

__all__ = ["ShownRow", "show", "shown_rows"]

Results = Mapping[str, Sequence[Figures]]


@dataclass(frozen=True)
class ShownRow:
    """A row of the table or the chart."""

    name: str
    title: str
    is_peer: bool


_COUNTS = (32, 128, 256)


def show(results: Results, console: Console) -> None:
    """Print all figures and goals."""
    console.print(_rows(results))
    for special in SPECIALS:
        if special.name in results:
            console.print(_figures(special.title, results[special.name]))
    console.print(_goals(judge(results)))


def _rows(results: Results) -> Table:
    table = Table(title="Calls: medians over the rounds (lowest–highest)")
    table.add_column("row")
    for name in ("p50 µs, 1", "p99 µs, 1", *(f"calls/s, {count}" for count in _COUNTS)):
        table.add_column(name, justify="right")
    for name in ("client µs CPU, 32", "worker µs CPU, 32", "worker MiB"):
        table.add_column(name, justify="right")
    for row in shown_rows(results):
        table.add_row(row.title, *_cells(results[row.name]))
    return table


def shown_rows(results: Results) -> list[ShownRow]:
    """Return the measured rows in order; peers that only this run names are last."""
    known = [ShownRow(row.name, row.title, row.peer) for row in ROWS if row.name in results]
    named = [name for name in results if name.startswith(NAMED)]
    return known + [ShownRow(name, name.removeprefix(NAMED), True) for name in named]


def _cells(rounds: Sequence[Figures]) -> list[str]:
    cells = [_cell(rounds, 1, lambda load: load.p50), _cell(rounds, 1, lambda load: load.p99)]
    cells += [_cell(rounds, count, lambda load: load.rate) for count in _COUNTS]
    cells.append(_cell(rounds, 32, lambda load: load.client_cpu))
    has_worker = any(measured.rss for measured in rounds)
    cells.append(_cell(rounds, 32, lambda load: load.worker_cpu) if has_worker else "–")
    cells.append(_text(spread(measured.rss for measured in rounds)) if has_worker else "–")
    return cells


def _cell(rounds: Sequence[Figures], count: int, figure: Callable[[Load], float]) -> str:
    return _text(
        spread(figure(measured.loads[count]) for measured in rounds if count in measured.loads)
    )


def _text(figure: Spread | None, digits: int = 0) -> str:
    if figure is None:
        return "–"
    if figure.low == figure.high:
        return f"{figure.median:,.{digits}f}"
    return f"{figure.median:,.{digits}f} ({figure.low:,.{digits}f}–{figure.high:,.{digits}f})"


def _figures(title: str, rounds: Sequence[Figures]) -> Table:
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    for name in rounds[0].more:
        table.add_row(name, _text(spread(measured.more[name] for measured in rounds), 2))
    return table


def _goals(goal_results: Sequence[GoalResult]) -> Table:
    table = Table(title="Goals")
    for name in ("figure", "goal", "measured", ""):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for result in goal_results:
        sign = "≤" if result.goal.at_most else "≥"
        verdict = (
            "not measured" if result.figure is None else "reached" if result.is_reached else "no"
        )
        measured = _text(result.figure, 2)
        table.add_row(
            result.goal.title,
            f"{sign} {result.goal.limit:.3g} {result.goal.unit}",
            measured,
            verdict,
        )
    return table
