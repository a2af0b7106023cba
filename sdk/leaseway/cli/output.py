"""What commands print: tables for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

__all__ = ["plain", "print_json", "print_table"]


def print_json(value: Any) -> None:
    """Print a value as JSON; dataclasses become objects, times ISO 8601."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


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


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Print rows: drawn on a terminal, else as columns that are never cut or wrapped.

    Args:
        headers: One for each column.
        rows: One value for each column; None and empty texts show as a dash.
        empty: A sentence for stderr when there are no rows.

    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty, err=True)
    elif sys.stdout.isatty():
        _print_drawn(headers, cells)
    else:
        click.echo(_columns([list(headers), *cells]))


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(str, value)) or "-"
        case datetime():
            return value.isoformat(timespec="seconds")
        case _:
            return " ".join(str(value).split())


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _print_drawn(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headers, box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for row in rows:
        # Text, not markup: a tool's description may hold square brackets.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
