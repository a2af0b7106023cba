"""Runs the coordinator on the event loop: passes it events and sends its actions to workers.

All services change the coordinator in a `Plane.transition`, synchronously on the event loop, so it
has one writer. Its actions are queued on the workers' streams, which never block (design.md#sync).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from leaseway.control_plane.awake_clock import BEAT
from leaseway.control_plane.core.approvals import ApprovalRecord
from leaseway.control_plane.core.audit_anchors import AuditAnchors
from leaseway.control_plane.core.budgets import Budgets
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.ended_sessions import EndedSessions
from leaseway.control_plane.core.placement.lease_ends import (
    EndNotices,
    LeaseEnds,
    ReportedLeaseEnd,
    lost_unreported,
    lost_with_worker,
)
from leaseway.control_plane.core.placement.session_states import SessionStates
from leaseway.control_plane.core.placement.wait_queue import PlacementOutcome, Waiter
from leaseway.control_plane.core.problems import STORE_RECORDS_UNREADABLE, Problem
from leaseway.control_plane.core.queries.place import serve_queue
from leaseway.control_plane.core.workers.actions import WorkerAction
from leaseway.control_plane.core.workers.records import VisibleState
from leaseway.control_plane.event_recorder import EventRecorder
from leaseway.control_plane.metrics import PlaneMeters
from leaseway.control_plane.reload_traces import ReloadTraces
from leaseway.control_plane.store.memory import MemoryStore
from leaseway.control_plane.store.port import Room, Store, StoreError, StoreFenced
from leaseway.control_plane.stored_anchors import StoredAnchors
from leaseway.control_plane.stored_approvals import StoredApprovals, Term
from leaseway.spec.model import VariantKey
from leaseway.telemetry.metrics import Meter
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.events import EventRecord

_logger = logging.getLogger(__name__)
_MAX_FOLDERS: Final = 10_000
_NAMED: Final = 5
"""Records that a problem names."""


def now() -> Moment:
    return Moment(time.monotonic(), time.time())


class WorkerStream(Protocol):
    """The sending side of one worker's Sync stream."""

    @property
    def ended(self) -> asyncio.Future[str]:
        """Done when the stream has ended, or is about to; then nothing answers what it has sent."""

    def send(self, message: WorkerAction | sync_pb2.SyncResponse) -> None:
        """Queue an action or a message; a full queue ends the stream."""

    def end(self, reason: str) -> None:
        """End the stream; the worker reconnects and resyncs by hashes."""


class ConfigEvent(Protocol):
    """A change of the configuration, which is repeated when this control plane leads."""

    def __call__(self, state: Coordinator, /, *, now: Moment) -> None: ...


