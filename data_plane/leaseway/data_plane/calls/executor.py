"""One tool call, from its identity to its result (DESIGN §6).

The way of nearly all calls, a shared instance that is up or a lease that is held, makes no task,
awaits nothing and makes no span: `begin` looks up, checks and sends, and the instance's callback
ends it. Whoever must wait (for a lease, a start, a registry version) waits in a task.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.audit.record import AuditEntry, Recorder
from leaseway.data_plane.calls.admin_tools import AdminTools
from leaseway.data_plane.calls.admission import Admission, check_arguments
from leaseway.data_plane.calls.call import ActiveCall, Sink, parse_input, parse_meta
from leaseway.data_plane.calls.confirmation import Confirmation
from leaseway.data_plane.calls.recent import RecentCalls
from leaseway.data_plane.calls.subscriptions import Following
from leaseway.data_plane.calls.tracing import CallTrace, wants_trace
from leaseway.data_plane.core.calls.call import Outcome, PendingCall, ToolRequest, answerable
from leaseway.data_plane.core.calls.turns import CallTurns
from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.leases.table import WorkerLease, WorkerLeaseKey
from leaseway.data_plane.core.tools.policy import Counts
from leaseway.data_plane.core.tools.prompts_resources import (
    SUBSCRIBE,
    AdmittedRequest,
    has_only_tools,
)
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.identity.interceptor import caller
from leaseway.spec.model import ServerSpec
from leaseway.telemetry.tracing import tracing_active
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.messages.mcp import check_log_level
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.timing.deadlines import Deadlines
from leaseway.wire.timing.durations import seconds

_logger = logging.getLogger(__name__)


class Executor:
    """Runs calls.

    Args:
        pool: What is served.
        leases: Who holds leases.
        worker_id: For messages and spans.

    Attributes:
        meters: What is measured, or None where nobody wants that.
        artifacts: Keeps the media of results, or None where they stay in place.
        recent: The calls that are remembered, or None where none is.
        confirmation: Has calls wait for a person, or None where nobody can be asked.
    """

    def __init__(self, pool: Pool, leases: WorkerLeaseManager, worker_id: str) -> None:
        self._pool = pool
        self._leases = leases
        self._admin = AdminTools(pool, leases)
        self._admission = Admission(pool)
        self._following = Following(leases, self._admission.may_know)
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
        self._unjudged: list[tuple[ActiveCall, Callable[[], None]]] = []
        self._unrecorded: list[tuple[ActiveCall, LiveInstance, ToolRequest]] = []
        self._waiting: dict[int, tuple[ToolRequest, bool]] = {}
        self._last_number = 0
        self._deadlines = Deadlines(self._loop, self._active, self._expire)
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether new calls are refused."""
        return self._draining

    @property
    def in_flight(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        """How many calls wait for others to end."""
        return len(self._waiting)

    @property
    def counts(self) -> Counts:
        """How much tenants use, and what they were refused."""
        return self._admission.counts

    def begin(self, call: execution_pb2.Call, arguments: bytes, sink: Sink) -> ActiveCall:
        """Start a call; how it ends goes to the sink, perhaps before this returns."""
        self._last_number = number = self._last_number + 1
        active = self._active[number] = ActiveCall(self, number, call, arguments, sink)
        if self.recent is not None:
            active.began = time.perf_counter()
        if self._traced and wants_trace(call):
            active.trace = CallTrace(call, self._worker_id)
        if self._admission.recorder is not None:
            active.audit = AuditEntry(caller().name)
        try:
            if self._draining:
                raise self.leaving()
            if call.server_id == ADMIN_TOOLSET:
                self._administer(active)
            elif call.registry_version > self._pool.registry_version:
                self._wait_and_send(active)
            else:
                generation, plan = self._admission.admit(active)
                if active.facts is None:
                    self._go_on(active, generation, plan)
                else:
                    if not self._unjudged:
                        self._loop.call_soon(self._judge_and_go_on)
                    go_on = partial(copy_context().run, self._go_on, active, generation, plan)
                    self._unjudged.append((active, go_on))
        except Fault as fault:
            active.fail(fault)
        except Exception:
            _logger.exception("A call of %s:%s failed in the worker.", call.server_id, call.tool)
            active.fail(_internal())
        return active

    def _go_on(
        self, active: ActiveCall, generation: Generation, plan: ToolPlan | AdmittedRequest
    ) -> None:
        """Send a call that may run, or have it wait for what it needs."""
        self._set_deadline(active, generation)
        needs_person = active.policy is not None and active.policy.needs_person
        live = None if needs_person else self._ready_instance(active, generation)
        if live is None:
            self._wait_and_send(active)
        else:
            self._send(active, live, generation.variant, plan)

    def _judge_and_go_on(self) -> None:
        """Judge the calls that came together one right after the other.

        Rules are evaluated by a large library: it takes a call a fifth of the time when the one
        before it has just been there.
        """
        waiting, self._unjudged = self._unjudged, []
        for active, _ in waiting:
            if not active.over:
                self._guarded(active, partial(self._admission.judge, active))
        for active, go_on in waiting:  # each in its own context: who calls is asked for there
            if not active.over:
                self._guarded(active, go_on)

    def _guarded(self, active: ActiveCall, do: Callable[[], None]) -> None:
        """Do something for a call, which ends where that fails."""
        try:
            do()
        except Fault as fault:
            active.fail(fault)
        except Exception:
            call = active.call
            _logger.exception("A call of %s:%s failed in the worker.", call.server_id, call.tool)
            active.fail(_internal())

    def leaving(self) -> Fault:
        """Return the refusal of new work by a worker that goes."""
        return Fault(
            Reason.DRAINING,
            f"Worker {self._worker_id} takes no more calls; try another one.",
            retry_delay=0.1,
        )

    def _administer(self, active: ActiveCall) -> None:
        """Run a call of Leaseway's own tools; it is not of any registry version."""
        if active.call.method:
            raise has_only_tools(ADMIN_TOOLSET)
        parsed = check_arguments(active, self._admin.plan(active.call.tool))
        active.done(self._admin.run(active.call, parsed))

    def _set_deadline(self, active: ActiveCall, generation: Generation) -> None:
        if active.has_deadline:
            return
        if active.call.timeout_ms:
            self._expire_after(active, active.call.timeout_ms / 1000)
        elif active.call.method == SUBSCRIBE:  # goes on for as long as its caller likes
            self._expire_after(active, bounds.MAX_CALL_TIMEOUT)
        else:
            self._expire_after(active, generation.variant.spec.call_timeout)

    def _expire_after(self, active: ActiveCall, seconds: float) -> None:
        active.has_deadline = True
        self._deadlines.add(
            self._loop.time() + min(seconds, bounds.MAX_CALL_TIMEOUT), active.number
        )

    def _expire(self, number: int) -> None:
        self._active[number].expire()

    def _ready_instance(self, active: ActiveCall, generation: Generation) -> LiveInstance | None:
        """Return the instance for a call, or None where there is something to wait for."""
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
        call = active.call
        meta = _meta_of(active, live)
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
            if self.draining:  # by now: it would go on for as long as its caller likes
                raise self.leaving()
            active.began = 0.0  # how long it goes on is up to its caller
            self._following.begin(active, live, plan)
            return
        must_record = self._admission.permit_once_recorded(active)
        active.live = live
        live.calls += 1
        if variant.spec.max_calls and not self._has_turn(active, live, variant.spec):
            self._waiting[active.number] = request, must_record
            active.event("waiting for its turn")
        else:
            self._run(active, live, request, must_record)

    def _run(
        self, active: ActiveCall, live: LiveInstance, request: ToolRequest, must_record: bool
    ) -> None:
        """Have the server run a call, once that is recorded where it must be."""
        if must_record:
            if not self._unrecorded:
                self._loop.call_soon(self._record_and_send)
            self._unrecorded.append((active, live, request))
        else:
            active.sent(live.instance.call(request, active.done))

    def _has_turn(self, active: ActiveCall, live: LiveInstance, spec: ServerSpec) -> bool:
        """Return whether a call may run at once, on an instance that runs so many at most."""
        if live.turns is None:
            live.turns = CallTurns()
        live.turns.most, live.turns.weight_of = spec.max_calls or 1, spec.policy.weight_of
        return live.turns.begin(active, _tenant(active))

    def _turn_ended(self, active: ActiveCall, live: LiveInstance, turns: CallTurns) -> None:
        self._waiting.pop(active.number, None)
        turns.end(active, _tenant(active))
        if turns.waiting:
            self._loop.call_soon(self._give_turns, live, turns)

    def _give_turns(self, live: LiveInstance, turns: CallTurns) -> None:
        """Have those run whose turn it is, now that others have ended."""
        while (active := turns.next()) is not None:
            request, must_record = self._waiting.pop(active.number)
            active.mark("its turn has come")
            active.sent_at = time.perf_counter()
            try:
                self._run(active, live, request, must_record)
            except Fault as fault:
                active.fail(fault)
            except Exception:
                _logger.exception("A call of %s failed in the worker.", live.spec.key)
                active.fail(_internal())

    def _record_and_send(self) -> None:
        """Send the calls that must be recorded first: one write for those that came together."""
        waiting, self._unrecorded = self._unrecorded, []
        waiting = [each for each in waiting if not each[0].over]
        if not waiting:
            return
        try:
            self._admission.record(active for active, _, _ in waiting)
        except Fault as fault:
            for active, _, _ in waiting:
                active.fail(fault)
            return
        except Exception:
            _logger.exception("Calls could not be recorded.")
            for active, _, _ in waiting:
                active.fail(_internal())
            return
        for active, live, request in waiting:
            active.sent(live.instance.call(request, active.done))

    def _wait_and_send(self, active: ActiveCall) -> None:
        active.task = self._background.spawn(
            self._slowly(active), f"call {active.call.server_id}:{active.call.tool}"
        )

    async def _slowly(self, active: ActiveCall) -> None:
        try:
            if active.call.timeout_ms and not active.has_deadline:
                self._expire_after(active, active.call.timeout_ms / 1000)
            await self._reach_version(active)
            generation, plan = self._admission.admit(active)
            self._admission.judge(active)
            self._set_deadline(active, generation)
            await self._confirm(active, generation, plan, use=False)
            live = await self._obtain(active, generation)
            # What was admitted may have moved on during the wait: the newest decides.
            generation, plan = self._admission.admit(active)
            self._admission.judge(active)
            if active.policy is not None and active.policy.needs_person:
                self._admission.permit(active)
                await self._confirm(active, generation, plan, use=True)
            active.task = None
            if not active.over:
                self._send(active, live, generation.variant, plan)
        except Fault as fault:
            active.task = None
            active.fail(fault)
        except asyncio.CancelledError:
            active.task = None
            active.fail(self.leaving())
            raise
        except Exception:
            active.task = None
            active.fail(_internal())
            raise

    async def _confirm(
        self,
        active: ActiveCall,
        generation: Generation,
        plan: ToolPlan | AdmittedRequest,
        *,
        use: bool,
    ) -> None:
        """Have a person agree to a call that needs one."""
        if (
            active.policy is None
            or not active.policy.needs_person
            or not isinstance(plan, ToolPlan)
        ):
            return
        if self.confirmation is None:
            raise Fault(
                Reason.CONFIRMATION_REQUIRED,
                f"A person has to agree to calls of {active.call.server_id}:{active.call.tool}, "
                "and there is nobody to ask here.",
            )
        active.event("waiting for an approval")
        await self.confirmation.check(active, plan, is_shared=generation.is_shared, use=use)

    async def _reach_version(self, active: ActiveCall) -> None:
        if active.call.registry_version > self._pool.registry_version:
            active.event("waiting for the registry version")
            await self._pool.wait_for_version(active.call.registry_version)

    async def _obtain(self, active: ActiveCall, generation: Generation) -> LiveInstance:
        live = self._ready_instance(active, generation)
        if live is not None:
            return live
        if generation.is_shared and not active.call.lease_id:
            return await self._obtain_shared(active, generation)
        active.event("waiting for a lease")
        ttl = seconds(active.call.lease_ttl) if active.call.HasField("lease_ttl") else None
        key = _lease_key(active.call)
        if active.call.lease_id:
            key = self._leases.get_held(active.call.lease_id, key).key
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

    async def _obtain_shared(self, active: ActiveCall, generation: Generation) -> LiveInstance:
        active.event("waiting for the instance to start")
        while True:
            try:
                live = await generation.wait_for_shared(
                    "" if active.call.method else active.call.tool
                )
            except Fault:
                tenant = active.call.tenant or DEFAULT_TENANT
                newer = self._pool.resolve(active.call.server_id, tenant, active.call.agent)
                if newer is generation or not newer.is_shared:
                    raise
                generation = newer
            else:
                active.event("the instance is up")
                return live

    async def _read_artifact(self, active: ActiveCall, ref: str, most: int) -> bytes:
        if self.artifacts is None:
            raise Fault(Reason.ARTIFACT_LOST, "This worker keeps no artifacts.")
        return await self.artifacts.read(ref, active.call.tenant, active.call.session, most)

    def ended(self, active: ActiveCall, fault: Fault | None, is_error: bool) -> None:
        del self._active[active.number]
        if self.meters is not None:
            recorded = active.recorded_trace()
            self.meters.call_ended(active.timer, active.sent_at, fault, is_error, recorded)
        if self.recent is not None:
            if fault is not None or is_error:
                if active.call.method != SUBSCRIBE:  # that one lasts by design
                    self.recent.note(active.past(fault, is_error))
            elif active.began:
                active.remember(self.recent)
        if active.live is not None:
            active.live.end_call()
            if active.live.turns is not None:
                self._turn_ended(active, active.live, active.live.turns)
        if active.lease is not None:
            self._leases.end_call(active.lease)
        if active.is_counted:
            self._admission.ended(active)
        if active.audit is not None:
            self._record_end(active, active.audit, fault, is_error)
        if not self._active:
            self._idle.set()

    def record_in(self, recorder: Recorder) -> None:
        self._admission.recorder = recorder

    def _record_end(
        self, active: ActiveCall, entry: AuditEntry, fault: Fault | None, is_error: bool
    ) -> None:
        assert self._admission.recorder is not None
        outcome = fault.reason.value if fault is not None else "tool_error" if is_error else "ok"
        lease = active.lease.id if active.lease is not None else ""
        self._admission.recorder.end(
            entry, active.number, active.call, active.arguments, lease, outcome, fault
        )

    def explain(self, active: ActiveCall, fault: Fault) -> Fault:
        """Return what a fault of the instance means for a call: its lease's end, perhaps."""
        lease = active.lease
        if fault.reason is not Reason.SERVER_LOST or lease is None or self._leases.get(lease.id):
            return fault
        ended = self._leases.ended_fault(lease.id)
        if ended.reason is Reason.LEASE_LOST:
            return fault
        return dataclasses.replace(ended, started=fault.started)

    def keep_media(self, active: ActiveCall, outcome: Outcome) -> PendingCall | None:
        return self.artifacts.keep(active, outcome) if self.artifacts is not None else None

    def refuse_new(self) -> None:
        """Begin no call any more; those in flight go on."""
        self._draining = True

    async def drain(self) -> None:
        """Refuse new calls and wait until those in flight have ended."""
        self.refuse_new()
        self._following.end_all(self.leaving())
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()


def _internal() -> Fault:
    return Fault(Reason.INTERNAL, "The worker failed to run the call; its log says why.", "unknown")


def _tenant(active: ActiveCall) -> str:
    return active.call.tenant or DEFAULT_TENANT


def _lease_key(call: execution_pb2.Call) -> WorkerLeaseKey:
    return WorkerLeaseKey(call.tenant or DEFAULT_TENANT, call.session, call.server_id)


def _meta_of(active: ActiveCall, live: LiveInstance) -> dict[str, object] | None:
    """Return what a request's `_meta` is to have: its trace, and what the caller wants there."""
    call = active.call
    meta: dict[str, object] | None = None
    if active.trace is not None:
        meta = active.trace.send(live)
    elif call.traceparent:
        meta = {"traceparent": call.traceparent}
        if call.tracestate:
            meta["tracestate"] = call.tracestate
    if call.meta:
        meta = {**parse_meta(call.meta), **(meta or {})}
    return meta
