"""Limits of received messages, checked before they are decoded."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.decoding import MessageDecoder, MessageLimit, count_fields

LIMIT = MessageLimit(1 * bounds.MIB, 10_000)


def decoder(message: type = catalog_pb2.ResolveToolsRequest) -> MessageDecoder:
    return MessageDecoder("ResolveTools", message.FromString, LIMIT)  # type: ignore[attr-defined]


def test_a_message_at_its_limits_is_decoded() -> None:
    names = catalog_pb2.ResolveToolsRequest(names=[""] * LIMIT.fields)
    assert decoder()(names.SerializeToString()) == names
    one = catalog_pb2.ResolveToolsRequest(names=["x" * (LIMIT.size - 4)])
    assert one.ByteSize() == LIMIT.size
    assert decoder()(one.SerializeToString()) == one


@pytest.mark.parametrize(
    "content",
    [
        catalog_pb2.ResolveToolsRequest(names=[""] * (LIMIT.fields + 1)).SerializeToString(),
        catalog_pb2.ResolveToolsRequest(names=["x" * (LIMIT.size - 3)]).SerializeToString(),
        b"\xff" * 10,
        b"\x0a\x02\xff\xfe",  # a text that is not UTF-8
        b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80" + bytes(20_000),
        b"\x07" * 20_000,
    ],
)
def test_a_message_beyond_its_limits_or_invalid_is_a_fault(content: bytes) -> None:
    with pytest.raises(Fault) as raised:
        decoder()(content)
    assert raised.value.reason is Reason.INVALID_REQUEST
    assert "ResolveTools" in raised.value.message


def test_fields_of_nested_messages_lists_and_maps_count() -> None:
    arguments = Struct()
    arguments.update({"list": [{"a": 1}] * 5_000})
    call = execution_pb2.CallToolRequest(tool="echo", arguments=arguments)
    with pytest.raises(Fault, match="more than 10000 values"):
        decoder(execution_pb2.CallToolRequest)(call.SerializeToString())


@given(st.lists(st.text(max_size=3)), st.lists(st.text(max_size=300)), st.integers(1, 2**31 - 1))
def test_counting_finds_every_field(ids: list[str], sessions: list[str], seconds: int) -> None:
    request = leases_pb2.AcquireLeaseRequest()
    request.ttl.seconds = seconds
    assert count_fields(request.SerializeToString(), request.DESCRIPTOR, 100) == 2
    renewal = leases_pb2.KeepAliveRequest(lease_ids=ids, sessions=sessions)
    count = count_fields(renewal.SerializeToString(), renewal.DESCRIPTOR, 10_000)
    assert count == len(ids) + len(sessions)


@given(st.binary(max_size=200))
def test_counting_ends_with_any_bytes(content: bytes) -> None:
    assert count_fields(content, execution_pb2.ExchangeRequest.DESCRIPTOR, 50) <= 51
