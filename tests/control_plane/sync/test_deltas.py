"""Messages of deltas, built once for many workers."""

from __future__ import annotations

import pytest
from tests.control_plane.core.builders import at, coordinator, hello, listing, load, spec

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.workers.actions import PushDelta, StartProbe
from leaseway.control_plane.core.workers.subscription import Push
from leaseway.control_plane.sync import deltas as delta_wire
from leaseway.control_plane.sync.deltas import DeltaWriter
from leaseway.control_plane.sync.seal import Seal
from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import MAX_MESSAGE
from leaseway.wire.messages.message_parts import Joiner


def heard(messages: list[sync_pb2.SyncResponse]) -> sync_pb2.Delta:
    """Return the delta that a worker joins from messages."""
    joiner = Joiner()
    for message in messages:
        assert message.ByteSize() <= MAX_MESSAGE + 64
        if message.WhichOneof("message") == "delta":
            return message.delta
        whole = joiner.add(message.part)
    assert whole is not None
    return sync_pb2.SyncResponse.FromString(whole).delta


def fleet(found: ServerListing, count: int = 3) -> tuple[Coordinator, list[tuple[str, PushDelta]]]:
    """Return a coordinator with workers, and their deltas for one server."""
    state = coordinator(count)
    load(state, spec("a"))
    for number in range(count):
        state.handle_worker_joined(hello(f"w{number}"), at(0))
    for worker_id, action in state.pop_actions():
        if isinstance(action, PushDelta):
            state.handle_ack(worker_id, action.push.nonce, at(0))
        elif isinstance(action, StartProbe):
            state.handle_probe_result(action.id, found, at(0))
    return state, deltas(state)


def deltas(state: Coordinator) -> list[tuple[str, PushDelta]]:
    """Return the queued deltas."""
    taken = state.pop_actions()
    return [(name, action) for name, action in taken if isinstance(action, PushDelta)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Push]:
    """Collect the pushes whose bodies were built."""
    collected: list[Push] = []
    make = delta_wire._build_body

    def counting(push: Push, seal: Seal) -> delta_wire._DeltaBody:
        collected.append(push)
        return make(push, seal)

    monkeypatch.setattr(delta_wire, "_build_body", counting)
    return collected


def test_the_deltas_of_a_fleet_share_one_body(made: list[Push]) -> None:
    _, sent = fleet(listing("echo"))
    writer = DeltaWriter(Seal(b"a key"))
    every = [heard(list(writer.messages(action, 7))) for _, action in sent]
    assert len(every) == 3
    assert len(made) == 1
    for (_, action), delta in zip(sent, every, strict=True):
        assert (delta.nonce, delta.epoch) == (action.push.nonce, 7)
        assert delta.registry_version == action.push.version
        assert [upsert.hashes.key.server_id for upsert in delta.upserts] == ["a"]


def test_a_long_delta_is_split_into_parts_that_share_their_bytes(made: list[Push]) -> None:
    big = ServerListing(
        (ListedItem("echo", b'{"name": "echo", "x": "' + b"y" * 3 * MAX_MESSAGE + b'"}'),)
    )
    _, sent = fleet(big)
    writer = DeltaWriter(Seal(b"a key"))
    for _, action in sent:
        delta = heard(list(writer.messages(action, 7)))
        assert (delta.nonce, delta.epoch) == (action.push.nonce, 7)
        assert delta.registry_version == action.push.version
        assert delta.upserts[0].toolset.recorded[0].definition == big.tools[0].definition
    assert len(made) == 1


def test_a_worker_with_other_content_gets_another_body(made: list[Push]) -> None:
    state, sent = fleet(listing("echo"))
    for worker_id, action in sent[:2]:  # the third does not answer
        state.handle_ack(worker_id, action.push.nonce, at(0.1))
    writer = DeltaWriter(Seal(b"a key"))
    load(state, now=at(1))
    state.tick(at(1.1))
    removed = deltas(state)
    assert [name for name, _ in removed] == ["w0", "w1"]
    first = [heard(list(writer.messages(action, 7))) for _, action in removed]
    assert [[key.server_id for key in delta.removals] for delta in first] == [["a"]] * 2
    state.handle_ack("w2", sent[2][1].push.nonce, at(1.2))
    ((name, late),) = deltas(state)
    delta = heard(list(writer.messages(late, 7)))
    assert (name, delta.nonce) == ("w2", late.push.nonce)
    assert [key.server_id for key in delta.removals] == ["a"]


def test_workers_that_join_empty_share_one_body(made: list[Push]) -> None:
    state, sent = fleet(listing("echo"))
    for worker_id, action in sent:
        state.handle_ack(worker_id, action.push.nonce, at(0.1))
    writer = DeltaWriter(Seal(b"a key"))
    for number in range(5):
        state.handle_worker_joined(hello(f"new{number}"), at(1))
    joined = [action for _, action in deltas(state) if action.push.upserts]
    assert len(joined) == 5
    for action in joined:
        delta = heard(list(writer.messages(action, 7)))
        assert [upsert.hashes.key.server_id for upsert in delta.upserts] == ["a"]
    assert len(made) == 1
