"""Suspended calls: server requests as `input_required` results of modern clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from leaseway.front.calling.listener import Listener
from leaseway.front.calling.suspended_calls import SuspendedCalls, is_suspended
from leaseway.front.messages import JsonRpcError
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.v1 import execution_pb2


class Server:
    """Asks questions one after another, and returns the answers."""

    def __init__(self, *questions: str) -> None:
        self.listener = Listener(lambda _message: None)
        self.cancelled = asyncio.Event()
        self._questions = questions

    async def call(self) -> bytes:
        try:
            return json.dumps([await self._ask(text) for text in self._questions]).encode()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _ask(self, text: str) -> Any:
        answered: asyncio.Future[execution_pb2.Answer] = asyncio.Future()
        params = json.dumps({"message": text}).encode()
        ask = execution_pb2.Ask(ask_id=1, method="elicitation/create", params=params)
        assert self.listener.asker is not None
        self.listener.asker.ask(ServerRequest(ask, answered.set_result))
        answer = await answered
        return json.loads(answer.result) if answer.result else "refused"


def listener() -> Listener:
    return Listener(lambda _message: None)


async def test_each_question_is_a_round_until_the_result() -> None:
    suspended, server = SuspendedCalls(), Server("one", "two", "three")
    result = json.loads(await suspended.start(server.listener, server.call()))
    for text, answers in (("one", {"a": 1}), ("two", None), ("three", {"a": 3})):
        assert result["resultType"] == "input_required"
        ((name, asked),) = result["inputRequests"].items()
        assert asked == {"method": "elicitation/create", "params": {"message": text}}
        assert is_suspended(result["requestState"])
        sent = json.dumps({name: answers} if answers else {}).encode()
        result = json.loads(await suspended.resume(listener(), result["requestState"], sent))
    assert result == [{"a": 1}, "refused", {"a": 3}]


async def test_a_call_without_questions_returns_its_result() -> None:
    suspended, server = SuspendedCalls(), Server()
    assert await suspended.start(server.listener, server.call()) == b"[]"


async def test_a_call_is_resumed_only_once() -> None:
    suspended, server = SuspendedCalls(), Server("one")
    result = json.loads(await suspended.start(server.listener, server.call()))
    await suspended.resume(listener(), result["requestState"], b"{}")
    with pytest.raises(JsonRpcError, match="Call the tool again"):
        await suspended.resume(listener(), result["requestState"], b"{}")


async def test_invalid_answers_refuse_the_question() -> None:
    suspended, server = SuspendedCalls(), Server("one")
    result = json.loads(await suspended.start(server.listener, server.call()))
    assert await suspended.resume(listener(), result["requestState"], b"[1") == b'["refused"]'


async def test_at_the_limit_questions_are_refused() -> None:
    suspended = SuspendedCalls()
    for _ in range(256):
        server = Server("one")
        assert b"input_required" in await suspended.start(server.listener, server.call())
    last = Server("one", "two")
    assert await suspended.start(last.listener, last.call()) == b'["refused", "refused"]'


async def test_a_cancelled_request_cancels_its_call() -> None:
    suspended, server = SuspendedCalls(), Server()
    forever = asyncio.Event()

    async def call() -> bytes:
        try:
            await forever.wait()
        finally:
            server.cancelled.set()
        return b""

    asking = asyncio.create_task(suspended.start(server.listener, call()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    async with asyncio.timeout(30):
        await server.cancelled.wait()
