"""Builds the messages of deltas; content that many workers get is built once (design.md#sync).

Each change is sent to every worker of a fleet, and the whole registry to each that joins. Building
it per worker would block the event loop and fill the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from leaseway.control_plane.core.workers.actions import PushDelta
from leaseway.control_plane.core.workers.subscription import Push
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.toolsets import served_to_proto
from leaseway.spec.codec import key_to_proto
from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import KIB, MAX_MESSAGE
from leaseway.wire.messages.message_parts import split

_CACHED: Final = 2
"""Cached bodies: that of the newest change, and one for workers that missed the previous change."""

_HEAD: Final = 4 * KIB
"""Bytes of a message reserved for its head."""


@dataclass(frozen=True)
class _DeltaBody:
    """The upserts and removals of a delta, without nonce and version.

    Attributes:
        whole: The body, if it fits in one message.
        serialized: Its bytes, if it does not.
    """

    push: Push
    whole: sync_pb2.Delta | None
    serialized: bytes


class DeltaWriter:
    """Builds the messages of deltas, signed with a seal."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._bodies: deque[_DeltaBody] = deque(maxlen=_CACHED)

    def messages(self, action: PushDelta, epoch: int) -> Iterator[sync_pb2.SyncResponse]:
        """Yield the message of a delta, or its parts if it is long."""
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
        # Parsing concatenated protobuf messages merges their fields.
        for part in split(body.serialized):
            part.more = True
            yield sync_pb2.SyncResponse(part=part)
        yield sync_pb2.SyncResponse(part=sync_pb2.Part(data=head.SerializeToString()))

    def _body(self, push: Push) -> _DeltaBody:
        for body in self._bodies:
            # The core computes one delta object for all workers with equal content.
            if body.push.upserts is push.upserts and body.push.removals == push.removals:
                return body
        body = _build_body(push, self._seal)
        self._bodies.append(body)
        return body


def _build_body(push: Push, seal: Seal) -> _DeltaBody:
    delta = sync_pb2.Delta(
        upserts=[seal.sign(served_to_proto(served)) for served in push.upserts],
        removals=[key_to_proto(key) for key in push.removals],
    )
    if delta.ByteSize() <= MAX_MESSAGE - _HEAD:
        return _DeltaBody(push, delta, b"")
    return _DeltaBody(push, None, sync_pb2.SyncResponse(delta=delta).SerializeToString())
