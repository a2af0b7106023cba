"""The queue of lease requests that wait for capacity (design.md#leases).

The queue decides which request is next; its caller decides whether there is capacity. A request
that was placed, but that its worker then refused, gets its old position back.
"""

from __future__ import annotations

import operator
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.caller import ANY_CALLER, PlacementCaller
from leaseway.control_plane.core.placement.capacity_errors import queue_full_error
from leaseway.control_plane.core.placement.room import RoomChanges
from leaseway.control_plane.core.placement.table import Placement
from leaseway.wire import bounds
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.turns import fair_order, find_evicted

PlacementOutcome = Placement | Denial
"""Ends a waiting request."""

AVOIDED_FOR: Final = 1.0
"""Seconds for which a request avoids a worker that refused it."""


@dataclass(frozen=True)
class Waiter:
    """One waiting request.

    Attributes:
        turn: Its position; the lowest is first.
        avoided: Workers not to try, with the monotonic time at which each may be tried again.
        caller: Who asks.
    """

    id: int
    turn: int
    key: LeaseKey
    avoided: Mapping[str, float] = field(default_factory=dict)
    caller: PlacementCaller = ANY_CALLER

    def at(self, now: float) -> Waiter:
        avoided = {worker: until for worker, until in self.avoided.items() if until > now}
        return self if len(avoided) == len(self.avoided) else replace(self, avoided=avoided)


@dataclass
class PlacementQueue:
    """Waiting requests and their unsent answers; owned by the coordinator. Times are monotonic."""

    _waiting: dict[int, Waiter] = field(default_factory=dict)  # by id, in the order of turns
    _answers: list[tuple[int, PlacementOutcome]] = field(default_factory=list)
    _served: dict[LeaseKey, tuple[int, float]] = field(default_factory=dict)  # oldest first
    _last: int = 0
    _tried_in: tuple[object, ...] = ()
    _has_pending: bool = False  # some request waits for the first result of its server

    def __len__(self) -> int:
        return len(self._waiting)

    def join(
        self,
        key: LeaseKey,
        avoided: Iterable[str],
        now: float,
        caller: PlacementCaller = ANY_CALLER,
    ) -> Waiter | None:
        """Queue a request; return None if the queue is full.

        If the queue is full, it drops the newest request of the tenant with the most requests for a
        tenant with fewer. The dropped request gets the fault of a full queue.
        """
        if not self._make_room(key.tenant):
            return None
        self._forget_served(now)
        self._last += 1
        turn, _ = self._served.get(key, (self._last, now))
        until = now + AVOIDED_FOR
        waiter = Waiter(
            id=self._last,
            turn=turn,
            key=key,
            avoided=dict.fromkeys(avoided, until),
            caller=caller,
        )
        waiters = list(self._waiting.values())
        insort(waiters, waiter, key=attrgetter("turn"))
        self._waiting = {queued.id: queued for queued in waiters}
        return waiter

    def remove(self, waiter_id: int) -> None:
        """Remove a request if it still waits."""
        self._waiting.pop(waiter_id, None)

    def must_try(self, state: tuple[object, ...], room: RoomChanges, now: float) -> bool:
        """Return whether an event may have made room for a waiting request.

        Args:
            state: What else placement depends on; an object in it is another one if it has changed.
            room: What has changed of leases and reservations; it is cleared.
            now: The time.
        """
        retry_at = self.next_retry()
        wanted = (waiter.key for waiter in self._waiting.values())
        changed = (
            self._has_pending
            or room.has_freed
            or room.is_greedy
            or (retry_at is not None and retry_at <= now)
            or len(state) != len(self._tried_in)
            or not all(map(operator.is_, state, self._tried_in))
            or (
                bool(room.keys or room.servers)
                and any(
                    key in room.keys or any(key.server_id in changed for changed in room.servers)
                    for key in wanted
                )
            )
        )
        room.clear()
        if changed:
            self._tried_in, self._has_pending = state, False
        return changed

    def mark_pending(self) -> None:
        """Try again at the next event: a request waits for the first result of its server."""
        self._has_pending = True

    def serve(
        self,
        attempt: Callable[[Waiter], PlacementOutcome | None],
        now: float,
        held: Callable[[LeaseKey], bool] = lambda _key: False,
        tenant_load: Callable[[str], int] = lambda _tenant: 0,
    ) -> None:
        """Retry waiting requests that may succeed now, tenants in turn.

        Args:
            attempt: Returns the answer, or None if there is no capacity.
            now: The time.
            held: Whether a lease with a key exists already; sharing it needs no capacity.
            tenant_load: Returns a tenant's number of leases.
        """
        full: set[tuple[str, str]] = set()
        answered: set[LeaseKey] = set()
        for queued in fair_order(self._waiting.values(), attrgetter("key.tenant"), tenant_load):
            wanted = (queued.key.tenant, queued.key.server_id)
            # Also for skipped requests: a retry time in the past would be due forever.
            waiter = self._waiting[queued.id] = queued.at(now)
            # A request that shares a held or just reserved lease needs no capacity.
            if wanted in full and waiter.key not in answered and not held(waiter.key):
                continue
            answer = attempt(waiter)
            if answer is not None:
                answered.add(waiter.key)
                self._answer(waiter, answer, now)
            elif not waiter.avoided:  # otherwise others may succeed on the avoided workers
                full.add(wanted)

    def pop_answers(self) -> list[tuple[int, PlacementOutcome]]:
        """Return the answers since the last call, each with its waiter's id."""
        answers, self._answers = self._answers, []
        return answers

    def next_retry(self) -> float | None:
        """Return when a waiter may next try a worker that refused it."""
        times = (until for waiter in self._waiting.values() for until in waiter.avoided.values())
        return min(times, default=None)

    def _make_room(self, tenant: str) -> bool:
        if len(self._waiting) < bounds.MAX_WAITING:
            return True
        newest = find_evicted(self._waiting.values(), attrgetter("key.tenant"), tenant)
        if newest is None:
            return False
        del self._waiting[newest.id]
        self._answers.append((newest.id, queue_full_error(newest.key.server_id)))
        return True

    def _answer(self, waiter: Waiter, answer: PlacementOutcome, now: float) -> None:
        del self._waiting[waiter.id]
        self._served.pop(waiter.key, None)
        self._served[waiter.key] = (waiter.turn, now + bounds.RESERVATION)
        self._answers.append((waiter.id, answer))

    def _forget_served(self, now: float) -> None:
        while self._served:
            key = next(iter(self._served))
            if self._served[key][1] > now:
                break
            del self._served[key]
