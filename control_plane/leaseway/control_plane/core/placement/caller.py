"""Who asks for a placement. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leaseway.wire.clients.greeting import COMMON


@dataclass(frozen=True, slots=True)
class PlacementCaller:
    """Who asks for a placement, and what it prefers among the workers that may hold its lease.

    Attributes:
        worker_id: The worker in its process, or empty.
        spares: Whom a spare may serve that it can use (`Greeting.accepted`).
        client: Its random name, by which it is told from other clients of its session; empty if it
            is unknown.
    """

    worker_id: str = ""
    spares: frozenset[str] = COMMON.accepted
    client: str = ""


ANY_CALLER: Final = PlacementCaller()
