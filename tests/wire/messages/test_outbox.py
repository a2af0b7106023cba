from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.v1 import execution_pb2, leases_pb2
from leaseway.wire.bounds import BATCH_SIZE, KIB, MAX_MESSAGE
from leaseway.wire.messages.frames import (
    Assembler,
    Outbox,
    OversizePayload,
    call_frame,
    frame,
    frame_tag,
)

Request = execution_pb2.ExchangeRequest


class Woken:
    """An outbox and how often it asked to be drained."""

    def __init__(self) -> None:
        self.times = 0
        self.outbox = Outbox(self.wake)

    def wake(self) -> None:
        self.times += 1

    def put(self, call_id: int, size: int = 10) -> int:
        return self.outbox.put(call_frame(call_id, b"", b"x" * size, 1))

    def put_large(self, call_id: int, payload: bytes) -> int:
        return self.outbox.put_large(call_frame(call_id, b"", b"", 1), call_id, payload)

    def put_any(self, field: str, message: Any) -> int:
        return self.outbox.put(frame(frame_tag(Request, field), message))

    def next(self) -> execution_pb2.ExchangeRequest:
        return Request.FromString(self.outbox.next_batch())

    def drain(self) -> list[execution_pb2.ExchangeRequest]:
        batches = []
        while self.outbox:
            batches.append(self.next())
        return batches


def ids(batch: execution_pb2.ExchangeRequest) -> list[int]:
    return [call.id for call in batch.calls]


def test_queued_frames_are_sent_together_in_order() -> None:
    box = Woken()
    for call_id in range(1, 101):
        box.put(call_id)
    (batch,) = box.drain()
    assert ids(batch) == list(range(1, 101))


def test_the_writer_is_woken_once_until_the_outbox_is_empty() -> None:
    box = Woken()
    box.put(1)
    box.put(2)
    box.put_large(3, b"x" * BATCH_SIZE)
    assert box.times == 1
    box.drain()
    box.put(4)
    assert box.times == 2


def test_a_batch_is_closed_at_its_size() -> None:
    box = Woken()
    for call_id in range(1, 6):
        box.put(call_id, 100 * KIB)
    assert [ids(batch) for batch in box.drain()] == [[1, 2, 3], [4, 5]]


def test_frames_of_all_kinds_share_a_batch() -> None:
    box = Woken()
    box.put(1)
    box.put_any("cancels", execution_pb2.Cancel(call_id=9))
    box.put_any("keep_alive", leases_pb2.KeepAliveRequest(lease_ids=["a"]))
    box.put_any("keep_alive", leases_pb2.KeepAliveRequest(lease_ids=["b"]))
    box.put_any("going_away", execution_pb2.GoingAway(reason="end"))
    (batch,) = box.drain()
    assert ids(batch) == [1]
    assert [cancel.call_id for cancel in batch.cancels] == [9]
    assert list(batch.keep_alive.lease_ids) == ["a", "b"]
    assert batch.going_away.reason == "end"


def test_a_frame_without_content_is_still_present() -> None:
    box = Woken()
    box.put_any("going_away", execution_pb2.GoingAway())
    (batch,) = box.drain()
    assert batch.HasField("going_away")


def test_a_large_payload_is_sent_in_chunks_before_its_frame() -> None:
    box = Woken()
    payload = bytes(range(256)) * (BATCH_SIZE // 256) * 2 + b"rest"
    box.put_large(7, payload)
    batches = box.drain()
    assert [ids(batch) for batch in batches] == [[], [], [7]]
    chunks = [chunk for batch in batches for chunk in batch.chunks]
    assert [chunk.last for chunk in chunks] == [False, False, True]
    assert b"".join(chunk.data for chunk in chunks) == payload


def test_small_frames_pass_a_large_one_and_never_starve_it() -> None:
    box = Woken()
    box.put_large(99, b"x" * (2 * BATCH_SIZE))
    seen = []
    for call_id in range(1, 4):
        for part in range(3):
            box.put(call_id * 10 + part, 100 * KIB)
        seen.append(box.next())
    assert [len(batch.chunks) for batch in seen] == [1, 1, 0]
    assert 10 in ids(seen[0])
    assert 99 in ids(seen[1])


def test_large_payloads_take_turns() -> None:
    box = Woken()
    box.put_large(1, b"a" * (2 * BATCH_SIZE))
    box.put_large(2, b"b" * (2 * BATCH_SIZE))
    order = [chunk.call_id for batch in box.drain() for chunk in batch.chunks]
    assert order == [1, 2, 1, 2]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 2 * BATCH_SIZE), max_size=12))
