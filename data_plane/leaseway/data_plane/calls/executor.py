"""Runs tool calls, from admission to result (design.md#calls).

A call is admitted and then passes the `stages` that it needs. Most calls go to a running shared
instance or to a lease that is already held. Their path creates no task and no span and awaits
nothing: `start_call` sends the call, and the instance's callback ends it. A call that must wait
stays in its stage, which resumes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Final

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.audit.record import AuditEntry, Recorder
from leaseway.data_plane.calls.admin_tools import AdminTools
from leaseway.data_plane.calls.admission import (
    CallAdmission,
    LoginNeeded,
    WaitNeeded,
    check_arguments,
)
from leaseway.data_plane.calls.call import ActiveCall, CallSink
from leaseway.data_plane.calls.confirmation import Confirmation
from leaseway.data_plane.calls.held_replies import HeldReplies
from leaseway.data_plane.calls.load import CallLoad, call_loads
from leaseway.data_plane.calls.login import with_next_login
from leaseway.data_plane.calls.recent import RecentCalls
from leaseway.data_plane.calls.stages.approval import ApprovalStage
from leaseway.data_plane.calls.stages.instance import InstanceStage
from leaseway.data_plane.calls.stages.record import RecordStage
from leaseway.data_plane.calls.stages.rules import RulesStage
from leaseway.data_plane.calls.stages.send import SendStage
from leaseway.data_plane.calls.stages.stage import Enter
from leaseway.data_plane.calls.stages.turn import TurnStage
from leaseway.data_plane.calls.subscriptions import WorkerSubscriptions
from leaseway.data_plane.calls.tracing import call_traces
from leaseway.data_plane.core.calls.call import Outcome, PendingCall
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.tools.budgets import PERMIT_WAIT, PermitNeeded, PermitsPort
from leaseway.data_plane.core.tools.prompts_resources import METHODS, SUBSCRIBE, has_only_tools
from leaseway.data_plane.instances.login_watcher import LoginWatcher
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import ToolTimer, WorkerMeters
from leaseway.identity.principal import Principal
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET, LOGIN_TOOL
from leaseway.wire.messages.mcp import ROOTS_CHANGED
from leaseway.wire.names import LeaseKey
from leaseway.wire.timing.deadlines import Deadlines

_logger = logging.getLogger(__name__)


_WAITING_PART: Final = 0.8
"""How much of its timeout a call may wait for a permit."""

_Needs = tuple[bool, bool, bool, bool]
"""Why a call passes more stages than those of its instance and of sending: rules, an approval, a
limit of calls at a time, a record before it is sent."""


class Executor:
    """Runs the calls of one worker.

    Args:
        pool: The servers of the worker.
        leases: The leases of the worker.
        logins: The logins of people that calls use.
        artifacts: Stores the media of results.
        confirmation: Asks people to approve calls.
        recorder: Records calls in the audit, or None if there is no audit.
        recent: Remembers ended calls, or None if no calls are remembered.
        permits: Gets permits of limits that hold over the fleet.

    Attributes:
        draining: Whether new calls are rejected.
        usage: Calls and rejections by tenant.
        meters: Instruments, or None if metrics are off.
        recent: As given.
    """

    def __init__(
        self,
        pool: Pool,
        leases: WorkerLeaseManager,
        logins: LoginWatcher,
        *,
        artifacts: ArtifactStore,
        confirmation: Confirmation,
        recorder: Recorder | None,
        recent: RecentCalls | None,
        permits: PermitsPort,
    ) -> None:
        self._pool = pool
        self._leases = leases
        self._logins = logins
        self._worker_id = pool.context.worker_id
        self._background = pool.context.background
        self._loop = asyncio.get_running_loop()
        self.meters = pool.context.meters
        self._artifacts = artifacts
        self._recorder = recorder
        self._holds_calls = recorder is not None and recorder.holds_calls
        self.recent = recent
        if recent is not None:
            pool.resolves_anew.connect(self._make_room)
        self._admin = AdminTools(pool, leases, logins)
        self._permits = permits
        self._admission = CallAdmission(pool, leases, permits.budgets)
        self.usage = self._admission.usage
        self._subscriptions = WorkerSubscriptions(leases, self._admission.is_uri_visible)
        self._turns = TurnStage(pool.resolves_anew)
        self._lines = self._all_lines(confirmation)
        self._idle = asyncio.Event()
        self._idle.set()
        self._held: HeldReplies | None = None
        if recorder is not None and recorder.holds_calls:
            self._held = HeldReplies(recorder, self._background, self._idle.set)
        self._traces = call_traces(self._worker_id)
        self._active: dict[int, ActiveCall] = {}
        self._last_number = 0
        self._deadlines = Deadlines(self._loop, self._active, self._expire)
        self.draining = False

    def _make_room(self) -> None:
        assert self.recent is not None
        servers = {generation.key.server_id for generation in self._pool.generations}
        self.recent.make_room(servers | {ADMIN_TOOLSET})

    def _all_lines(self, confirmation: Confirmation) -> Mapping[_Needs, tuple[Enter, ...]]:
        """Return the stages that calls pass after their admission, by what they need."""
        rules, approval = RulesStage().enter, ApprovalStage(confirmation)
        instance = InstanceStage(self._pool, self._leases, self._logins).enter
        send = self._send = SendStage(self._subscriptions, self._artifacts, self.meters).enter
        record = None
        if self._recorder is not None:
            record = RecordStage(self._recorder, self.resume_all, self._background).enter
        lines: dict[_Needs, tuple[Enter, ...]] = {}
        for judged, asks, limited, recorded in itertools.product((False, True), repeat=4):
            stages = (
                rules if judged else None,
                approval.ask if asks else None,
                instance,
                self._turns.enter if limited else None,
                record if recorded else None,
                approval.spend if asks else None,
                send,
            )
            lines[judged, asks, limited, recorded] = tuple(
                stage for stage in stages if stage is not None
            )
        return lines

    @property
    def in_flight(self) -> int:
        """How many calls have no reply yet."""
        return len(self._active) + (len(self._held) if self._held is not None else 0)

    @property
    def waiting(self) -> int:
        """How many calls wait for a turn on an instance with `max_calls`."""
        return len(self._turns)

    def loads(self) -> dict[str, CallLoad]:
        """Return the calls in flight of each server."""
        servers = {generation.key.server_id for generation in self._pool.generations}
        return call_loads(self._active.values(), servers, perf_counter())

    def unsought(self, keys: Collection[LeaseKey]) -> list[LeaseKey]:
        """Return those of some keys whose lease no call in flight would acquire."""
        if not keys:
            return []
        sought = {active.call.lease_key for active in self._active.values() if active.lease is None}
        return [key for key in keys if key not in sought]

    def start_call(
        self, call: IncomingCall, arguments: bytes, sink: CallSink, caller: Principal
    ) -> ActiveCall:
        """Start a call of a caller. Its result goes to the sink, possibly before this returns."""
        self._last_number = number = self._last_number + 1
        trace = self._traces.start(call) if self._traces is not None else None
        active = self._active[number] = ActiveCall(
            self, number, call, arguments, sink, caller, trace
        )
        active.arrived_at = perf_counter()
        if self.recent is not None:
            active.started_at = active.arrived_at
        if self._recorder is not None:
            active.audit = AuditEntry()
        try:
            if self.draining:
                raise self.draining_fault()
            if call.server_id == ADMIN_TOOLSET:
                self._run_admin_tool(active)
            elif call.registry_version > self._pool.registry_version:
                self.wait_for(active, self._wait_for_version)
            else:
                self._admit(active)
                for enter in active.line:
                    if not enter(active):
                        break
        except Exception as error:  # noqa: BLE001 - one call's fault ends that call alone
            self.fail(active, error)
        return active

    def _admit(self, active: ActiveCall) -> None:
        """Admit a call by the current configuration, and choose the stages that it has to pass."""
        active.configuration = self._pool.desired_state
        try:
            admitted = self._admission.admit(active)
        except (PermitNeeded, WaitNeeded, LoginNeeded) as needed:
            active.configuration = None  # so that it is admitted anew
            active.line = iter(())
            self.wait_for(active, self._wait_of(needed))
            return
        if active.deadline is None:
            call = active.call
            if call.timeout_ms:
                self._expire_after(active, call.timeout_ms / 1000)
            elif call.method == SUBSCRIBE:  # lasts until its caller cancels it
                self._expire_after(active, bounds.MAX_CALL_TIMEOUT)
            else:
                self._expire_after(active, admitted.variant.spec.call_timeout)
        line = admitted.line
        if line is None:
            line = admitted.line = self._line_of(active)
        active.line = iter(line)

    def _line_of(self, active: ActiveCall) -> tuple[Enter, ...]:
        """Return the stages that an admitted call has to pass."""
        method, policy = active.call.method, active.policy
        limited = bool(active.generation.variant.spec.max_calls) and method not in (
            SUBSCRIBE,
            ROOTS_CHANGED,
        )
        if policy is None:
            return self._lines[False, False, limited, False]
        recorded = active.audit is not None and (not policy.only_reads or self._holds_calls)
        return self._lines[active.judged is not None, policy.needs_approval, limited, recorded]

    def resume(self, active: ActiveCall) -> None:
        """Let a call that has waited in a stage go on; see `resume_all`."""
        self.resume_all((active,))

    def resume_all(self, calls: Iterable[ActiveCall]) -> None:
        """Let calls that have waited in a stage go on; admit them anew if a commit came meanwhile.

        A person may have withdrawn what they were admitted by, or replaced their server.
        """
        pool = self._pool
        for active in calls:
            if active.has_ended:
                continue
            try:
                if active.configuration is not pool.desired_state:
                    active.policy = active.judged = None
                    self._admit(active)
                for enter in active.line:
                    if not enter(active):
                        break
            except Exception as error:  # noqa: BLE001 - one call's fault ends that call alone
                self.fail(active, error)

    def wait_for(self, active: ActiveCall, work: Callable[[ActiveCall], Awaitable[None]]) -> None:
        """Do a stage's work in a task, then resume the call."""
        active.task = self._background.spawn(
            self._work_and_resume(active, work), f"call {active.call.server_id}:{active.call.tool}"
        )

    async def _work_and_resume(
        self, active: ActiveCall, work: Callable[[ActiveCall], Awaitable[None]]
    ) -> None:
        try:
            await work(active)
        except asyncio.CancelledError:
            active.fail(self.draining_fault())
            raise
        except Exception as error:  # noqa: BLE001 - one call's fault ends that call alone
            self.fail(active, error)
        finally:
            active.task = None
        self.resume(active)

    def _wait_of(
        self, needed: PermitNeeded | WaitNeeded | LoginNeeded
    ) -> Callable[[ActiveCall], Awaitable[None]]:
        """Return what a call must wait for before it is admitted."""
        if isinstance(needed, PermitNeeded):
            return self._wait_for_permits
        if isinstance(needed, WaitNeeded):
            return partial(self._wait_to_be_admitted, needed)
        return self._wait_for_first_login

    async def _wait_for_first_login(self, active: ActiveCall) -> None:
        if active.deadline is None:
            usual = active.generation.variant.spec.call_timeout
            self._expire_after(active, active.call.timeout_ms / 1000 or usual)
        await self._admin.connect(active.call.server_id, active)

    async def _wait_for_version(self, active: ActiveCall) -> None:
        if active.call.timeout_ms:
            self._expire_after(active, active.call.timeout_ms / 1000)
        active.event("waiting for the registry version")
        await self._pool.wait_for_version(active.call.registry_version)

    async def _wait_for_permits(self, active: ActiveCall) -> None:
        if active.deadline is None and active.call.timeout_ms:
            self._expire_after(active, active.call.timeout_ms / 1000)
        active.event("waiting for a permit")
        now = self._loop.time()
        until = now + PERMIT_WAIT
        if active.deadline is not None:  # its caller learns what it waited for, if there is time
            until = min(until, now + (active.deadline - now) * _WAITING_PART)
        while (needed := self._admission.missing_permit(active)) is not None:
            await self._permits.get(needed.demands, until)

    async def _wait_to_be_admitted(self, needed: WaitNeeded, active: ActiveCall) -> None:
        if active.deadline is None and active.call.timeout_ms:
            self._expire_after(active, active.call.timeout_ms / 1000)
        active.event(needed.what)
        await needed.wait()

    def fail(self, active: ActiveCall, error: Exception) -> None:
        """End a call with a fault; log any other error and end the call with INTERNAL."""
        if isinstance(error, Fault):
            active.fail(error)
            return
        call = active.call
        _logger.error(
            "A call of %s:%s failed in the worker.", call.server_id, call.tool, exc_info=error
        )
        active.fail(
            Fault(
                Reason.INTERNAL, "The worker failed to run the call; its log says why.", "unknown"
            )
        )

    def draining_fault(self) -> Fault:
        """Return the fault for new work on a draining worker."""
        return Fault(
            Reason.DRAINING,
            f"Worker {self._worker_id} is draining and accepts no new calls; use another worker.",
            retry_delay=0.1,
        )

    def _run_admin_tool(self, active: ActiveCall) -> None:
        """Run one of Leaseway's own tools; these exist at every registry version."""
        if active.call.method:
            raise has_only_tools(ADMIN_TOOLSET)
        parsed = check_arguments(active, self._admin.plan(active.call.tool))
        if active.call.tool != LOGIN_TOOL:
            active.handle_outcome(self._admin.run(active.call, parsed, active.caller))
            return
        self._expire_after(active, active.call.timeout_ms / 1000 or bounds.CALL_TIMEOUT)
        self.wait_for(active, partial(self._admin.log_in, parsed["serverId"]))

    def _expire_after(self, active: ActiveCall, timeout: float) -> None:
        active.deadline = self._loop.time() + min(timeout, bounds.MAX_CALL_TIMEOUT)
        self._deadlines.add(active.deadline, active.number)

    def _expire(self, number: int) -> None:
        self._active[number].expire()

    def hold_reply(
        self, deliver: Callable[[], object], withhold: Callable[[Fault], object]
    ) -> None:
        assert self._held is not None
        self._held.hold(deliver, withhold)

    def on_call_ended(self, active: ActiveCall, fault: Fault | None, is_error: bool) -> None:
        del self._active[active.number]
        if self.meters is not None:
            self._measure(self.meters, active, fault, is_error)
        if active.given is not None:
            active.given.end()
        live, now = active.live, perf_counter()
        if self.recent is not None and active.started_at:
            server_id = live.spec.key.server_id if live is not None else active.call.server_id
            self.recent.end_call(server_id, active, fault, is_error, now)
        if live is not None:
            live.end_call()
            if live.turns is not None:
                self._turns.leave(active, live.turns)
        if active.lease is not None:
            self._leases.end_call(active.lease)
        elif fault is not None and not active.call.lease_id:
            self._give_up_placement(active)
        if active.slots:
            self.usage.end_call(active.slots)
        if active.audit is not None and self._recorder is not None:
            self._recorder.end(active, fault, is_error, now)
        if not self._active:
            self._idle.set()

    def _give_up_placement(self, active: ActiveCall) -> None:
        """Let no room be kept for the lease that a failed call would have acquired."""
        generation, call = active.generation, active.call
        if generation is not None and not generation.is_shared and call.session:
            self._leases.give_up_placement(call.lease_key)

    def _measure(
        self, meters: WorkerMeters, active: ActiveCall, fault: Fault | None, is_error: bool
    ) -> None:
        timer, since = active.timer, active.sent_at
        if fault is not None and fault.reason is Reason.DEADLINE_EXCEEDED and not since:
            timer, since = timer or self._timer_of_unsent(meters, active), active.arrived_at
        meters.record_call(timer, since, fault, is_error, active.sampled_traceparent())

    def _timer_of_unsent(self, meters: WorkerMeters, active: ActiveCall) -> ToolTimer | None:
        """Return the timer of a call that timed out before it had an instance.

        None if its server or tool does not exist: callers must not choose the labels of metrics.
        """
        call = active.call
        try:
            variant = self._pool.resolve(call.server_id, call.tenant, call.agent).variant
        except Fault:
            return None
        exists = call.method in METHODS if call.method else call.tool in variant.toolset.tools
        if not exists:
            return None
        return meters.timer(variant.spec, call.tool, call.method)

    def call_fault(self, active: ActiveCall, fault: Fault) -> Fault:
        """Return the fault of a call whose instance failed: why its lease ended, if it did."""
        lease = active.lease
        if fault.reason is not Reason.SERVER_LOST or lease is None or self._leases.get(lease.id):
            return fault
        ended = self._leases.holders.ended_fault(lease.id)
        if ended.reason is Reason.LEASE_LOST:
            return fault
        return dataclasses.replace(ended, started=fault.started)

    def wait_for_login(self, active: ActiveCall, required: Fault) -> None:
        active.line = iter((self._send,))
        self.wait_for(active, partial(with_next_login, self._logins, required))

    def store_media(self, active: ActiveCall, outcome: Outcome) -> PendingCall | None:
        subject = active.generation.key.user
        pending = self._artifacts.store(active.call, outcome, active.finish, subject)
        if pending is not None and active.trace is not None:
            active.trace.event("images and sounds are kept")
        return pending

    def reject_new_calls(self) -> None:
        """Reject new calls and subscriptions; calls in flight continue."""
        self.draining = True
        self._subscriptions.reject_new(self.draining_fault())

    async def drain(self) -> None:
        """Reject new calls, end subscriptions and wait until all calls in flight have ended."""
        self.reject_new_calls()
        self._subscriptions.end_all(self.draining_fault())
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()
