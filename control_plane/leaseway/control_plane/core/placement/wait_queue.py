"""Requests that wait for room for a lease, in the order in which they came (DESIGN §5).

Who is next is decided here, whether there is room by whoever lets them try. A request that was
placed and comes back soon, because its worker refused after all, gets its old place again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.capacity_errors import queue_full_error
from leaseway.control_plane.core.placement.table import Placement, PlacementKey
from leaseway.wire import bounds
from leaseway.wire.turns import in_turn, one_too_many

Answer = Placement | Denial
"""What ends the wait."""

AVOIDED_FOR: Final = 1.0
"""Seconds for which a worker that refused a request is not tried again for it."""


@dataclass(frozen=True)
class Waiter:
    """One request.

    Attributes:
        id: Names it for good.
        turn: Its place; the lowest is the first.
        key: What the lease is found by.
        avoided: Until when which workers are not to be tried, on the monotonic clock.
    """

    id: int
    turn: int
    key: PlacementKey
    avoided: Mapping[str, float] = field(default_factory=dict)

    def at(self, now: float) -> Waiter:
        left = {worker: until for worker, until in self.avoided.items() if until > now}
        return self if len(left) == len(self.avoided) else replace(self, avoided=left)


@dataclass
class PlacementQueue:
    """Those who wait, and the answers that are on their way to them. Its owner is the coordinator.

    Times are seconds on the monotonic clock.
    """

    _waiting: dict[int, Waiter] = field(default_factory=dict)  # by id, in the order of turns
    _answers: list[tuple[int, Answer]] = field(default_factory=list)
    _served: dict[PlacementKey, tuple[int, float]] = field(default_factory=dict)  # the oldest first
    _last: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, key: PlacementKey, avoided: Iterable[str], now: float) -> Waiter | None:
        """Queue a request; None where too many wait already.

        In a full line, the newest request of the tenant with the most gives its place to a tenant
        with fewer, and is answered like one that found the line full.
        """
        if not self._has_place(key.tenant):
            return None
        self._forget_served(now)
        self._last += 1
        turn, _ = self._served.get(key, (self._last, now))
        until = now + AVOIDED_FOR
        waiter = Waiter(self._last, turn, key, dict.fromkeys(avoided, until))
        line = list(self._waiting.values())
        insort(line, waiter, key=lambda one: one.turn)
        self._waiting = {one.id: one for one in line}
        return waiter

    def leave(self, waiter_id: int) -> None:
        """Forget a request that waits no more; one that was answered is no error."""
        self._waiting.pop(waiter_id, None)

    def serve(
        self,
        attempt: Callable[[Waiter], Answer | None],
        now: float,
        held: Callable[[PlacementKey], bool] = lambda _key: False,
        held_count: Callable[[str], int] = lambda _tenant: 0,
    ) -> None:
        """Retry the waiters for whom the room that there is now may suffice, tenants in turn.

        Args:
            attempt: Returns the answer, or None where there is no room.
            now: When.
            held: Whether there is a lease of a key already, which needs no room of its own.
            held_count: How many leases a tenant has.
        """
        full: set[tuple[str, str]] = set()
        answered: set[PlacementKey] = set()
        for known in in_turn(self._waiting.values(), lambda one: one.key.tenant, held_count):
            wanted = (known.key.tenant, known.key.server_id)
            # Of those that are passed over, too: a lapse in the past would be due without end.
            waiter = self._waiting[known.id] = known.at(now)
            # Who shares what is held or was reserved just now needs no room of its own.
            if wanted in full and waiter.key not in answered and not held(waiter.key):
                continue
            answer = attempt(waiter)
            if answer is not None:
                answered.add(waiter.key)
                self._answer(waiter, answer, now)
            elif not waiter.avoided:  # else only this one may be without room
                full.add(wanted)

    def pop_answers(self) -> list[tuple[int, Answer]]:
        """Return what is to be said to which waiter since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def next_retry(self) -> float | None:
        """Return when a waiter may next try a worker that refused it."""
        lapses = (until for one in self._waiting.values() for until in one.avoided.values())
        return min(lapses, default=None)

    def _has_place(self, tenant: str) -> bool:
        if len(self._waiting) < bounds.MAX_WAITING:
            return True
        newest = one_too_many(self._waiting.values(), lambda one: one.key.tenant, tenant)
        if newest is None:
            return False
        del self._waiting[newest.id]
        self._answers.append((newest.id, queue_full_error(newest.key.server_id)))
        return True

    def _answer(self, waiter: Waiter, answer: Answer, now: float) -> None:
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
