"""Questions and logs of a shared server after calls were cancelled, which these may be about."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp.shared.exceptions import MCPError
from tests.conftest import BOUND
from tests.data_plane.doubles.transport import MemoryTransport

from leaseway.data_plane.core.calls.call import Ask, Callbacks, Outcome, ToolRequest
from leaseway.data_plane.mcp.protocol.messages import liveness
from leaseway.data_plane.mcp.protocol.messages.liveness import MAX_ABANDONED
from leaseway.data_plane.mcp.protocol.messages.reading import read
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.wire.messages.mcp import ELICIT

QUESTION = json.dumps(
    {"jsonrpc": "2.0", "id": "q", "method": ELICIT, "params": {"message": "?"}}
).encode()

LOG = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"of A"}}'


class Server:
    """The far end: it reads all, and answers nothing by itself."""

    def receive(self, messages: list[bytes]) -> None:
        """Read messages."""

    def lost(self, _fault: object) -> None:
        """The connection has ended."""


@pytest.mark.parametrize(
    ("cancelled", "passes"), [(MAX_ABANDONED, True), (MAX_ABANDONED + 1, False)]
)
async def test_a_question_passes_once_all_cancelled_calls_are_answered_if_they_are_known(
    cancelled: int, passes: bool
) -> None:
    near, far = MemoryTransport.pair()
    await far.connect(Server())  # type: ignore[arg-type]
    peer = StreamPeer("shared", near)
    peer.asks_alone = True
    await peer.open()
    outcomes: list[Outcome] = []
    asked: list[Ask] = []
    request = ToolRequest("echo", b'"name":"echo","arguments":', b"{}")
    try:
        pending = [peer.call(request, outcomes.append) for _ in range(cancelled)]
        async with asyncio.timeout(BOUND):
            while not pending[-1].written:
                await asyncio.sleep(0)
        for call in pending:
            call.cancel("nobody waits")
        request.callbacks = Callbacks(on_ask=asked.append, answers=frozenset({ELICIT}))
        peer.call(request, outcomes.append)
        peer.receive([QUESTION])
        assert not asked
        for number in range(1, cancelled + 1):
            peer.receive([b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number])
        peer.receive([QUESTION])
        assert bool(asked) is passes
    finally:
        await peer.aclose(hurry=True)


async def test_a_question_of_one_callers_call_never_passes_to_another_caller() -> None:
    near, far = MemoryTransport.pair()
    await far.connect(Server())  # type: ignore[arg-type]
    peer = StreamPeer("shared", near)
    peer.asks_alone = True
    await peer.open()
    asked: list[tuple[str, Ask]] = []

    def call(name: str) -> None:
        callbacks = Callbacks(
            on_ask=lambda ask: asked.append((name, ask)), answers=frozenset({ELICIT})
        )
        request = ToolRequest("echo", b'"name":"echo","arguments":', b"{}", callbacks=callbacks)
        peer.call(request, lambda _outcome: None)

    try:
        call("first")
        # As over HTTP outside of a call's stream: nothing says whose question it is.
        peer._inbox.handle(read(QUESTION), None)
        call("second")
        [(_, ask)] = asked
        ask.end_with_call()
        assert [name for name, _ in asked] == ["first"]
    finally:
        await peer.aclose(hurry=True)


@pytest.mark.parametrize(
    "late",
    [b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":1}', b'{"id":1,"result":{]}'],
    ids=["result", "neither", "unreadable"],
)
@pytest.mark.parametrize("leased", [False, True])
async def test_a_log_that_may_be_of_a_cancelled_call_never_reaches_another_caller(
    leased: bool, late: bytes
) -> None:
    near, far = MemoryTransport.pair()
    await far.connect(Server())  # type: ignore[arg-type]
    peer = StreamPeer("talker", near)
    peer.leased = leased
    await peer.open()
    logs: list[bytes] = []
    callbacks = Callbacks(on_log=lambda *log: logs.append(log[2]), log_level="debug")
    request = ToolRequest("echo", b'"name":"echo","arguments":', b"{}", callbacks=callbacks)
    try:
        first = peer.call(request, lambda _outcome: None)
        async with asyncio.timeout(BOUND):
            while not first.written:
                await asyncio.sleep(0)
        first.cancel("nobody waits")
        peer.call(request, lambda _outcome: None)
        peer.receive([LOG])
        assert logs == ([b'"of A"'] if leased else [])
        logs.clear()
        peer.receive([late, LOG])
        assert logs == [b'"of A"']
    finally:
        await peer.aclose(hurry=True)


async def test_a_server_that_never_answers_cancelled_calls_logs_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = MemoryTransport.pair()
    await far.connect(Server())  # type: ignore[arg-type]
    peer = StreamPeer("talker", near)
    await peer.open()
    logs: list[bytes] = []
    callbacks = Callbacks(on_log=lambda *log: logs.append(log[2]), log_level="debug")
    request = ToolRequest("echo", b'"name":"echo","arguments":', b"{}", callbacks=callbacks)
    try:
        first = peer.call(request, lambda _outcome: None)
        async with asyncio.timeout(BOUND):
            while not first.written:
                await asyncio.sleep(0)
        first.cancel("nobody waits")
        peer.call(request, lambda _outcome: None)
        peer.receive([LOG])
        assert logs == []
        monkeypatch.setattr(liveness, "ABANDONED_FOR", 0.0)
        peer.receive([LOG])
        assert logs == [b'"of A"']
    finally:
        await peer.aclose(hurry=True)


async def test_an_answer_to_a_cancelled_subscription_is_late_and_no_strange_one() -> None:
    near, far = MemoryTransport.pair()
    await far.connect(Server())  # type: ignore[arg-type]
    peer = StreamPeer("of Go", near)
    await peer.open()
    try:
        with pytest.raises(MCPError):
            await peer.send_raw_request(
                "subscriptions/listen", {}, {"request_id": "listen-1", "timeout": 0.01}
            )
        peer.receive([b'{"jsonrpc":"2.0","id":"listen-1","result":{}}'])
        assert (peer.late_replies, peer.stray_replies) == (1, 0)
        peer.receive([b'{"jsonrpc":"2.0","id":"listen-2","result":{}}'])
        assert (peer.late_replies, peer.stray_replies) == (1, 1)
    finally:
        await peer.aclose(hurry=True)