class Plane:
    """A coordinator with its clock, worker streams and waiting requests.

    Attributes:
        meters: Metrics, or None if they are off.
        lease_ends: Recently ended leases.
        end_notices: Ended leases whose sessions do not know it.
        ended_sessions: Sessions of MCP fronts that ended for good.
        approvals: Calls that need an approval.
        audit_anchors: How far the audits of workers are.
        stored_anchors: Keeps them in the store.
        budgets: What workers have of the limits that hold over the fleet.
        server_folders: The folders of all servers, which workers hide from other servers.
        events: The history of events.
        store: Keeps what outlives this process.
        deposed: Set when a newer leader has claimed the store in this one's term.
        transitions: Number of transitions of the coordinator.
        follows: Whether another control plane leads, or none does yet.

    Args:
        epoch: Fences earlier control planes.
        expected_workers: Number of workers that will join; 0 means unknown.
        clock: Returns the current time; a process passes an `AwakeClock`.
        meter: Registers the metrics, or None if they are off.
        store: Keeps what outlives this process; by default its memory.
        follows: Whether it begins as a follower, which uses no store.
    """

    def __init__(
        self,
        *,
        epoch: int,
        expected_workers: int = 0,
        clock: Callable[[], Moment] = now,
        meter: Meter | None = None,
        store: Store | None = None,
        follows: bool = False,
    ) -> None:
        self.clock = clock
        self.store = store or MemoryStore()
        self.deposed = asyncio.Event()
        self._expected_workers = expected_workers
        self._configuration: list[ConfigEvent] = []
        self.state = Coordinator(clock(), epoch=epoch, expected_workers=expected_workers)
        self.streams: dict[str, WorkerStream] = {}
        self.traces = ReloadTraces()
        self.budgets = Budgets(clock().mono)
        self.meters: PlaneMeters | None = None
        if meter is not None:
            self.meters = PlaneMeters(meter, self.state, self.budgets, self._seconds)
        self.lease_ends = LeaseEnds()
        self.end_notices = EndNotices()
        self.ended_sessions = EndedSessions()
        self.session_states = SessionStates()
        self.events = EventRecorder(int(clock().unix * 1e6))
        self.follows = follows
        self.approvals = self._new_approvals(None if follows else Term(epoch))
        self._maintenance: asyncio.Task[None] | None = None
        self._decisions: set[asyncio.Task[ApprovalRecord]] = set()
        self.audit_anchors = AuditAnchors()
        self.stored_anchors = StoredAnchors(self.audit_anchors, self.approvals, clock)
        self.transitions = 0
        self._inspections: dict[int, asyncio.Future[sync_pb2.Inspected]] = {}
        self._last_inspection = 0
        self._changed = asyncio.Event()
        # Separate, as all watchers of tools wait for it and most events do not concern them.
        self._visible_state = asyncio.Event()
        # Separate as well: thousands of callers may wait while thousands of servers start.
        self._first_results = asyncio.Event()
        self._first_results_at: tuple[object, ...] = ()
        self._woken = asyncio.Event()
        self._turns: dict[int, asyncio.Future[PlacementOutcome]] = {}
        self._folders_of: object = None
        self.server_folders = sync_pb2.ServerFolders()

    def _seconds(self) -> float:
        return self.clock().mono

    @contextmanager
    def transition(self) -> Iterator[tuple[Coordinator, Moment]]:
        """Give the coordinator and the time to one event; then send the coordinator's actions."""
        committed, visible_state = self.state.committed, self.state.visible_state
        try:
            yield self.state, self.clock()
        finally:
            if self.state.committed is not committed:
                self.traces.committed(self.state.committed)
            placements = self.state.placements
            lost, unreported = placements.pop_lost(), placements.pop_unreported()
            if lost or unreported:
                self.events.record_lost_leases(lost, self.clock())
                self.record_ends(map(lost_with_worker, lost))
                self.record_ends(map(lost_unreported, unreported))
            serve_queue(self.state, self.clock())
            self.transitions += 1
            self.events.observe(self.state, self.clock())
            self._send()
            self._notify()
            if self.state.visible_state is not visible_state:
                self._visible_state.set()
                self._visible_state = asyncio.Event()

    def record_ends(self, ends: Iterable[ReportedLeaseEnd]) -> None:
        """Record ended leases whose sessions may not know it, after the state is up to date."""
        now = self.clock().mono
        for end in ends:
            if not self.state.placements.has_lease(end.key):
                self.end_notices.record(end, now)

    def inspect_worker(
        self, worker_id: str, question: sync_pb2.Inspect
    ) -> asyncio.Future[sync_pb2.Inspected]:
        """Send a question to a worker; the caller cancels the future when it stops waiting."""
        self._last_inspection = number = self._last_inspection + 1
        answer: asyncio.Future[sync_pb2.Inspected] = asyncio.get_running_loop().create_future()
        self._inspections[number] = answer
        answer.add_done_callback(partial(self._forget_inspection, number))
        asked = sync_pb2.Inspect()
        asked.CopyFrom(question)
        asked.id = number
        stream = self.streams.get(worker_id)
        if stream is None:
            answer.cancel()
        else:
            stream.send(sync_pb2.SyncResponse(inspect=asked))
        return answer

    def _forget_inspection(self, number: int, _answer: asyncio.Future[sync_pb2.Inspected]) -> None:
        self._inspections.pop(number, None)

    def handle_inspected(self, answer: sync_pb2.Inspected) -> None:
        """Resolve the future of a worker's answer; ignore it if the future was cancelled."""
        future = self._inspections.get(answer.id)
        if future is not None and not future.done():
            future.set_result(answer)

    def configure(self, event: ConfigEvent, *, failed: bool = False) -> None:
        """Pass a configuration event; keep it to repeat it when this control plane leads."""
        self._configuration = [*(self._configuration[:1] if failed else ()), event]
        self._configure(event)

    def lead(self, epoch: int) -> None:
        """Become the leader: restart the coordinator and keep only the configuration.

        Workers report everything else when they join, as after a start.
        """
        self._restart(epoch, Term(epoch, elected=True))
        # The control plane that led until now may have begun later.
        self.events.history.number_above(int(self.clock().unix * 1e6))
        for event in self._configuration:
            self._configure(event)
        self._notify()

    def _configure(self, event: ConfigEvent) -> None:
        with self.transition() as (state, now):
            event(state, now=now)

    def follow(self) -> None:
        """Become a follower after losing the lead: restart the coordinator without any state."""
        self._restart(int(self.clock().unix * 1e6), None)
        self._configuration = []

    def _restart(self, epoch: int, term: Term | None) -> None:
        self.state = Coordinator(
            self.clock(),
            epoch=epoch,
            expected_workers=self._expected_workers,
            elected=term is not None,
        )
        self.deposed.clear()
        self.follows = term is None
        self.approvals = self._new_approvals(term)
        self.budgets = Budgets(self.clock().mono)
        self.audit_anchors = AuditAnchors()
        self.stored_anchors = StoredAnchors(self.audit_anchors, self.approvals, self.clock)
        if self.meters is not None:
            self.meters.set_state(self.state, self.budgets)

    def counts(self) -> dict[str, int]:
        state = self.state
        return {
            "workers": len(state.workers),
            "leases": len(state.placements.leases),
            "waiting": len(state.wait_queue),
        }

    async def wait_for_change(self, timeout: float) -> None:
        """Wait for the next event, for at most `timeout` seconds."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return

    async def wait_for_first_results(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for other names or pending servers than now."""
        event = self._first_results
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await event.wait()

    def hurry_probes(self, variants: Iterable[VariantKey]) -> None:
        """Have servers that somebody waits for probed before others."""
        probes = self.state.servers.probes
        late = [key for key in variants if probes.can_hurry(key)]
        if late:
            with self.transition() as (state, _):
                for key in late:
                    state.servers.probes.hurry(key)

    async def wait_for_visible(self, seen: VisibleState) -> VisibleState:
        """Wait until the visible state differs from `seen` and return it."""
        while self.state.visible_state == seen:
            await self._visible_state.wait()
        return self.state.visible_state

    async def wait_turn(self, waiter: Waiter, timeout: float) -> PlacementOutcome | None:
        """Wait for the answer of a queued request; return None after `timeout` seconds."""
        turn: asyncio.Future[PlacementOutcome] = asyncio.get_running_loop().create_future()
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
        """Call `tick` at each deadline, and read the clock every `BEAT`, until cancelled."""
        try:
            while True:
                moment = self.clock()
                deadlines = (
                    self.state.next_deadline(),
                    self.approvals.next_expiry(),
                    *(() if self._is_maintaining else self._maintenance_deadlines()),
                )
                due = min((time for time in deadlines if time is not None), default=None)
                self._woken.clear()
                left = BEAT if due is None else max(0.0, due - moment.mono)
                try:
                    async with asyncio.timeout(min(left, BEAT)):
                        await self._woken.wait()
                except TimeoutError:
                    if left > BEAT or due is None:
                        continue  # only to read the clock: it finds stalls by its gaps
                    self._maintain_store()
                    with self.transition() as (state, now):
                        state.tick(now)
        finally:
            if self._maintenance is not None:
                self._maintenance.cancel()

    def _maintenance_deadlines(self) -> Iterable[float | None]:
        return self.approvals.next_deadline(), self.stored_anchors.next_deadline()

    @property
    def _is_maintaining(self) -> bool:
        return self._maintenance is not None and not self._maintenance.done()

    def _maintain_store(self) -> None:
        approvals, anchors = self.approvals, self.stored_anchors
        approvals.expire()
        if not self._is_maintaining and (
            approvals.needs_maintenance() or anchors.needs_maintenance()
        ):
            self._maintenance = asyncio.create_task(self._maintain(approvals, anchors))

    async def _maintain(self, approvals: StoredApprovals, anchors: StoredAnchors) -> None:
        if approvals.needs_maintenance():
            await approvals.maintain()
        if anchors.needs_maintenance():
            await anchors.maintain()
        self._woken.set()

    async def decide_approval(
        self, approval_id: str, tenant: str, by: str, *, approve: bool, note: str = ""
    ) -> ApprovalRecord:
        """Approve or deny a call, see `Approvals.decide`; record the decision.

        Who stops waiting cancels nothing: the decision is kept and recorded all the same.

        Raises:
            Fault: INVALID_REQUEST, STORE_UNAVAILABLE or NOT_LEADER; the attempt is recorded, too.
        """
        decision = asyncio.create_task(
            self._decide(approval_id, tenant, by, approve=approve, note=note)
        )
        self._decisions.add(decision)
        decision.add_done_callback(self._decisions.discard)
        return await asyncio.shield(decision)

    async def _decide(
        self, approval_id: str, tenant: str, by: str, *, approve: bool, note: str
    ) -> ApprovalRecord:
        try:
            decided = await self.approvals.decide(
                approval_id, tenant, by, approve=approve, note=note
            )
        except Fault as fault:
            known = self.approvals.get(approval_id, tenant)
            self._audit_decision(approval_id[:64], by, fault.reason.value, known)
            verb = "approve" if approve else "deny"
            message = f"{by} could not {verb} approval {approval_id[:64]}: {fault.message}"
            self.events.record(
                EventRecord(
                    kind="approval",
                    action="refused",
                    message=message,
                    at=self.clock().unix,
                    severity="warning",
                )
            )
            raise
        self._audit_decision(decided.id, by, decided.state, decided)
        return decided

    def _audit_decision(
        self, approval_id: str, by: str, outcome: str, approval: ApprovalRecord | None
    ) -> None:
        """Send a decision to the audit of the worker that asked, or else of another worker."""
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
            stream.send(sync_pb2.SyncResponse(approval_decision=decision))

    def _new_approvals(self, term: Term | None) -> StoredApprovals:
        """Return the approvals of a term; without one those of a follower, in memory."""
        store = self.store if term is not None else MemoryStore()
        approvals = StoredApprovals(store, self.clock, term or Term(0))
        approvals.changed.connect(self._record_approval)
        approvals.troubled.connect(partial(self._report_store, approvals))
        approvals.unreadable.connect(partial(self._report_unreadable, approvals))
        return approvals

    def _report_store(self, approvals: StoredApprovals, failure: StoreError | None) -> None:
        """Report that the store fails, or works again (None)."""
        if approvals is not self.approvals:
            return  # an operation of an earlier term
        with self.transition() as (state, now):
            if failure is None:
                _logger.info("The store can be used again.")
                state.problems.clear(reason=Reason.STORE_UNAVAILABLE.value)
                return
            known = state.problems.found()
            message = (
                f"{failure} Until it can be used, no call is approved or runs with an approval."
            )
            reason = Reason.STORE_UNAVAILABLE.value
            if not any((problem.reason, problem.message) == (reason, message) for problem in known):
                _logger.warning("The store cannot be used: %s", failure)  # not at each new try
            state.problems.report(Problem("workspace", reason, message), now.unix)
        if isinstance(failure, StoreFenced) and approvals.term.elected:
            self.deposed.set()

    def _report_unreadable(
        self, approvals: StoredApprovals, room: Room, keys: Sequence[str]
    ) -> None:
        """Report records of the store that this release does not understand."""
        if approvals is not self.approvals:
            return  # an operation of an earlier term
        named = ", ".join(f"'{key}'" for key in sorted(keys)[:_NAMED])
        more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
        message = (
            f"The store has records in the room '{room}' that this release does not understand:"
            f" {named}{more}. They are kept as they are and count for nothing. Run the newer"
            " release that wrote them, or delete them. They are read when a control plane starts"
            " to lead."
        )
        _logger.warning("%s", message)
        with self.transition() as (state, now):
            problem = Problem(
                "workspace", STORE_RECORDS_UNREADABLE, message, severity="warning", subject=room
            )
            state.problems.report(problem, now.unix)

    def _record_approval(self, approval: ApprovalRecord, action: str) -> None:
        self.events.record_approval(approval, action, self.clock())
        self._woken.set()  # its deadline may be the next one

    def _send_folders(self) -> None:
        """Tell workers the folders of the servers, before the probes that start them."""
        desired = self.state.servers.desired
        if desired is self._folders_of:
            return
        self._folders_of = desired
        named = {path for spec in (desired or {}).values() for path in spec.named_folders}
        folders = sync_pb2.ServerFolders(folders=sorted(named)[:_MAX_FOLDERS])
        if folders != self.server_folders:
            self.server_folders = folders
            for stream in self.streams.values():
                stream.send(sync_pb2.SyncResponse(server_folders=folders))

    def _send(self) -> None:
        self._send_folders()
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
        state = self.state
        before, self._first_results_at = (
            self._first_results_at,
            (
                state,
                state.registry.visible,
                state.pending.revision,
                state.servers.variants_revision,
                state.subjects.sequence,
            ),
        )
        if not before or not all(map(_is_same, before, self._first_results_at)):
            self._first_results.set()
            self._first_results = asyncio.Event()


def _is_same(before: object, now: object) -> bool:
    return before == now if isinstance(now, int) else before is now
