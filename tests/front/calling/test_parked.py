"""Calls that wait for the answers of clients which are asked by `input_required` results."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from leaseway.front.calling.parked import ParkedCalls, waits
from leaseway.front.calling.relay import Listener
from leaseway.front.messages import RpcError
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.v1 import execution_pb2


class Server:
    """Asks questions one after another, and says what was answered."""

    def __init__(self, *questions: str) -> None:
        self.listener = Listener(lambda _message: None)
        self.cancelled = asyncio.Event()
        self._questions = questions

    async def call(self) -> bytes:
        try:
            return json.dumps([await self._ask(each) for each in self._questions]).encode()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _ask(self, text: str) -> Any:
        answered: asyncio.Future[execution_pb2.Answer] = asyncio.Future()
        params = json.dumps({"message": text}).encode()
        ask = execution_pb2.Ask(ask_id=1, method="elicitation/create", params=params)
        assert self.listener.ask is not None
        self.listener.ask(ServerRequest(ask, answered.set_result))
        answer = await answered
        return json.loads(answer.result) if answer.result else "refused"


def listener() -> Listener:
    return Listener(lambda _message: None)


async def test_each_question_is_a_round_until_the_result() -> None:
    parked, server = ParkedCalls(), Server("one", "two", "three")
    said = json.loads(await parked.begin(server.listener, server.call()))
    for text, answers in (("one", {"a": 1}), ("two", None), ("three", {"a": 3})):
        assert said["resultType"] == "input_required"
        ((name, asked),) = said["inputRequests"].items()
        assert asked == {"method": "elicitation/create", "params": {"message": text}}
        assert waits(said["requestState"])
        sent = json.dumps({name: answers} if answers else {}).encode()
        said = json.loads(await parked.go_on(listener(), said["requestState"], sent))
    assert said == [{"a": 1}, "refused", {"a": 3}]


async def test_a_call_that_asks_nothing_is_answered_at_once() -> None:
    parked, server = ParkedCalls(), Server()
    assert await parked.begin(server.listener, server.call()) == b"[]"


async def test_an_answer_counts_once() -> None:
    parked, server = ParkedCalls(), Server("one")
    said = json.loads(await parked.begin(server.listener, server.call()))
    await parked.go_on(listener(), said["requestState"], b"{}")
    with pytest.raises(RpcError, match="Call the tool anew"):
        await parked.go_on(listener(), said["requestState"], b"{}")


async def test_answers_that_cannot_be_read_are_none() -> None:
    parked, server = ParkedCalls(), Server("one")
    said = json.loads(await parked.begin(server.listener, server.call()))
    assert await parked.go_on(listener(), said["requestState"], b"[1") == b'["refused"]'


async def test_beyond_the_bound_questions_are_refused() -> None:
    parked = ParkedCalls()
    for _ in range(256):
        server = Server("one")
        assert b"input_required" in await parked.begin(server.listener, server.call())
    last = Server("one", "two")
    assert await parked.begin(last.listener, last.call()) == b'["refused", "refused"]'


async def test_a_client_that_hangs_up_ends_its_call() -> None:
    parked, server = ParkedCalls(), Server()
    forever = asyncio.Event()

    async def call() -> bytes:
        try:
            await forever.wait()
        finally:
            server.cancelled.set()
        return b""

    asking = asyncio.create_task(parked.begin(server.listener, call()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    async with asyncio.timeout(30):
        await server.cancelled.wait()