def test_no_batch_exceeds_its_limit_and_nothing_is_lost(sizes: list[int]) -> None:
    box = Woken()
    for call_id, size in enumerate(sizes, 1):
        if size > BATCH_SIZE:
            box.put_large(call_id, bytes([call_id]) * size)
        else:
            box.put(call_id, size)
    assembler = Assembler(MAX_MESSAGE, 100)
    got = {}
    for batch in box.drain():
        assert batch.ByteSize() <= MAX_MESSAGE
        for chunk in batch.chunks:
            assembler.add(chunk)
        for call in batch.calls:
            got[call.id] = len(assembler.take(call.id, call.arguments))
    assert got == dict(enumerate(sizes, 1))
    assert box.outbox.queued_bytes == 0


def test_a_queued_frame_can_be_withdrawn() -> None:
    box = Woken()
    first, second = box.put(1), box.put(2)
    large = box.put_large(3, b"x" * (2 * BATCH_SIZE))
    assert [box.outbox.holds(ticket) for ticket in (first, second, large)] == [True] * 3
    assert box.outbox.withdraw(first)
    assert not box.outbox.withdraw(first)
    assert ids(box.next()) == [2]
    assert not box.outbox.withdraw(second)
    assert [box.outbox.holds(ticket) for ticket in (first, second, large)] == [False, False, True]
    assert box.outbox.withdraw(large)
    assert not box.outbox
    assert box.outbox.queued_bytes == 0


def test_a_full_batch_keeps_the_rest_queued() -> None:
    box = Woken()
    tickets = [box.put(call_id, 200 * KIB) for call_id in range(1, 4)]
    assert ids(box.next()) == [1, 2]
    assert [box.outbox.holds(ticket) for ticket in tickets] == [False, False, True]
    assert box.outbox.queued_bytes == len(call_frame(3, b"", b"x" * 200 * KIB, 1))


def test_a_cleared_outbox_is_empty() -> None:
    box = Woken()
    tickets = [box.put(1), box.put_large(2, b"x" * (2 * BATCH_SIZE))]
    box.outbox.clear()
    assert not box.outbox
    assert [box.outbox.holds(ticket) for ticket in tickets] == [False, False]
    assert box.outbox.next_batch() == b""


def chunk(call_id: int, data: bytes) -> execution_pb2.Chunk:
    return execution_pb2.Chunk(call_id=call_id, data=data)


def test_chunks_of_different_calls_are_not_mixed() -> None:
    assembler = Assembler(100, 10)
    for part in (chunk(1, b"a"), chunk(2, b"x"), chunk(1, b"b")):
        assembler.add(part)
    assert assembler.take(1, b"c") == b"abc"
    assert assembler.take(2, b"") == b"x"
    assert assembler.take(1, b"whole") == b"whole"


def test_the_bound_of_a_payload_holds_at_its_edge() -> None:
    assembler = Assembler(10, 10)
    assembler.add(chunk(1, b"x" * 9))
    assert len(assembler.take(1, b"x")) == 10
    assembler.add(chunk(1, b"x" * 9))
    with pytest.raises(OversizePayload):
        assembler.take(1, b"xx")
    assert len(assembler.take(2, b"x" * 10)) == 10
    with pytest.raises(OversizePayload):
        assembler.take(2, b"x" * 11)


def test_bytes_beyond_the_limit_are_dropped() -> None:
    assembler = Assembler(10, 10)
    for _ in range(1000):
        assembler.add(chunk(1, b"x" * 10))
    assert sum(len(parts) for parts in assembler._parts.values()) <= 20
    with pytest.raises(OversizePayload):
        assembler.take(1, b"")


def test_the_number_of_incomplete_payloads_is_limited() -> None:
    assembler = Assembler(10, 2)
    assembler.add(chunk(1, b"x"))
    assembler.add(chunk(2, b"x"))
    with pytest.raises(OversizePayload):
        assembler.add(chunk(3, b"x"))
    assembler.drop(1)
    assembler.drop(1)
    assembler.add(chunk(3, b"x"))
