"""Answers workers' requests for permits of limits that hold over the fleet."""

from __future__ import annotations

import logging

from leaseway.control_plane.plane import Plane
from leaseway.v1 import sync_pb2
from leaseway.wire.messages.budgets import budget_ask_from_proto, budget_grant_to_proto

_logger = logging.getLogger(__name__)


class BudgetAnswers:
    """Answers workers.

    Args:
        plane: Its budgets are leased, and its streams are the fleet.
    """

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._told: dict[str, int] = {}

    def fleet(self, worker_id: str) -> sync_pb2.Fleet:
        """Return the fleet as a worker sees it."""
        streams = self._plane.streams
        self._told = {name: told for name, told in self._told.items() if name in streams}
        self._told[worker_id] = len(streams)
        position = sum(name < worker_id for name in streams)
        return sync_pb2.Fleet(workers=max(1, len(streams)), position=position, takes_back=True)

    def answer(self, worker_id: str, message: sync_pb2.BudgetAsk) -> None:
        """Handle a request, and answer it if it needs permits.

        One that names no limit of this version gets no answer: its calls are refused after their
        wait, and the worker's other calls go on.
        """
        ask = budget_ask_from_proto(message)
        if ask is None:
            _logger.warning(
                "A worker asked for permits of a limit that this control plane does not know. Run"
                " the same release of both.",
                extra={"worker": worker_id},
            )
            return
        plane = self._plane
        roster = plane.state.roster
        grant = plane.budgets.ask(
            worker_id, ask, roster.workers, roster.generation, plane.clock().mono
        )
        stream = plane.streams.get(worker_id)
        if stream is None or not ask.needed:
            return
        answer = budget_grant_to_proto(grant)
        if self._told.get(worker_id) != len(plane.streams):
            answer.fleet.CopyFrom(self.fleet(worker_id))
        stream.send(sync_pb2.SyncResponse(budget_grant=answer))
