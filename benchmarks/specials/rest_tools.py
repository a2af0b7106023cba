"""A REST API as tools beside a streamable-HTTP server, in pairs on one machine."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.figures import Load
from benchmarks.load import Driver
from benchmarks.pairs import Pair, compared, paired
from benchmarks.rows import own
from benchmarks.rows.row import Row
from benchmarks.specials.special import Special

__all__ = ["SPECIALS"]

_STARTS = 4
_PAIRS = 10
_IN_FLIGHT = 32
_SECONDS = 1.0
_ROWS: Mapping[str, Row] = {row.name: row for row in own.ROWS}


async def _measure() -> Mapping[str, float]:
    pairs: list[Pair] = []
    for _ in range(_STARTS):
        async with _ROWS["http_api"].open() as rest, _ROWS["http"].open() as http:
            pairs += await paired(lambda: _load(rest), lambda: _load(http), _PAIRS)
    return compared(pairs)


async def _load(driver: Driver) -> Load:
    return await driver.load(_IN_FLIGHT, _SECONDS)


SPECIALS = (Special("rest_tools", "a REST API as tools, to a streamable-HTTP server", _measure, 1),)
