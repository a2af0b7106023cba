"""Comparisons of two rows in pairs.

Rows of the table are measured minutes apart, which hides differences of a tenth. Here both systems
run at once and are measured in turn, and are restarted a few times, because two runs of the same
program differ too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from benchmarks.figures import Load
from benchmarks.load import Driver
from benchmarks.pairs import Pair, compare, measure_pairs
from benchmarks.rows import front, own
from benchmarks.rows.row import Row
from benchmarks.specials.special import Special

__all__ = ["SPECIALS"]

_STARTS = 4
_PAIRS = 10
_IN_FLIGHT = 32
_SECONDS = 1.0
_ROWS: Mapping[str, Row] = {row.name: row for row in (*own.ROWS, *front.ROWS)}


async def _measure(name: str, other: str) -> Mapping[str, float]:
    pairs: list[Pair] = []
    for _ in range(_STARTS):
        async with _ROWS[name].open() as one, _ROWS[other].open() as second:
            pairs += await measure_pairs(
                functools.partial(_load, one), functools.partial(_load, second), _PAIRS
            )
    return compare(pairs)


async def _load(driver: Driver) -> Load:
    return await driver.load(_IN_FLIGHT, _SECONDS)


def _pair(special: str, title: str, name: str, other: str) -> Special:
    return Special(special, title, functools.partial(_measure, name, other), 1)


SPECIALS = (
    _pair("rest_tools", "a REST API as tools, to a streamable-HTTP server", "http_api", "http"),
    _pair("audited_to_plain", "policy and audit on, to without", "audited", "stdio"),
    _pair("ruled_to_plain", "policy, audit and a CEL rule, to without", "ruled", "stdio"),
    _pair(
        "leased_audited_to_plain",
        "leased, policy and audit on, to without",
        "leased_audited",
        "leased",
    ),
    _pair(
        "mcp_front_to_bare_http", "MCP front, to a bare aiohttp handler", "mcp_front", "bare_http"
    ),
    _pair(
        "mcp_front_to_bare_grpc",
        "MCP front, to a handler that makes a gRPC call",
        "mcp_front",
        "bare_http_grpc",
    ),
)
