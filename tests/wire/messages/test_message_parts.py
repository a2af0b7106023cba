"""Long Sync messages survive being cut and joined, within their bound."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import MAX_MESSAGE
from leaseway.wire.messages.message_parts import Joiner, OversizeMessage, split


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3 * MAX_MESSAGE + 1), min_size=1, max_size=3))
def test_joined_messages_are_unchanged(sizes: list[int]) -> None:
    joiner = Joiner()
    for size in sizes:
        message = bytes([size % 251]) * size
        joined = [joiner.add(part) for part in split(message)]
        assert joined[-1] == message
        assert all(whole is None for whole in joined[:-1])


@pytest.mark.parametrize(
    ("size", "parts"),
    [(0, 1), (1, 1), (MAX_MESSAGE, 1), (MAX_MESSAGE + 1, 2), (2 * MAX_MESSAGE, 2)],
)
def test_all_parts_but_the_last_are_full(size: int, parts: int) -> None:
    cut = list(split(b"x" * size))
    assert len(cut) == parts
    assert [part.more for part in cut] == [True] * (parts - 1) + [False]
    assert all(len(part.data) == MAX_MESSAGE for part in cut[:-1])


def test_a_message_at_the_bound_passes_and_one_byte_more_does_not() -> None:
    joiner = Joiner(limit=10)
    assert joiner.add(sync_pb2.Part(data=b"12345", more=True)) is None
    assert joiner.add(sync_pb2.Part(data=b"67890")) == b"1234567890"
    joiner.add(sync_pb2.Part(data=b"12345", more=True))
    with pytest.raises(OversizeMessage, match="10 bytes"):
        joiner.add(sync_pb2.Part(data=b"678901"))


def test_a_message_after_an_oversize_one_is_whole() -> None:
    joiner = Joiner(limit=4)
    with pytest.raises(OversizeMessage):
        joiner.add(sync_pb2.Part(data=b"12345", more=True))
    assert joiner.add(sync_pb2.Part(data=b"abc")) == b"abc"
