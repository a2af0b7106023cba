"""How long acquiring a lease takes, and how many are acquired a second: one, 32 and 200 at once.

Three ways: from a warm spare, with the start of a process (cold), and by taking over the start of a
spare that is in progress. One client acquires all leases of a burst, each in a session of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final

from benchmarks.figures import percentile
from benchmarks.processes import echo_server, leaseway
from benchmarks.rows.row import TEXT, check
from benchmarks.specials.special import Special
from benchmarks.usage import cpu_of, own_cpu
from leaseway.sdk import AsyncClient, AsyncSession, InstanceInfo, ServerInfo

__all__ = ["AT_ONCE", "SPECIALS", "WAYS"]

WAYS: Final = {
    "warm": "from a warm spare",
    "takeover": "taking over a start of 500 ms",
    "cold": "with the start of a process",
}
"""The ways to acquire a lease, with their titles; each is a special measurement, `leases_WAY`."""
_BURSTS: Final = {1: 40, 32: 4, 200: 2}
"""How many bursts there are of each number of leases at once."""
AT_ONCE: Final = tuple(_BURSTS)
"""How many leases are acquired at once."""
_TAKEOVERS: Final = {1: 10, 32: 2, 200: 1}
"""The same of takeovers, which have to wait for new spares each time."""
_CALLS: Final = 400
_SPARES_TIMEOUT: Final = 120.0
_POLL: Final = 0.02
_START_SECONDS: Final = 0.5
"""How long the servers of the takeover need to start: longer than their listing is behind."""


class _Bursts:
    """The durations of the leases of one way, by how many were acquired at once.

    Args:
        way: Its name in the figures.
        planes: The processes whose CPU time is counted, with that of this process.
    """

    def __init__(self, way: str, planes: Sequence[int]) -> None:
        self._way = way
        self._planes = planes
        self._durations: defaultdict[int, list[float]] = defaultdict(list)
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._cpu: defaultdict[int, float] = defaultdict(float)

    async def acquire(self, at_once: int, sessions: Sequence[tuple[AsyncSession, str]]) -> None:
        """Acquire a lease of the named server in each session, all at once."""
        cpu, start = self._cpu_seconds(), time.perf_counter()
        durations = await asyncio.gather(*(_acquire(*session) for session in sessions))
        self._seconds[at_once] += time.perf_counter() - start
        self._cpu[at_once] += self._cpu_seconds() - cpu
        self._durations[at_once] += durations

    def _cpu_seconds(self) -> float:
        return own_cpu() + cpu_of(self._planes)

    def figures(self) -> dict[str, float]:
        """Return p50, p99, leases per second and CPU time of each number, without the servers'."""
        found: dict[str, float] = {}
        for at_once, durations in self._durations.items():
            ordered = sorted(durations)
            name = f"{self._way}_{at_once}"
            found[f"{name}_p50_ms"] = percentile(ordered, 0.5) * 1e3
            found[f"{name}_p99_ms"] = percentile(ordered, 0.99) * 1e3
            found[f"{name}_leases_s"] = len(ordered) / self._seconds[at_once]
            found[f"{name}_cpu_ms_a_lease"] = self._cpu[at_once] / len(ordered) * 1e3
        return found


async def _acquire(session: AsyncSession, server: str) -> float:
    start = time.perf_counter()
    await session.acquire(server)
    return time.perf_counter() - start


@contextlib.asynccontextmanager
async def _sessions(client: AsyncClient, count: int) -> AsyncIterator[list[AsyncSession]]:
    """Open new sessions, whose leases are released at the end."""
    numbers = range(count)
    sessions = [client.session(f"burst-{time.monotonic_ns()}-{number}") for number in numbers]
    async with contextlib.AsyncExitStack() as stack:
        for session in sessions:
            await stack.enter_async_context(session)
        yield sessions


async def _cold() -> Mapping[str, float]:
    server = echo_server(start="lazy")
    async with leaseway({"cold": server}) as system, AsyncClient(system.address) as client:
        bursts = _Bursts("cold", system.planes)
        for at_once, times in _BURSTS.items():
            for _ in range(times):
                async with _sessions(client, at_once) as sessions:
                    await bursts.acquire(at_once, [(session, "cold") for session in sessions])
    return bursts.figures()


