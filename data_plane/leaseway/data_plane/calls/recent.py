"""The calls that a worker remembers, so that an operator can look at one without a collector.

Three rings with a bound each: the newest calls, the newest that failed, and the slowest of the last
ten minutes; and for each server how many calls there were and how long they took. Arguments and
results are not kept. Pure of clocks: whoever notes a call says when it was.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from leaseway.wire.secrets.redaction import redact

OK: Final = "ok"
TOOL_ERROR: Final = "tool_error"

Selection = Literal["recent", "slow", "failed"]

BUCKETS: Final = 18
"""Durations are counted by powers of two: below 1 ms, 2 ms ... 65,536 ms, and longer."""

RECENT_CALLS: Final = 1_000
"""How many of the newest calls a worker remembers, and of the newest that failed."""

_KEPT_SLOW: Final = 64
_SLOW_FOR: Final = 600.0
_PRUNE_EVERY: Final = 10.0
_MOST_SERVERS: Final = 2_000
_OTHER: Final = "other"
_LONGEST_MESSAGE: Final = 500
_NO_SERVER: Final = frozenset({"TOOL_NOT_FOUND"})
"""Outcomes of calls whose server may be any text."""


class Phase(NamedTuple):
    """A part of a call, in seconds from its start."""

    name: str
    offset: float
    duration: float


class PastCall(NamedTuple):
    """A call that has ended.

    Attributes:
        number: Counts the worker's calls.
        started_at: When it came, Unix time in seconds.
        duration: How long it took, in seconds.
        server_id: The server.
        tool: The tool by its original name, or what another method names.
        method: The MCP method, or empty for `tools/call`.
        tenant: Whose call it was.
        agent: Which of the tenant's agents called.
        session: The session, or empty.
        lease_id: The lease that it ran on, or empty.
        instance_id: The instance that ran it, or empty.
        traceparent: The trace context that its caller sent, or empty.
        outcome: `ok`, `tool_error` or the reason of the error.
        message: The error in a sentence, or empty.
        marks: What began when, in seconds from the start; each lasts until the next one.
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
    def phases(self) -> Iterator[Phase]:
        """Its parts, in order."""
        for (name, began), (_next, ended) in pairwise((*self.marks, ("", self.duration))):
            yield Phase(name, began, max(0.0, ended - began))


class Traffic:
    """What one server had to do since the worker started."""

    __slots__ = ("buckets", "failed", "kept_until", "room", "seconds")

    def __init__(self) -> None:
        self.failed = 0
        self.seconds = 0.0
        self.buckets = [0] * BUCKETS
        self.room = 0
        self.kept_until = 0.0

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return sum(self.buckets)

    def add(self, took: float) -> None:
        """Count a call."""
        self.seconds += took
        bucket = int(took * 1_000).bit_length()
        self.buckets[bucket if bucket < BUCKETS else BUCKETS - 1] += 1


class RecentCalls:
    """The calls of a worker, as far as they are remembered.

    Args:
        kept: How many of the newest calls, and how many of the newest that failed.
        kept_slow: How many of the slowest.

    Attributes:
        traffic: How much there was, by server.
    """

    def __init__(
        self,
        kept: int = RECENT_CALLS,
        kept_slow: int = _KEPT_SLOW,
    ) -> None:
        self.traffic: dict[str, Traffic] = {}
        self._recent: deque[PastCall] = deque(maxlen=kept)
        self._failed: deque[PastCall] = deque(maxlen=kept)
        self._slow: list[tuple[float, int, PastCall]] = []  # the slowest is the last
        self._kept_slow = kept_slow
        self._room = max(1, kept // 4)
        self._prune_at = 0.0
        self._slow_from = -1.0

    def count_success(self, server_id: str, took: float, ended: float) -> bool:
        """Count a call that ended well; this is on the path of every call.

        Of a server with very many calls only the first ones of each second are kept: in the time
        of a look the others would be pushed out unseen.

        Args:
            server_id: The server.
            took: How long it took, in seconds.
            ended: When, on any clock that runs on.

        Returns:
            Whether it is to be kept too, with `keep`.
        """
        traffic = self.traffic.get(server_id)
        if traffic is None:
            traffic = self._new_traffic(server_id)
        traffic.add(took)
        if traffic.room:
            traffic.room -= 1
            return True
        if ended > traffic.kept_until:
            traffic.kept_until = ended + 1.0
            traffic.room = self._room - 1
            return True
        return took > self._slow_from

    def note(self, call: PastCall) -> None:
        """Count and keep a call that has just ended, however it ended."""
        failed = call.outcome != OK
        if failed:
            call = call._replace(message=redact(call.message))
            if len(call.message) > _LONGEST_MESSAGE:
                call = call._replace(message=call.message[: _LONGEST_MESSAGE - 1] + "…")
            self._failed.append(call)
        self.keep(call)
        traffic = self.traffic.get(call.server_id)
        if traffic is None:
            if call.outcome in _NO_SERVER:
                return
            traffic = self._new_traffic(call.server_id)
        traffic.add(call.duration)
        traffic.failed += failed

    def keep(self, call: PastCall) -> None:
        """Keep a call that was counted."""
        self._recent.append(call)
        if call.duration > self._slow_from or call.started_at > self._prune_at:
            self._keep_slow(call)

    def select(
        self, selection: Selection, *, limit: int, now: float, server_id: str = "", name: str = ""
    ) -> list[PastCall]:
        """Return remembered calls: the newest first, or the slowest first.

        Args:
            selection: Which ones. With a name, all that are remembered are looked through.
            limit: At most so many.
            now: Unix time in seconds.
            server_id: Only of this server, or empty for all.
            name: Only of this trace id or call number, or empty for all.
        """
        found: list[PastCall] = []
        for call in self._named(name) if name else self._of(selection, now):
            if server_id in ("", call.server_id):
                found.append(call)
                if len(found) == limit:
                    break
        return found

    def _named(self, name: str) -> Iterator[PastCall]:
        seen: set[int] = set()
        slow = (call for _took, _number, call in self._slow)
        for call in (*reversed(self._recent), *reversed(self._failed), *slow):
            if name in (call.trace_id, str(call.number)) and call.number not in seen:
                seen.add(call.number)
                yield call

    def _of(self, selection: Selection, now: float) -> Iterable[PastCall]:
        if selection == "failed":
            return reversed(self._failed)
        if selection == "recent":
            return reversed(self._recent)
        self._forget_slow(now)
        return [call for _took, _number, call in reversed(self._slow)]

    def _keep_slow(self, call: PastCall) -> None:
        if call.started_at > self._prune_at:
            self._forget_slow(call.started_at + call.duration)
        if call.duration > self._slow_from:
            if len(self._slow) >= self._kept_slow:
                del self._slow[0]
            insort(self._slow, (call.duration, call.number, call))
            self._set_threshold()

    def _forget_slow(self, now: float) -> None:
        self._prune_at = now + _PRUNE_EVERY
        self._slow = [each for each in self._slow if now - each[2].started_at < _SLOW_FOR]
        self._set_threshold()

    def _set_threshold(self) -> None:
        full = len(self._slow) >= self._kept_slow
        self._slow_from = self._slow[0][0] if full and self._slow else -1.0

    def _new_traffic(self, server_id: str) -> Traffic:
        name = server_id if len(self.traffic) < _MOST_SERVERS else _OTHER
        return self.traffic.setdefault(name, Traffic())
