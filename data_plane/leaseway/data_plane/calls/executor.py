"""Runs tool calls, from admission to result (DESIGN §6).

Most calls go to a running shared instance or to a lease that is already held. Their path creates
no task and no span and awaits nothing: `start_call` checks and sends the call, and the instance's
callback ends it. Calls that must wait for a lease, an instance or a registry version get a task.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Final

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.audit.record import AuditEntry, Recorder
from leaseway.data_plane.calls.admin_tools import AdminTools
from leaseway.data_plane.calls.admission import CallAdmission, check_arguments
from leaseway.data_plane.calls.call import ActiveCall, CallSink, parse_input, parse_meta
from leaseway.data_plane.calls.confirmation import Confirmation
from leaseway.data_plane.calls.load import CallLoad, call_loads
from leaseway.data_plane.calls.recent import RecentCalls, call_outcome
from leaseway.data_plane.calls.subscriptions import WorkerSubscriptions
from leaseway.data_plane.calls.tracing import CallTrace, wants_trace
from leaseway.data_plane.core.calls.call import Outcome, PendingCall, ToolRequest, answerable
from leaseway.data_plane.core.calls.turns import CallTurns
from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.prompts_resources import (
    METHODS,
    SUBSCRIBE,
    AdmittedRequest,
    has_only_tools,
)
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import ToolTimer, WorkerMeters
from leaseway.identity.interceptor import caller
from leaseway.spec.model import ServerSpec
from leaseway.telemetry.tracing import tracing_active
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.messages.mcp import check_log_level
from leaseway.wire.names import DEFAULT_TENANT, MAX_KEY_LENGTH, LeaseKey
from leaseway.wire.timing.deadlines import Deadlines
from leaseway.wire.timing.durations import seconds

_logger = logging.getLogger(__name__)
_RULES_SLICE: Final = 0.01
"""Seconds that rules may hold up everything else at a time."""


class Executor:
    """Runs the calls of one worker.

    Attributes:
        draining: Whether new calls are rejected.
        usage: Calls and rejections by tenant.
        meters: Instruments, or None if metrics are off.
        artifacts: Stores the media of results, or None to leave media in the results.
        recent: Remembers ended calls, or None if no calls are remembered.
        confirmation: Asks people to approve calls, or None if no approver can be reached.
    """

    def __init__(self, pool: Pool, leases: WorkerLeaseManager, worker_id: str) -> None:
        self._pool = pool
        self._leases = leases
        self._admin = AdminTools(pool, leases)
        self._admission = CallAdmission(pool)
        self.usage = self._admission.usage
        self._subscriptions = WorkerSubscriptions(leases, self._admission.is_uri_visible)
        self._worker_id = worker_id
        self._background = pool.context.background
        self._loop = asyncio.get_running_loop()
        self.meters = pool.context.meters
        self.artifacts: ArtifactStore | None = None
        self.recent: RecentCalls | None = None
        self.confirmation: Confirmation | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._traced = tracing_active()  # decided at start-up, like the exporters
        self._active: dict[int, ActiveCall] = {}
        self._awaiting_rules: dict[str, deque[tuple[ActiveCall, Callable[[], None]]]] = {}
        self._awaiting_record: list[tuple[ActiveCall, LiveInstance, ToolRequest]] = []
        self._awaiting_turn: dict[int, tuple[ToolRequest, bool]] = {}
        self._last_number = 0
        self._deadlines = Deadlines(self._loop, self._active, self._expire)
        self.draining = False

    @property
    def in_flight(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        """How many calls wait for a turn on an instance with `max_calls`."""
        return len(self._awaiting_turn)

    def loads(self) -> dict[str, CallLoad]:
        """Return the calls in flight of each server."""
        servers = {generation.key.server_id for generation in self._pool.generations}
        return call_loads(self._active.values(), servers, time.perf_counter())

    def start_call(self, call: execution_pb2.Call, arguments: bytes, sink: CallSink) -> ActiveCall:
        """Start a call. Its result goes to the sink, possibly before this returns."""
        self._last_number = number = self._last_number + 1
        active = self._active[number] = ActiveCall(self, number, call, arguments, sink)
        active.arrived_at = time.perf_counter()
        if self.recent is not None:
            active.started_at = active.arrived_at
        if self._traced and wants_trace(call):
            active.trace = CallTrace(call, self._worker_id)
        if self._admission.recorder is not None:
            active.audit = AuditEntry(caller().name)
        try:
            if self.draining:
                raise self.draining_fault()
            if call.server_id == ADMIN_TOOLSET:
                self._run_admin_tool(active)
            elif call.registry_version > self._pool.registry_version:
                self._send_in_task(active)
            else:
                generation, plan = self._admission.admit(active)
                if active.judged is None:
                    self._send_or_wait(active, generation, plan)
                else:
                    send = partial(copy_context().run, self._send_or_wait, active, generation, plan)
                    self._await_rules(active, send)
        except Exception as error:
            self._fail(active, error)
        return active

    def _fail(self, active: ActiveCall, error: Exception) -> None:
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

    def _send_or_wait(
        self, active: ActiveCall, generation: Generation, plan: ToolPlan | AdmittedRequest
    ) -> None:
        """Send a call at once if an instance is ready; otherwise wait for one in a task."""
        self._set_deadline(active, generation)
        needs_approval = active.policy is not None and active.policy.needs_approval
        live = None if needs_approval else self._ready_instance(active, generation)
        if live is None:
            self._send_in_task(active)
        else:
            self._send(active, live, generation.variant, plan)

    def _await_rules(self, active: ActiveCall, send: Callable[[], None]) -> None:
        """Queue a call until its rules are evaluated; tenants take turns."""
        if not self._awaiting_rules:
            self._loop.call_soon(self._check_rules_and_send)
        self._awaiting_rules.setdefault(_tenant(active), deque()).append((active, send))

    def _check_rules_and_send(self) -> None:
        """Evaluate the rules of calls that arrived together, then send those that may run.

        The CEL library is large: a call evaluated right after another takes a fifth of the time.
        What takes longer than a slice of time waits until other work has had its turn.
        """
        slice_end = time.perf_counter() + _RULES_SLICE
        checked: list[tuple[ActiveCall, Callable[[], None]]] = []
        while self._awaiting_rules and time.perf_counter() < slice_end:
            tenant, queue = next(iter(self._awaiting_rules.items()))
            active, send = queue.popleft()
            if not queue:
                del self._awaiting_rules[tenant]
            elif len(self._awaiting_rules) > 1:  # the other tenants are next
                del self._awaiting_rules[tenant]
                self._awaiting_rules[tenant] = queue
            if active.has_ended:
                continue
            try:
                self._admission.check_rules(active)
            except Exception as error:
                self._fail(active, error)
            else:
                checked.append((active, send))
        if self._awaiting_rules:
            self._loop.call_soon(self._check_rules_and_send)
        for active, send in checked:  # each in its own context, which holds the caller's principal
            if not active.has_ended:
                try:
                    send()
                except Exception as error:
                    self._fail(active, error)

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
        active.handle_outcome(self._admin.run(active.call, parsed))

    def _set_deadline(self, active: ActiveCall, generation: Generation) -> None:
        if active.deadline is not None:
            return
        if active.call.timeout_ms:
            self._expire_after(active, active.call.timeout_ms / 1000)
        elif active.call.method == SUBSCRIBE:  # lasts until its caller cancels it
            self._expire_after(active, bounds.MAX_CALL_TIMEOUT)
        else:
            self._expire_after(active, generation.variant.spec.call_timeout)

    def _expire_after(self, active: ActiveCall, timeout: float) -> None:
        active.deadline = self._loop.time() + min(timeout, bounds.MAX_CALL_TIMEOUT)
        self._deadlines.add(active.deadline, active.number)

    def _expire(self, number: int) -> None:
        self._active[number].expire()

    def _ready_instance(self, active: ActiveCall, generation: Generation) -> LiveInstance | None:
        """Return the instance for a call, or None if the call must wait for one."""
        if generation.is_shared and not active.call.lease_id:
            return generation.shared_for("" if active.call.method else active.call.tool)
        key = _lease_key(active.call)
        if active.call.lease_id:
            lease: WorkerLease | None = self._leases.get_held(active.call.lease_id, key)
        elif not key.session:
            raise Fault(
                Reason.SESSION_REQUIRED,
                f"Server {key.server_id} keeps state for each session: name a session.",
            )
        else:
            lease = self._leases.find(key)
            if lease is not None:
                self._leases.add_user(lease, active.call.acquirer[:MAX_KEY_LENGTH])
        if lease is None:
            return None
        live = self._leases.live_instance(lease)
        if live is not None and active.lease is None:
            active.lease = lease
            self._leases.start_call(lease)
        return live

    def _send(
        self,
        active: ActiveCall,
        live: LiveInstance,
        variant: HeldVariant,
        plan: ToolPlan | AdmittedRequest,
    ) -> None:
        """Build the request of an admitted call and send it to its instance."""
        call = active.call
        meta = _request_meta(active, live)
        if isinstance(plan, ToolPlan):
            label = plan.original_name
            request = ToolRequest(label, live.head(variant.toolset, label), active.arguments, meta)
            request.read_artifact = (
                partial(self._read_artifact, active) if live.spec.http_tools else None
            )
        else:
            label = plan.method
            meta = {**(plan.meta or {}), **(meta or {})}
            request = ToolRequest(plan.name, b"", plan.params, meta, method=label)
        if call.wants_progress:
            request.on_progress = active.progress
        if call.log_level:
            check_log_level(call.log_level)
            request.on_log, request.log_level = active.log, call.log_level
        if call.answers:
            request.on_ask, request.answers = active.ask, answerable(call.answers)
        if call.passes_input:
            request.passes_input, request.continuation = True, parse_input(call.input)
        if self.meters is not None:
            active.timer = self.meters.timer(live.spec, label)
        active.sent_at = time.perf_counter()
        if request.method == SUBSCRIBE and isinstance(plan, AdmittedRequest):
            if self.draining:  # a subscription would outlive the drain
                raise self.draining_fault()
            active.started_at = 0.0  # its duration is the caller's choice: not remembered
            self._subscriptions.subscribe(active, live, plan)
            return
        must_record = self._admission.must_record(active)
        active.live = live
        live.calls += 1
        if variant.spec.max_calls and not self._try_turn(active, live, variant.spec):
            self._awaiting_turn[active.number] = request, must_record
            active.sent_at = 0.0
            active.event("waiting for its turn")
        else:
            self._send_request(active, live, request, must_record)

    def _send_request(
        self, active: ActiveCall, live: LiveInstance, request: ToolRequest, must_record: bool
    ) -> None:
        """Send a request, or queue it until the audit has recorded its call."""
        if must_record:
            if not self._awaiting_record:
                self._loop.call_soon(self._record_and_send)
            self._awaiting_record.append((active, live, request))
        else:
            active.set_pending(live.instance.call(request, active.handle_outcome))

    def _try_turn(self, active: ActiveCall, live: LiveInstance, spec: ServerSpec) -> bool:
        """Return whether a call may run now on an instance with `max_calls`; queue it if not."""
        if live.turns is None:
            live.turns = CallTurns()
        live.turns.max_running = spec.max_calls or 1
        live.turns.weight_of = spec.policy.weight_of
        return live.turns.add(active, _tenant(active))

    def _end_turn(self, active: ActiveCall, live: LiveInstance, turns: CallTurns) -> None:
        self._awaiting_turn.pop(active.number, None)
        turns.remove(active, _tenant(active))
        if turns.waiting:
            self._loop.call_soon(self._send_next, live, turns)

    def _send_next(self, live: LiveInstance, turns: CallTurns) -> None:
        """Send the queued calls that may run now that other calls have ended."""
        while (active := turns.start_next()) is not None:
            request, must_record = self._awaiting_turn.pop(active.number)
            active.mark("its turn has come")
            active.sent_at = time.perf_counter()
            try:
                self._send_request(active, live, request, must_record)
            except Exception as error:
                self._fail(active, error)

    def _record_and_send(self) -> None:
        """Record all calls that arrived together in one write, then send them."""
        waiting, self._awaiting_record = self._awaiting_record, []
        waiting = [entry for entry in waiting if not entry[0].has_ended]
        if not waiting:
            return
        try:
            self._admission.record(active for active, _, _ in waiting)
        except Exception as error:
            for active, _, _ in waiting:
                self._fail(active, error)
            return
        for active, live, request in waiting:
            active.set_pending(live.instance.call(request, active.handle_outcome))

    def _send_in_task(self, active: ActiveCall) -> None:
        active.task = self._background.spawn(
            self._wait_and_send(active), f"call {active.call.server_id}:{active.call.tool}"
        )

    async def _wait_and_send(self, active: ActiveCall) -> None:
        """Wait for the registry version, an approval and an instance, then send the call."""
        try:
            if active.call.timeout_ms and active.deadline is None:
                self._expire_after(active, active.call.timeout_ms / 1000)
            await self._wait_for_version(active)
            generation, plan = self._admission.admit(active)
            self._admission.check_rules(active)
            self._set_deadline(active, generation)
            await self._require_approval(active, generation, plan, use=False)
            live = await self._wait_for_instance(active, generation)
            # The server's configuration may have changed meanwhile: the newest one decides.
            generation, plan = self._admission.admit(active)
            self._admission.check_rules(active)
            if active.policy is not None and active.policy.needs_approval:
                self._admission.record_first(active)
                await self._require_approval(active, generation, plan, use=True)
            if not active.has_ended:
                self._send(active, live, generation.variant, plan)
        except asyncio.CancelledError:
            active.fail(self.draining_fault())
            raise
        except Exception as error:
            self._fail(active, error)
        finally:
            active.task = None

    async def _require_approval(
        self,
        active: ActiveCall,
        generation: Generation,
        plan: ToolPlan | AdmittedRequest,
        *,
        use: bool,
    ) -> None:
        """Wait until a person approves a call that needs it; `use` spends the approval."""
        if (
            active.policy is None
            or not active.policy.needs_approval
            or not isinstance(plan, ToolPlan)
        ):
            return
        if self.confirmation is None:
            raise Fault(
                Reason.CONFIRMATION_REQUIRED,
                f"Calls of {active.call.server_id}:{active.call.tool} need a person's approval, "
                "and this worker cannot ask for one.",
            )
        active.event("waiting for an approval")
        await self.confirmation.check(active, plan, is_shared=generation.is_shared, use=use)

    async def _wait_for_version(self, active: ActiveCall) -> None:
        if active.call.registry_version > self._pool.registry_version:
            active.event("waiting for the registry version")
            await self._pool.wait_for_version(active.call.registry_version)

    async def _wait_for_instance(self, active: ActiveCall, generation: Generation) -> LiveInstance:
        """Return the instance for a call; start one or acquire a lease if necessary."""
        live = self._ready_instance(active, generation)
        if live is not None:
            return live
        if generation.is_shared and not active.call.lease_id:
            return await self._wait_for_shared(active, generation)
        active.event("waiting for a lease")
        asked = active.call.HasField("lease_ttl")
        ttl = seconds(active.call.lease_ttl) if asked else bounds.LEASE_TTL
        key = _lease_key(active.call)
        if active.call.lease_id:
            key = self._leases.get_held(active.call.lease_id, key).key
        elif active.call.report_end:
            self._leases.report_end(key, active.call.expected_lease)
        lease, created = await self._leases.acquire(
            key, agent=active.call.agent, acquirer=active.call.acquirer, ttl=ttl
        )
        active.event("the lease is held")
        live = self._leases.live_instance(lease)
        if live is None:
            raise self._leases.ended_fault(lease.id)
        active.lease, active.is_new_lease = lease, created
        self._leases.start_call(lease)
        return live

    async def _wait_for_shared(self, active: ActiveCall, generation: Generation) -> LiveInstance:
        active.event("waiting for the instance to start")
        while True:
            try:
                live = await generation.wait_for_shared(
                    "" if active.call.method else active.call.tool
                )
            except Fault:
                newest = self._pool.resolve(
                    active.call.server_id, _tenant(active), active.call.agent
                )
                if newest is generation or not newest.is_shared:
                    raise
                generation = newest
            else:
                active.event("the instance is up")
                return live

    async def _read_artifact(self, active: ActiveCall, ref: str, max_size: int) -> bytes:
        if self.artifacts is None:
            raise Fault(Reason.ARTIFACT_LOST, "This worker keeps no artifacts.")
        return await self.artifacts.read(ref, active.call.tenant, active.call.session, max_size)

    def on_call_ended(self, active: ActiveCall, fault: Fault | None, is_error: bool) -> None:
        del self._active[active.number]
        if self.meters is not None:
            self._measure(self.meters, active, fault, is_error)
        if self.recent is not None:
            if fault is not None or is_error:
                if active.call.method != SUBSCRIBE:  # a subscription lasts by design
                    self.recent.record(active.past_call(fault, is_error))
            elif active.started_at:
                active.record_success(self.recent)
        if active.live is not None:
            active.live.end_call()
            if active.live.turns is not None:
                self._end_turn(active, active.live, active.live.turns)
        if active.lease is not None:
            self._leases.end_call(active.lease)
        if active.is_counted:
            self._admission.end_call(active)
        if active.audit is not None:
            self._record_end(active, active.audit, fault, is_error)
        if not self._active:
            self._idle.set()

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
            variant = self._pool.resolve(call.server_id, _tenant(active), call.agent).variant
        except Fault:
            return None
        exists = call.method in METHODS if call.method else call.tool in variant.toolset.tools
        if not exists:
            return None
        return meters.timer(variant.spec, call.method or call.tool)

    def set_recorder(self, recorder: Recorder) -> None:
        """Record calls in the audit from now on."""
        self._admission.recorder = recorder

    def _record_end(
        self, active: ActiveCall, entry: AuditEntry, fault: Fault | None, is_error: bool
    ) -> None:
        assert self._admission.recorder is not None
        outcome = call_outcome(fault, is_error)
        lease = active.lease.id if active.lease is not None else ""
        self._admission.recorder.end(
            entry, active.number, active.call, active.arguments, lease, outcome, fault
        )

    def call_fault(self, active: ActiveCall, fault: Fault) -> Fault:
        """Return the fault of a call whose instance failed: why its lease ended, if it did."""
        lease = active.lease
        if fault.reason is not Reason.SERVER_LOST or lease is None or self._leases.get(lease.id):
            return fault
        ended = self._leases.ended_fault(lease.id)
        if ended.reason is Reason.LEASE_LOST:
            return fault
        return dataclasses.replace(ended, started=fault.started)

    def store_media(self, active: ActiveCall, outcome: Outcome) -> PendingCall | None:
        if self.artifacts is None:
            return None
        pending = self.artifacts.store(active.call, outcome, active.finish)
        if pending is not None and active.trace is not None:
            active.trace.event("images and sounds are kept")
        return pending

    def reject_new_calls(self) -> None:
        """Reject new calls; calls in flight continue."""
        self.draining = True

    async def drain(self) -> None:
        """Reject new calls, end subscriptions and wait until all calls in flight have ended."""
        self.reject_new_calls()
        self._subscriptions.end_all(self.draining_fault())
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()


def _tenant(active: ActiveCall) -> str:
    return active.call.tenant or DEFAULT_TENANT


def _lease_key(call: execution_pb2.Call) -> LeaseKey:
    return LeaseKey(call.tenant or DEFAULT_TENANT, call.session, call.server_id)


def _request_meta(active: ActiveCall, live: LiveInstance) -> dict[str, object] | None:
    """Return the `_meta` of a request: its trace context and the caller's own keys."""
    call = active.call
    meta: dict[str, object] | None = None
    if active.trace is not None:
        meta = active.trace.start_request(live)
    elif call.traceparent:
        meta = {"traceparent": call.traceparent}
        if call.tracestate:
            meta["tracestate"] = call.tracestate
    if call.meta:
        meta = {**parse_meta(call.meta), **(meta or {})}
    return meta
