"""First calls under way or given up: each may have acquired a lease that nobody here knows of.

A worker names a new lease in the result of the call that acquired it. Where nobody waits for
that result any more, the lease is to be looked for when its session is left. Pure state.
"""

from __future__ import annotations

from typing import Final

from leaseway.sdk.lease_book import Key, Worker
from leaseway.v1 import leases_pb2

__all__ = ["FirstCall", "FirstCalls"]

_MOST: Final = 1024
"""First calls that are remembered; the lease of one beyond them ends by itself."""


class FirstCall:
    """What was sent to a worker that may acquire the lease of a key.

    Attributes:
        key: The session and the server.
        worker: Where it was sent.
        at: When the worker was chosen, in the event loop's time.
        given_up: Whether its caller has ceased to wait.
        joined: Whether a call like it was told that the lease was there.
    """

    def __init__(self, key: Key, worker: Worker, at: float) -> None:
        self.key = key
        self.worker = worker
        self.at = at
        self.given_up = False
        self.joined = False

    def made(self, lease: leases_pb2.Lease, now: float) -> bool:
        """Say whether a lease that its worker tells of is one that this call acquired."""
        same = (lease.session, lease.server_id) == self.key
        return same and lease.age.ToNanoseconds() / 1e9 <= now - self.at


class FirstCalls:
    """The first calls of one client whose lease it does not know."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Key, Worker], FirstCall] = {}

    def begin(self, key: Key, worker: Worker, now: float) -> None:
        """Record that first calls of a key go to a worker from now on."""
        if (key, worker) not in self._calls:
            self._calls[key, worker] = FirstCall(key, worker, now)
            if len(self._calls) > _MOST:
                del self._calls[next(iter(self._calls))]

    def give_up(self, key: Key, worker: Worker) -> None:
        """Record that a caller does not wait any more, whose call may have acquired the lease."""
        call = self._calls.get((key, worker))
        if call is not None:
            call.given_up = True

    def refuse(self, key: Key, worker: Worker) -> None:
        """Record that a worker acquired nothing; what was given up before stays."""
        call = self._calls.get((key, worker))
        if call is not None and not call.given_up:
            del self._calls[key, worker]

    def learn(
        self, key: Key, worker: Worker, lease: leases_pb2.Lease, now: float, *, created: bool
    ) -> bool:
        """Record that a lease is known; say whether this client acquired it.

        Args:
            key: The session and the server.
            worker: Who granted it.
            lease: What the worker tells of it.
            now: The event loop's time.
            created: Whether the call that was answered acquired it; else one given up may have.

        """
        call = self._calls.get((key, worker))
        if call is None:
            return created
        if not created and not call.given_up:
            call.joined = True  # by a call whose caller may give up yet, or by another client
            return False
        del self._calls[key, worker]
        return created or call.made(lease, now)

    def take(self, session: str | None = None) -> list[FirstCall]:
        """Forget and return those of a session, or of all, whose leases are to be looked for.

        In a session that is left, calls under way go on; with the whole client they end.
        """
        taken = [
            call
            for call in self._calls.values()
            if session in (None, call.key.session)
            and (call.given_up or (session is None and not call.joined))
        ]
        for call in taken:
            del self._calls[call.key, call.worker]
        return taken
