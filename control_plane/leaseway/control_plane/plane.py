"""The loop that the coordinator runs in: one clock, one place where its actions go out.

Every service calls the coordinator through `act`, on the loop's own thread and without waiting,
so that it has one writer; what it leaves to be said is handed to the workers' streams, which
never block (DESIGN §8: a full queue ends the stream).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from leaseway.control_plane.core.approvals import ApprovalRecord, Approvals
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.lease_ends import LeaseEnds
from leaseway.control_plane.core.placement.wait_queue import Answer, Waiter
from leaseway.control_plane.core.queries.place import serve_queue
from leaseway.control_plane.core.workers.actions import Action
from leaseway.control_plane.core.workers.records import VisibleState
from leaseway.control_plane.event_recorder import EventRecorder
from leaseway.control_plane.metrics import PlaneMeters
from leaseway.control_plane.reload_traces import ReloadTraces
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault
from leaseway.wire.messages.events import EventRecord

T = TypeVar("T")


def now() -> Moment:
    return Moment(time.monotonic(), time.time())


class WorkerStream(Protocol):
    """The sending side of one worker's Sync stream."""

    def send(self, action: Action) -> None:
        """Queue an action; never blocks."""

    def send_message(self, message: sync_pb2.SyncResponse) -> None:
        """Queue a message; never blocks."""

    def end(self, reason: str) -> None:
        """End the stream; the worker joins again and resyncs by hashes."""


