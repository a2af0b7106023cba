"""Changes of resources on their way to one exchange's caller, at most one of each at a time."""

from __future__ import annotations

from typing import Final

from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.fault import Fault
from leaseway.wire.frames import frame, frame_tag
from leaseway.wire.outbox import Outbox
from leaseway.wire.reasons import Reason

__all__ = ["Updates"]

_UPDATES: Final = frame_tag(execution_pb2.ExchangeResponse, "updates")
_MOST_PARTS: Final = 256
"""Parts of one resource whose changes wait at once; of more, the resource itself is named."""


class Updates:
    """The subscriptions of one stream, and which of their changes wait to be sent.

    A caller that reads slowly is told once of what changed many times: reading a resource gives
    its newest content anyhow.

    Args:
        outbox: Takes the frames.

    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[int, dict[str, int]] = {}

    def admit(self, call_id: int) -> None:
        """Begin to follow a resource.

        Raises:
            Fault: OVERLOADED: the stream follows as many as it may.

        """
        if len(self._waiting) >= bounds.MAX_SUBSCRIPTIONS:
            raise Fault(
                Reason.OVERLOADED,
                f"This stream follows {bounds.MAX_SUBSCRIPTIONS} resources, the most that it may; "
                "end some of its subscriptions.",
                retry_delay=1.0,
            )
        self._waiting[call_id] = {}

    def put(self, call_id: int, uri: str, own_uri: str) -> None:
        """Queue a change, unless the same waits already.

        Args:
            call_id: The call that follows the resource.
            uri: What changed: the resource or a part of it; empty once the subscription holds.
            own_uri: The resource.

        """
        waiting = self._waiting.get(call_id)
        if waiting is None:
            return
        if len(waiting) >= _MOST_PARTS and uri not in waiting:
            holds = self._outbox.holds
            waiting = {part: ticket for part, ticket in waiting.items() if holds(ticket)}
            self._waiting[call_id] = waiting
            if len(waiting) >= _MOST_PARTS:
                uri = own_uri
        ticket = waiting.get(uri)
        if ticket is None or not self._outbox.holds(ticket):
            update = execution_pb2.ResourceUpdate(call_id=call_id, uri=uri)
            waiting[uri] = self._outbox.put(frame(_UPDATES, update))

    def forget(self, call_id: int) -> None:
        """Note that a call has ended."""
        self._waiting.pop(call_id, None)
