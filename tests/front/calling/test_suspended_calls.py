"""Suspended calls: server requests as `input_required` results of modern clients."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.conftest import BOUND

from leaseway.front.calling.suspended_calls import (
    Binding,
    SuspendedCalls,
    is_suspended,
    open_state,
    seal_state,
)
from leaseway.front.protocol.messages import JsonRpcError
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.v1 import execution_pb2
from leaseway.wire.messages.mcp import INTERNAL_ERROR


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
    async with asyncio.timeout(BOUND):
        await server.cancelled.wait()


async def test_the_end_of_a_lease_is_told_to_others_until_its_client_goes_on() -> None:
    suspended, server = SuspendedCalls(), Server("one")
    revoked, failed, forgotten = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def call() -> bytes:
        asking = asyncio.create_task(server.call())
        await revoked.wait()
        assert not asking.done()
        server.listener.handle_lease_end(forgotten.set)
        failed.set()
        raise JsonRpcError(INTERNAL_ERROR, "The lease was revoked.")

    result = json.loads(await suspended.start(server.listener, call()))
    revoked.set()
    async with asyncio.timeout(BOUND):
        await failed.wait()
    assert not forgotten.is_set()
    with pytest.raises(JsonRpcError, match="revoked"):
        await suspended.resume(listener(), result["requestState"], b"{}")
    assert forgotten.is_set()


REQUEST = Binding("", "tools/call", "send", b'{"to": "a", "n": 1}')
OTHERS = [
    Binding("mail", "tools/call", "send", REQUEST.arguments),
    Binding("", "prompts/get", "send", REQUEST.arguments),
    Binding("", "tools/call", "delete", REQUEST.arguments),
    Binding("", "tools/call", "send", b'{"to": "b", "n": 1}'),
]


@pytest.mark.parametrize("other", OTHERS)
async def test_a_call_is_not_resumed_by_another_request(other: Binding) -> None:
    suspended, server = SuspendedCalls(), Server("one")
    result = json.loads(await suspended.start(server.listener, server.call(), REQUEST))
    state = result["requestState"]
    with pytest.raises(JsonRpcError, match="not given to this caller for this request"):
        await suspended.resume(listener(), state, b"{}", other)
    same = Binding("", "tools/call", "send", b'{"n":1,"to":"a"}')  # as another library writes it
    assert await suspended.resume(listener(), state, b"{}", same) == b'["refused"]'


def table(principal: str = "ann", key: str = "key") -> SessionTable:
    client: Any = None
    return SessionTable(client, Sealer(key, "mcp session"), Owner("acme", principal))


ASKING = b'{"resultType":"input_required","inputRequests":{},"requestState":"its own"}'


def sealed(session: str = "") -> str:
    result = json.loads(seal_state(table(), ASKING, REQUEST, session))
    assert result["inputRequests"] == {}
    state: str = result["requestState"]
    return state


def test_a_servers_state_reaches_it_again_and_names_the_session_that_waits() -> None:
    assert open_state(table(), sealed("mcp-request-1"), REQUEST) == ("its own", "mcp-request-1")


@pytest.mark.parametrize("other", OTHERS)
def test_a_servers_state_is_refused_for_another_request(other: Binding) -> None:
    with pytest.raises(JsonRpcError, match="not given to this caller"):
        open_state(table(), sealed(), other)


@pytest.mark.parametrize("other", [table("bob"), table(key="of another front")])
def test_a_servers_state_is_refused_to_another_caller_and_front(other: SessionTable) -> None:
    with pytest.raises(JsonRpcError, match="not given to this caller"):
        open_state(other, sealed(), REQUEST)


@pytest.mark.parametrize("state", ["", "its own", "leaseway-state ", "leaseway-state §", "x" * 9])
def test_a_state_that_no_front_gave_is_refused(state: str) -> None:
    with pytest.raises(JsonRpcError, match="not given to this caller"):
        open_state(table(), state, REQUEST)


def test_an_expired_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state, now = sealed(), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 301.0)
    with pytest.raises(JsonRpcError, match="has expired"):
        open_state(table(), state, REQUEST)


def test_a_result_without_a_state_and_without_a_session_stays_as_it_is() -> None:
    result = b'{"resultType":"input_required","inputRequests":{"a":{}}}'
    assert seal_state(table(), result, REQUEST) == result
