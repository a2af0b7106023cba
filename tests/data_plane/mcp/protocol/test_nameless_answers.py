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


@pytest.mark.parametrize("member", ["result", "error"])
async def test_an_answer_without_an_id_ends_its_call_however_deeply_it_is_nested(
    peer: StreamPeer, member: str
) -> None:
    # Somewhere in this range a message can just be read, and its result no more.
    for levels in range(sys.getrecursionlimit() - 300, sys.getrecursionlimit() + 10):
        outcomes = start_call(peer)
        nested = b'{"a":' * levels + b"1" + b"}" * levels
        peer.receive([b'{"jsonrpc":"2.0","id":null,"%b":%b}' % (member.encode(), nested)])
        assert len(outcomes) == 1
        assert peer.in_flight == 0
    assert not peer.closed.is_set
