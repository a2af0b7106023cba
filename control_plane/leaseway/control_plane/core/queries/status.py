"""The state of configured servers: whether they work, and on how many workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from leaseway.control_plane.core.catalog.tenant_hiding import hides_temporarily
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Reason
from leaseway.wire.messages.states import ServerState


@dataclass(frozen=True)
class VariantStatus:
    """The state of a variant.

    Attributes:
        state: The state; without a worker whose probe ended it is `PENDING`.
        up: Number of workers on which it is up.
        workers: Number of connected workers that serve it.
    """

    state: ServerState
    up: int = 0
    workers: int = 0

    @property
    def is_up(self) -> bool:
        """Whether it is up on some worker."""
        return self.state.is_up


def variant_status(state: Coordinator, key: VariantKey) -> VariantStatus:
    served = state.visible.served.get(key)
    if hides_temporarily(served, state.servers.desired or {}):
        served = None
    troubled = (
        key in state.servers.failures
        or key.server_id in state.servers.rejected
        or key in state.servers.refused
        or key in state.servers.unplaced
    )
    if served is None or served.awaits_login:
        failure = state.servers.failures.get(key)
        awaits = failure is None and served is not None  # told by a worker, and not tried yet
        if awaits or (failure is not None and failure.reason == Reason.LOGIN_REQUIRED):
            return VariantStatus(ServerState.NEEDS_LOGIN)
        return VariantStatus(ServerState.FAILED if troubled else ServerState.PENDING)
    count = state.roster.count_serving(served)
    if count:  # it is up on all of them
        return VariantStatus(ServerState.DEGRADED if troubled else ServerState.READY, count, count)
    workers = [
        record
        for record in state.workers.values()
        if record.connected and record.subscription.has(served)
    ]
    found = [_worker_state(record, served) for record in workers]
    up = found.count("up")
    if not up:
        down = ServerState.STARTING if "starting" in found else ServerState.FAILING
        if down is ServerState.FAILING and _needs_login(state, key):
            down = ServerState.NEEDS_LOGIN
        return VariantStatus(down, 0, len(workers))
    whole = not troubled and "failing" not in found
    return VariantStatus(ServerState.READY if whole else ServerState.DEGRADED, up, len(workers))


def counted_variants(state: Coordinator, tenant: str | None = None) -> list[VariantKey]:
    """Return the variants of all configured servers, in any order.

    Args:
        tenant: The tenant whose servers are counted; None for all.
    """
    if tenant is not None:
        return list(state.servers.variants_of(tenant).values())
    wanted = {key for key, spec in (state.servers.desired or {}).items() if not spec.hidden}
    return [*wanted.union(map(VariantKey, state.servers.rejected))]


def servers_down(state: Coordinator, variants: Iterable[VariantKey]) -> set[str]:
    """Return the servers of which one of these variants is not up: a server is up if all are."""
    return {key.server_id for key in variants if not variant_status(state, key).is_up}


def _needs_login(state: Coordinator, key: VariantKey) -> bool:
    """Return whether the variant that stands for all subjects has no login."""
    return state.problems.has(
        server_id=key.server_id, tenant=key.tenant, reason=Reason.LOGIN_REQUIRED.value
    )


def _worker_state(record: WorkerRecord, served: Served) -> Literal["up", "starting", "failing"]:
    launched = served.key, served.hashes.launch
    if record.is_up(*launched):
        return "up"
    if record.is_failing(*launched):
        return "failing"
    if not served.spec.truely_stateless:
        return "up"  # it starts for each lease
    instances = record.instances.all
    outlooks = {instance.outlook for instance in instances if instance.launched == launched}
    if "starting" in outlooks:
        return "starting"
    # Without an instance, the next call starts one.
    return "failing" if {"hanging", "ended"} & outlooks else "up"
