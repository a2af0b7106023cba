"""`leaseway top`: a live view of the calls of each server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from leaseway.cli.options.common import ConnectionOptions, client_options, examples
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.load import LOAD_HEADERS, duration, load_cells
from leaseway.cli.output.tables import print_table
from leaseway.wire.text.visible_text import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from leaseway.sdk import AsyncClient
    from leaseway.sdk.operators.observe import TrafficInfo, TrafficReport

SORTS: Final = ("calls", "errors", "slow", "total", "waiting", "server")
_KEYS: Final = {
    "c": "calls",
    "e": "errors",
    "p": "slow",
    "t": "total",
    "w": "waiting",
    "s": "server",
}
_QUIT: Final = "q"
_MAX_KEYS: Final = 64
_FORGET: Final = 3_600.0
"""Seconds for which the counts of a worker that is not heard are kept."""
_HEADERS: Final = (
    "SERVER",
    "CALLS/S",
    "ERRORS/S",
    "50 %",
    "95 %",
    "CALLS",
    "ERRORS",
    *LOAD_HEADERS,
)


@dataclass(frozen=True)
class Row:
    """A server's rates since the previous poll, its totals, and its calls in flight now."""

    server: str
    calls: float
    errors: float
    p50: float | None
    p95: float | None
    total: int
    failed: int
    in_flight: int = 0
    waiting: int = 0
    oldest_wait: float | None = None


class _Part(NamedTuple):
    """What one worker adds to the row of a server: its counts, and what is new of them."""

    counts: TrafficInfo
    calls: float
    errors: float
    buckets: Sequence[int]


