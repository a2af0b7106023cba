"""Asks the control plane for permits of limits, and tells it what this worker has of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from leaseway.data_plane.core.tools.budgets import (
    Demand,
    Fleet,
    WorkerBudgets,
)
from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.budgets import budget_ask_to_proto, budget_grant_from_proto
from leaseway.wire.sharing.limits import BudgetAsk, BudgetKey, limit_metadata

_RETURN_INTERVAL: Final = 0.5
_RETRY: Final = 0.5


class Permits:
    """Gets permits for the calls that wait; one question for each limit is open at a time.

    Args:
        outgoing: Sends the questions.

    Attributes:
        budgets: What this worker has.
    """

    def __init__(self, outgoing: Outgoing) -> None:
        self.budgets = WorkerBudgets()
        self._outgoing = outgoing
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[BudgetKey, list[asyncio.Future[None]]] = {}
        self._asked: set[BudgetKey] = set()

    async def get(self, demands: Sequence[Demand], until: float) -> None:
        """Wait until the control plane has answered requests for permits, or is lost.

        Other calls may take what it grants: the caller tries again.

        Args:
            demands: The limits.
            until: When to stop waiting, by the clock of the event loop.

        Raises:
            Fault: RATE_LIMITED: there is no answer.
        """
        answers = {demand.key: self._answer(demand) for demand in demands}
        try:
            async with asyncio.timeout_at(until):
                for answered in answers.values():
                    await answered
        except TimeoutError:
            unanswered = [
                demand
                for demand in demands
                if not answers[demand.key].done() or answers[demand.key].cancelled()
            ]
            if not unanswered:
                return  # all answers came in the same step of the loop as the timeout
            # The next call asks again.
            self._asked.difference_update(demand.key for demand in unanswered)
            raise no_answer(unanswered[0]) from None
        finally:
            for key, answered in answers.items():
                self._forget(key, answered)

    def _answer(self, demand: Demand) -> asyncio.Future[None]:
        """Return what the next answer about a limit sets, and ask unless a question is open."""
        answered: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(demand.key, []).append(answered)
        if demand.key not in self._asked:
            self._asked.add(demand.key)
            self._loop.call_soon(self._ask, demand)  # once, for all calls that have arrived
        return answered

    def _forget(self, key: BudgetKey, answered: asyncio.Future[None]) -> None:
        answered.cancel()
        waiting = self._waiting.get(key)
        if waiting is not None and answered in waiting:
            waiting.remove(answered)
            if not waiting:
                del self._waiting[key]

    def handle_welcome(self, welcome: sync_pb2.Welcome) -> None:
        """Begin with a control plane: tell it what this worker has."""
        fleet = _fleet_from_proto(welcome.fleet) if welcome.HasField("fleet") else None
        earlier = self.budgets.fleet
        told = self.budgets.join(fleet, self._loop.time())
        if fleet is not None:
            self._send(told)
        if welcome.fleet.takes_told:
            workers = earlier.workers if earlier is not None else 0
            ended = sync_pb2.BudgetsTold(workers=workers)
            self._outgoing.send(sync_pb2.SyncRequest(budgets_told=ended))

    def handle_grant(self, message: sync_pb2.BudgetGrant) -> None:
        """Note the answer to a question, and let the calls that wait try again, in their order."""
        if message.HasField("fleet"):
            self.budgets.set_fleet(_fleet_from_proto(message.fleet))
        grant = budget_grant_from_proto(message)
        if grant is None:
            return  # only the fleet has changed, or this worker asks for no such limit
        self.budgets.handle_grant(grant, self._loop.time())
        self._asked.discard(grant.key)
        self._wake(self._waiting.pop(grant.key, ()))

    def handle_loss(self) -> None:
        """Note that the control plane is lost; calls that wait go on with this worker's part."""
        self.budgets.lose(self._loop.time())
        self._asked.clear()
        for waiting in list(self._waiting.values()):
            self._wake(waiting)
        self._waiting.clear()

    async def return_idle(self) -> None:
        """Return permits that no call uses, until cancelled."""
        while True:
            await asyncio.sleep(_RETURN_INTERVAL)
            self._send(self.budgets.idle_permits(self._loop.time()))

    def _ask(self, demand: Demand) -> None:
        waiting = self._waiting.get(demand.key)
        if waiting:
            self._send((self.budgets.ask(demand, len(waiting), self._loop.time()),))
        else:
            self._asked.discard(demand.key)

    def _wake(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        for answered in waiting:
            if not answered.done():
                answered.set_result(None)

    def _send(self, asks: Iterable[BudgetAsk]) -> None:
        """Send at most one question for each limit."""
        self._outgoing.send_all(
            sync_pb2.SyncRequest(budget_ask=budget_ask_to_proto(ask)) for ask in asks
        )


def no_answer(demand: Demand) -> Fault:
    """Return the fault for a call that has waited for a permit for too long."""
    key = demand.key
    return Fault(
        Reason.RATE_LIMITED,
        f"A limit of {key.owner} holds over all workers, and the control plane, which shares it"
        " out, has not answered this worker in time. Try again.",
        metadata=limit_metadata(f"limits.{key.quota}", key.scope, demand.entry),
        retry_delay=_RETRY,
    )


def _fleet_from_proto(message: sync_pb2.Fleet) -> Fleet:
    return Fleet(max(1, message.workers), message.position, takes_back=message.takes_back)
