"""The adapter of transports that are asked for messages, and the in-memory twin, on the seam."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.mcp.protocol.messages.era import params_head
from leaseway.data_plane.mcp.protocol.stream_connection import MAX_QUEUED, StreamPeer
from leaseway.data_plane.mcp.protocol.transport import PullTransport, Receipt
from leaseway.data_plane.mcp.transports.pull_adapter import PullAdapter
from leaseway.data_plane.testing.transport import MemoryTransport
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason


class Slip:
    """A receipt."""

    def __init__(self) -> None:
        self.written = False


class Heard:
    """A receiver that remembers."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.skipped: list[tuple[int, int, int]] = []
        self.faults: list[Fault] = []
        self.came = asyncio.Event()

    def receive(self, messages: Sequence[bytes]) -> None:
        self.messages += messages
        self.came.set()

    def overlong(self, head: bytes, tail: bytes, size: int) -> None:
        self.skipped.append((len(head), len(tail), size))
        self.came.set()

    def failed(self, receipt: Receipt, fault: Fault) -> None:
        raise AssertionError(fault)

    def ending(self, fault: Fault) -> None:
        raise AssertionError(fault)

    def lost(self, fault: Fault) -> None:
        self.faults.append(fault)
        self.came.set()

    async def something(self) -> None:
        """Wait until anything came."""
        async with asyncio.timeout(BOUND):
            await self.came.wait()
        self.came.clear()


class Gate(PullTransport):
    """Sends only while its gate is open."""

    transport_type = "gate"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.sent: list[bytes] = []
        self.coming: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = 0

    async def connect(self) -> None:
        pass

    async def disconnect(self) -> None:
        self.closed += 1

    async def send(self, message: bytes) -> None:
        await self.gate.wait()
        self.sent.append(message)

    async def receive(self) -> bytes:
        return await self.coming.get()


@pytest.fixture
async def gate() -> AsyncIterator[tuple[Gate, PullAdapter, Heard]]:
    """Return a gate, its adapter and a receiver, connected."""
    gate, heard = Gate(), Heard()
    pulled = PullAdapter("s", gate)
    await pulled.connect(heard)
    yield gate, pulled, heard
    await pulled.disconnect()


async def test_what_is_not_sent_yet_can_be_taken_back(
    gate: tuple[Gate, PullAdapter, Heard],
) -> None:
    inner, pulled, _ = gate
    slips = [Slip(), Slip(), Slip()]
    for slip in slips:
        pulled.send(b"0123456789\n", slip)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [slip.written for slip in slips] == [True, False, False]
    assert (pulled.waiting(), pulled.stuck) == (33, True)
    assert not pulled.withdraw(slips[0])
    assert pulled.withdraw(slips[1])
    assert not pulled.withdraw(slips[1])
    assert pulled.waiting() == 22
    inner.gate.set()
    async with asyncio.timeout(BOUND):
        while pulled.waiting():
            await asyncio.sleep(0)
    assert len(inner.sent) == 2
    assert not pulled.stuck


async def test_a_message_above_the_bound_is_not_passed_on(
    gate: tuple[Gate, PullAdapter, Heard],
) -> None:
    inner, _, heard = gate
    inner.coming.put_nowait(b"x" * (bounds.MAX_LINE + 1))
    await heard.something()
    assert heard.skipped == [(1024, 1024, bounds.MAX_LINE + 1)]
    assert heard.messages == []


async def test_a_flood_leaves_turns_to_others(gate: tuple[Gate, PullAdapter, Heard]) -> None:
    inner, _, heard = gate
    for _ in range(10_000):
        inner.coming.put_nowait(b"{}")
    turns = 0
    async with asyncio.timeout(BOUND):
        while len(heard.messages) < 10_000:
            turns += 1
            await asyncio.sleep(0)
    assert turns > 100


async def test_disconnecting_twice_and_sending_afterwards_do_nothing(
    gate: tuple[Gate, PullAdapter, Heard],
) -> None:
    inner, pulled, heard = gate
    await asyncio.gather(pulled.disconnect(), pulled.disconnect())
    pulled.send(b"{}\n", Slip())
    assert (inner.closed, pulled.waiting(), heard.faults) == (1, 0, [])


async def test_calls_beyond_the_bound_are_refused_while_nothing_gets_out() -> None:
    gate = Gate()
    peer = StreamPeer("s", PullAdapter("s", gate))
    await peer.open()
    outcomes: list[Outcome] = []
    big = b'{"text":"' + b"x" * (bounds.MAX_ARGUMENTS - 1024) + b'"}'
    calls = [peer.call(ToolRequest("t", params_head("t"), big), outcomes.append) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (refused,) = outcomes
    assert refused.fault is not None
    assert (refused.fault.reason, refused.fault.started) == (Reason.OVERLOADED, "no")
    assert [call.written for call in calls] == [True, False, False]
    calls[1].cancel("enough")
    assert peer.transport.waiting() < MAX_QUEUED / 2
    await peer.aclose()
    assert [outcome.fault.started for outcome in outcomes if outcome.fault] == ["no", "yes"]
    assert gate.sent == []


async def test_memory_carries_both_ways_and_tells_of_its_end() -> None:
    near, far = MemoryTransport.pair()
    here, there, early = Heard(), Heard(), Slip()
    await near.connect(here)
    near.send(b"early\n", early)
    assert (near.stuck, near.waiting(), early.written) == (True, 6, False)
    await far.connect(there)
    far.send(b"back\n", Slip())
    taken = Slip()
    near.send(b"taken back\n", taken)
    assert near.withdraw(taken)
    await there.something()
    await here.something()
    assert (there.messages, here.messages) == ([b"early\n"], [b"back\n"])
    assert early.written
    await far.disconnect()
    await far.disconnect()
    await here.something()
    assert [fault.reason.value for fault in here.faults] == ["SERVER_LOST"]
    assert there.faults == []
    await near.disconnect()


async def test_memory_whose_other_end_has_gone_cannot_be_connected() -> None:
    near, far = MemoryTransport.pair()
    await far.disconnect()
    with pytest.raises(Fault, match="was closed"):
        await near.connect(Heard())