class Rates:
    """Turns counts since the start of the workers into rates.

    Whoever is missing in a poll, such as a worker that does not answer in time, goes on from what
    it reported before: its counts are not new when they are back.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, TrafficInfo]] = {}
        self._last: TrafficReport | None = None

    def rows(self, report: TrafficReport) -> list[Row]:
        """Return a row for each server of a new poll; the rates of a first poll are 0."""
        by_server: dict[str, list[_Part]] = {}
        for counts in report.traffic:
            by_server.setdefault(counts.server_id, []).append(self._part(counts, report.time))
        self._seen |= {
            (counts.incarnation, counts.server_id): (report.time, counts)
            for counts in report.traffic
        }
        self._seen = {
            key: seen for key, seen in self._seen.items() if abs(report.time - seen[0]) < _FORGET
        }
        self._last = report
        return [_row(server, parts) for server, parts in by_server.items()]

    def _part(self, counts: TrafficInfo, now: float) -> _Part:
        since, old = self._seen.get((counts.incarnation, counts.server_id), (None, None))
        if old is not None and old.calls > counts.calls:
            old = None  # the worker has forgotten a removed server, and counts it anew
        elif since is None and self._last and counts.worker not in self._last.silent_workers:
            since = self._last.time  # the first call was since then
        if since is None:
            return _Part(counts, 0.0, 0.0, ())
        rate = 1 / (now - since) if now > since else 0.0
        if old is None:
            return _Part(counts, counts.calls * rate, counts.failed * rate, counts.buckets)
        return _Part(
            counts,
            (counts.calls - old.calls) * rate,
            (counts.failed - old.failed) * rate,
            [new - known for new, known in zip(counts.buckets, old.buckets, strict=True)],
        )


def _row(server: str, parts: Sequence[_Part]) -> Row:
    buckets = [sum(column) for column in zip(*(p.buckets for p in parts if p.buckets), strict=True)]
    waits = [wait for part in parts if (wait := part.counts.oldest_wait) is not None]
    return Row(
        server=server,
        calls=sum(part.calls for part in parts),
        errors=sum(part.errors for part in parts),
        p50=_quantile(buckets, 0.5),
        p95=_quantile(buckets, 0.95),
        total=sum(part.counts.calls for part in parts),
        failed=sum(part.counts.failed for part in parts),
        in_flight=sum(part.counts.in_flight for part in parts),
        waiting=sum(part.counts.waiting for part in parts),
        oldest_wait=max(waits, default=None),
    )


def _quantile(buckets: Sequence[int], share: float) -> float | None:
    """Return a quantile in seconds, at the resolution of the buckets (powers of two)."""
    total, below = sum(buckets), 0
    for exponent, count in enumerate(buckets):
        below += count
        if total and below >= total * share:
            return float(2**exponent) / 1_000
    return None


def _order(row: Row, sort: str) -> tuple[float, float, str]:
    first = {
        "calls": -row.calls,
        "errors": -row.errors,
        "slow": -(row.p95 or 0.0),
        "total": -float(row.total),
        "waiting": -(row.oldest_wait or 0.0),
    }.get(sort, 0.0)
    return first, -float(row.total) if sort != "server" else 0.0, row.server


@click.command(epilog=examples("leaseway top", "leaseway top --sort slow --count 1"))
@click.option(
    "--sort", type=click.Choice(SORTS), default="calls", show_default=True, help="The sort order."
)
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3_600),
    default=2.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--count", type=click.IntRange(1), help="Exit after this number of updates.")
@click.option(
    "--limit",
    type=click.IntRange(1, 2_000),
    default=40,
    show_default=True,
    help="The maximum number of rows.",
)
@client_options
def top(
    sort: str, every: float, count: int | None, limit: int, connection: ConnectionOptions
) -> None:
    """Show the rates and durations of each server's calls, live.

    It shows calls and errors per second, and the 50 % and 95 % quantiles of durations (rounded up
    to powers of two). It also shows the calls in flight, how many of them wait to be sent, and
    for how long the oldest has waited. In a terminal the keys c, e, p, t, w and s sort by calls,
    errors, duration, total, wait and name; q exits.
    """
    view = TrafficView(sort, every, count, limit)
    try:
        with_client(connection, view.run)
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal end


class TrafficView:
    def __init__(self, sort: str, every: float, count: int | None, limit: int) -> None:
        self._sort = sort
        self._every = every
        self._count = count
        self._limit = limit
        self._rates = Rates()
        self._rows: list[Row] = []
        self._silent: Sequence[str] = ()
        self._is_reachable = True
        self._pressed = asyncio.Event()
        self._is_done = False

    async def run(self, client: AsyncClient) -> None:
        if not sys.stdout.isatty():
            await self._poll(client, self._print)
            return
        from rich.live import Live

        with Live(self._render(), screen=self._count is None, auto_refresh=False) as live:

            def draw() -> None:
                live.update(self._render(), refresh=True)

            with _keys(self._on_key):
                await self._poll(client, draw)

    async def _poll(self, client: AsyncClient, show: Callable[[], None]) -> None:
        from leaseway.sdk import ControlPlaneUnavailable
        from leaseway.sdk.operators.observe import fetch_traffic

        remaining = self._count
        self._take(await fetch_traffic(client))
        while not self._is_done and remaining != 0:
            await self._pause(show)
            try:
                report = await fetch_traffic(client)
            except ControlPlaneUnavailable:
                self._is_reachable = False
            else:
                self._is_reachable = True
                self._take(report)
            show()
            remaining = None if remaining is None else remaining - 1

    async def _pause(self, show: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._every
        while not self._is_done:
            self._pressed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._pressed.wait()
            except TimeoutError:
                return
            show()

    def _on_key(self, key: str) -> None:
        self._is_done = self._is_done or key == _QUIT
        self._sort = _KEYS.get(key, self._sort)
        self._pressed.set()

    def _take(self, report: TrafficReport) -> None:
        self._rows, self._silent = self._rates.rows(report), report.silent_workers

    def _shown(self) -> list[Row]:
        return sorted(self._rows, key=partial(_order, sort=self._sort))[: self._limit]

    def _print(self) -> None:
        print_table(_HEADERS, list(_cells(self._shown())), "No calls yet.")

    def _render(self) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        title = f"calls by server, sorted by {self._sort}   (c e p t w s sort, q ends)"
        if not self._is_reachable:
            title = "The control plane is unreachable; waiting for it."
        elif self._silent:
            title += f"   no response from {', '.join(self._silent)}"
        table = Table(title=Text(visible(title)), box=SIMPLE_HEAD, title_justify="left")
        for index, header in enumerate(_HEADERS):
            table.add_column(header, justify="right" if index else "left")
        for row in _cells(self._shown()):
            table.add_row(*(Text(visible(cell)) for cell in row))
        return table


def _cells(rows: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        yield (
            row.server,
            f"{row.calls:.1f}",
            f"{row.errors:.1f}",
            _time(row.p50),
            _time(row.p95),
            f"{row.total:,}",
            f"{row.failed:,}",
            *load_cells(row),
        )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return duration(seconds)


@contextlib.contextmanager
def _keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Call `on_key` for each key pressed while the block runs, if stdin is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()

    def read_keys() -> None:
        # Not with `sys.stdin`, which would buffer keys that were typed together with the first.
        for key in os.read(number, _MAX_KEYS).decode(errors="replace") or _QUIT:
            on_key(key)

    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    loop.add_reader(number, read_keys)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
