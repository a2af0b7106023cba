"""Batches of messages, which servers of MCP 2025-03-26 may send over any transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
from tests.data_plane.doubles.transport import MemoryTransport

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.mcp.protocol.messages.reading import (
    read_body,
    read_repaired,
    split_batch,
)
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer


@pytest.fixture
async def peer() -> AsyncIterator[StreamPeer]:
    """A connection whose server answers nothing by itself, with calls 1 and 2 in flight."""
    near, _far = MemoryTransport.pair()
    peer = StreamPeer("batching", near)
    await peer.open()
    yield peer
    await peer.aclose(hurry=True)


@pytest.fixture
def outcomes(peer: StreamPeer) -> dict[int, Outcome]:
    """Start two calls; return their outcomes, by id."""
    ended: dict[int, Outcome] = {}
    for key in (1, 2):
        request = ToolRequest("echo", b'"name":"echo","arguments":', b"{}")
        peer.call(request, partial(ended.__setitem__, key))
    return ended


def answer(key: int, text: str) -> str:
    return f'{{"jsonrpc":"2.0","id":{key},"result":{{"content":[],"x":{text}}}}}'


@pytest.mark.parametrize("line", ["[%s,%s]", "\ufeff [ %s , %s ] "])
async def test_a_batch_answers_all_its_calls(
    peer: StreamPeer, outcomes: dict[int, Outcome], line: str
) -> None:
    peer.receive([(line % (answer(2, '"b"'), answer(1, '"a"'))).encode()])
    assert outcomes == {
        1: Outcome(b'{"content":[],"x":"a"}'),
        2: Outcome(b'{"content":[],"x":"b"}'),
    }
    assert peer.garbage == 0


async def test_a_message_that_is_none_costs_its_batch_nothing_else(
    peer: StreamPeer, outcomes: dict[int, Outcome]
) -> None:
    broken = '{"jsonrpc":"2.0","id":1,"result":7,"method":[]}'
    peer.receive([f"[{broken},[],3,{answer(2, '1')}]".encode()])
    assert outcomes[2] == Outcome(b'{"content":[],"x":1}')
    assert outcomes[1].fault is not None
    assert peer.garbage == 2


async def test_a_batch_with_what_is_not_json_is_repaired(
    peer: StreamPeer, outcomes: dict[int, Outcome]
) -> None:
    peer.receive([f"[{answer(1, 'NaN')},{answer(2, '2')}]".encode()])
    assert outcomes == {
        1: Outcome(b'{"content":[],"x":null}'),
        2: Outcome(b'{"content":[],"x":2}'),
    }


TOO_MANY = b"[" + b"{}," * 64 + b"{}]"
TOO_LARGE = b'[{"a":"' + b"x" * (1 << 20) + b'"}]'


@pytest.mark.parametrize(
    "line", [b"[INFO] ready", b"[]", b"[1]", b"[", b"[{", b'[{"', TOO_MANY], ids=range(7)
)
async def test_lines_that_only_begin_like_a_batch_are_counted_as_stray(
    peer: StreamPeer, outcomes: dict[int, Outcome], line: bytes
) -> None:
    peer.receive([line])
    assert peer.garbage == 1
    assert not outcomes


@pytest.mark.parametrize("batch", [TOO_MANY, TOO_LARGE], ids=["many", "large"])
def test_a_batch_beyond_its_bounds_is_none(batch: bytes) -> None:
    for read_it in (split_batch, read_body, read_repaired):
        with pytest.raises(ValueError, match="too large"):
            read_it(batch)