class Plane:
    """A coordinator with its clock, its streams and those who wait for a change.

    Attributes:
        meters: What measures it, or None where nobody wants that.
        lease_ends: How leases ended that are gone since a short while.
        approvals: Calls that need a person.
        events: The history of what has happened.
        acts: How many events the coordinator was given.

    Args:
        epoch: Fences control planes of the past.
        expected_workers: How many workers will join; 0 means unknown.
        clock: Tells the present; tests have their own.
    """

    def __init__(
        self, *, epoch: int, expected_workers: int = 0, clock: Callable[[], Moment] = now
    ) -> None:
        self.clock = clock
        self._expected_workers = expected_workers
        self._configuration: list[Callable[[Coordinator, Moment], None]] = []
        self.state = Coordinator(clock(), epoch=epoch, expected_workers=expected_workers)
        self.streams: dict[str, WorkerStream] = {}
        self.traces = ReloadTraces()
        self.meters: PlaneMeters | None = None
        self.lease_ends = LeaseEnds()
        self.events = EventRecorder(int(clock().unix * 1e6))
        self.approvals = Approvals(self._note_approval)
        self.acts = 0
        self._questions: dict[int, asyncio.Future[sync_pb2.Inspected]] = {}
        self._last_question = 0
        self._changed = asyncio.Event()
        # Apart from it, since every watcher of tools waits for this and most events change nothing
        # that they see.
        self._visible_state = asyncio.Event()
        self._woken = asyncio.Event()
        self._turns: dict[int, asyncio.Future[Answer]] = {}

    def act(self, event: Callable[[Coordinator, Moment], T]) -> T:
        """Give the coordinator an event and send what it wants said; return its answer."""
        committed, visible_state = self.state.committed, self.state.visible_state
        try:
            return event(self.state, self.clock())
        finally:
            if self.state.committed is not committed:
                self.traces.committed(self.state.committed)
            serve_queue(self.state, self.clock())
            self.acts += 1
            self.events.observe(self.state, self.clock())
            self._send()
            self._notify()
            if self.state.visible_state is not visible_state:
                self._visible_state.set()
                self._visible_state = asyncio.Event()

    def inspect_worker(
        self, worker_id: str, question: sync_pb2.Inspect
    ) -> asyncio.Future[sync_pb2.Inspected]:
        """Ask a worker something; who does not wait any longer cancels the answer."""
        self._last_question = number = self._last_question + 1
        answer: asyncio.Future[sync_pb2.Inspected] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        answer.add_done_callback(lambda _: self._questions.pop(number, None))
        asked = sync_pb2.Inspect()
        asked.CopyFrom(question)
        asked.id = number
        stream = self.streams.get(worker_id)
        if stream is None:
            answer.cancel()
        else:
            stream.send_message(sync_pb2.SyncResponse(inspect=asked))
        return answer

    def handle_inspected(self, answer: sync_pb2.Inspected) -> None:
        """Receive a worker's answer; one that nobody waits for any more is dropped."""
        waiting = self._questions.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def configure(
        self, event: Callable[[Coordinator, Moment], None], *, failed: bool = False
    ) -> None:
        """Give the coordinator a configuration, or word that the newest one has failed."""
        self._configuration = [*(self._configuration[:1] if failed else ()), event]
        self.act(event)

    def lead(self, epoch: int) -> None:
        """Begin to lead, as a control plane that has just started does: workers tell the rest.

        What was followed until now served nobody; only its configuration is kept.
        """
        self._restart(epoch, elected=True)
        for event in self._configuration:
            self.act(event)
        self._notify()

    def follow(self) -> None:
        """Forget all after a lead that was lost: another knows better by now."""
        self._restart(int(self.clock().unix * 1e6), elected=False)
        self._configuration = []

    def _restart(self, epoch: int, *, elected: bool) -> None:
        self.state = Coordinator(
            self.clock(), epoch=epoch, expected_workers=self._expected_workers, elected=elected
        )
        self.approvals = Approvals(self._note_approval)
        if self.meters is not None:
            self.meters.set_state(self.state)

    def counts(self) -> dict[str, int]:
        state = self.state
        return {
            "workers": len(state.workers),
            "leases": len(state.placements.leases),
            "waiting": len(state.wait_queue),
        }

    async def wait_for_change(self, timeout: float) -> None:
        """Wait until something has happened, for at most `timeout` seconds."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return

    async def wait_for_visible(self, seen: VisibleState) -> VisibleState:
        while self.state.visible_state == seen:
            await self._visible_state.wait()
        return self.state.visible_state

    async def wait_turn(self, waiter: Waiter, timeout: float) -> Answer | None:
        """Wait until a request that waits for room has its answer; None after `timeout` seconds."""
        turn: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._turns[waiter.id] = turn
        try:
            async with asyncio.timeout(timeout):
                return await turn
        except TimeoutError:
            return None
        finally:
            del self._turns[waiter.id]
            self.state.wait_queue.remove(waiter.id)

    async def run(self) -> None:
        """Call the coordinator when something is due, until cancelled."""
        while True:
            moment = self.clock()
            due = _earlier(self.state.next_deadline(moment), self.approvals.next_deadline())
            self._woken.clear()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - moment.mono)):
                    await self._woken.wait()
            except TimeoutError:
                self.approvals.expire(self.clock())
                self.act(lambda state, present: state.tick(present))

    def decide_approval(
        self, approval_id: str, tenant: str, by: str, *, approve: bool, note: str = ""
    ) -> ApprovalRecord:
        """Agree to a call that waits for a person, or refuse it; see `Approvals.decide`.

        Raises:
            Fault: INVALID_REQUEST; that is noted, too.
        """
        now = self.clock()
        try:
            decided = self.approvals.decide(
                approval_id, tenant, by, now, approve=approve, note=note
            )
        except Fault as fault:
            known = self.approvals.get(approval_id, tenant)
            self._have_recorded(approval_id[:64], by, fault.reason.value, known)
            verb = "approve" if approve else "deny"
            message = f"{by} could not {verb} approval {approval_id[:64]}: {fault.message}"
            self.events.record(EventRecord("approval", "refused", message, now.unix, "warning"))
            raise
        self._have_recorded(decided.id, by, decided.state, decided)
        return decided

    def _have_recorded(
        self, approval_id: str, by: str, outcome: str, approval: ApprovalRecord | None
    ) -> None:
        """Record a decision in the audit of the worker that asks, or of another one."""
        decision = sync_pb2.ApprovalDecision(
            approval_id=approval_id, decided_by=by, outcome=outcome
        )
        stream = None
        if approval is not None:
            asked = approval.question
            decision.tenant, decision.server_id = asked.tenant, asked.server_id
            decision.tool = asked.tool
            stream = self.streams.get(asked.worker_id)
        stream = stream or next(iter(self.streams.values()), None)
        if stream is not None:
            stream.send_message(sync_pb2.SyncResponse(approval_decision=decision))

    def _note_approval(self, approval: ApprovalRecord, action: str) -> None:
        self.events.record_approval(approval, action, self.clock())
        self._woken.set()  # it may be the next to expire

    def _send(self) -> None:
        for worker_id, action in self.state.pop_actions():
            if self.meters is not None:
                self.meters.record_action(worker_id, action)
            stream = self.streams.get(worker_id)
            if stream is not None:
                stream.send(self.traces.traced(action))
        for waiter_id, answer in self.state.wait_queue.pop_answers():
            turn = self._turns.get(waiter_id)
            if turn is not None and not turn.done():
                turn.set_result(answer)

    def _notify(self) -> None:
        self._woken.set()
        self._changed.set()
        self._changed = asyncio.Event()


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)
