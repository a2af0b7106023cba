"""The words for states that several parts of the system exchange and show. Pure.

Each vocabulary has its one home here: the cores decide by it, the messages carry its words, and
the SDK, the CLI, the console, Kubernetes and the documents show them. A `match` over one ends in
`assert_never`, and `tests/wire/test_states.py` looks every word up in every place that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, assert_never, get_args

from leaseway.wire.errors import Reason


class ServerState(StrEnum):
    """The state of a configured server, the worst first."""

    FAILED = "failed"
    FAILING = "failing"
    NEEDS_LOGIN = "needs login"
    UNKNOWN = "unknown"
    DEGRADED = "degraded"
    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"

    @property
    def is_up(self) -> bool:
        """Whether callers can use the server on some worker."""
        return self is ServerState.READY or self is ServerState.DEGRADED

    @property
    def meaning(self) -> str:
        """What the state means, in a sentence."""
        return _MEANINGS[self]

    @property
    def rank(self) -> int:
        """Its place in the order, from 0 for the worst."""
        return _RANKS[self]


_MEANINGS: Final[Mapping[ServerState, str]] = {
    ServerState.FAILED: "It has never started, and none of its tools are listed.",
    ServerState.FAILING: "It worked before; now it starts on none of its workers.",
    ServerState.NEEDS_LOGIN: (
        "Nobody has logged in to this remote server, or the login has ended: see `leaseway login`."
    ),
    ServerState.UNKNOWN: "The control plane is newer than this program: upgrade it.",
    ServerState.DEGRADED: (
        "It serves its last working state, or does not run on some of its workers."
    ),
    ServerState.PENDING: "No worker's first try to start it has ended yet.",
    ServerState.STARTING: "Its workers are starting it.",
    ServerState.READY: "It serves calls on all of its workers.",
}
_RANKS: Final[Mapping[ServerState, int]] = {state: at for at, state in enumerate(ServerState)}

WorkerState = Literal["connected", "draining", "lost"]
"""The state of a worker for the control plane."""

InstanceState = Literal[
    "queued", "starting", "ready", "draining", "backoff", "idle", "disconnected", "closed"
]
"""The state of an instance as its worker reports it. A `queued` one starts when fewer others do;
`backoff` and `idle` stand for a server without an instance."""

InstanceRole = Literal["shared", "leased", "spare"]
"""Whose calls an instance runs: those of all sessions, those on one lease, or, as a `spare`, none
before it is leased."""


def instance_word(state: str, role: str) -> str:
    """Return the word by which instances are counted for people.

    That is what a ready one is for, if another one may be for something else, or else its state.
    """
    return role if state == "ready" and role in ("leased", "spare") else state


CircuitState = Literal["closed", "open", "half_open"]
"""The state of a server's circuit breaker on one worker."""

LeaseOutcome = Literal["expired", "revoked", "released", "lost"]
"""How a lease ended."""

ApprovalState = Literal["waiting", "approved", "denied", "used", "expired"]
"""The state of a call that needs a person's approval."""

ProblemScope = Literal["workspace", "server", "worker", "client"]
"""The kind of thing that a problem affects."""

Severity = Literal["error", "warning"]
"""How bad a problem is."""

CallSelection = Literal["recent", "slow", "failed"]
"""Which of the remembered calls to list."""


def _reason_of_end(outcome: LeaseOutcome) -> Reason:
    match outcome:
        case "expired":
            return Reason.LEASE_EXPIRED
        case "revoked":
            return Reason.LEASE_REVOKED
        case "released":
            return Reason.LEASE_RELEASED
        case "lost":
            return Reason.LEASE_LOST
    assert_never(outcome)


CALL_OK: Final = "ok"
TOOL_ERROR: Final = "tool_error"
"""Outcomes of a call with a result; the outcome of any other call is the reason of its error."""

WORKER_STATES: Final[tuple[WorkerState, ...]] = get_args(WorkerState)
INSTANCE_STATES: Final[tuple[InstanceState, ...]] = get_args(InstanceState)
LEASE_OUTCOMES: Final[tuple[LeaseOutcome, ...]] = get_args(LeaseOutcome)

LEASE_END_REASONS: Final[Mapping[str, Reason]] = {
    outcome: _reason_of_end(outcome) for outcome in LEASE_OUTCOMES
}
"""The reason with which callers are told that their lease has ended, by how it ended."""

LEASE_ENDED: Final = frozenset(LEASE_END_REASONS.values())
"""The reasons of calls whose lease has ended."""

VOCABULARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "ServerState": tuple(ServerState),
    "WorkerState": WORKER_STATES,
    "InstanceState": INSTANCE_STATES,
    "InstanceRole": get_args(InstanceRole),
    "CircuitState": get_args(CircuitState),
    "LeaseOutcome": LEASE_OUTCOMES,
    "ApprovalState": get_args(ApprovalState),
    "ProblemScope": get_args(ProblemScope),
    "Severity": get_args(Severity),
    "CallSelection": get_args(CallSelection),
    "CallOutcome": (CALL_OK, TOOL_ERROR),
}
"""All words of each vocabulary, for the test that looks for their places."""
