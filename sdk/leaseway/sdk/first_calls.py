"""First calls under way or given up: each may have acquired a lease that nobody here knows of.

A worker names a new lease in the result of the call that acquired it. Where nobody waits for
that result any more, the lease is to be looked for when its session is left; it bears the name of
the client that acquired it, so that none takes another's. Pure state.
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
        given_up: Whether its caller has ceased to wait.
    """

    def __init__(self, key: Key, worker: Worker) -> None:
        self.key = key
        self.worker = worker
        self.given_up = False


class FirstCalls:
    """The first calls of one client whose lease it does not know.

    Attributes:
        acquirer: The client's random name.
    """

    def __init__(self, acquirer: str) -> None:
        self.acquirer = acquirer
        self._calls: dict[tuple[Key, Worker], FirstCall] = {}

    def begin(self, key: Key, worker: Worker) -> None:
        """Record that first calls of a key go to a worker from now on."""
        if (key, worker) not in self._calls:
            self._calls[key, worker] = FirstCall(key, worker)
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

    def learn(self, key: Key, worker: Worker, lease: leases_pb2.Lease) -> bool:
        """Record that a lease is known; say whether this client acquired it."""
        self._calls.pop((key, worker), None)
        return self.acquired(lease, key)

    def acquired(self, lease: leases_pb2.Lease, key: Key) -> bool:
        """Say whether a lease that its worker tells of is that of a key, acquired by this client.

        Another client of the session may have acquired it at the same moment: that one gives it
        back.
        """
        return lease.acquirer == self.acquirer and (lease.session, lease.server_id) == key

    def take(self, session: str | None = None) -> list[FirstCall]:
        """Forget and return those of a session, or of all, whose leases are to be looked for.

        In a session that is left, calls under way go on; with the whole client they end.
        """
        taken = [
            call
            for call in self._calls.values()
            if session in (None, call.key.session) and (call.given_up or session is None)
        ]
        for call in taken:
            del self._calls[call.key, call.worker]
        return taken
