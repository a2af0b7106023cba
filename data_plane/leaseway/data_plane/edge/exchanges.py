"""All exchange streams of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leaseway.data_plane.edge.exchange import ExchangeStream
from leaseway.data_plane.edge.executor import Executor
from leaseway.data_plane.edge.lease_keeper import LeaseKeeper
from leaseway.data_plane.edge.replies import Context
from leaseway.v1 import catalog_pb2, leases_pb2

__all__ = ["Exchanges"]


class Exchanges:
    """All exchange streams of a worker.

    Args:
        executor: Runs the calls.
        leases: Renews leases.
        lease_message: Makes the message that describes a lease.
        worker: Who answers.

    """

    def __init__(
        self,
        executor: Executor,
        leases: LeaseKeeper,
        lease_message: Callable[[Any], leases_pb2.Lease],
        worker: catalog_pb2.WorkerRef,
    ) -> None:
        self._executor = executor
        self._leases = leases
        self._lease_message = lease_message
        self._worker = worker
        self._streams: set[ExchangeStream] = set()
        self._leaving: str | None = None

    async def serve(self, context: Context) -> None:
        """Serve one stream until it ends."""
        stream = ExchangeStream(
            context, self._executor, self._leases, self._lease_message, self._worker
        )
        self._streams.add(stream)
        try:
            if self._leaving is not None:
                stream.go_away(self._leaving)
            await stream.serve()
        finally:
            self._streams.discard(stream)

    @property
    def open_streams(self) -> int:
        """How many streams there are."""
        return len(self._streams)

    @property
    def queued_bytes(self) -> int:
        """How much waits to be sent on all of them."""
        return sum(stream.queued_bytes for stream in self._streams)

    def go_away(self, reason: str) -> None:
        """Tell every caller, those to come too, that no more calls are taken."""
        self._leaving = reason
        for stream in self._streams:
            stream.go_away(reason)
