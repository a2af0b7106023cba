"""Steps of logins: each result reaches the page that asked that worker, and a flood is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.conftest import BOUND

from leaseway.control_plane.sync.login_steps import MAX_OPEN, LoginFailed, LoginSteps
from leaseway.v1 import sync_pb2


class Stream:
    def __init__(self) -> None:
        self.sent: list[sync_pb2.SyncResponse] = []

    def send(self, message: sync_pb2.SyncResponse) -> None:
        self.sent.append(message)


async def test_more_steps_than_the_limit_of_a_worker_are_not_sent_to_it() -> None:
    streams = {"w1": Stream(), "w2": Stream()}
    steps = LoginSteps(streams)
    step = sync_pb2.LoginStep
    asked = [asyncio.create_task(steps.take("w1", step(ticket="t"))) for _ in range(MAX_OPEN)]
    async with asyncio.timeout(BOUND):
        while len(streams["w1"].sent) < MAX_OPEN:
            await asyncio.sleep(0)
        with pytest.raises(LoginFailed, match="try again"):
            await steps.take("w1", step(ticket="t"))
        assert len(streams["w1"].sent) == MAX_OPEN
        other = asyncio.create_task(steps.take("w2", step(ticket="t")))
        await asyncio.sleep(0)
        number = streams["w2"].sent[0].login_step.id
        steps.handle_result("w1", sync_pb2.LoginResult(id=number, server_id="theirs"))
        steps.handle_result("w2", sync_pb2.LoginResult(id=number, server_id="mail"))
        assert (await other).server_id == "mail"
        for message in streams["w1"].sent:
            result = sync_pb2.LoginResult(id=message.login_step.id, message="It has ended.")
            steps.handle_result("w1", result)
        results = await asyncio.gather(*asked, return_exceptions=True)
    assert {str(each_result) for each_result in results} == {"It has ended."}


async def test_a_link_is_made_by_a_worker_that_knows_the_server() -> None:
    streams = {"w1": Stream(), "w2": Stream()}
    steps = LoginSteps(streams)
    made = asyncio.create_task(steps.make_link("mail", "acme", "anna"))
    async with asyncio.timeout(BOUND):
        for worker, answer in (("w1", {"message": "Unknown."}), ("w2", {"ticket": "t"})):
            while not streams[worker].sent:
                await asyncio.sleep(0)
            number = streams[worker].sent[0].login_step.id
            steps.handle_result(worker, sync_pb2.LoginResult(id=number, **answer))
        assert await made == ("w2", "t")
    with pytest.raises(LoginFailed, match="not connected"):
        await steps.take("w3", sync_pb2.LoginStep())
