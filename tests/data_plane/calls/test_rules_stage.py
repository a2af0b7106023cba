"""The order in which calls of tenants are judged by rules."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conftest import BOUND

from leaseway.data_plane.calls.stages.rules import SLICE, RulesStage
from leaseway.data_plane.core.calls.incoming import IncomingCall


class Judged:
    """A call without rules of its own, which notes when it goes on."""

    def __init__(self, tenant: str, went_on: list[str]) -> None:
        self.call = IncomingCall(tenant=tenant)
        self.policy = self.judged = None
        self.arguments = b"{}"
        self.has_ended = False
        self._went_on = went_on

    def resume(self) -> None:
        self._went_on.append(self.call.tenant)

    def fail_with(self, error: Exception) -> None:
        raise error


def enter(stage: RulesStage, went_on: list[str], tenants: str) -> None:
    for tenant in tenants:
        call: Any = Judged(tenant, went_on)
        assert not stage.enter(call)


async def went_on_in_turns(went_on: list[str], count: int) -> None:
    async with asyncio.timeout(BOUND):
        while len(went_on) < count:
            await asyncio.sleep(0)


async def test_calls_that_fit_into_a_slice_go_on_together_in_their_order() -> None:
    went_on: list[str] = []
    enter(RulesStage(slice_length=60.0), went_on, "aaabba")
    await asyncio.sleep(0)
    assert "".join(went_on) == "aaabba"
    assert SLICE < 0.05


async def test_tenants_take_turns_when_their_calls_fill_more_than_a_slice() -> None:
    went_on: list[str] = []
    stage = RulesStage(slice_length=0.0)
    enter(stage, went_on, "aaaaabb")
    await asyncio.sleep(0)
    enter(stage, went_on, "c")  # comes later, and waits for one call of each other tenant
    await went_on_in_turns(went_on, 8)
    assert "".join(went_on) == "aabcabaa"


async def test_a_call_that_has_ended_meanwhile_does_not_go_on() -> None:
    went_on: list[str] = []
    stage = RulesStage(slice_length=0.0)
    ended: Any = Judged("a", went_on)
    stage.enter(ended)
    ended.has_ended = True
    enter(stage, went_on, "b")
    await went_on_in_turns(went_on, 1)
    assert went_on == ["b"]
