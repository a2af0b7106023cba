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
from benchmarks.rows import floor, front, official, own
from benchmarks.rows.row import Row
from benchmarks.specials.special import Special

__all__ = ["SPECIALS"]

_STARTS = 3
_PAIRS = 5
_IN_FLIGHT = 32
_SECONDS = 0.5
_ROWS: Mapping[str, Row] = {
    row.name: row for row in (*floor.ROWS, *official.ROWS, *own.ROWS, *front.ROWS)
}


async def _measure(name: str, other: str, in_flight: int) -> Mapping[str, float]:
    pairs: list[Pair] = []
    for _ in range(_STARTS):
        async with _ROWS[name].open() as one, _ROWS[other].open() as second:
            pairs += await measure_pairs(
                functools.partial(_load, one, in_flight),
                functools.partial(_load, second, in_flight),
                _PAIRS,
            )
    return compare(pairs)


async def _load(driver: Driver, in_flight: int) -> Load:
    return await driver.load(in_flight, _SECONDS)


def _pair(special: str, title: str, name: str, other: str, in_flight: int = _IN_FLIGHT) -> Special:
    return Special(special, title, functools.partial(_measure, name, other, in_flight), 1)


SPECIALS = (
    _pair("traced_to_plain", "all spans recorded, to none", "traced", "stdio"),
    _pair("leased_to_shared", "32 leased servers, to 32 shared ones", "leased", "shared_32"),
    _pair("leased_to_one", "32 leased servers, to one shared one", "leased", "stdio"),
    _pair("raw_pipes_to_one", "32 servers behind raw pipes, to one", "raw_pipes", "raw_pipe"),
    _pair("limited_to_plain", "limits of server and tool, to none", "limited", "stdio"),
    _pair("limited_alone", "the same, one call at a time", "limited", "stdio", 1),
    _pair("http_to_official", "an HTTP server, to the official client", "http", "official_http"),
    _pair("stdio_1m_to_raw", "results of 1 MiB, to a raw pipe", "stdio_1m", "raw_pipe_1m", 8),
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
        "mcp_worker_audited_to_plain",
        "MCP in the worker, policy and audit on, to without",
        "mcp_worker_audited",
        "mcp_worker",
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
