"""Work on many files of which some may hang: each that does holds up itself only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from leaseway.data_plane.background import DiskThreads

PATIENCE: Final = 1.0
"""Seconds that one piece of work may take before the rest goes on without it."""
MOST_HUNG: Final = 64
"""Threads that may hang at once; beyond that nothing is looked at until one of them ends."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PatientDisk:
    """Does the same for each of many keys, one after the other, in a thread.

    A key whose work hangs keeps that thread, and the others go on in another one. It is not tried
    again before it has ended after all.

    Args:
        patience: Seconds for one key.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._disk = DiskThreads(MOST_HUNG)
        self._hung: set[Hashable] = set()

    async def each(self, work: Callable[[K], V], keys: Iterable[K]) -> dict[K, V]:
        """Return what the work made of each key; those that hang are not there."""
        found: dict[K, V] = {}
        rest = [key for key in keys if key not in self._hung]
        while rest:
            batch = _Batch(work, rest, found)
            await self._watch(batch, self._disk.start(batch.run))
            rest = rest[batch.reached :]
        return found

    async def _watch(self, batch: _Batch[K, V], done: asyncio.Future[None]) -> None:
        while not done.done():
            before = batch.reached
            try:
                await asyncio.wait([done], timeout=self._patience)
            except asyncio.CancelledError:
                batch.abandon(batch.reached)
                raise
            if not done.done() and batch.abandon(before):
                self._forget_until(done, batch.keys[before])
                return
        done.result()

    def _forget_until(self, done: asyncio.Future[None], key: Hashable) -> None:
        self._hung.add(key)
        done.add_done_callback(lambda _: self._hung.discard(key))


class _Batch(Generic[K, V]):
    """One thread's way through some keys.

    Attributes:
        keys: What is worked on, in this order.
        reached: How many keys are done, or given up.
    """

    def __init__(self, work: Callable[[K], V], keys: list[K], found: dict[K, V]) -> None:
        self.keys = keys
        self.reached = 0
        self._work = work
        self._found = found
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Work, in a thread, until all is done or nobody wants the rest."""
        for key in self.keys:
            value = self._work(key)
            with self._lock:
                if self._abandoned:
                    return
                self._found[key] = value
                self.reached += 1

    def abandon(self, at: int) -> bool:
        """Give up the key that the thread is at, unless it has got further than that."""
        with self._lock:
            if self.reached != at:
                return False
            self._abandoned = True
            self.reached += 1
            return True
