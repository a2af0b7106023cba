"""What commands print: tables for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.wire.visible_text import escaped_json, visible

if TYPE_CHECKING:
    from rich.console import Console

_SILENT: Final = frozenset({"-", "0"})
"""Cells of a column that says nothing, if it has no others."""
_GAP: Final = 2
"""What a drawn table has between two columns."""
_WRAPPED: Final = 20
"""The least width at which a column is still read with ease; wider ones may be wrapped to that."""


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text; whoever wrote parts of it, it cannot steer the terminal."""
    click.echo(visible(text), err=err, nl=nl)


def print_json(value: Any) -> None:
    """Print a value as JSON; dataclasses become objects, times ISO 8601."""
    # Any other encoding may lack a character, and what stands for it would be no JSON.
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    text = json.dumps(plain(value), indent=2, ensure_ascii=not unicode)
    click.echo(escaped_json(text))


def json_line(value: Any) -> str:
    """Return a value as one line of JSON that cannot steer the terminal."""
    return escaped_json(json.dumps(plain(value), ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: plain(getattr(value, f.name)) for f in fields if not f.name.startswith("_")}
    match value:
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case datetime():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return value


def one_line(text: str) -> str:
    """Return a server's text as one line that cannot steer the terminal."""
    return "".join(mark if mark.isprintable() else " " for mark in text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Print rows: drawn on a terminal, else as columns that are never cut or wrapped.

    Where a terminal is narrow, columns that say nothing are left out and wide ones wrapped; where
    that is not enough, each value gets a line.

    Args:
        headers: One for each column.
        rows: One value for each column; None and empty texts show as a dash.
        empty: A sentence for stderr when there are no rows.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        say(empty, err=True)
    elif sys.stdout.isatty():
        _print_drawn(headers, cells)
    else:
        say(_columns([list(headers), *cells]))


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return one_line(", ".join(map(str, value))) or "-"
        case datetime():
            return value.isoformat(timespec="seconds")
        case _:
            return " ".join(one_line(str(value)).split())


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _print_drawn(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console

    console = Console()
    columns = [[header, *cells] for header, *cells in zip(headers, *rows, strict=True)]
    if not _fits(columns, console.width):
        columns = [column for column in columns if not _SILENT.issuperset(column[1:])]
    if _fits(columns, console.width):
        _print_table(console, columns)
    else:
        _print_blocks(console, columns)


def _fits(columns: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether all columns fit without being cut, the wide ones wrapped."""
    needed = [min(_width(column), _WRAPPED) for column in columns]
    return sum(needed) + _GAP * (len(columns) - 1) <= width


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _print_table(console: Console, columns: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column[0], no_wrap=_width(column) <= _WRAPPED, overflow="fold")
    for row in zip(*(column[1:] for column in columns), strict=True):
        # Text, not markup: a tool's description may hold square brackets.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _print_blocks(console: Console, columns: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    for row in zip(*(column[1:] for column in columns), strict=True):
        table = Table.grid("", "", padding=(0, 2))
        for (header, *_), cell in zip(columns, row, strict=True):
            table.add_row(Text(header, style="bold"), Text(cell, overflow="fold"))
        console.print(table)
        console.print()
