"""Unary calls that wait for their callers' answers between two requests (DESIGN §6).

Such a call may end while it waits; its result then waits for the caller, too. What all of them hold
has a bound, and so has the time, which is shorter on a worker that ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.struct_pb2 import Struct

from leaseway.data_plane.services.unary import UnarySink
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.limits import Scope, over_limit

_logger = logging.getLogger(__name__)

MAX_PARKED_BYTES: Final = 64 * bounds.MIB
"""What they may hold together: arguments, questions, events and results. Beyond it the one that
has waited longest is given up."""

PATIENCE: Final = 60.0
"""Seconds that a call waits."""

DRAIN_PATIENCE: Final = 5.0
"""Seconds that it waits at most once its worker ends."""

_MOST_REMEMBERED: Final = 256
"""Calls given up of which their callers can still be told why."""


@dataclass(frozen=True)
class _Parked:
    tenant: str
    collector: UnarySink
    expiry: asyncio.TimerHandle


@dataclass(frozen=True)
class _GivenUp:
    tenant: str
    reason: Reason
    sentence: str


class Continuations:
    """Where unary calls wait.

    Args:
        worker_id: This worker.
        incarnation: Its run.
        patience: Seconds that a call waits.
        drain_patience: Seconds that it waits once the worker ends.
        space: Bytes that the calls may hold together.
    """

    def __init__(
        self,
        worker_id: str,
        incarnation: str,
        patience: float = PATIENCE,
        drain_patience: float = DRAIN_PATIENCE,
        space: int = MAX_PARKED_BYTES,
    ) -> None:
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._patience = patience
        self._drain_patience = drain_patience
        self._space = space
        self._loop = asyncio.get_running_loop()
        self._parked: dict[str, _Parked] = {}  # the one that has waited longest first
        self._given_up: OrderedDict[str, _GivenUp] = OrderedDict()
        self._is_draining = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, collector: UnarySink) -> str:
        """Have a call wait for its caller; return the state that continues it, once.

        Raises:
            Fault: OVERLOADED: too many wait, of this tenant or of all.
        """
        full = self._full_for(collector)
        if full is not None:
            most, scope = full
            whose = "" if scope == "worker" else f" of this {scope}"
            raise over_limit(
                "parked",
                scope,
                f"{most} calls{whose} wait for their callers' answers on worker "
                f"{self._worker_id}; try again later, or call over an exchange.",
                started="yes",
            )
        state = f"{self._incarnation}.{secrets.token_urlsafe(24)}"
        expiry = self._loop.call_later(self._patience, self._expire, state)
        self._parked[state] = _Parked(collector.tenant, collector, expiry)
        collector.on_growth = self._plan_room
        self._plan_room()
        return state

    def _full_for(self, collector: UnarySink) -> tuple[int, Scope] | None:
        """Return the bound that keeps a call from waiting, and whose it is; None for none."""
        waiting = [parked.collector for parked in self._parked.values()]
        if sum(one.tenant == collector.tenant for one in waiting) >= bounds.MAX_TENANT_PARKED:
            return bounds.MAX_TENANT_PARKED, "tenant"
        alike = sum(one.connection == collector.connection for one in waiting)
        if alike >= bounds.MAX_CONNECTION_PARKED:
            return bounds.MAX_CONNECTION_PARKED, "connection"
        return (bounds.MAX_PARKED, "worker") if len(waiting) >= bounds.MAX_PARKED else None

    def resume(self, state: str, tenant: str, answers: Mapping[str, Struct]) -> UnarySink:
        """Return the call that waits under a state, with its caller's answers given.

        Raises:
            Fault: INVALID_REQUEST: none does, for this tenant; or an answer is to no question of
                it, and then it waits on. OVERLOADED, DRAINING: it was given up.
        """
        if state.partition(".")[0] != self._incarnation:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"This request_state is not of this run of worker {self._worker_id}: a call is "
                "continued on the worker that asked, and ends with it.",
            )
        parked = self._parked.get(state)
        if parked is None or parked.tenant != tenant:
            raise self._gone(state, tenant)
        parked.collector.answer(answers)
        self._take(state)
        return parked.collector

    def hurry(self) -> None:
        """Have what waits, now and later, wait for the time of a worker that ends only."""
        if self._is_draining:
            return
        self._is_draining = True
        self._patience = min(self._patience, self._drain_patience)
        latest = self._loop.time() + self._patience
        for state, parked in tuple(self._parked.items()):
            if parked.expiry.when() > latest:
                parked.expiry.cancel()
                expiry = self._loop.call_at(latest, self._expire, state)
                self._parked[state] = _Parked(parked.tenant, parked.collector, expiry)

    async def empty(self) -> None:
        """Wait until no call waits any more."""
        while self._parked:
            self._changed.clear()
            await self._changed.wait()

    def _take(self, state: str) -> UnarySink:
        parked = self._parked.pop(state)
        parked.expiry.cancel()
        parked.collector.on_growth = None
        self._changed.set()
        return parked.collector

    def _expire(self, state: str) -> None:
        reason = Reason.DRAINING if self._is_draining else Reason.INVALID_REQUEST
        ending = f"worker {self._worker_id} ends and " if self._is_draining else ""
        why = f"{ending}its caller did not answer for {self._patience:g} s"
        self._give_up(state, reason, why, logging.INFO)

    def _plan_room(self) -> None:
        # Not at once: what has grown is perhaps taking a server's answer, and ending another call
        # of that server in its midst is no business of this one.
        if self._held > self._space:
            self._loop.call_soon(self._make_room)

    def _make_room(self) -> None:
        while self._parked and self._held > self._space:
            why = (
                "calls that wait for their callers hold more than the "
                f"{self._space} bytes that worker {self._worker_id} keeps of them, and it had "
                "waited longest"
            )
            self._give_up(next(iter(self._parked)), Reason.OVERLOADED, why, logging.WARNING)

    @property
    def _held(self) -> int:
        return sum(parked.collector.held for parked in self._parked.values())

    def _give_up(self, state: str, reason: Reason, why: str, level: int) -> None:
        collector = self._take(state)
        kept = "its result was dropped" if collector.result.done() else "it was cancelled"
        sentence = f"{kept.capitalize()}: {why}. Call again, or call over an exchange."
        self._given_up[state] = _GivenUp(collector.tenant, reason, sentence)
        if len(self._given_up) > _MOST_REMEMBERED:
            self._given_up.popitem(last=False)
        _logger.log(level, "A call of %s without an exchange: %s: %s.", collector.what, kept, why)
        collector.leave(why)

    def _gone(self, state: str, tenant: str) -> Fault:
        given_up = self._given_up.get(state)
        if given_up is not None and given_up.tenant == tenant:
            return Fault(given_up.reason, f"The call waits no more. {given_up.sentence}", "yes")
        return Fault(
            Reason.INVALID_REQUEST,
            "No call waits under this request_state: it was continued already, or its "
            f"{self._patience:g} s have passed.",
        )
