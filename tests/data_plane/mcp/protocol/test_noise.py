"""What stands around messages on a line: colours, prompts, other messages; and echoes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest
from tests.conftest import BOUND
from tests.data_plane.doubles.transport import MemoryTransport
from tests.data_plane.mcp.conftest import Bench, connection

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.features.handshake import build_era
from leaseway.data_plane.mcp.protocol.messages.incoming import REQUESTS_OF_CLIENTS
from leaseway.data_plane.mcp.protocol.messages.reading import read_repaired
from leaseway.data_plane.mcp.protocol.messages.server_requests import parse_params
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey


@pytest.fixture
async def peer() -> AsyncIterator[StreamPeer]:
    """A connection in use whose server answers nothing by itself, with calls 1 and 2 in flight."""
    near, _far = MemoryTransport.pair()
    peer = StreamPeer("noisy", near)
    await peer.open()
    peer.era = build_era("2025-11-25")
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
    return f'{{"jsonrpc":"2.0","id":{key},"result":{{"content":[],"x":"{text}"}}}}'


def outcome(text: str) -> Outcome:
    return Outcome(b'{"content":[],"x":"%b"}' % text.encode())


AROUND = {
    "a colour": "\x1b[0m%s",
    "a hidden cursor": "\x1b[?25l\x1b[2K%s",
    "a title": "\x1b]0;my {server}\x07%s",
    "a title that ST ends": "\x1b]0;server\x1b\\%s",
    "a character set": "\x1b(B\x1b=%s",
    "a byte of zero": "\0%s",
    "marks": "\ufeff \ufeff%s",
    "a spinner": "- working\r| working\r\x1b[2K%s\r",
    "a colour behind": "%s\x1b[0m",
    "a text behind": "%s [info] done",
    "a quote behind": '%s "done {',
    "zeros behind": "%s\0\0",
}


@pytest.mark.parametrize("around", AROUND)
async def test_what_stands_around_a_message_costs_nothing(
    peer: StreamPeer, outcomes: dict[int, Outcome], around: str
) -> None:
    for key, text in ((2, '{b} \\" ]'), (1, "a")):
        peer.receive([(AROUND[around] % answer(key, text)).encode()])
    assert outcomes == {1: outcome("a"), 2: outcome('{b} \\" ]')}


@pytest.mark.parametrize("between", ["", " ", "\x1b[0m\x1b[1;31m", "\ufeff", "\r"])
async def test_messages_side_by_side_are_all_read(
    peer: StreamPeer, outcomes: dict[int, Outcome], between: str
) -> None:
    note = '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"{[","level":"x"}}'
    broken = '{"jsonrpc":"2.0","id":9,"result":7,"method":[]}'
    parts = (note, answer(2, "b"), broken, answer(1, "a"), "rest")
    peer.receive([between.join(parts).encode()])
    assert outcomes == {1: outcome("a"), 2: outcome("b")}


async def test_a_text_before_a_message_hides_it_only_after_the_start(
    peer: StreamPeer, outcomes: dict[int, Outcome]
) -> None:
    line = f"Ok to proceed? (y) {answer(1, 'a')}".encode()
    peer.receive([line])
    assert (outcomes, peer.garbage) == ({}, 1)
    peer.era = build_era("")
    peer.receive([line])
    assert outcomes == {1: outcome("a")}


@pytest.mark.parametrize("method", sorted(REQUESTS_OF_CLIENTS))
async def test_a_request_of_ours_that_comes_back_is_not_answered(
    peer: StreamPeer, outcomes: dict[int, Outcome], method: str
) -> None:
    sent = peer.transport.waiting()
    peer.receive([f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{}}}}'.encode()])
    peer.receive([b'{"jsonrpc":"2.0","id":1,"method":"ping"}'])  # its answer would come back
    assert (peer.echoes, peer.transport.waiting()) == (1, sent)
    peer.receive([answer(1, "a").encode()])
    assert outcomes == {1: outcome("a")}


async def test_a_response_may_repeat_its_request(
    peer: StreamPeer, outcomes: dict[int, Outcome]
) -> None:
    repeated = '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"},'
    peer.receive([(repeated + answer(1, "x").removeprefix('{"jsonrpc":"2.0",')).encode()])
    assert (outcomes, peer.echoes) == ({1: outcome("x")}, 0)


async def test_a_number_out_of_range_costs_only_its_message(
    peer: StreamPeer, outcomes: dict[int, Outcome]
) -> None:
    request = ToolRequest("x", b'"ref":{}', b"{}", method="completion/complete")
    peer.call(request, partial(outcomes.__setitem__, 3))
    far = b'{"jsonrpc":"2.0","id":3,"result":{"completion":{"total":1e999}}}'
    peer.receive([far, answer(1, "x").encode()])
    assert outcomes[3].fault is not None
    assert outcomes[1] == outcome("x")
    asked = b'{"requestedSchema":{"maximum":1e999}}'
    assert parse_params(msgspec.Raw(asked)) == asked


async def test_a_request_with_null_for_what_responses_have_answers_nothing(
    peer: StreamPeer, outcomes: dict[int, Outcome]
) -> None:
    nulls = '"params":{},"result":null,"error":null}'
    peer.receive([f'{{"jsonrpc":"2.0","id":1,"method":"ping",{nulls}'.encode()])
    assert outcomes == {}
    peer.receive([answer(1, "x").encode()])
    assert outcomes == {1: outcome("x")}


async def test_a_request_of_a_client_that_was_never_sent_is_refused_and_ends_no_answers(
    peer: StreamPeer,
) -> None:
    sent = peer.transport.waiting()
    peer.receive([b'{"jsonrpc":"2.0","id":"mine","method":"tools/list","params":{}}'])
    peer.receive([b'{"jsonrpc":"2.0","id":"m2","method":"ping"}'])
    async with asyncio.timeout(BOUND):
        while peer.transport.waiting() == sent:
            await asyncio.sleep(0)
    assert peer.echoes == 0


async def test_a_program_that_only_sends_back_what_it_gets_is_named(bench: Bench) -> None:
    program = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    args = ("-c", program)
    key = VariantKey("cat")
    spec = server_spec(key, "stdio", command=sys.executable, args=args)

    def echoes(instance: Instance) -> int:
        return connection(instance).echoes if instance._peer is not None else 0

    fault = await bench.fails_late(spec, echoes)
    assert fault.metadata["problem"] == "START_TIMEOUT"
    assert "sends back what is sent to it, as a terminal does" in fault.message


@pytest.mark.parametrize("line", [b"", b"x", b"{", b"}{", b'"{}" {}', b"[]{}", b"{" * 70_000])
def test_what_begins_with_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Input|Expected|truncated"):
        read_repaired(line)
