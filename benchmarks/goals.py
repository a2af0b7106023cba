"""Performance goals of Leaseway, mostly as ratios within one run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import Figures, Load, Spread, ratio, spread

__all__ = ["GOALS", "Goal", "GoalResult", "judge"]

Results = Mapping[str, Sequence[Figures]]
"""The figures of each row, by round."""


@dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        title: The compared figures.
        limit: The figure to reach.
        at_most: Whether less is better.
        measure: Computes the figure from the results; None if a row is missing.
    """

    title: str
    limit: float
    at_most: bool
    measure: Callable[[Results], Spread | None]
    unit: str = "×"


@dataclass(frozen=True)
class GoalResult:
    """A goal with its figure, or None if it was not measured."""

    goal: Goal
    figure: Spread | None

    @property
    def is_reached(self) -> bool:
        """Whether the median reaches the goal."""
        if self.figure is None:
            return False
        median = self.figure.median
        return median <= self.goal.limit if self.goal.at_most else median >= self.goal.limit


def judge(results: Results) -> list[GoalResult]:
    """Return every goal with its figure, in order."""
    return [GoalResult(goal, goal.measure(results)) for goal in GOALS]


def _rate(in_flight: int) -> Callable[[Figures], float | None]:
    return lambda figures: figures.loads[in_flight].rate if in_flight in figures.loads else None


def _rates(own: str, other: str, in_flight: int) -> Callable[[Results], Spread | None]:
    def measure(results: Results) -> Spread | None:
        return ratio(results.get(own, ()), results.get(other, ()), _rate(in_flight))

    return measure


def _sequential(results: Results) -> Spread | None:
    rounds = zip(
        *(results.get(name, ()) for name in ("stdio", "raw_pipe", "grpc_stream")), strict=False
    )
    return spread(
        own.loads[1].p50 / (pipe.loads[1].p50 + stream.loads[1].p50)
        for own, pipe, stream in rounds
        if all(1 in measured.loads for measured in (own, pipe, stream))
    )


def _cpu(row: str, figure: Callable[[Load], float]) -> Callable[[Results], Spread | None]:
    return lambda results: spread(
        figure(measured.loads[32]) for measured in results.get(row, ()) if 32 in measured.loads
    )


def _worker_cpu(row: str) -> Callable[[Results], Spread | None]:
    return _cpu(row, lambda load: load.worker_cpu)


def _client_cpu(row: str) -> Callable[[Results], Spread | None]:
    return _cpu(row, lambda load: load.client_cpu)


def _to_official(row: str, figure: Callable[[Load], float]) -> Callable[[Results], Spread | None]:
    """Divide by the CPU of the official client's calls, to be independent of the machine."""

    def measure(results: Results) -> Spread | None:
        rounds = zip(results.get(row, ()), results.get("official_stdio", ()), strict=False)
        return spread(
            figure(own.loads[32]) / official.loads[32].client_cpu
            for own, official in rounds
            if 32 in own.loads and 32 in official.loads
        )

    return measure


def _special(name: str, figure: str) -> Callable[[Results], Spread | None]:
    return lambda results: spread(
        measured.more[figure] for measured in results.get(name, ()) if figure in measured.more
    )


def _warm_lease(results: Results) -> Spread | None:
    rounds = results.get("leases_warm", ())
    return spread(
        measured.more["warm_1_p50_ms"] / measured.more["call_p50_ms"] for measured in rounds
    )


_OFFICIAL_CPU = 160
"""CPU µs of the official client per call, on the machine for which the goals in µs were set."""

