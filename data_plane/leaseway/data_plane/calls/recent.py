"""The calls that a worker remembers, so that operators can inspect them without a trace collector.

Three bounded rings: the newest calls, the newest failed ones, and the slowest of the last ten
minutes; and for each server the number and durations of its calls. Arguments and results are not
kept. Pure: time is a parameter.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from leaseway.wire.errors import Fault
from leaseway.wire.messages.states import CALL_OK, TOOL_ERROR, CallSelection
from leaseway.wire.secrets.redaction import redact

BUCKETS: Final = 18
"""Buckets of durations, by powers of two: below 1 ms, 2 ms ... 65,536 ms, and longer."""

RECENT_CALLS: Final = 1_000
"""How many of the newest calls a worker remembers, and how many of the newest failed ones."""

_SLOW_CALLS: Final = 64
_SLOW_AGE: Final = 600.0
_PRUNE_INTERVAL: Final = 10.0
_MAX_SERVERS: Final = 2_000
_OTHER: Final = "other"
_MAX_MESSAGE: Final = 500


def call_outcome(fault: Fault | None, is_error: bool) -> str:
    """Return how a call ended, as metrics, spans, the audit and operators name it."""
    if fault is not None:
        return fault.reason.value
    return TOOL_ERROR if is_error else CALL_OK


class CallPhase(NamedTuple):
    """A part of a call; times in seconds, the offset from the call's start."""

    name: str
    offset: float
    duration: float


class PastCall(NamedTuple):
    """An ended call. Texts are empty if they do not apply.

    Attributes:
        number: The call's number in its worker.
        started_at: When it arrived, Unix time in seconds.
        duration: In seconds.
        tool: The tool's original name, or the prompt or URI of another method.
        method: The MCP method; empty for `tools/call`.
        traceparent: The trace context that its caller sent.
        outcome: `ok`, `tool_error` or the reason of the error.
        message: The error in a sentence.
        marks: Names and starts of its phases, in seconds; each lasts until the next one.
    """

    number: int
    started_at: float
    duration: float
    server_id: str
    tool: str
    method: str
    tenant: str
    agent: str
    session: str
    lease_id: str
    instance_id: str
    traceparent: str
    outcome: str
    message: str
    marks: tuple[tuple[str, float], ...]

    @property
    def trace_id(self) -> str:
        return self.traceparent[3:35]

    @property
    def phases(self) -> Iterator[CallPhase]:
        """Its parts, in order."""
        for (name, start), (_next, end) in pairwise((*self.marks, ("", self.duration))):
            yield CallPhase(name, start, max(0.0, end - start))


class EndedCall(Protocol):
    """A call that has ended.

    Attributes:
        started_at: When it arrived, on a monotonic clock.
    """

    started_at: float

    @property
    def generation(self) -> object | None:
        """Its server; None if none was found, so that its server id may be any text."""

    def past_call(self, fault: Fault | None, is_error: bool) -> PastCall:
        """Return its record."""


class Traffic:
    """The calls of one server since the worker started.

    Attributes:
        failed: Number of failed calls.
        seconds: Sum of all durations.
        buckets: Number of calls by duration.
        room: How many more calls are kept until `kept_until`, when it is reset.
    """

    __slots__ = ("buckets", "failed", "kept_until", "room", "seconds")

    def __init__(self) -> None:
        self.failed = 0
        self.seconds = 0.0
        self.buckets = [0] * BUCKETS
        self.room = 0
        self.kept_until = 0.0

    @property
    def calls(self) -> int:
        """Number of calls."""
        return sum(self.buckets)

    def add(self, took: float) -> None:
        self.seconds += took
        bucket = int(took * 1_000).bit_length()
        self.buckets[bucket if bucket < BUCKETS else BUCKETS - 1] += 1


