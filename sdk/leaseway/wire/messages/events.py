"""What has happened: the record of an event, and a bounded history of them.

Workers keep a history of leases and instances and report it; the control plane keeps one of
everything and of what workers report. Neither is state that anything depends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from leaseway.v1 import admin_pb2
from leaseway.wire.timing.durations import timestamp

Kind = Literal[
    "reload", "commit", "server", "instance", "worker", "lease", "problem", "approval", "operator"
]
KINDS: Final = get_args(Kind)
Severity = Literal["info", "warning", "error"]
Action = str

MAX_DETAILS: Final = 100
"""Lines of one event; how many more there were is the last of them."""
MAX_TEXT: Final = 1_000
"""Characters of a message or of one line; what events are about may be remote."""

_RARE: Final = 2_000
_FREQUENT: Final = 4_000
_FREQUENT_KINDS: Final = frozenset({"lease", "instance", "server", "approval"})


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that has happened; the fields are those of the message `Event`."""

    kind: str
    action: Action
    message: str
    at: float
    severity: str = "info"
    reason: str = ""
    server_id: str = ""
    tenant: str = ""
    worker_id: str = ""
    lease_id: str = ""
    session: str = ""
    instance_id: str = ""
    details: tuple[str, ...] = ()
    number: int = 0


class History:
    """The newest events, each with a number that only grows.

    What happens often (leases, instances, servers) has a room of its own, so that it cannot push
    out the reloads of yesterday.

    Args:
        first: The number before the first one. A successor that begins at the present in
            microseconds goes on above its predecessor's.
        rare: How many events are kept of what happens rarely.
        frequent: How many of what happens often.
    """

    def __init__(self, first: int = 0, *, rare: int = _RARE, frequent: int = _FREQUENT) -> None:
        self.last = first
        self._rare: deque[EventRecord] = deque(maxlen=rare)
        self._frequent: deque[EventRecord] = deque(maxlen=frequent)

    def add(self, event: EventRecord) -> EventRecord:
        """Keep an event and return it with its number."""
        self.last += 1
        kept = replace(
            event,
            number=self.last,
            message=_shortened(event.message),
            details=_bounded(event.details),
        )
        (self._frequent if event.kind in _FREQUENT_KINDS else self._rare).append(kept)
        return kept

    def after(self, number: int) -> list[EventRecord]:
        """Return the events with greater numbers that are still kept, in their order."""
        newer: list[EventRecord] = []
        for shelf in (self._rare, self._frequent):
            for event in reversed(shelf):
                if event.number <= number:
                    break
                newer.append(event)
        return sorted(newer, key=lambda event: event.number)

    def select(
        self,
        *,
        server_id: str = "",
        kinds: Iterable[str] = (),
        after: int = 0,
        last: int = 0,
    ) -> list[EventRecord]:
        """Return kept events by time, the oldest first.

        Args:
            server_id: Only of this server, or empty for all.
            kinds: Only of these kinds, or none for all.
            after: Only with a greater number.
            last: At most so many, the newest; 0 for all.
        """
        wanted = frozenset(kinds)
        found = [
            event
            for event in self.after(after)
            if concerns(event, server_id=server_id, kinds=wanted)
        ]
        # By time, since a worker that joins reports what happened before it did.
        found.sort(key=lambda event: (event.at, event.number))
        return found[-last:] if last else found


def concerns(event: EventRecord, *, server_id: str, kinds: frozenset[str]) -> bool:
    return server_id in ("", event.server_id) and (not kinds or event.kind in kinds)


def event_to_wire(event: EventRecord) -> admin_pb2.Event:
    return admin_pb2.Event(
        number=event.number,
        time=timestamp(event.at),
        kind=event.kind,
        action=event.action,
        severity=event.severity,
        message=event.message,
        reason=event.reason,
        server_id=event.server_id,
        tenant=event.tenant,
        worker_id=event.worker_id,
        lease_id=event.lease_id,
        session=event.session,
        instance_id=event.instance_id,
        details=event.details,
    )


def event_from_wire(message: admin_pb2.Event) -> EventRecord:
    """Return an event that a peer sent."""
    return EventRecord(
        kind=message.kind,
        action=message.action,
        message=message.message,
        at=message.time.ToNanoseconds() / 1e9,
        severity=message.severity,
        reason=message.reason,
        server_id=message.server_id,
        tenant=message.tenant,
        worker_id=message.worker_id,
        lease_id=message.lease_id,
        session=message.session,
        instance_id=message.instance_id,
        details=tuple(message.details),
        number=message.number,
    )


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _bounded(details: tuple[str, ...]) -> tuple[str, ...]:
    if len(details) > MAX_DETAILS:
        more = len(details) - MAX_DETAILS + 1
        details = (*details[: MAX_DETAILS - 1], f"and {more} more")
    return tuple(map(_shortened, details))
