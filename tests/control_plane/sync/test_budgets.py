"""Requests for permits that name no limit, and what workers learn of their fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.conftest import BOUND

from leaseway.control_plane.core.workers.actions import WorkerAction
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.sync.budgets import BudgetAnswers
from leaseway.v1 import sync_pb2
from leaseway.wire.names import MAX_KEY_LENGTH
from leaseway.wire.timing.durations import duration

CALLS, SLOTS = sync_pb2.BUDGET_QUOTA_CALLS, sync_pb2.BUDGET_QUOTA_CONCURRENT
MINUTE, NEGATIVE = duration(60.0), duration(-1.0)


@pytest.mark.parametrize(
    "ask",
    [
        sync_pb2.BudgetAsk(limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS, tenant="a"), period=MINUTE),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS, tenant="a"), limit=6),
        sync_pb2.BudgetAsk(
            key=sync_pb2.BudgetKey(quota=CALLS, tenant="a"), limit=6, period=NEGATIVE
        ),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=SLOTS, tenant="a"), limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(
            key=sync_pb2.BudgetKey(quota=CALLS, tenant="x" * (MAX_KEY_LENGTH + 1)),
            limit=6,
            period=MINUTE,
        ),
        sync_pb2.BudgetAsk(key=sync_pb2.BudgetKey(quota=CALLS), limit=6, period=MINUTE),
        sync_pb2.BudgetAsk(
            key=sync_pb2.BudgetKey(quota=CALLS, tenant="a", agent="b"), limit=6, period=MINUTE
        ),
    ],
    ids=[
        "no quota",
        "no limit",
        "no period",
        "negative period",
        "slots of a period",
        "long name",
        "no owner",
        "another owner",
    ],
)
def test_a_request_that_names_no_limit_costs_its_worker_nothing_else(
    ask: sync_pb2.BudgetAsk, caplog: pytest.LogCaptureFixture
) -> None:
    plane = Plane(epoch=1)
    ask.needed = 1
    BudgetAnswers(plane).answer("w1", ask)
    assert len(plane.budgets) == 0
    assert "does not know" in caplog.text


class Stream:
    """Keeps what is sent to a worker."""

    def __init__(self) -> None:
        self.fleets: list[tuple[int, int]] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def send(self, message: WorkerAction | sync_pb2.SyncResponse) -> None:
        assert isinstance(message, sync_pb2.SyncResponse)
        fleet = message.budget_grant.fleet
        self.fleets.append((fleet.workers, fleet.position))

    def end(self, reason: str) -> None:
        """Do nothing."""


async def test_each_worker_is_told_its_place_when_others_join_and_leave() -> None:
    plane = Plane(epoch=1)
    answers = BudgetAnswers(plane)
    streams = {name: Stream() for name in ("w2", "w1", "w3")}
    for name, stream in streams.items():
        plane.streams[name] = stream
        answers.fleet(name)
        answers.handle_fleet_changed()
    await wait_until(lambda: bool(streams["w2"].fleets))
    assert [stream.fleets for stream in streams.values()] == [[(3, 1)], [(3, 0)], []]
    del plane.streams["w1"]
    answers.handle_fleet_changed()
    await wait_until(lambda: bool(streams["w3"].fleets))
    assert [stream.fleets[1:] for stream in streams.values()] == [[(2, 0)], [], []]
    assert streams["w3"].fleets == [(2, 1)]


@pytest.mark.parametrize(("workers", "delay"), [(2, 0.5), (1_000, 4.0)])
async def test_a_large_fleet_is_told_of_its_changes_less_often(
    workers: int, delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, delays = Plane(epoch=1), list[float]()
    plane.streams.update((f"w{number}", Stream()) for number in range(workers))

    def record(seconds: float, _call: Callable[[], None]) -> None:
        delays.append(seconds)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", record)
    BudgetAnswers(plane).handle_fleet_changed()
    assert delays == [delay]


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)
