"""The adapter of pull transports, and the in-memory transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.conftest import BOUND
from tests.data_plane.doubles.transport import MemoryTransport
from tests.data_plane.mcp.conftest import until

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.mcp.protocol.messages.era import params_head
from leaseway.data_plane.mcp.protocol.stream_connection import MAX_QUEUED, StreamPeer
from leaseway.data_plane.mcp.protocol.transport import PullTransport, Receipt
from leaseway.data_plane.mcp.pull_adapter import PullAdapter
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason


class FakeReceipt:
    """A receipt."""

    def __init__(self) -> None:
        self.written = False


class RecordingReceiver:
    """Records what it receives."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.skipped: list[tuple[int, int, int]] = []
        self.faults: list[Fault] = []
        self.received = asyncio.Event()

    def receive(self, messages: Sequence[bytes]) -> None:
        self.messages += messages
        self.received.set()

    def overlong(self, head: bytes, tail: bytes, size: int) -> None:
        self.skipped.append((len(head), len(tail), size))
        self.received.set()

    def failed(self, receipt: Receipt, fault: Fault) -> None:
        raise AssertionError(fault)

    def ending(self, fault: Fault) -> None:
        raise AssertionError(fault)

    def lost(self, fault: Fault) -> None:
        self.faults.append(fault)
        self.received.set()

    async def until_received(self) -> None:
        """Wait until anything is received."""
        async with asyncio.timeout(BOUND):
            await self.received.wait()
        self.received.clear()


class Gate(PullTransport):
    """Sends only while its gate is open."""

    transport_type = "gate"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.sent: list[bytes] = []
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = 0

    async def connect(self) -> None:
        pass

    async def disconnect(self) -> None:
        self.closed += 1

    async def send(self, message: bytes) -> None:
        await self.gate.wait()
        self.sent.append(message)

    async def receive(self) -> bytes:
        return await self.incoming.get()


@pytest.fixture
async def gate() -> AsyncIterator[tuple[Gate, PullAdapter, RecordingReceiver]]:
    """Return a gate, its connected adapter and a receiver."""
    gate, receiver = Gate(), RecordingReceiver()
    adapter = PullAdapter("s", gate)
    await adapter.connect(receiver)
    yield gate, adapter, receiver
    await adapter.disconnect()


async def test_queued_messages_can_be_withdrawn(
    gate: tuple[Gate, PullAdapter, RecordingReceiver],
) -> None:
    inner, adapter, _ = gate
    receipts = [FakeReceipt(), FakeReceipt(), FakeReceipt()]
    for receipt in receipts:
        adapter.send(b"0123456789\n", receipt)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [receipt.written for receipt in receipts] == [True, False, False]
    assert (adapter.waiting(), adapter.stuck) == (33, True)
    assert not adapter.withdraw(receipts[0])
    assert adapter.withdraw(receipts[1])
    assert not adapter.withdraw(receipts[1])
    assert adapter.waiting() == 22
    inner.gate.set()
    await until(lambda: not adapter.waiting())
    assert len(inner.sent) == 2
    assert not adapter.stuck


async def test_a_message_above_the_limit_is_skipped(
    gate: tuple[Gate, PullAdapter, RecordingReceiver],
) -> None:
    inner, _, receiver = gate
    inner.incoming.put_nowait(b"x" * (bounds.MAX_LINE + 1))
    await receiver.until_received()
    assert receiver.skipped == [(1024, 1024, bounds.MAX_LINE + 1)]
    assert receiver.messages == []


async def test_a_flood_of_messages_does_not_starve_other_tasks(
    gate: tuple[Gate, PullAdapter, RecordingReceiver],
) -> None:
    inner, _, receiver = gate
    for _ in range(10_000):
        inner.incoming.put_nowait(b"{}")
    turns = 0
    async with asyncio.timeout(BOUND):
        while len(receiver.messages) < 10_000:
            turns += 1
            await asyncio.sleep(0)
    assert turns > 100


async def test_a_second_disconnect_and_later_sends_do_nothing(
    gate: tuple[Gate, PullAdapter, RecordingReceiver],
) -> None:
    inner, adapter, receiver = gate
    await asyncio.gather(adapter.disconnect(), adapter.disconnect())
    adapter.send(b"{}\n", FakeReceipt())
    assert (inner.closed, adapter.waiting(), receiver.faults) == (1, 0, [])


async def test_calls_above_the_queue_limit_are_rejected() -> None:
    gate = Gate()
    peer = StreamPeer("s", PullAdapter("s", gate))
    await peer.open()
    outcomes: list[Outcome] = []
    big = b'{"text":"' + b"x" * (bounds.MAX_ARGUMENTS - 1024) + b'"}'
    calls = [peer.call(ToolRequest("t", params_head("t"), big), outcomes.append) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (rejected,) = outcomes
    assert rejected.fault is not None
    assert (rejected.fault.reason, rejected.fault.started) == (Reason.OVERLOADED, "no")
    assert [call.written for call in calls] == [True, False, False]
    calls[1].cancel("enough")
    assert peer.transport.waiting() < MAX_QUEUED / 2
    await peer.aclose()
    assert [outcome.fault.started for outcome in outcomes if outcome.fault] == ["no", "yes"]
    assert gate.sent == []


async def test_a_memory_transport_sends_both_ways_and_reports_its_end() -> None:
    near, far = MemoryTransport.pair()
    here, there, early = RecordingReceiver(), RecordingReceiver(), FakeReceipt()
    await near.connect(here)
    near.send(b"early\n", early)
    assert (near.stuck, near.waiting(), early.written) == (True, 6, False)
    await far.connect(there)
    far.send(b"back\n", FakeReceipt())
    withdrawn = FakeReceipt()
    near.send(b"withdrawn\n", withdrawn)
    assert near.withdraw(withdrawn)
    await there.until_received()
    await here.until_received()
    assert (there.messages, here.messages) == ([b"early\n"], [b"back\n"])
    assert early.written
    await far.disconnect()
    await far.disconnect()
    await here.until_received()
    assert [fault.reason.value for fault in here.faults] == ["SERVER_LOST"]
    assert there.faults == []
    await near.disconnect()


async def test_a_memory_transport_whose_other_end_is_closed_can_not_connect() -> None:
    near, far = MemoryTransport.pair()
    await far.disconnect()
    with pytest.raises(Fault, match="was closed"):
        await near.connect(RecordingReceiver())
