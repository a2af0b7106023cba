"""The responses of one exchange stream: results, progress, logs, questions, resource updates.

Callbacks of instances queue frames in the outbox without awaiting. The writer sends the outbox,
sometimes after a short wait so that more results share a message (design.md#calls). What streams
within the process share with those of gRPC is `Replies`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Final

import grpc

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.messages.frames import Outbox, frame, frame_tag, result_frame
from leaseway.wire.sharing.limits import over_limit
from leaseway.wire.status import status_from_fault
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

_logger = logging.getLogger(__name__)
_MAX_PARTS: Final = 256
"""Queued updates of one subscription. Beyond it, updates name the resource instead of its part."""
_PAUSE_READING: Final = 64 * bounds.MIB
"""Queued bytes above which the reader pauses, and progress, logs and questions are dropped."""
_CHECK_MEMORY: Final = bounds.MIB
"""Queued bytes above which each result triggers a check of the memory of all streams."""
MAX_UNREAD: Final = 256 * bounds.MIB
"""Queued bytes above which the stream is aborted, because its caller does not read."""

_BATCH_WAIT: Final = 0.001
"""Maximum seconds that a message waits for more results.

A message costs both sides more processor time than a result in it, so busy streams answer several
calls at once. The results of quick calls arrive within this time if they arrive together at all;
a longer wait would only delay the first of them (`Batching` decides which message waits).
"""
_SAMPLE_INTERVAL: Final = 0.05
"""Seconds between two samples of the calls in flight; calls in two samples count as slow."""
_MAX_UNDELAYED: Final = 64
"""Maximum number of messages sent without waiting after useless waits."""
_GOODBYE: Final = 2.0
"""Seconds that a stream waits, after its last result, for a caller that may still be sending."""
_MAX_WAITING: Final = 64 * bounds.KIB
"""Queued bytes above which no message waits."""
_TAGS: Final = {
    field: frame_tag(execution_pb2.ExchangeResponse, field)
    for field in (
        "results",
        "progress",
        "logs",
        "asks",
        "withdrawals",
        "updates",
        "notifications",
        "lease_ends",
        "keep_alive",
        "going_away",
    )
}

Result = execution_pb2.Result
Context = grpc.aio.ServicerContext[Any, Any]


class Batching:
    """Decides when the results of one stream wait briefly to share a message (design.md#calls).

    A message costs gRPC and both processes many times as much as a result in it. Results of many
    busy servers arrive one by one, so each would be sent alone. Pure: the writer waits.

    A message waits until it answers half of the quick calls in flight: with half of them at once,
    both sides are at work. Slow calls do not count, because their end is unknown. After
    each useless wait, twice as many messages are sent without waiting, up to 64.

    Args:
        calls: The ids of the stream's calls without a result; ids are never reused.
    """

    def __init__(self, calls: Collection[int]) -> None:
        self._calls = calls
        self._sample: frozenset[int] = frozenset()
        self._slow = 0
        self._sample_at = 0.0
        self._undelayed = 0
        self._undelayed_remaining = 0

    def is_enough(self, ready: int) -> bool:
        """Return whether a message with this many frames answers half of the quick calls."""
        return ready >= len(self._calls) - self._slow

    def should_wait(self, ready: int, now: float) -> bool:
        """Return whether the next message should wait for more frames.

        Args:
            ready: How many frames it contains now.
            now: In seconds, on a monotonic clock.
        """
        if now >= self._sample_at:
            self._take_sample(now)
        if self.is_enough(ready):
            return False
        if self._undelayed_remaining:
            self._undelayed_remaining -= 1
            return False
        return True

    def record_wait(self, gained: int) -> None:
        """Record how many frames were added while a message waited."""
        self._undelayed = 0 if gained else min(max(2, 2 * self._undelayed), _MAX_UNDELAYED)
        self._undelayed_remaining = self._undelayed

    def _take_sample(self, now: float) -> None:
        calls = frozenset(self._calls)
        self._slow = len(calls & self._sample)
        self._sample = calls
        self._sample_at = now + _SAMPLE_INTERVAL


class Updates:
    """The subscriptions of one stream and their queued updates.

    The same update is queued only once: the caller reads the newest content anyway.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._queued: dict[int, dict[str, int]] = {}  # tickets in the outbox, by call id and URI

    def add(self, call_id: int) -> None:
        """Add a subscription.

        Raises:
            Fault: OVERLOADED: the stream has too many subscriptions.
        """
        if len(self._queued) >= bounds.MAX_SUBSCRIPTIONS:
            raise over_limit(
                "stream_subscriptions",
                "connection",
                f"This stream has {bounds.MAX_SUBSCRIPTIONS} subscriptions, its limit; end some.",
            )
        self._queued[call_id] = {}

    def put(self, call_id: int, uri: str, own_uri: str) -> None:
        """Queue an update, unless the same is queued already.

        Args:
            call_id: The subscription.
            uri: The resource or the part of it that changed; empty to confirm the subscription.
            own_uri: The resource.
        """
        queued = self._queued.get(call_id)
        if queued is None:
            return
        if len(queued) >= _MAX_PARTS and uri not in queued:
            holds = self._outbox.holds
            queued = {part: ticket for part, ticket in queued.items() if holds(ticket)}
            self._queued[call_id] = queued
            if len(queued) >= _MAX_PARTS:
                uri = own_uri
        ticket = queued.get(uri)
        if ticket is None or not self._outbox.holds(ticket):
            update = execution_pb2.ResourceUpdate(call_id=call_id, uri=uri)
            queued[uri] = self._outbox.put(frame(_TAGS["updates"], update))

    def remove(self, call_id: int) -> None:
        self._queued.pop(call_id, None)


class Replies(ABC):
    """The sink of one stream's calls, however their results are carried to the caller.

    Args:
        leases: The leases of the worker.
        lease_message: Converts a lease to protobuf.
        meters: Instruments, or None if metrics are off.

    Attributes:
        calls: The stream's calls without a result, by id.
        closing: Whether new calls are rejected and the stream ends after its last result.
        fault: The fault that the stream ends with at once, or None.
        is_over: Whether nothing is sent any more.
    """

    def __init__(
        self,
        leases: WorkerLeaseManager,
        lease_message: Callable[[Any], leases_pb2.Lease],
        meters: WorkerMeters | None,
    ) -> None:
        self._leases = leases
        self._lease_message = lease_message
        self._meters = meters
        self.calls: dict[int, ActiveCall] = {}
        self.closing = False
        self.fault: Fault | None = None
        self.is_over = False

    @abstractmethod
    def _put(self, field: str, message: Any) -> None:
        """Send a message in its field of `ExchangeResponse`."""

    @abstractmethod
    def _put_result(self, result: execution_pb2.Result) -> None:
        """Send a result without a payload."""

    @abstractmethod
    def _wake(self) -> None:
        """Look again whether the stream ends."""

    @abstractmethod
    def _remove_subscription(self, call_id: int) -> None:
        """Send no more updates of a subscription, if the call is one."""

    @abstractmethod
    def close(self) -> None:
        """End the stream after its last result: its caller sends nothing more."""

    @abstractmethod
    def abort(self, fault: Fault) -> None:
        """End the stream with a fault at once, even if its caller does not read."""

    @abstractmethod
    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        """Send a call's result."""

    @abstractmethod
    def add_subscription(self, active: ActiveCall) -> None:
        """Begin to send updates of a resource; raises a Fault if there are too many."""

    @abstractmethod
    def resource_updated(self, active: ActiveCall, uri: str) -> None:
        """Send a resource update."""

    @property
    @abstractmethod
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether so much is queued that no more is read, and events are dropped."""

    def end_with(self, fault: Fault) -> None:
        """End the stream with a fault as soon as nothing is being written."""
        self.fault = fault
        if self._meters is not None:
            self._meters.limits.record(fault.metadata)
        self._wake()

    def go_away(self, reason: str) -> None:
        """Announce that new calls are rejected; the stream ends after its last result."""
        self._put("going_away", execution_pb2.GoingAway(reason=reason))
        self.closing = True
        self._wake()

    def send_renewals(self, renewals: leases_pb2.KeepAliveResponse) -> None:
        """Queue the answer to a keep-alive."""
        self._put("keep_alive", renewals)

    def reject_call(self, call_id: int, fault: Fault) -> None:
        """Queue the fault of a call that was never started."""
        if self._meters is not None:
            self._meters.record_refusal(fault)
        result = Result(call_id=call_id, status=status_from_fault(fault))
        self._put_result(result)

    def fail(self, active: ActiveCall, fault: Fault) -> None:
        """Queue the fault of a call."""
        call_id = active.call.id
        self.calls.pop(call_id, None)
        self._remove_subscription(call_id)
        result = self._lease(active)
        result.call_id = call_id
        result.status.CopyFrom(status_from_fault(fault))
        self._put_result(result)

    def _lease(self, active: ActiveCall) -> execution_pb2.Result:
        """Return the part of a result with the lease, if its caller does not know it already."""
        result = Result()
        if active.lease is None:
            return result
        joined = not active.call.lease_id and self._leases.get(active.lease.id) is not None
        if active.is_new_lease or joined:
            result.lease.CopyFrom(self._lease_message(active.lease))
            result.is_new_lease = active.is_new_lease
        return result

    def progress(
        self, active: ActiveCall, progress: float, total: float | None, message: str, extra: bytes
    ) -> None:
        """Queue a progress report, or drop it if the stream is full: a newer one will follow."""
        if self.is_full:
            if self._meters is not None:
                self._meters.record_dropped_frame("progress")
            return
        report = execution_pb2.Progress(
            call_id=active.call.id, progress=progress, total=total, message=message, extra=extra
        )
        self._put("progress", report)

    def log(self, active: ActiveCall, level: str, logger: str, data: bytes, extra: bytes) -> None:
        """Queue a log message of the server, or drop it with a warning if the stream is full."""
        if self.is_full:
            if self._meters is not None:
                self._meters.record_dropped_frame("log")
            _logger.warning("A log message of server %s was dropped.", active.call.server_id)
            return
        message = execution_pb2.LogMessage(
            call_id=active.call.id, level=level, logger=logger, data=data, extra=extra
        )
        self._put("logs", message)

    def ask(self, active: ActiveCall, ask_id: int, ask: Ask) -> None:
        """Queue a question of the server, or refuse it if the stream is full."""
        if self.is_full:
            active.refuse(ask_id, "The caller does not read its stream.")
            return
        question = execution_pb2.Ask(
            call_id=active.call.id, ask_id=ask_id, method=ask.method, params=ask.params
        )
        self._put("asks", question)

    def withdraw_ask(self, active: ActiveCall, ask_id: int) -> None:
        """Queue the withdrawal of a question."""
        withdrawal = execution_pb2.AskWithdrawal(call_id=active.call.id, ask_id=ask_id)
        self._put("withdrawals", withdrawal)

    def notify(self, session: str, server_id: str, method: str, params: bytes) -> None:
        """Queue a notification of no call, or drop it if the stream is full or has ended."""
        if self.is_over:
            return
        if self.is_full:
            if self._meters is not None:
                self._meters.record_dropped_frame("notification")
            _logger.warning("A notification of server %s was dropped.", server_id)
            return
        notification = execution_pb2.ServerNotification(
            session=session, server_id=server_id, method=method, params=params
        )
        self._put("notifications", notification)

    def tell_lease_end(self, lease_id: str, ended: Fault) -> None:
        """Queue the end of a lease, or drop it if the stream is full or over."""
        if not self.is_over and not self.is_full:
            end = leases_pb2.LeaseRenewal(lease_id=lease_id, error=status_from_fault(ended))
            self._put("lease_ends", end)


class StreamWriter(Replies):
    """The sink of one gRPC stream's calls, and the writer that sends their results.

    Args:
        context: The gRPC stream.
        leases: As for `Replies`.
        lease_message: As for `Replies`.
        meters: As for `Replies`.
        on_growth: Called with the bytes of a result that is queued while many wait.
    """

    def __init__(
        self,
        context: Context,
        leases: WorkerLeaseManager,
        lease_message: Callable[[Any], leases_pb2.Lease],
        meters: WorkerMeters | None,
        on_growth: Callable[[int], None] = lambda _size: None,
    ) -> None:
        super().__init__(leases, lease_message, meters)
        self._on_growth = on_growth
        self._context = context
        self._sends_more = True
        self._woken = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._outbox = Outbox(self._woken.set)
        self._batching = Batching(self.calls)
        self._check_above = _CHECK_MEMORY  # queued bytes above which each result calls `_check`
        self._updates = Updates(self._outbox)
        self._writing = asyncio.timeout(None)
        self._interruptible = False  # whether `_writing` is entered and can be rescheduled

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._outbox.queued_bytes

    def close(self) -> None:
        """End the stream after its last result: its caller sends nothing more."""
        self.closing, self._sends_more = True, False
        self._woken.set()

    @property
    def is_full(self) -> bool:
        """Whether so much is queued that the reader must pause."""
        return self._outbox.queued_bytes > _PAUSE_READING

    async def wait_for_room(self) -> None:
        """Wait until the caller has read some of the queued bytes."""
        self._room.clear()
        await self._room.wait()

    def clear(self) -> None:
        """Drop all queued frames."""
        self._outbox.clear()

    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        """Queue a call's result."""
        call_id = active.call.id
        self.calls.pop(call_id, None)
        lease = b""
        if active.lease is not None and not active.call.lease_id:
            lease = self._lease(active).SerializeToString()
        if len(payload) <= bounds.BATCH_SIZE:
            self._put_frame(result_frame(call_id, payload, is_error, lease))
            return
        last = result_frame(call_id, b"", is_error, lease)
        self._outbox.put_large(last, call_id, payload)
        self._check(len(payload))

    def abort(self, fault: Fault) -> None:
        """End the stream with a fault at once, even if its caller does not read."""
        if self.fault is None:
            self.end_with(fault)
            if self._interruptible:  # a write that waits for the caller would never end
                self._writing.reschedule(asyncio.get_running_loop().time())

    def _put(self, field: str, message: Any) -> None:
        self._outbox.put(frame(_TAGS[field], message))

    def _put_result(self, result: execution_pb2.Result) -> None:
        self._put_frame(frame(_TAGS["results"], result))

    def _wake(self) -> None:
        self._woken.set()

    def _remove_subscription(self, call_id: int) -> None:
        self._updates.remove(call_id)

    def _put_frame(self, result: bytes) -> None:
        outbox = self._outbox
        outbox.put(result)
        if outbox.queued_bytes > self._check_above:
            self._check(len(result))

    def _check(self, size: int) -> None:
        """Abort the stream if too much is queued; end the wait for more results if it is enough."""
        if self._outbox.queued_bytes > MAX_UNREAD:
            message = (
                f"More than {MAX_UNREAD} bytes of results wait for this stream's caller, which "
                "does not read them; the stream ends and its calls are cancelled. Read results as "
                "they arrive."
            )
            self.abort(over_limit("stream_unread", "connection", message, started="unknown"))
            return
        if self._outbox.queued_bytes > _CHECK_MEMORY:
            self._on_growth(size)
        if self._batching.is_enough(len(self._outbox)):
            self._woken.set()

    def add_subscription(self, active: ActiveCall) -> None:
        self._updates.add(active.call.id)

    def resource_updated(self, active: ActiveCall, uri: str) -> None:
        """Queue a resource update."""
        self._updates.put(active.call.id, uri, active.call.tool)

    async def write(self, worker: catalog_pb2.WorkerRef) -> None:
        """Send the worker's identity, then queued frames until the stream ends."""
        try:
            async with self._writing:
                self._interruptible = True
                try:
                    await self._write(worker)
                finally:
                    self._interruptible = False
        except TimeoutError:
            if self.fault is None:
                raise
        finally:
            self.is_over = True

    async def _write(self, worker: catalog_pb2.WorkerRef) -> None:
        outbox, wake, write = self._outbox, self._woken, self._context.write
        batching, now = self._batching, asyncio.get_running_loop().time
        info = execution_pb2.WorkerInfo(
            id=worker.id,
            incarnation=worker.incarnation,
            protocol_version=PROTOCOL_VERSION,
            package_version=user_agent(),
        )
        await write(execution_pb2.ExchangeResponse(worker=info).SerializeToString())
        while self.fault is None:
            if not outbox:
                if self.closing and not self.calls:
                    if not self._sends_more:
                        return
                    await self._say_goodbye()
                    continue
                wake.clear()
                await wake.wait()
                continue
            if batching.should_wait(len(outbox), now()):
                await self._wait_for_more()
            await write(outbox.next_batch())
            if not self._room.is_set() and not self.is_full:
                self._room.set()

    async def _say_goodbye(self) -> None:
        """Say that there are no more results, and wait until the caller has answered.

        If the stream ended while its caller is sending, gRPC would tell the caller neither that it
        ended normally nor every result before. Calls that cross the goodbye are rejected.
        """
        last = execution_pb2.GoingAway(last=True)
        await self._context.write(frame(_TAGS["going_away"], last))
        self._woken.clear()
        try:
            async with asyncio.timeout(_GOODBYE):
                while self._sends_more and self.fault is None and not self._outbox:
                    await self._woken.wait()
                    self._woken.clear()
        except TimeoutError:
            self._sends_more = False

    async def _wait_for_more(self) -> None:
        """Wait briefly for more results to share the next message."""
        outbox, wake = self._outbox, self._woken
        if outbox.queued_bytes > _MAX_WAITING:
            return
        ready = len(outbox)
        wake.clear()
        self._check_above = 0
        timer = asyncio.get_running_loop().call_later(_BATCH_WAIT, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()
            self._check_above = _CHECK_MEMORY
        self._batching.record_wait(len(outbox) - ready)
