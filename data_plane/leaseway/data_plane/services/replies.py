"""What goes back on one exchange stream: results, and what calls say before them (DESIGN §6).

Nothing here awaits but the writer: results land in the outbox from the instances' callbacks, and
the writer sends what it holds, after a moment where others are to share the message.

Changes of resources on their way to one exchange's caller, at most one of each at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.calls.batching import Batching
from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.limits import over_limit
from leaseway.wire.messages.frames import frame, frame_tag, result_frame
from leaseway.wire.messages.outbox import Outbox
from leaseway.wire.status import status_from_fault
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

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
            raise over_limit(
                "stream_subscriptions",
                "connection",
                f"This stream follows {bounds.MAX_SUBSCRIPTIONS} resources, the most that it may; "
                "end some of its subscriptions.",
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
        self._waiting.pop(call_id, None)


_logger = logging.getLogger(__name__)
_MOST_QUEUED: Final = 64 * bounds.MIB
"""With more than this waiting to be sent, the reader takes no further frames."""
_OFTEN_LOOKED_AT: Final = bounds.MIB
"""With more than this waiting to be sent, what all streams hold is looked at with each result."""
MOST_UNREAD: Final = 256 * bounds.MIB
"""With more than this waiting to be sent, the caller does not read and its stream is ended."""

_GATHERING: Final = 0.001
"""Seconds that results wait for others at most."""
_MOST_GATHERED: Final = 64 * bounds.KIB
"""With more than this waiting to be sent, none waits for others."""
_RESULTS: Final = frame_tag(execution_pb2.ExchangeResponse, "results")
_PROGRESS: Final = frame_tag(execution_pb2.ExchangeResponse, "progress")
_LOGS: Final = frame_tag(execution_pb2.ExchangeResponse, "logs")
_ASKS: Final = frame_tag(execution_pb2.ExchangeResponse, "asks")
_WITHDRAWALS: Final = frame_tag(execution_pb2.ExchangeResponse, "withdrawals")
_KEEP_ALIVE: Final = frame_tag(execution_pb2.ExchangeResponse, "keep_alive")
_GOING_AWAY: Final = frame_tag(execution_pb2.ExchangeResponse, "going_away")

Result = execution_pb2.Result
Context = grpc.aio.ServicerContext[Any, Any]
"""What gRPC gives a stream."""


class StreamWriter:
    """The sink of one stream's calls, and the writer behind it.

    Args:
        context: Takes the messages.
        leases: Which leases are held.
        lease_message: Describes a lease.
        meters: What is measured, or None where nobody wants that.
        on_growth: Called when much waits to be sent, and more has come.

    Attributes:
        calls: The stream's calls that have no result yet, by id.
        closing: Whether the stream ends once they have: then it takes no more.
        breach: Why the stream ends at once; the caller is told.
    """

    def __init__(
        self,
        context: Context,
        leases: WorkerLeaseManager,
        lease_message: Callable[[Any], leases_pb2.Lease],
        meters: WorkerMeters | None,
        on_growth: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_growth = on_growth
        self._context = context
        self._leases = leases
        self._lease_message = lease_message
        self._meters = meters
        self.calls: dict[int, ActiveCall] = {}
        self.closing = False
        self.breach: Fault | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._outbox = Outbox(self._wake.set)
        self._gathering = Batching(self.calls)
        self._calm = _OFTEN_LOOKED_AT  # bytes that wait; with more, each result is looked at
        self._updates = Updates(self._outbox)
        self._writing = asyncio.timeout(None)
        self._interruptible = False  # a timeout that has not begun, or is over, can't be set

    @property
    def queued_bytes(self) -> int:
        """How much waits to be sent."""
        return self._outbox.queued_bytes

    def close(self) -> None:
        """End once the calls under way have their results."""
        self.closing = True
        self._wake.set()

    def break_off(self, breach: Fault) -> None:
        """End at once: the caller has broken a rule, or this side can't go on."""
        self.breach = breach
        if self._meters is not None:
            self._meters.limits.note(breach.metadata)
        self._wake.set()

    @property
    def is_full(self) -> bool:
        """Whether more waits to be sent than is to be added to."""
        return self._outbox.queued_bytes > _MOST_QUEUED

    async def until_room(self) -> None:
        """Wait until the caller has read a part of what waits."""
        self._room.clear()
        await self._room.wait()

    def drop(self) -> None:
        """Forget what is queued: nobody will read it."""
        self._outbox.clear()

    def go_away(self, reason: str) -> None:
        """Say that no more calls are taken; the stream ends with its last result."""
        self._outbox.put(frame(_GOING_AWAY, execution_pb2.GoingAway(reason=reason)))
        self.close()

    def kept_alive(self, renewed: leases_pb2.KeepAliveResponse) -> None:
        """Queue what became of the leases that the caller renewed."""
        self._outbox.put(frame(_KEEP_ALIVE, renewed))

    def refuse(self, call_id: int, fault: Fault) -> None:
        """Queue why a call was not begun."""
        if self._meters is not None:
            self._meters.call_refused(fault)
        result = Result(call_id=call_id, status=status_from_fault(fault))
        self._outbox.put(frame(_RESULTS, result))

    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        """Queue a call's result."""
        call_id = active.call.id
        self.calls.pop(call_id, None)
        lease = self._lease(active).SerializeToString() if active.lease is not None else b""
        if len(payload) <= bounds.BATCH_SIZE:
            self._put_result(result_frame(call_id, payload, is_error, lease))
            return
        last = result_frame(call_id, b"", is_error, lease)
        self._outbox.put_large(last, call_id, payload)
        self._look()

    def _give_up(self) -> None:
        why = (
            f"More than {MOST_UNREAD} bytes of results wait for this stream's caller, who does not "
            "read them; the stream ends and its calls are cancelled. Read results as they come."
        )
        self.give_up(over_limit("stream_unread", "connection", why, started="unknown"))

    def give_up(self, why: Fault) -> None:
        """End the stream though its caller does not read, as it holds too much.

        Args:
            why: What the caller is told.
        """
        if self.breach is None:
            self.breach = why
            if self._meters is not None:
                self._meters.limits.note(why.metadata)
            self._wake.set()
            if self._interruptible:
                # The writer waits for the caller; only an interruption ends that.
                self._writing.reschedule(asyncio.get_running_loop().time())

    def fail(self, active: ActiveCall, fault: Fault) -> None:
        """Queue why a call has no result."""
        call_id = active.call.id
        self.calls.pop(call_id, None)
        self._updates.forget(call_id)
        result = self._lease(active)
        result.call_id = call_id
        result.status.CopyFrom(status_from_fault(fault))
        self._put_result(frame(_RESULTS, result))

    def _put_result(self, result: bytes) -> None:
        outbox = self._outbox
        outbox.put(result)
        if outbox.queued_bytes > self._calm:
            self._look()

    def _look(self) -> None:
        """See whether a result ends the stream, or the wait for others."""
        if self._outbox.queued_bytes > MOST_UNREAD:
            self._give_up()
            return
        if self._outbox.queued_bytes > _OFTEN_LOOKED_AT:
            self._on_growth()
        if self._gathering.is_enough(len(self._outbox)):
            self._wake.set()

    def _lease(self, active: ActiveCall) -> execution_pb2.Result:
        """Return the part of a result that names the lease, where the caller could not know it."""
        result = Result()
        if active.lease is None:
            return result
        if active.is_new_lease:
            result.new_lease.CopyFrom(self._lease_message(active.lease))
        elif not active.call.lease_id and self._leases.get(active.lease.id) is not None:
            result.joined_lease.CopyFrom(self._lease_message(active.lease))
        return result

    def progress(
        self, active: ActiveCall, progress: float, total: float | None, message: str
    ) -> None:
        """Queue a progress report; beyond the bound it is dropped, for a newer one will come."""
        if self.is_full:
            if self._meters is not None:
                self._meters.frame_dropped("progress")
            return
        report = execution_pb2.Progress(
            call_id=active.call.id, progress=progress, total=total, message=message
        )
        self._outbox.put(frame(_PROGRESS, report))

    def log(self, active: ActiveCall, level: str, logger: str, data: bytes) -> None:
        """Queue a server's log message; beyond the bound it is dropped, and the worker says so."""
        if self.is_full:
            if self._meters is not None:
                self._meters.frame_dropped("log")
            _logger.warning("A log message of server %s was dropped.", active.call.server_id)
            return
        said = execution_pb2.LogMessage(
            call_id=active.call.id, level=level, logger=logger, data=data
        )
        self._outbox.put(frame(_LOGS, said))

    def ask(self, active: ActiveCall, ask_id: int, ask: Ask) -> None:
        """Queue what a server asks; beyond the bound the server is told that it can't be asked."""
        if self.is_full:
            active.refuse(ask_id, "The caller does not read what is sent to it.")
            return
        question = execution_pb2.Ask(
            call_id=active.call.id, ask_id=ask_id, method=ask.method, params=ask.params
        )
        self._outbox.put(frame(_ASKS, question))

    def withdraw_ask(self, active: ActiveCall, ask_id: int) -> None:
        """Queue that a server does not want an answer any more."""
        withdrawal = execution_pb2.AskWithdrawal(call_id=active.call.id, ask_id=ask_id)
        self._outbox.put(frame(_WITHDRAWALS, withdrawal))

    def admit_updates(self, active: ActiveCall) -> None:
        """Make room for changes of a resource that a call follows."""
        self._updates.admit(active.call.id)

    def updated(self, active: ActiveCall, uri: str) -> None:
        """Queue that a resource changed."""
        self._updates.put(active.call.id, uri, active.call.tool)

    async def write(self, worker: catalog_pb2.WorkerRef) -> None:
        """Say who answers, then send what is queued, until the stream is to end."""
        try:
            async with self._writing:
                self._interruptible = True
                try:
                    await self._write(worker)
                finally:
                    self._interruptible = False
        except TimeoutError:
            if self.breach is None:
                raise

    async def _write(self, worker: catalog_pb2.WorkerRef) -> None:
        outbox, wake, write = self._outbox, self._wake, self._context.write
        gathering, now = self._gathering, asyncio.get_running_loop().time
        info = execution_pb2.WorkerInfo(
            id=worker.id,
            incarnation=worker.incarnation,
            protocol_version=PROTOCOL_VERSION,
            package_version=user_agent(),
        )
        await write(execution_pb2.ExchangeResponse(worker=info).SerializeToString())
        while self.breach is None:
            if not outbox:
                if self.closing and not self.calls:
                    return
                wake.clear()
                await wake.wait()
                continue
            if gathering.pays(len(outbox), now()):
                await self._gather()
            await write(outbox.next_batch())
            if not self._room.is_set() and not self.is_full:
                self._room.set()

    async def _gather(self) -> None:
        """Wait a moment for more results to share the next message."""
        outbox, wake = self._outbox, self._wake
        if outbox.queued_bytes > _MOST_GATHERED:
            return
        ready = len(outbox)
        wake.clear()
        self._calm = 0
        timer = asyncio.get_running_loop().call_later(_GATHERING, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()
            self._calm = _OFTEN_LOOKED_AT
        self._gathering.waited(len(outbox) - ready)
