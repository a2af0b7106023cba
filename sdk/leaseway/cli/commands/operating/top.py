"""`leaseway top`: calls by server, as they happen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from leaseway.cli.options.common import Connection, client_options, examples
from leaseway.cli.options.connection import ask
from leaseway.cli.output.tables import print_table
from leaseway.wire.visible_text import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from leaseway.sdk import AsyncClient
    from leaseway.sdk.operators.observe import TrafficReport

SORTS: Final = ("calls", "errors", "slow", "total", "server")
_KEYS: Final = {"c": "calls", "e": "errors", "p": "slow", "t": "total", "s": "server"}
_QUIT: Final = "q"
_MOST_KEYS: Final = 64
_HEADERS: Final = ("SERVER", "CALLS/S", "ERRORS/S", "50 %", "95 %", "CALLS", "ERRORS")


@dataclass(frozen=True)
class Row:
    """One server: what happened since the look before, and since its workers started."""

    server: str
    calls: float
    errors: float
    half: float | None
    most: float | None
    total: int
    failed: int


def rows_between(before: TrafficReport | None, after: TrafficReport, sort: str) -> list[Row]:
    """Return a row for each server, from two looks at the counts; rates of a first look are 0."""
    known = {(one.incarnation, one.server_id): one for one in before.traffic} if before else {}
    passed = after.time - before.time if before else 0.0
    gathered: dict[str, list[tuple[int, int, int, int, tuple[int, ...]]]] = {}
    for one in after.traffic:
        was = known.get((one.incarnation, one.server_id))
        fresh = before is not None and was is None  # it had its first call meanwhile
        calls = one.calls - (was.calls if was else 0) if was or fresh else 0
        failed = one.failed - (was.failed if was else 0) if was or fresh else 0
        buckets = one.buckets
        if was is not None:
            buckets = tuple(a - b for a, b in zip(one.buckets, was.buckets, strict=True))
        elif not fresh:
            buckets = ()
        gathered.setdefault(one.server_id, []).append(
            (calls, failed, one.calls, one.failed, buckets)
        )
    rows = [_row(server, parts, passed) for server, parts in gathered.items()]
    return sorted(rows, key=lambda row: _order(row, sort))


def _row(
    server: str, parts: Sequence[tuple[int, int, int, int, tuple[int, ...]]], passed: float
) -> Row:
    buckets = [sum(column) for column in zip(*(p[4] for p in parts if p[4]), strict=True)]
    rate = 1 / passed if passed > 0 else 0.0
    return Row(
        server,
        sum(part[0] for part in parts) * rate,
        sum(part[1] for part in parts) * rate,
        _quantile(buckets, 0.5),
        _quantile(buckets, 0.95),
        sum(part[2] for part in parts),
        sum(part[3] for part in parts),
    )


def _quantile(buckets: Sequence[int], share: float) -> float | None:
    """Return the seconds below which a share of the calls took, as far as the buckets tell."""
    whole, below = sum(buckets), 0
    for place, count in enumerate(buckets):
        below += count
        if whole and below >= whole * share:
            return float(2**place) / 1_000
    return None


def _order(row: Row, sort: str) -> tuple[float, float, str]:
    first = {
        "calls": -row.calls,
        "errors": -row.errors,
        "slow": -(row.most or 0.0),
        "total": -float(row.total),
    }.get(sort, 0.0)
    return first, -float(row.total) if sort != "server" else 0.0, row.server


@click.command(epilog=examples("leaseway top", "leaseway top --sort slow --count 1"))
@click.option(
    "--sort", type=click.Choice(SORTS), default="calls", show_default=True, help="By what."
)
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3_600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many looks.")
@click.option("--limit", type=click.IntRange(1, 2_000), default=40, show_default=True, help="Rows.")
@client_options
def top(sort: str, every: float, count: int | None, limit: int, connection: Connection) -> None:
    """Show the calls of each server as they happen.

    Calls and errors a second, and within which time half and 95 % of them ended (as powers of two).
    In a terminal the keys c, e, p, t and s sort by calls, errors, slowness, total and name; q ends.
    """
    view = _View(sort, every, count, limit)
    try:
        ask(connection, view.run)
    except KeyboardInterrupt:
        return  # how looking ends


class _View:
    def __init__(self, sort: str, every: float, count: int | None, limit: int) -> None:
        self._sort = sort
        self._every = every
        self._count = count
        self._limit = limit
        self._before: TrafficReport | None = None
        self._after: TrafficReport | None = None
        self._lost = False
        self._pressed = asyncio.Event()
        self._over = False

    async def run(self, client: AsyncClient) -> None:
        if not sys.stdout.isatty():
            await self._looks(client, self._print)
            return
        from rich.live import Live

        with Live(self._drawn(), screen=self._count is None, auto_refresh=False) as live:

            def draw() -> None:
                live.update(self._drawn(), refresh=True)

            with _keys(self._press):
                await self._looks(client, draw)

    async def _looks(self, client: AsyncClient, show: Callable[[], None]) -> None:
        from leaseway.sdk import ControlPlaneUnavailable
        from leaseway.sdk.operators.observe import fetch_traffic

        left = self._count
        self._after = await fetch_traffic(client)
        while not self._over and left != 0:
            await self._pause(show)
            try:
                report = await fetch_traffic(client)
            except ControlPlaneUnavailable:
                self._lost = True
            else:
                self._lost = False
                self._before, self._after = self._after, report
            show()
            left = None if left is None else left - 1

    async def _pause(self, show: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._every
        while not self._over:
            self._pressed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._pressed.wait()
            except TimeoutError:
                return
            show()

    def _press(self, key: str) -> None:
        self._over = self._over or key == _QUIT
        self._sort = _KEYS.get(key, self._sort)
        self._pressed.set()

    def _rows(self) -> list[Row]:
        if self._after is None:
            return []
        return rows_between(self._before, self._after, self._sort)[: self._limit]

    def _print(self) -> None:
        print_table(_HEADERS, list(_cells(self._rows())), "No calls yet.")

    def _drawn(self) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        title = f"calls by server, sorted by {self._sort}   (c e p t s sort, q ends)"
        if self._lost:
            title = "The control plane is unreachable; waiting for it."
        elif self._after is not None and self._after.silent_workers:
            title += f"   no answer of {', '.join(self._after.silent_workers)}"
        table = Table(title=Text(visible(title)), box=SIMPLE_HEAD, title_justify="left")
        for place, header in enumerate(_HEADERS):
            table.add_column(header, justify="right" if place else "left")
        for row in _cells(self._rows()):
            table.add_row(*(Text(visible(cell)) for cell in row))
        return table


def _cells(rows: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        yield (
            row.server,
            f"{row.calls:.1f}",
            f"{row.errors:.1f}",
            _time(row.half),
            _time(row.most),
            f"{row.total:,}",
            f"{row.failed:,}",
        )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


@contextlib.contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Hear single keys of the terminal while the block runs; without a terminal, hear nothing."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()

    def pressed() -> None:
        # Not by `sys.stdin`: it would keep back what was typed together with the first key.
        for key in os.read(number, _MOST_KEYS).decode(errors="replace") or _QUIT:
            press(key)

    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    loop.add_reader(number, pressed)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
