"""Answers workers' requests for permits of limits that hold over the fleet."""

from __future__ import annotations

from leaseway.control_plane.core.budgets import BudgetAsk, BudgetGrant
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.sync.toolsets import MalformedMessage
from leaseway.v1 import sync_pb2
from leaseway.wire.messages.budgets import budget_key_from_proto
from leaseway.wire.names import MAX_KEY_LENGTH
from leaseway.wire.timing.durations import duration, seconds


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
        return sync_pb2.Fleet(workers=max(1, len(streams)), position=position)

    def answer(self, worker_id: str, message: sync_pb2.BudgetAsk) -> None:
        """Handle a request, and answer it if it needs permits.

        Raises:
            MalformedMessage: It names no limit.
        """
        ask = _ask_from_proto(message)
        plane = self._plane
        grant = plane.budgets.ask(worker_id, ask, plane.state.workers, plane.clock().mono)
        stream = plane.streams.get(worker_id)
        if stream is None or not ask.needed:
            return
        answer = _grant_to_proto(grant, message.key)
        if self._told.get(worker_id) != len(plane.streams):
            answer.fleet.CopyFrom(self.fleet(worker_id))
        stream.send(sync_pb2.SyncResponse(budget_grant=answer))


def _ask_from_proto(message: sync_pb2.BudgetAsk) -> BudgetAsk:
    key = budget_key_from_proto(message.key)
    period = seconds(message.period)
    if key is None or not message.limit or (period == 0) != (key.quota == "concurrent"):
        raise MalformedMessage("A worker asked for permits without saying of which limit.")
    if period < 0 or max(len(key.tenant), len(key.server_id)) > MAX_KEY_LENGTH:
        raise MalformedMessage("A worker asked for permits of a limit that cannot exist.")
    return BudgetAsk(
        key=key,
        limit=message.limit,
        period=period,
        needed=message.needed,
        expected=message.expected,
        returned=message.returned,
        held=min(message.held, message.limit),
        renews_in=seconds(message.renews_in),
    )


def _grant_to_proto(grant: BudgetGrant, key: sync_pb2.BudgetKey) -> sync_pb2.BudgetGrant:
    message = sync_pb2.BudgetGrant(key=key, granted=grant.granted, remaining=grant.remaining)
    if grant.renews_in > 0:
        message.renews_in.CopyFrom(duration(grant.renews_in))
    if grant.retry_in > 0:
        message.retry_in.CopyFrom(duration(grant.retry_in))
    return message
