"""Answers workers' requests for permits of limits that hold over the fleet."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leaseway.control_plane.plane import Plane
from leaseway.v1 import sync_pb2
from leaseway.wire.messages.budgets import budget_ask_from_proto, budget_grant_to_proto

_logger = logging.getLogger(__name__)

_FLEET_DELAY: Final = 0.5
"""Seconds for which changes of the fleet are collected at least."""
_DELAY_A_WORKER: Final = 0.004
"""The same for each worker, if that is more: telling one takes some 0.1 ms of the loop, and a
thousand that join one by one must not be told again of each other all the time."""


class BudgetAnswers:
    """Answers workers.

    Args:
        plane: Its budgets are leased, and its streams are the fleet.
    """

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._told: dict[str, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def fleet(self, worker_id: str) -> sync_pb2.Fleet:
        """Return the fleet as a worker sees it that joins; the others learn of it in a moment."""
        streams = self._plane.streams
        place = len(streams), sum(name < worker_id for name in streams)
        return self._fleet(worker_id, place)

    def _fleet(self, worker_id: str, place: tuple[int, int]) -> sync_pb2.Fleet:
        self._told[worker_id] = place
        workers, position = place
        return sync_pb2.Fleet(
            workers=max(1, workers), position=position, takes_back=True, takes_told=True
        )

    def handle_fleet_changed(self) -> None:
        """Tell all workers, in a moment, that one has joined or left.

        Without a control plane the parts of all workers add up to a limit only if all of them know
        the same fleet.
        """
        if self._timer is None:
            loop = asyncio.get_running_loop()
            delay = max(_FLEET_DELAY, _DELAY_A_WORKER * len(self._plane.streams))
            self._timer = loop.call_later(delay, self._tell_all)

    def _tell_all(self) -> None:
        self._timer = None
        streams = self._plane.streams
        self._told = {name: told for name, told in self._told.items() if name in streams}
        for position, worker_id in enumerate(sorted(streams)):
            place = len(streams), position
            if self._told.get(worker_id) != place:
                grant = sync_pb2.BudgetGrant(fleet=self._fleet(worker_id, place))
                streams[worker_id].send(sync_pb2.SyncResponse(budget_grant=grant))

    def handle(self, worker_id: str, message: sync_pb2.SyncRequest) -> None:
        """Handle a message about budgets."""
        if message.HasField("budgets_told"):
            self._plane.budgets.handle_told(worker_id, message.budgets_told.workers)
        else:
            self.answer(worker_id, message.budget_ask)

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
        stream.send(sync_pb2.SyncResponse(budget_grant=budget_grant_to_proto(grant)))
