"""What a worker reports of its instances: all of them once in a stream, then only what changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, assert_never, get_args

from leaseway.data_plane.core.ports import ClientState
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.spec.codec import key_to_proto
from leaseway.spec.model import VariantKey
from leaseway.v1 import catalog_pb2, sync_pb2
from leaseway.wire.messages.states import InstanceRole, InstanceState
from leaseway.wire.timing.durations import timestamp


class InstanceReport(NamedTuple):
    """The state of an instance, or of a server in backoff or at rest.

    Compared to find what has changed, as that is much cheaper than messages.

    Attributes:
        retry_at: When its server starts again, in the time of the event loop, or None.
        serves: Whom a ready spare serves (`Greeting.serves`).
    """

    id: str
    state: InstanceState
    lease_id: str
    pid: int
    variant: VariantKey
    starts: int
    launch_hash: str
    role: InstanceRole
    failures: int
    circuit: str
    retry_at: float | None
    serves: tuple[str, ...] = ()


def instance_states(generations: Iterable[Generation]) -> dict[str, InstanceReport]:
    """Return the state of every instance, and of each server in backoff or at rest, by a key."""
    states: dict[str, InstanceReport] = {}
    for generation in generations:
        for live in generation.instances:
            states[live.instance.id] = _state_of(generation, _state(generation, live), live)
        if generation.key.user and generation.needs_login:
            continue  # one user's missing login says nothing about the server
        if generation.is_backing_off or generation.is_resting:
            state: InstanceState = "backoff" if generation.is_backing_off else "idle"
            key = f"{generation.key} without instances"
            while key in states:  # of another generation of the same server
                key += "+"
            states[key] = _state_of(generation, state, None)
    return states


class InstanceReports:
    """What the control plane was told of the instances on the current stream."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._reported: dict[str, InstanceReport] = {}
        self._version = 0

    def reset(self) -> None:
        """Report all instances next."""
        self._reported, self._version = {}, 0

    def add_changes(self, report: sync_pb2.Report, states: dict[str, InstanceReport]) -> None:
        """Add to a report what has changed since the last one, or all instances to the first."""
        before = self._reported
        changed = [key for key, state in states.items() if _differs(before.get(key), state)]
        gone = [key for key in before if key not in states]
        if self._version and not changed and not gone:
            return
        self._reported = states
        self._version += 1
        report.instances_version = self._version
        for key in changed:
            status = state_to_proto(states[key], self._worker_id)
            report.instance_changes.add(key=key, status=status)
        for key in gone:
            report.instance_changes.add(key=key)


def _differs(before: InstanceReport | None, state: InstanceReport) -> bool:
    """Return whether a state has changed, apart from the starts of its server.

    Each new instance counts one, which must not make all others of the server change.
    """
    return before is None or before._replace(starts=state.starts) != state


def state_to_proto(state: InstanceReport, worker_id: str) -> catalog_pb2.InstanceStatus:
    return catalog_pb2.InstanceStatus(
        worker_id=worker_id,
        id=state.id,
        state=state.state,
        lease_id=state.lease_id,
        pid=state.pid,
        variant=key_to_proto(state.variant),
        starts=state.starts,
        launch_hash=state.launch_hash,
        role=state.role,
        failures=state.failures,
        circuit=state.circuit,
        next_start_at=timestamp(_wall_time(state.retry_at)) if state.retry_at is not None else None,
        serves=state.serves,
    )


def _state_of(
    generation: Generation, state: InstanceState, live: LiveInstance | None
) -> InstanceReport:
    instances = generation.instances
    breaker = instances.circuit_breaker
    role = instances.role(live)
    is_waiting = live is not None and role == "spare" and state == "ready"
    return InstanceReport(
        id=live.instance.id if live is not None else instances.last_id,
        state=state,
        lease_id=live.lease_id if live is not None else "",
        pid=(live.instance.pid or 0) if live is not None else 0,
        variant=generation.key,
        starts=instances.starts,
        launch_hash=generation.launch_hash,
        role=role,
        failures=breaker.failures,
        circuit=breaker.circuit,
        retry_at=breaker.retry_at if breaker.failures else None,
        serves=live.serves if live is not None and is_waiting else (),
    )


def _reported(state: ClientState) -> InstanceState:
    match state:
        case "starting" | "ready" | "disconnected":
            return state
        case "closing" | "closed" | "failed":
            return "closed"
    assert_never(state)


# A package may break its word, which must not cost the reports of all other servers.
_REPORTED: Final[Mapping[str, InstanceState]] = {
    state: _reported(state) for state in get_args(ClientState)
}


def _state(generation: Generation, live: LiveInstance) -> InstanceState:
    state = _REPORTED.get(live.instance.state, "closed")
    if live.is_queued and state != "closed":
        return "queued"
    draining = generation.draining or live.draining
    return "draining" if draining and state == "ready" else state


def _wall_time(at: float) -> float:
    """Return the Unix time of a time of the event loop."""
    return time.time() + at - asyncio.get_running_loop().time()
