"""Deltas as messages: what many workers are sent alike is made once (DESIGN §8).

A change goes to every worker of a fleet, and a whole registry to each that joins: turned into a
message for each of them, it would keep the loop from everything else, and the memory full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from leaseway.control_plane.core.workers.actions import PushDelta
from leaseway.control_plane.core.workers.subscription import Push
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.toolsets import served_to_wire
from leaseway.spec.protobuf import key_to_wire
from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import KIB, MAX_MESSAGE
from leaseway.wire.messages.message_parts import split

_KEPT: Final = 2
"""Bodies that are kept: of the newest change, and for those who missed the one before."""

_HEAD: Final = 4 * KIB
"""What is left free in a message for what is not body."""


@dataclass(frozen=True)
class _DeltaBody:
    """What changes, without whose turn it is to hear of it.

    Attributes:
        push: One of those that it is the body of.
        whole: The body, where it fits a message with its head.
        serialized: The same as bytes, where it does not.
    """

    push: Push
    whole: sync_pb2.Delta | None
    serialized: bytes


class DeltaWriter:
    """Makes the messages of deltas.

    Args:
        seal: Signs what they hold.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._bodies: deque[_DeltaBody] = deque(maxlen=_KEPT)

    def messages(self, action: PushDelta, epoch: int) -> Iterator[sync_pb2.SyncResponse]:
        """Yield what carries out an action: one message, or the parts of a long one."""
        body, push = self._body(action.push), action.push
        head = sync_pb2.SyncResponse(
            delta=sync_pb2.Delta(
                nonce=push.nonce,
                epoch=epoch,
                registry_version=push.version,
                traceparent=action.trace,
            )
        )
        if body.whole is not None:
            head.delta.MergeFrom(body.whole)
            yield head
            return
        # A message may come in several pieces: who parses them together gets all of their fields.
        for part in split(body.serialized):
            part.more = True
            yield sync_pb2.SyncResponse(part=part)
        yield sync_pb2.SyncResponse(part=sync_pb2.Part(data=head.SerializeToString()))

    def _body(self, push: Push) -> _DeltaBody:
        for body in self._bodies:
            # The core compares once for all workers that have the same, and gives them one object.
            if body.push.upserts is push.upserts and body.push.removals == push.removals:
                return body
        made = _make_body(push, self._seal)
        self._bodies.append(made)
        return made


def _make_body(push: Push, seal: Seal) -> _DeltaBody:
    delta = sync_pb2.Delta(
        upserts=[seal.stamp(served_to_wire(served)) for served in push.upserts],
        removals=[key_to_wire(key) for key in push.removals],
    )
    if delta.ByteSize() <= MAX_MESSAGE - _HEAD:
        return _DeltaBody(push, delta, b"")
    return _DeltaBody(push, None, sync_pb2.SyncResponse(delta=delta).SerializeToString())