async def _warm() -> Mapping[str, float]:
    most = max(_BURSTS)
    spares = {"few": 32, "many": most}
    servers = {name: echo_server(warm=count, max_instances=512) for name, count in spares.items()}
    async with leaseway(servers) as system, AsyncClient(system.address) as client:
        bursts = _Bursts("warm", system.planes)
        ready: Collection[str] = ()
        taken = 0
        for at_once, times in _BURSTS.items():
            server = "few" if at_once <= spares["few"] else "many"
            for _ in range(times):
                ready, taken = await _until_spares(client, spares, ready, taken), at_once
                async with _sessions(client, at_once) as sessions:
                    await bursts.acquire(at_once, [(session, server) for session in sessions])
        async with client.session("calls") as session:
            await session.call_tool("few:echo", {"text": TEXT})
            calls = sorted([await _one_call(session) for _ in range(_CALLS)])
    return {**bursts.figures(), "call_p50_ms": percentile(calls, 0.5) * 1e3}


async def _one_call(session: AsyncSession) -> float:
    start = time.perf_counter()
    result = await session.call_tool("few:echo", {"text": TEXT})
    seconds = time.perf_counter() - start
    check(result.text, TEXT)
    return seconds


async def _takeover() -> Mapping[str, float]:
    """Take the spares of as many servers, then acquire leases while their successors start."""
    entry = echo_server(str(_START_SECONDS), warm=1)
    servers = {f"s{number:03}": entry for number in range(max(_TAKEOVERS))}
    async with leaseway(servers) as system, AsyncClient(system.address) as client:
        bursts = _Bursts("takeover", system.planes)
        ready: Collection[str] = ()
        taken = 0
        for at_once, times in _TAKEOVERS.items():
            for _ in range(times):
                used, spares = list(servers)[:at_once], dict.fromkeys(servers, 1)
                ready, taken = await _until_spares(client, spares, ready, taken), at_once
                async with _sessions(client, at_once) as first, _sessions(client, at_once) as late:
                    await asyncio.gather(*map(_acquire, first, used))
                    starting = await _until_starting(client, used)
                    taking = [
                        (session, server)
                        for session, server in zip(late, used, strict=True)
                        if server in starting
                    ]
                    await bursts.acquire(at_once, taking)
    return {**bursts.figures(), "start_ms": _START_SECONDS * 1e3}


async def _until_spares(
    client: AsyncClient, spares: Mapping[str, int], before: Collection[str], taken: int
) -> Collection[str]:
    """Wait until servers have these numbers of ready spares, so that no start is in progress.

    Args:
        client: Lists the instances, as they were a moment ago.
        spares: The number of each server.
        before: The ready spares before the last burst.
        taken: How many of them it has taken. The list is of the time after it when they are gone.

    Returns:
        The ids of the ready spares.
    """
    async with asyncio.timeout(_SPARES_TIMEOUT):
        while True:
            listed = {server.id: _unleased(server, "ready") for server in await client.servers()}
            ready = {instance.id for of_server in listed.values() for instance in of_server}
            is_new = len(set(before) - ready) >= taken
            if is_new and all(len(listed[name]) >= count for name, count in spares.items()):
                return ready
            await asyncio.sleep(_POLL)


async def _until_starting(client: AsyncClient, servers: Sequence[str]) -> set[str]:
    """Wait until each of these servers has begun to start a spare; return those that still do."""
    async with asyncio.timeout(_SPARES_TIMEOUT):
        while True:
            listed = [server for server in await client.servers() if server.id in servers]
            starting = {server.id for server in listed if _unleased(server, "starting")}
            ready = {server.id for server in listed if _unleased(server, "ready")}
            if starting and starting | ready >= set(servers):
                return starting - ready
            await asyncio.sleep(_POLL)


def _unleased(server: ServerInfo, state: str) -> list[InstanceInfo]:
    return [
        instance
        for instance in server.instances
        if instance.state == state and not instance.lease_id
    ]


SPECIALS = (
    Special("leases_warm", f"leases {WAYS['warm']}", _warm, 3),
    Special("leases_takeover", f"leases {WAYS['takeover']}", _takeover, 1),
    Special("leases_cold", f"leases {WAYS['cold']}", _cold, 3),
)
