from hypothesis import given
from hypothesis import strategies as st

from leaseway.v1 import execution_pb2
from leaseway.wire.messages.frames import (
    call_frame,
    chunk_frame,
    frame,
    frame_tag,
    head_field,
    result_frame,
    varint,
)

IDS = st.integers(1, 2**64 - 1)


@given(IDS, st.binary(max_size=400), st.integers(1, 2**63), st.text(max_size=20))
def test_a_call_is_encoded_as_by_protobuf(
    call_id: int, arguments: bytes, timeout_ms: int, session: str
) -> None:
    head = execution_pb2.CallHead(server_id="echo", session=session, registry_version=7)
    encoded = head.SerializeToString()
    fields = head_field(encoded) + execution_pb2.Call(traceparent="00-1").SerializeToString()
    batch = execution_pb2.ExchangeRequest.FromString(
        call_frame(call_id, fields, arguments, timeout_ms)
    )
    assert list(batch.calls) == [
        execution_pb2.Call(
            id=call_id,
            head=encoded,
            arguments=arguments,
            timeout_ms=timeout_ms,
            traceparent="00-1",
        )
    ]


@given(IDS, st.binary(max_size=400), st.booleans())
def test_a_result_is_encoded_as_by_protobuf(call_id: int, payload: bytes, is_error: bool) -> None:
    batch = execution_pb2.ExchangeResponse.FromString(result_frame(call_id, payload, is_error))
    assert list(batch.results) == [
        execution_pb2.Result(call_id=call_id, payload=payload, is_error=is_error)
    ]


@given(st.lists(st.tuples(IDS, st.binary(max_size=50)), max_size=20))
def test_joined_frames_are_a_batch_in_the_same_order(frames: list[tuple[int, bytes]]) -> None:
    joined = b"".join(result_frame(call_id, payload, False) for call_id, payload in frames)
    batch = execution_pb2.ExchangeResponse.FromString(joined)
    assert [(result.call_id, result.payload) for result in batch.results] == frames


def test_other_fields_of_a_result_are_appended() -> None:
    rest = execution_pb2.Result()
    rest.status.code = 5
    batch = execution_pb2.ExchangeResponse.FromString(
        result_frame(9, b"", False, rest.SerializeToString())
    )
    assert batch.results[0].status.code == 5
    assert batch.results[0].call_id == 9


def test_frames_of_a_singular_field_are_merged() -> None:
    tag = frame_tag(execution_pb2.ExchangeRequest, "keep_alive")
    first = execution_pb2.ExchangeRequest().keep_alive
    first.lease_ids.append("a")
    second = execution_pb2.ExchangeRequest().keep_alive
    second.lease_ids.append("b")
    batch = execution_pb2.ExchangeRequest.FromString(frame(tag, first) + frame(tag, second))
    assert list(batch.keep_alive.lease_ids) == ["a", "b"]


def test_a_chunk_reads_the_same_in_both_directions() -> None:
    chunk = chunk_frame(3, memoryview(b"data"), last=True)
    request = execution_pb2.ExchangeRequest.FromString(chunk)
    response = execution_pb2.ExchangeResponse.FromString(chunk)
    assert list(request.chunks) == list(response.chunks)
    assert request.chunks[0] == execution_pb2.Chunk(call_id=3, data=b"data", last=True)


@given(st.integers(0, 2**64 - 1))
def test_a_varint_has_seven_bits_a_byte(value: int) -> None:
    encoded = varint(value)
    assert sum((byte & 127) << (7 * index) for index, byte in enumerate(encoded)) == value
    assert all(byte & 128 for byte in encoded[:-1])
    assert not encoded[-1] & 128
