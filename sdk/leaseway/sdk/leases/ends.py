"""Ends of leases, learnt from workers at once and told to gateways; changes, told to watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.state import HeldLeases
from leaseway.sdk.transport.workers import WorkerPool
from leaseway.v1 import leases_pb2
from leaseway.wire.status import fault_from_status


class LeaseEnds:
    """Tells a session's hearer that one of its leases has ended.

    Args:
        pool: Connections to the workers, which tell ends.

    Attributes:
        hearers: Called, by session, after a lease has ended; they must not block.
    """

    def __init__(self, book: LeaseBook, pool: WorkerPool) -> None:
        self.hearers: dict[str, Callable[[], object]] = {}
        self._book = book
        self._loop = asyncio.get_running_loop()
        book.held.removed.connect(self._announce)
        pool.lease_ended.connect(self._learn)

    def _learn(self, end: leases_pb2.LeaseRenewal) -> None:
        self._book.end(end.lease_id, fault_from_status(end.error), self._loop.time())

    def _announce(self, lease: ClientLease) -> None:
        if lease.key.session in self.hearers:
            self._loop.call_soon(self._tell, lease.key.session)  # the book is still changing

    def _tell(self, session: str) -> None:
        if session in self.hearers:
            self.hearers[session]()


class LeaseChanges:
    """Wakes those who watch which leases a session holds."""

    def __init__(self, held: HeldLeases) -> None:
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        held.added.connect(self._on_change)
        held.removed.connect(self._on_change)

    def next_of(self, session: str) -> asyncio.Event:
        """Return an event that is set when a session holds other leases, or is closed."""
        changed = self._events.get(session)
        if changed is None:
            changed = self._events[session] = asyncio.Event()
        return changed

    def wake(self, session: str) -> None:
        """Wake those who watch a session."""
        changed = self._events.pop(session, None)
        if changed is not None:
            changed.set()

    def _on_change(self, lease: ClientLease) -> None:
        self.wake(lease.key.session)
