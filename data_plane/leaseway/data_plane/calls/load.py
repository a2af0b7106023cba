"""The calls in flight of each server, and how long the oldest unsent one has waited. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.tools.prompts_resources import SUBSCRIBE

UNKNOWN_SERVER: Final = ""
"""The server of calls whose server id may be any text."""


@dataclass(slots=True)
class CallLoad:
    """The calls in flight of one server.

    Attributes:
        in_flight: How many have not ended.
        waiting: How many of them were not sent: they wait for a turn, an instance, a lease or an
            approval.
        oldest_wait: Seconds that the oldest of these has waited.
    """

    in_flight: int = 0
    waiting: int = 0
    oldest_wait: float = 0.0


def call_loads(
    calls: Iterable[ActiveCall], servers: Collection[str], now: float
) -> dict[str, CallLoad]:
    """Return the load of each server, also of those without calls.

    Args:
        calls: The calls in flight.
        servers: The ids of the servers; calls of others count as `UNKNOWN_SERVER`.
        now: The time, as `time.perf_counter` counts.
    """
    loads = {server_id: CallLoad() for server_id in servers}
    for active in calls:
        server_id = active.call.server_id
        load = loads.get(server_id)
        if load is None:
            load = loads.setdefault(UNKNOWN_SERVER, CallLoad())
        load.in_flight += 1
        if active.pending is None and active.call.method != SUBSCRIBE:
            load.waiting += 1
            load.oldest_wait = max(load.oldest_wait, now - active.arrived_at)
    return loads
