"""Records of events, and a bounded history of them.

Workers record events of leases and instances and report them to the control plane, which records
them with its own. The history is for operators only: no decision depends on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Final, Literal, get_args

from leaseway.v1 import admin_pb2
from leaseway.wire.timing.durations import timestamp

EventKind = Literal[
    "reload", "commit", "server", "instance", "worker", "lease", "problem", "approval", "operator"
]
KINDS: Final = get_args(EventKind)
EventSeverity = Literal["info", "warning", "error"]

MAX_DETAILS: Final = 100
"""Lines of one event; the last one counts the omitted lines."""
MAX_TEXT: Final = 1_000
"""Characters of a message or of one line, which may come from a remote server."""

_RARE: Final = 2_000
_FREQUENT: Final = 4_000
_FREQUENT_KINDS: Final = frozenset({"lease", "instance", "server", "approval"})


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event; the fields are those of the message `Event`."""

    kind: EventKind
    action: str
    message: str
    at: float
    severity: EventSeverity = "info"
    reason: str = ""
    server_id: str = ""
    tenant: str = ""
    worker_id: str = ""
    lease_id: str = ""
    session: str = ""
    instance_id: str = ""
    details: tuple[str, ...] = ()
    number: int = 0


_SAME_FIELDS: Final = [field.name for field in fields(EventRecord) if field.name != "at"]


class History:
    """The newest events, each with an increasing number.

    Frequent events (leases, instances, servers) are stored separately, so that they do not displace
    rare ones such as reloads.

    Args:
        first: The number before the first event. A restarted process that passes the current time
            in microseconds continues above the numbers of its predecessor.
        rare: Maximum number of rare events.
        frequent: Maximum number of frequent events.
    """

    def __init__(self, first: int = 0, *, rare: int = _RARE, frequent: int = _FREQUENT) -> None:
        self.last = first
        self._rare: deque[EventRecord] = deque(maxlen=rare)
        self._frequent: deque[EventRecord] = deque(maxlen=frequent)

    def add(self, event: EventRecord) -> EventRecord:
        """Record an event and return it with its number."""
        self.last += 1
        record = replace(
            event,
            number=self.last,
            message=_shortened(event.message),
            details=_bounded(event.details),
        )
        (self._frequent if event.kind in _FREQUENT_KINDS else self._rare).append(record)
        return record

    def number_above(self, number: int) -> None:
        """Give further events greater numbers than this."""
        self.last = max(self.last, number)

    def after(self, number: int) -> list[EventRecord]:
        """Return the recorded events with greater numbers, in order."""
        newer: list[EventRecord] = []
        for events in (self._rare, self._frequent):
            for event in reversed(events):
                if event.number <= number:
                    break
                newer.append(event)
        return sorted(newer, key=attrgetter("number"))

    def select(
        self,
        *,
        server_id: str = "",
        kinds: Iterable[str] = (),
        after: int = 0,
        last: int = 0,
    ) -> list[EventRecord]:
        """Return recorded events by time, oldest first.

        Args:
            server_id: Select the events of a server; empty for all.
            kinds: Select events of these kinds; empty for all.
            after: Select events with a greater number.
            last: Maximum number of events, the newest; 0 for all.
        """
        kinds = frozenset(kinds)
        selected = [
            event for event in self.after(after) if matches(event, server_id=server_id, kinds=kinds)
        ]
        # By time, because a worker that joins reports earlier events.
        selected.sort(key=attrgetter("at", "number"))
        return selected[-last:] if last else selected


def matches(event: EventRecord, *, server_id: str, kinds: frozenset[str]) -> bool:
    return server_id in ("", event.server_id) and (not kinds or event.kind in kinds)


def event_to_proto(event: EventRecord) -> admin_pb2.Event:
    same: dict[str, Any] = {name: getattr(event, name) for name in _SAME_FIELDS}
    return admin_pb2.Event(time=timestamp(event.at), **same)


def event_from_proto(message: admin_pb2.Event) -> EventRecord:
    """Convert an event that a peer sent."""
    same: dict[str, Any] = {name: getattr(message, name) for name in _SAME_FIELDS}
    same["details"] = tuple(message.details)
    return EventRecord(at=message.time.ToNanoseconds() / 1e9, **same)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _bounded(details: tuple[str, ...]) -> tuple[str, ...]:
    if len(details) > MAX_DETAILS:
        more = len(details) - MAX_DETAILS + 1
        details = (*details[: MAX_DETAILS - 1], f"and {more} more")
    return tuple(map(_shortened, details))