GOALS = (
    Goal("calls/s, 32 in flight, to the official client", 5, False,
         _rates("stdio", "official_stdio", 32)),
    Goal("the same, 128 in flight", 7, False, _rates("stdio", "official_stdio", 128)),
    Goal("calls/s, 32 in flight, to supergateway", 12, False,
         _rates("stdio", "supergateway", 32)),
    Goal("the same to mcp-proxy", 22, False, _rates("stdio", "mcp_proxy", 32)),
    Goal("the same to the FastMCP proxy", 50, False, _rates("stdio", "fastmcp", 32)),
    Goal("MCP front over HTTP, 32 in flight, to supergateway", 2.5, False,
         _rates("mcp_front", "supergateway", 32)),
    Goal("MCP front, the same, to mcp-proxy", 5, False, _rates("mcp_front", "mcp_proxy", 32)),
    Goal("MCP front, the same, to the FastMCP proxy", 12, False,
         _rates("mcp_front", "fastmcp", 32)),
    Goal("MCP front, CPU per call, to a bare aiohttp handler's", 1.2, True,
         _special("mcp_front_to_bare_http", "cpu_ratio")),
    Goal("the same to an aiohttp handler's that makes a gRPC call", 0.6, True,
         _special("mcp_front_to_bare_grpc", "cpu_ratio")),
    Goal("sequential p50 to gRPC stream + raw pipe", 1.15, True, _sequential),
    Goal("CPU of a call with all spans recorded, to without", 1.4, True,
         _special("traced_to_plain", "all_cpu_ratio")),
    Goal("CPU of a call of 32 leased servers, to 32 shared ones", 1.25, True,
         _special("leased_to_shared", "all_cpu_ratio")),
    Goal("p50 of a call with limits, one at a time, to without", 1.1, True,
         _special("limited_alone", "p50_ratio")),
    Goal("policy and audit on, 32 in flight, to without", 0.9, False,
         _special("audited_to_plain", "rate_ratio")),
    Goal("the same with a CEL rule", 0.7, False,
         _special("ruled_to_plain", "rate_ratio")),
    Goal("leased servers, policy and audit on, to without", 0.85, False,
         _special("leased_audited_to_plain", "rate_ratio")),
    Goal("MCP in the worker, policy and audit on, to without", 0.85, False,
         _special("mcp_worker_audited_to_plain", "rate_ratio")),
    Goal("p99 of a tenant's calls while another tenant floods the server, to alone", 1.5, True,
         _special("flooded", "p99_ratio")),
    Goal("HTTP server, 32 in flight, to the official client", 7, False,
         _special("http_to_official", "rate_ratio")),
    Goal("a REST API as tools, 32 in flight, to streamable HTTP", 0.8, False,
         _special("rest_tools", "rate_ratio")),
    Goal("one rendering of a response template, p50", 1000, True,
         _special("templates", "render_median_us"), unit="µs"),
    Goal("compilations for 10,000 renderings", 1, True, _special("templates", "compiles"), unit=""),
    Goal("calls/s with console, remembered calls and events, to without", 0.97, False,
         _special("watched", "rate_ratio")),
    Goal("worker CPU per call, 32 in flight", 25, True, _worker_cpu("stdio"), unit="µs"),
    Goal("the same with all spans recorded", 90, True, _worker_cpu("traced"), unit="µs"),
    Goal("SDK CPU per call, 32 in flight", 25, True, _client_cpu("stdio"), unit="µs"),
    Goal("the same of the synchronous client, 32 threads", 60, True, _client_cpu("sync"),
         unit="µs"),
    Goal("worker CPU per call, to the official client's", 25 / _OFFICIAL_CPU, True,
         _to_official("stdio", lambda load: load.worker_cpu)),
    Goal("worker CPU with all spans recorded, the same", 90 / _OFFICIAL_CPU, True,
         _to_official("traced", lambda load: load.worker_cpu)),
    Goal("SDK CPU per call, to the official client's", 25 / _OFFICIAL_CPU, True,
         _to_official("stdio", lambda load: load.client_cpu)),
    Goal("SDK CPU of the synchronous client, the same", 60 / _OFFICIAL_CPU, True,
         _to_official("sync", lambda load: load.client_cpu)),
    Goal("1 MiB results, to a raw pipe copy", 0.7, False,
         _special("stdio_1m_to_raw", "rate_ratio")),
    Goal("memory of a fresh worker", 110, True, _special("memory", "fresh_mib"), unit="MiB"),
    Goal("memory of an idle leased client", 50, True,
         _special("memory", "per_idle_client_kib"), unit="KiB"),
    Goal("memory after 1,000,000 calls to after 10,000", 1.02, True, _special("million", "ratio")),
    Goal("lease from a warm spare, p50, to one call's", 5, True, _warm_lease),
    Goal("1 of 500 servers changed, to probe + debounce", 1.5, True, _special("reload", "ratio")),
    Goal("p99 beside a server that never answers, to alone", 1.5, True,
         _special("neighbour", "p99_ratio")),
)  # fmt: skip