class RecentCalls:
    """The remembered calls of a worker.

    Args:
        kept: How many of the newest calls to keep, and how many of the newest failed ones.
        kept_slow: How many of the slowest to keep.

    Attributes:
        traffic: Counts by server.
    """

    def __init__(self, kept: int = RECENT_CALLS, kept_slow: int = _SLOW_CALLS) -> None:
        self.traffic: dict[str, Traffic] = {}
        self._recent: deque[PastCall] = deque(maxlen=kept)
        self._failed: deque[PastCall] = deque(maxlen=kept)
        self._slow: list[tuple[float, int, PastCall]] = []  # the slowest last
        self._kept_slow = kept_slow
        self._room = max(1, kept // 4)
        self._prune_at = 0.0
        self._slow_from = -1.0

    def end_call(
        self, server_id: str, call: EndedCall, fault: Fault | None, is_error: bool, now: float
    ) -> None:
        """Count a call that has just ended, and keep it if it says something new.

        On the path of every call. Of a busy server only the first successes of each second are
        kept: the others would be replaced before an operator could see them.

        Args:
            server_id: The server.
            call: The call.
            fault: Why it has no result, or None.
            is_error: `isError` of its result.
            now: The time, on the clock of the call's start.
        """
        if fault is not None or is_error:
            self.record(call.past_call(fault, is_error), is_known=call.generation is not None)
            return
        traffic = self.traffic.get(server_id)
        if traffic is None:
            traffic = self._new_traffic(server_id)
        took = now - call.started_at
        traffic.seconds += took  # `add`, without a function call
        bucket = int(took * 1_000).bit_length()
        traffic.buckets[bucket if bucket < BUCKETS else BUCKETS - 1] += 1
        if traffic.room:
            traffic.room -= 1
        elif now > traffic.kept_until:
            traffic.kept_until = now + 1.0
            traffic.room = self._room - 1
        elif took <= self._slow_from:
            return
        self._keep(call.past_call(None, False))

    def record(self, call: PastCall, *, is_known: bool = True) -> None:
        """Count and keep a call that has just ended.

        Args:
            call: The call.
            is_known: Whether its server exists.
        """
        failed = call.outcome != CALL_OK
        if failed:
            call = call._replace(message=redact(call.message))
            if len(call.message) > _MAX_MESSAGE:
                call = call._replace(message=call.message[: _MAX_MESSAGE - 1] + "…")
            self._failed.append(call)
        self._keep(call)
        traffic = self.traffic.get(call.server_id)
        if traffic is None:
            if not is_known:
                return
            traffic = self._new_traffic(call.server_id)
        traffic.add(call.duration)
        traffic.failed += failed

    def make_room(self, servers: Collection[str]) -> None:
        """Forget the counts of servers that exist no more, if little room is left for others.

        Until then they stay: whoever reads counts takes the difference of two readings.

        Args:
            servers: The servers that exist.
        """
        if len(self.traffic) > _MAX_SERVERS // 2:
            kept = {*servers, _OTHER}
            self.traffic = {name: counts for name, counts in self.traffic.items() if name in kept}

    def _keep(self, call: PastCall) -> None:
        self._recent.append(call)
        if call.duration > self._slow_from or call.started_at > self._prune_at:
            self._keep_slow(call)

    def select(
        self,
        selection: CallSelection,
        *,
        limit: int,
        now: float,
        server_id: str = "",
        name: str = "",
    ) -> list[PastCall]:
        """Return remembered calls: the newest first, or the slowest first.

        Args:
            selection: Which ring; ignored with a name.
            limit: Maximum number of calls.
            now: Unix time in seconds.
            server_id: Only of this server, or empty for all.
            name: Only with this trace id or call number, or empty for all.
        """
        found: list[PastCall] = []
        for call in self._with_name(name) if name else self._ring(selection, now):
            if server_id in ("", call.server_id):
                found.append(call)
                if len(found) == limit:
                    break
        return found

    def _with_name(self, name: str) -> Iterator[PastCall]:
        seen: set[int] = set()
        slow = (call for _took, _number, call in self._slow)
        for call in (*reversed(self._recent), *reversed(self._failed), *slow):
            if name in (call.trace_id, str(call.number)) and call.number not in seen:
                seen.add(call.number)
                yield call

    def _ring(self, selection: CallSelection, now: float) -> Iterable[PastCall]:
        if selection == "failed":
            return reversed(self._failed)
        if selection == "recent":
            return reversed(self._recent)
        self._prune_slow(now)
        return [call for _took, _number, call in reversed(self._slow)]

    def _keep_slow(self, call: PastCall) -> None:
        if call.started_at > self._prune_at:
            self._prune_slow(call.started_at + call.duration)
        if call.duration > self._slow_from:
            if len(self._slow) >= self._kept_slow:
                del self._slow[0]
            insort(self._slow, (call.duration, call.number, call))
            self._set_threshold()

    def _prune_slow(self, now: float) -> None:
        self._prune_at = now + _PRUNE_INTERVAL
        self._slow = [entry for entry in self._slow if now - entry[2].started_at < _SLOW_AGE]
        self._set_threshold()

    def _set_threshold(self) -> None:
        full = len(self._slow) >= self._kept_slow
        self._slow_from = self._slow[0][0] if full and self._slow else -1.0

    def _new_traffic(self, server_id: str) -> Traffic:
        name = server_id if len(self.traffic) < _MAX_SERVERS else _OTHER
        return self.traffic.setdefault(name, Traffic())
