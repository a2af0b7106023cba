"""Print tables to terminals, plain columns to pipes, and JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.wire.text.visible_text import escaped_json, visible

if TYPE_CHECKING:
    from rich.console import Console

_BLANK: Final = frozenset({"-", "0"})
"""A column with only these cells is left out if the terminal is narrow."""
_GAP: Final = 2
"""Characters between two columns of a drawn table."""
_MIN_WRAPPED: Final = 20
"""Wider columns may be wrapped to this width."""


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text with its control characters escaped: servers may have written parts of it."""
    click.echo(visible(text), err=err, nl=nl)


def print_json(value: Any) -> None:
    """Print a value as JSON; dataclasses become objects, times ISO 8601."""
    # Another encoding may lack a character, whose replacement would not be JSON.
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    text = json.dumps(plain(value), indent=2, ensure_ascii=not unicode)
    click.echo(escaped_json(text))


def json_line(value: Any) -> str:
    """Return a value as one line of JSON, with control characters escaped."""
    return escaped_json(json.dumps(plain(value), ensure_ascii=False))


def plain(value: Any) -> Any:
    """Convert a value to types that JSON has."""
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
    """Return a text as one line, with control characters replaced by spaces."""
    return "".join(char if char.isprintable() else " " for char in text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Print a table on a terminal, else plain columns that are never cut or wrapped.

    On a narrow terminal, blank columns are left out and wide ones wrapped; if that is not enough,
    each value gets a line.

    Args:
        rows: One value for each column; None and empty texts show as a dash.
        empty: The sentence to print to stderr if there are no rows.
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
    if console.width < _MIN_WRAPPED:  # nothing that is drawn could be read
        say(_columns([list(headers), *rows]))
        return
    columns = [[header, *cells] for header, *cells in zip(headers, *rows, strict=True)]
    if not _fits(columns, console.width):
        columns = [column for column in columns if not _BLANK.issuperset(column[1:])]
    if _fits(columns, console.width):
        _print_table(console, columns)
    else:
        _print_blocks(console, columns)


def _fits(columns: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether all columns fit without being cut, with wide ones wrapped."""
    needed = [min(_width(column), _MIN_WRAPPED) for column in columns]
    return sum(needed) + _GAP * (len(columns) - 1) <= width


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _print_table(console: Console, columns: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column[0], no_wrap=_width(column) <= _MIN_WRAPPED, overflow="fold")
    for row in zip(*(column[1:] for column in columns), strict=True):
        # Text, not markup: a tool's description may contain square brackets.
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
