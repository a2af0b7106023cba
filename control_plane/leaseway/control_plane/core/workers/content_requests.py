"""The content that a control plane lacks, and the worker that it asks for it (design.md#sync).

After a restart all workers report the hashes of what they hold, mostly the same. Each content is
asked of one of them, and of another only if that one fails to send it, leaves or is slow. Work is
handed out in batches to workers that owe nothing, so that a fleet shares it and no answer is long.

A content is in one of three places: in the queue, owed by a worker, or stuck, if no worker that
could send it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf
from typing import Final

from leaseway.control_plane.core.catalog.variants import Hashes
from leaseway.spec.model import VariantKey
from leaseway.wire.sharing.newest import Newest

Content = tuple[VariantKey, str]
"""A variant and the launch hash of its content."""

MAX_ASKED: Final = 64
"""Variants that a worker is asked for at a time."""
_SLOW_AFTER: Final = 3.0
"""Seconds without an answer after which a worker is slow, counted from the last message of any
worker or from an answer to a later question: a control plane that handles a thousand hellos reads
all answers late, for which no worker is to blame."""
_TIMEOUT: Final = 15.0
"""Seconds for which the configuration waits for content at least."""
_PROGRESS: Final = 3.0
"""Seconds for which it waits after the last content beyond that."""
_LONGEST: Final = 60.0
"""Seconds for which it waits at most."""
_MAX_EXAMINED: Final = 64
"""Different contents of workers that are remembered as examined; others are examined again."""
_ARRIVING: Final = 1.0
"""Seconds after the first question, and after a worker has joined or answered, for which more is
expected: content waits behind the hellos of a large fleet."""
_PAUSE: Final = 600.0
"""Seconds after a wait in vain in which no commit waits for content: many silent workers delay the
configuration only once."""


@dataclass
class _Holder:
    """A worker, and what it was asked for last."""

    held: Mapping[VariantKey, Hashes]
    asked: tuple[Content, ...] = ()
    asked_at: float = -inf
    is_slow: bool = False

    def has(self, content: Content) -> bool:
        hashes = self.held.get(content[0])
        return hashes is not None and hashes.launch == content[1]


@dataclass
class ContentRequests:
    """What is missing and who was asked; owned by the coordinator. Times are monotonic."""

    _holders: dict[str, _Holder] = field(default_factory=dict)
    _idle: dict[str, None] = field(default_factory=dict)  # workers that owe nothing
    _owing: dict[str, None] = field(default_factory=dict)  # others that are not slow, oldest first
    _queue: dict[Content, None] = field(default_factory=dict)
    _stuck: dict[Content, None] = field(default_factory=dict)
    _missing: dict[Content, set[str]] = field(default_factory=dict)  # and who did not send it
    _awaited: dict[Content, None] = field(default_factory=dict)
    _examined: Newest[int, Mapping[VariantKey, Hashes]] = field(
        default_factory=partial(Newest, _MAX_EXAMINED)
    )
    _began: float = -inf
    _arrived: float = -inf
    _answered: float = -inf  # when the last worker was asked that has answered
    _heard: float = -inf  # when a worker joined or answered
    _optional_until: float = -inf

    # Events.

    def join(
        self,
        worker_id: str,
        held: Mapping[VariantKey, Hashes],
        is_known: Callable[[VariantKey, Hashes], bool],
        now: float,
    ) -> bool:
        """Record what a worker holds; return whether more is missing than before.

        Workers with equal content should pass the same mapping: it is examined once, until
        `reexamine`.
        """
        self.leave(worker_id)
        self._heard = now
        holder = self._holders[worker_id] = _Holder(held)
        self._idle[worker_id] = None
        for content in [content for content in self._stuck if holder.has(content)]:
            del self._stuck[content]
            self._queue[content] = None
        if id(held) in self._examined:
            return False
        self._examined[id(held)] = held
        new = False
        for key, hashes in held.items():
            content = key, hashes.launch
            if content not in self._missing and not is_known(key, hashes):
                self._miss(content, now)
                new = True
        return new

    def leave(self, worker_id: str) -> None:
        """Ask others for what a worker owes, and forget what only it has."""
        holder = self._holders.pop(worker_id, None)
        if holder is None:
            return
        missing = len(self._missing)
        self._idle.pop(worker_id, None)
        owed = holder.asked if self._owing.pop(worker_id, 0) is None else ()
        queued = [content for content in self._queue if holder.has(content)]
        for content in queued:
            del self._queue[content]
        self._requeue((*queued, *owed))
        for content in [content for content in self._stuck if holder.has(content)]:
            if not any(other.has(content) for other in self._holders.values()):
                self._forget(content)
        if len(self._missing) < missing:
            self.reexamine()  # the worker may join again with what nobody else has

    def receive(self, worker_id: str, contents: Iterable[Content], now: float) -> None:
        """Record the content of a worker's answer; another is asked for what it lacks."""
        for content in contents:
            if content in self._missing:
                self._arrived = now
                self._forget(content)
        holder = self._holders.get(worker_id)
        if holder is None:
            return
        self._answered = max(self._answered, holder.asked_at)
        self._heard = now
        holder.is_slow = False
        self._idle[worker_id] = None
        if self._owing.pop(worker_id, 0) is None:
            self._give_up_on(worker_id, holder)

    def expire(self, now: float) -> dict[str, list[VariantKey]]:
        """Ask others instead of slow workers, and give up waiting after a time.

        Returns:
            The slow workers and what they did not send, if the wait has ended; else nothing.
        """
        while self._owing:
            worker_id = next(iter(self._owing))
            holder = self._holders[worker_id]
            if now < self._slow_at(holder):
                break
            del self._owing[worker_id]
            holder.is_slow = True
            self._give_up_on(worker_id, holder)
        if not self._awaited or now < self._ends_at():
            return {}
        silent = {
            worker_id: sorted(key for key, launch in holder.asked if (key, launch) in self._awaited)
            for worker_id, holder in self._holders.items()
            if holder.is_slow or worker_id in self._owing
        }
        self.stop_waiting()
        self._optional_until = now + _PAUSE
        return silent

    def stop_waiting(self) -> None:
        """Continue without the missing content; what arrives later is still used."""
        self._awaited.clear()
        for content in list(self._stuck):
            self._forget(content)
        self.reexamine()

    def reexamine(self) -> None:
        """Examine what workers hold again when they join: what is known has changed."""
        self._examined.clear()

    def assign(self, now: float) -> list[tuple[str, tuple[VariantKey, ...]]]:
        """Hand out the queue to workers that owe nothing; return what each of them is asked for."""
        asked = []
        useless: set[int] = set()  # what holds nothing that is queued
        for worker_id in list(self._idle):
            if not self._queue:
                break
            holder = self._holders[worker_id]
            if id(holder.held) in useless:
                continue
            held = filter(holder.has, self._queue)
            able = (content for content in held if worker_id not in self._missing[content])
            batch = tuple(islice(able, MAX_ASKED))
            if not batch:
                if not any(map(holder.has, self._queue)):
                    useless.add(id(holder.held))
                continue
            for content in batch:
                del self._queue[content]
            holder.asked, holder.asked_at = batch, now
            del self._idle[worker_id]
            self._owing[worker_id] = None
            asked.append((worker_id, tuple(sorted(key for key, _ in batch))))
        return asked

    # Queries.

    @property
    def is_waiting(self) -> bool:
        """Whether commits wait for content."""
        return bool(self._awaited)

    def awaited_variants(self) -> set[VariantKey]:
        """Return the variants for whose content commits wait."""
        return {key for key, _ in self._awaited}

    def awaits_of(self, worker_id: str) -> bool:
        """Return whether commits wait for content that a worker holds."""
        holder = self._holders.get(worker_id)
        return holder is not None and any(map(holder.has, self._awaited))

    def is_arriving(self, now: float) -> bool:
        """Return whether content that commits wait for may be on its way."""
        return bool(self._awaited) and now < max(self._began, self._heard) + _ARRIVING

    def next_deadline(self) -> float | None:
        """Return when a worker becomes slow or the wait ends, or None."""
        times = [self._ends_at()] if self._awaited else []
        first = next(iter(self._owing), None)
        if first is not None:
            times.append(self._slow_at(self._holders[first]))
        return min(times, default=None)

    def _ends_at(self) -> float:
        longest = self._began + _LONGEST
        return min(max(self._began + _TIMEOUT, self._arrived + _PROGRESS), longest)

    def _slow_at(self, holder: _Holder) -> float:
        if self._answered >= holder.asked_at + _SLOW_AFTER:
            return -inf
        return max(holder.asked_at, self._heard) + _SLOW_AFTER

    def _miss(self, content: Content, now: float) -> None:
        self._missing[content] = set()
        self._queue[content] = None
        if now >= self._optional_until:
            if not self._awaited:
                self._began = now
            self._awaited[content] = None

    def _forget(self, content: Content) -> None:
        for known in (self._missing, self._queue, self._stuck, self._awaited):
            known.pop(content, None)

    def _give_up_on(self, worker_id: str, holder: _Holder) -> None:
        """Ask others for what a worker has not sent."""
        for content in holder.asked:
            if content in self._missing:
                self._missing[content].add(worker_id)
        self._requeue(holder.asked)

    def _requeue(self, contents: Iterable[Content]) -> None:
        for content in contents:
            if content not in self._missing:
                continue
            if self._can_be_asked(content):
                self._queue[content] = None
            elif content in self._awaited:
                self._stuck[content] = None
            else:
                self._forget(content)

    def _can_be_asked(self, content: Content) -> bool:
        failed = self._missing[content]
        return any(
            not holder.is_slow and worker_id not in failed and holder.has(content)
            for worker_id, holder in self._holders.items()
        )
