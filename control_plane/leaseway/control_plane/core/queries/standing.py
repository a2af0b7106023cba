"""Where a configured server stands: whether it came up at all, and on how many workers it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from leaseway.control_plane.core.catalog.tenant_hiding import hides_temporarily
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.queries.place import variants_of
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.spec.model import VariantKey

State = Literal["pending", "failed", "ready", "degraded", "failing", "starting"]


@dataclass(frozen=True)
class VariantStatus:
    """How a variant does.

    Attributes:
        state: `pending` before its first result, `failed` where that was bad and nothing is
            exposed; else by its instances: `ready`, `degraded` where it does not run on some
            workers or its newest configuration failed, `failing` where it runs on none, and
            `starting`.
        up: On how many workers callers find it.
        workers: How many connected workers serve it.
    """

    state: State
    up: int = 0
    workers: int = 0

    @property
    def is_up(self) -> bool:
        """Whether callers find it somewhere."""
        return self.state in ("ready", "degraded")


def standing(state: Coordinator, key: VariantKey) -> VariantStatus:
    served = state.visible.served.get(key)
    if hides_temporarily(served, state.servers.desired or {}):
        served = None
    troubled = (
        key in state.servers.failures
        or key.server_id in state.servers.rejected
        or key in state.servers.refused
        or key in state.servers.unplaced
    )
    if served is None:
        return VariantStatus("failed" if troubled else "pending")
    workers = [
        record
        for record in state.workers.values()
        if record.connected and record.subscription.has(served)
    ]
    found = [_on_worker(record, served) for record in workers]
    up = found.count("up")
    if not up:
        return VariantStatus("starting" if "starting" in found else "failing", 0, len(workers))
    whole = not troubled and "failing" not in found
    return VariantStatus("ready" if whole else "degraded", up, len(workers))


def count_servers_up(state: Coordinator, tenant: str | None = None) -> tuple[int, int]:
    """Return how many configured servers callers find somewhere, and how many there are.

    A server of which tenants have variants of their own is up where all of these are.

    Args:
        state: What is known.
        tenant: Whose servers are counted; None for all there are.
    """
    if tenant is not None:
        wanted = set(variants_of(state, tenant).values())
    else:
        wanted = {key for key, spec in (state.servers.desired or {}).items() if not spec.hidden}
        wanted |= {VariantKey(each) for each in state.servers.rejected}
    down = {key.server_id for key in wanted if not standing(state, key).is_up}
    ids = {key.server_id for key in wanted}
    return len(ids - down), len(ids)


def _on_worker(record: WorkerRecord, served: Served) -> Literal["up", "starting", "failing"]:
    launched = served.key, served.hashes.launch
    if record.is_up(*launched):
        return "up"
    if record.is_failing(*launched):
        return "failing"
    if not served.spec.truely_stateless:
        return "up"  # it starts for each lease
    states = {one.state for one in record.instances if one.launched == launched}
    return _shared_state(states)


def _shared_state(states: Iterable[str]) -> Literal["up", "starting", "failing"]:
    if "starting" in states:
        return "starting"
    # Where there is no instance at all, the next call starts one.
    return "failing" if {"disconnected", "closed"} & set(states) else "up"
