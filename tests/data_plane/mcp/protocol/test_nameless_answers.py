"""Responses without an id, which JSON-RPC sends for a request that the server could not read."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest
from tests.data_plane.doubles.transport import MemoryTransport

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.wire.errors import Reason

ANSWER = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"cannot read it"}}'


@pytest.fixture
async def peer() -> AsyncIterator[StreamPeer]:
    """A connection whose server answers nothing by itself."""
    near, _far = MemoryTransport.pair()
    peer = StreamPeer("quiet", near)
    await peer.open()
    yield peer
    await peer.aclose(hurry=True)


def start_call(peer: StreamPeer) -> list[Outcome]:
    """Start a call; return the list in which its outcome appears."""
    outcomes: list[Outcome] = []
    peer.call(ToolRequest("echo", b'"name":"echo","arguments":', b"{}"), outcomes.append)
    return outcomes


async def test_an_answer_without_an_id_ends_the_only_call(peer: StreamPeer) -> None:
    outcomes = start_call(peer)
    peer.receive([ANSWER])
    [outcome] = outcomes
    assert outcome.fault is not None
    assert outcome.fault.reason is Reason.SERVER_ERROR
    assert "cannot read it" in outcome.fault.message
    assert peer.in_flight == 0


async def test_an_answer_without_an_id_ends_none_of_several_calls(peer: StreamPeer) -> None:
    first, second = start_call(peer), start_call(peer)
    peer.receive([ANSWER])
    assert not first
    assert not second
    assert peer.stray_replies == 1
    peer.receive([b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'])
    assert first == [Outcome(b'{"content":[]}')]


async def test_an_answer_without_an_id_ends_its_call_however_deeply_it_is_nested(
    peer: StreamPeer,
) -> None:
    # Somewhere in this range a message can just be read, and its error no more.
    for levels in range(sys.getrecursionlimit() - 300, sys.getrecursionlimit() + 10):
        outcomes = start_call(peer)
        nested = b'{"a":' * levels + b"1" + b"}" * levels
        peer.receive([b'{"jsonrpc":"2.0","id":null,"error":%b}' % nested])
        assert len(outcomes) == 1
        assert peer.in_flight == 0
    assert not peer.closed.is_set


async def test_a_result_without_an_id_ends_no_call(peer: StreamPeer) -> None:
    outcomes = start_call(peer)  # it may be another caller's, who has stopped waiting
    peer.receive([b'{"jsonrpc":"2.0","id":null,"result":{"content":[]}}'])
    assert not outcomes
    assert peer.garbage == 1


UNKNOWN = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}'


async def test_an_error_that_answers_a_notification_ends_no_call(peer: StreamPeer) -> None:
    await peer.notify("notifications/initialized", None)
    outcomes = start_call(peer)
    peer.receive([UNKNOWN])
    assert not outcomes
    peer.receive([UNKNOWN])  # the notification was answered before
    assert len(outcomes) == 1


async def test_an_error_long_after_a_notification_ends_its_call(peer: StreamPeer) -> None:
    await peer.notify("notifications/initialized", None)
    first = start_call(peer)
    peer.receive([b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'])
    second = start_call(peer)
    peer.receive([UNKNOWN])
    assert first == [Outcome(b'{"content":[]}')]
    assert len(second) == 1


async def test_an_error_about_what_is_no_json_ends_its_call_also_after_a_notification(
    peer: StreamPeer,
) -> None:
    await peer.notify("notifications/initialized", None)
    outcomes = start_call(peer)
    peer.receive([ANSWER])
    assert len(outcomes) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"level":"error","error":"cache miss","message":"going on"}',
        b'{"level":50,"error":{"code":"ECONNRESET","message":"retrying"},"pid":1}',
        b'{"level":"info","result":"ok"}',
        b'{"level":"info","id":1,"message":"request received"}',
    ],
)
async def test_a_line_of_a_log_in_json_ends_no_call(peer: StreamPeer, line: bytes) -> None:
    outcomes = start_call(peer)
    peer.receive([line])
    assert not outcomes
    assert peer.garbage == 1
