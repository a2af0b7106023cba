"""Steps of logins: each result reaches the page that asked that worker, and a flood is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conftest import BOUND
from tests.control_plane.fake_worker import worker

from leaseway.control_plane.sync.login_steps import MAX_OPEN, LoginFailed, LoginSteps
from leaseway.v1 import sync_pb2

if TYPE_CHECKING:
    from tests.control_plane.conftest import Running


class Stream:
    def __init__(self) -> None:
        self.sent: list[sync_pb2.SyncResponse] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

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
        for name, answer in (("w1", {"message": "Unknown."}), ("w2", {"ticket": "t"})):
            while not streams[name].sent:
                await asyncio.sleep(0)
            number = streams[name].sent[0].login_step.id
            steps.handle_result(name, sync_pb2.LoginResult(id=number, **answer))
        assert await made == ("w2", "t")
    with pytest.raises(LoginFailed, match="not connected"):
        await steps.take("w3", sync_pb2.LoginStep())


async def test_a_step_ends_with_its_workers_stream_and_a_link_is_made_by_the_next(
    running: Running,
) -> None:
    steps = LoginSteps(running.plane.streams)
    async with worker(running.address, "b") as other:
        async with worker(running.address, "a") as leaving:
            made = asyncio.create_task(steps.make_link("mail", "acme", "anna"))
            finishing = asyncio.create_task(steps.take("a", sync_pb2.LoginStep(state="s")))
            await leaving.receive("login_step")
            await leaving.receive("login_step")
        async with asyncio.timeout(BOUND):
            with pytest.raises(LoginFailed, match="connection to its worker has ended"):
                await finishing
            step = (await other.receive("login_step")).login_step
            steps.handle_result("b", sync_pb2.LoginResult(id=step.id, ticket="t"))
            assert await made == ("b", "t")
