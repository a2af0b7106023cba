"""Probes: starts a server for the control plane, and lists its tools again.

See design.md#reload, step 4.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry import trace

from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    ListedPromptsResources,
)
from leaseway.data_plane.core.problems import WorkerProblem, problem_reason
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.sync.convert import add_lists, problem_to_proto, read_spec
from leaseway.data_plane.sync.subjects import SubjectLists
from leaseway.spec.codec import SpecNotUnderstood, key_from_proto, key_to_proto
from leaseway.spec.kinds.transports import is_known, unavailable
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.telemetry.tracing import tracer
from leaseway.v1 import admin_pb2, sync_pb2
from leaseway.wire import bounds
from leaseway.wire.channels.trace_context import context_from
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.span_attributes import Attr
from leaseway.wire.timing.backoff import RETRY
from leaseway.wire.timing.durations import duration
from leaseway.wire.timing.running_tasks import RunningTasks

_tracer = tracer("leaseway.data_plane")
_MIN_LIST_TIMEOUT: Final = 1.0
"""Seconds that a server has to list prompts and resources, however long its start took."""

_UNUSED_AFTER: Final = 60.0
"""Seconds after a probe until what it has found ends if no delta uses it."""

_DECODED_INLINE: Final = 64 * bounds.KIB
"""The longest spec that is decoded on the event loop, in about a millisecond."""

_FAST_RELISTS: Final = 4
"""Listings in a row with the shortest delay; clients see the first changes soon."""


class Prober:
    """Runs probes, at most 16 at once, each within its server's startup timeout.

    Args:
        pool: Keeps the instances of probes.
        send: Sends the results.
        subjects: Sends what is listed for single tenants and users.
        leases: Use what their instances list.
    """

    def __init__(
        self,
        pool: Pool,
        send: Callable[[sync_pb2.ProbeResult], None],
        subjects: SubjectLists,
        leases: WorkerLeaseManager,
    ) -> None:
        self._pool = pool
        self._leases = leases
        self._relists = asyncio.Semaphore(bounds.MAX_RELISTS)
        self._relists_of: WeakKeyDictionary[Generation, asyncio.Semaphore] = WeakKeyDictionary()
        self._send = send
        self._subjects = subjects
        self._context = pool.context
        self._slots = asyncio.Semaphore(bounds.MAX_PROBES)
        self._running: RunningTasks[int] = RunningTasks()
        self._relisting: dict[Generation | LiveInstance, dict[LiveInstance, None]] = {}
        """By what is listed together: an instance of a lease alone, others of a generation."""
        self._last_sent: WeakKeyDictionary[Generation, bytes] = WeakKeyDictionary()
        """Digests."""
        self._context.events.tools_changed.connect(self._on_tools_changed)

    def start(self, probe: sync_pb2.Probe) -> None:
        """Start a probe; its result is sent when it ends.

        The control plane is told that it waits for its turn, and when its start has begun.
        """
        if not probe.relist:
            self._context.reports.report_probe(probe.id, begun=False)
        task = self._context.background.spawn(self._run(probe), f"probe {probe.key.server_id}")
        self._running.add(probe.id, task)

    def cancel(self, probe_id: int) -> None:
        """Cancel a probe; its instance is closed, and no result is sent."""
        task = self._running.get(probe_id)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for task in self._running.values():
            task.cancel()

    def relist_changed(self) -> None:
        """List again the shared instances whose lists differ from the recorded ones.

        A server may have reported a change while there was no Sync stream.
        """
        self._last_sent.clear()
        for generation in self._pool.current_generations:
            live = generation.shared
            if live is None or not live.is_ready:
                continue
            if live.lists_other(generation.variant.toolset):
                self._on_tools_changed(generation.key, live)

    async def _run(self, probe: sync_pb2.Probe) -> None:
        try:
            spec = await _decode(probe)
        except SpecNotUnderstood as error:
            self._send_refusal(probe, error)
            return
        with self._pool.probing(spec):
            async with self._slots:
                await self._probe(probe, spec)

    def _send_refusal(self, probe: sync_pb2.Probe, error: SpecNotUnderstood) -> None:
        key, reason, why = key_from_proto(probe.key), "SPEC_NOT_UNDERSTOOD", str(error)
        if error.transport and not is_known(error.transport):
            reason = "TRANSPORT_NOT_AVAILABLE"
            why = f"Server {key} wants {unavailable(error.transport)}"
        problem = WorkerProblem("server", reason, why, key)
        self._send(
            sync_pb2.ProbeResult(
                id=probe.id,
                key=probe.key,
                launch_hash=probe.launch_hash,
                problem=problem_to_proto(problem, self._context.worker_id),
            )
        )

    async def _probe(self, probe: sync_pb2.Probe, spec: ServerSpec) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        result = sync_pb2.ProbeResult(id=probe.id, key=probe.key, launch_hash=probe.launch_hash)
        with _tracer.start_as_current_span(
            "leaseway.probe",
            context=context_from(probe.traceparent),
            attributes={
                Attr.SERVER: spec.key.server_id,
                Attr.WORKER: self._context.worker_id,
                Attr.LAUNCH_HASH: probe.launch_hash,
            },
        ) as span:
            try:
                if probe.relist:
                    live = await self._relist(spec.key, probe.launch_hash)
                else:
                    live = await self._start_instance(probe, spec)
                add_lists(result, live)
            except Fault as fault:
                reason = problem_reason(fault)
                span.set_attribute(Attr.ERROR_TYPE, reason)
                span.set_status(trace.StatusCode.ERROR, reason)
                result.problem.CopyFrom(self._problem(spec.key, fault))
                if reason == Reason.LOGIN_REQUIRED:
                    self._context.events.login_required.emit(spec)
        result.duration.CopyFrom(duration(loop.time() - started))
        self._send(result)

    async def _start_instance(self, probe: sync_pb2.Probe, spec: ServerSpec) -> LiveInstance:
        if not is_known(spec.transport):
            raise Fault(
                Reason.INVALID_REQUEST,
                f"Server {spec.key} wants {unavailable(spec.transport)}",
                metadata={"problem": "TRANSPORT_NOT_AVAILABLE"},
            )
        live = self._context.open(spec, awaited=True)  # whoever configured it waits
        loop = asyncio.get_running_loop()
        try:
            async with live.place():
                self._context.reports.report_probe(probe.id, begun=True)
                until = loop.time() + spec.startup_timeout
                await live.start_now()
        except Fault as fault:
            self._context.stderr_history.add(spec.key, live.instance, "did not start")
            values = live.instance.resolved_values
            if values is not None or problem_reason(fault) == "MISSING_REFERENCE":
                self._context.events.probe_failed.emit(spec, values)
            raise
        try:
            await self._list_prompts_resources(live, max(_MIN_LIST_TIMEOUT, until - loop.time()))
        except BaseException:
            await asyncio.shield(live.close())
            raise
        self._pool.keep_probe_instance(probe.launch_hash, live)
        return live

    async def _relist(self, key: VariantKey, launch_hash: str) -> LiveInstance:
        generation = self._pool.find(key)
        if generation is not None and generation.launch_hash == launch_hash:
            ready = (live for live in generation.instances if live.is_ready)
            live = next((live for live in ready if live.is_typical), None)
            if live is not None:
                await self._list_all(generation, live)
                return live
        raise Fault(
            Reason.SERVER_NOT_READY,
            f"Worker {self._context.worker_id} has no live instance of server {key} to list again.",
        )

    async def _list_all(self, generation: Generation, live: LiveInstance) -> None:
        await generation.relist(live)
        await self._list_prompts_resources(live, live.spec.startup_timeout)

    async def _list_prompts_resources(self, live: LiveInstance, timeout: float) -> None:
        """List prompts and resources; a list that fails is a warning, tools are still served.

        Raises:
            Fault: The instance has ended.
        """
        listed = await live.instance.list_prompts_resources(
            timeout, self._recorded_prompts_resources(live.spec)
        )
        if listed.gaps and not live.is_ready:
            return  # the listing failed because the instance ended, maybe with its lease
        if isinstance(live.owner, Generation) and live.owner.draining:
            return  # nothing would clear the warnings
        key, worker = live.spec.key, self._context.worker_id
        # About this launch: if another worker probes the next one, it does not end these warnings.
        warning = partial(
            WorkerProblem,
            scope="server",
            key=key,
            severity="warning",
            launch_hash=live.spec.launch_hash,
        )
        self._context.reports.set_problem(
            warning(
                reason="OFFERS_NOT_LISTED",
                message=f"{' '.join(listed.gaps)} The previous lists stay; its tools are "
                f"unaffected. See the server's own log (`leaseway logs`). (Server {key} on worker "
                f"{worker}.)",
            ),
            bool(listed.gaps),
        )
        self._context.reports.set_problem(
            warning(
                reason="DEFINITIONS_LEFT_OUT",
                message=f"{' '.join(listed.skipped)} Fix the server. "
                f"(Server {key} on worker {worker}.)",
            ),
            bool(listed.skipped),
        )
        self._context.reports.set_problem(
            warning(
                reason="DEFINITIONS_CORRECTED",
                message=f"Some of what server {key} says when it is greeted or lists on worker "
                f"{worker} does not conform to MCP. Official clients would reject the server, or "
                f"whole lists, for it, so it is corrected. {' '.join(listed.changed)} "
                "Fix the server.",
            ),
            bool(listed.changed),
        )
        if not isinstance(live.owner, Generation):
            # If the entry is removed before its delta, no delta names it, and nothing ends them.
            asyncio.get_running_loop().call_later(
                _UNUSED_AFTER, self._pool.end_unused_launch, key, live.spec.launch_hash
            )

    def _recorded_prompts_resources(self, spec: ServerSpec) -> ListedPromptsResources:
        generation = self._pool.find(spec.key)
        if generation is None or generation.launch_hash != spec.launch_hash:
            return NO_PROMPTS_RESOURCES
        return generation.recorded_lists

    def _on_tools_changed(self, key: VariantKey, live: LiveInstance) -> None:
        generation = self._pool.find(key) or self._pool.find_subject(key)
        if live.lease_id and isinstance(live.owner, Generation):
            generation = live.owner  # a lease outlives its generation
        if generation is None or live not in generation.instances:
            live.changes.settle()  # its generation has been replaced
            return
        if generation.draining and not live.lease_id:
            live.changes.settle()
            return
        together = live if live.lease_id and generation.listed_for is None else generation
        if together in self._relisting:
            self._relisting[together][live] = None  # after the current listing, and a delay
        else:
            self._relisting[together] = {live: None}
            self._context.background.spawn(
                self._relist_until_quiet(together, generation),
                f"list the tools of {generation.key}",
            )

    async def _relist_until_quiet(
        self, together: Generation | LiveInstance, generation: Generation
    ) -> None:
        # A server may report a change with every listing: the delay grows with each in a row.
        listings = 0
        try:
            while changed := self._relisting[together]:
                self._relisting[together] = {}
                for live in changed:
                    if not live.closed.is_set:
                        await self._relist_once(generation, live)
                delays = max(0, listings - _FAST_RELISTS)
                await asyncio.sleep(RETRY.ceiling(delays))
                listings += 1
        finally:
            del self._relisting[together]

    async def _relist_once(self, generation: Generation, live: LiveInstance) -> None:
        reported = live.changes.reported
        try:
            if generation.listed_for is not None:
                await self._relist_for_subject(generation, live)
            elif live.lease_id or not live.is_typical:
                await self._relist_leased(generation, live)
            else:
                await self._relist_and_send(generation, live)
                await self._leases.read_changes(live)  # a spare may have been leased meanwhile
        finally:
            live.changes.settle(
                reported
            )  # also of a spare: its lease must not wait for what was read

    async def _relist_for_subject(self, generation: Generation, live: LiveInstance) -> None:
        try:
            await self._subjects.list_again(generation, live)
        except Fault as fault:
            generation.problems.report_fault(fault)

    async def _relist_leased(self, generation: Generation, live: LiveInstance) -> None:
        # Many servers report a change at each start: only a different list is worth a warning.
        own = self._relists_of.get(generation)
        if own is None:
            own = self._relists_of[generation] = asyncio.Semaphore(bounds.MAX_SERVER_RELISTS)
        try:
            # First the server's own, so that one which answers none holds up no other server.
            async with own, self._relists:
                await self._read_changes(generation, live)
                await self._list_prompts_resources(live, live.spec.startup_timeout)
                await self._leases.read_changes(live)
        except Fault as fault:
            generation.check_leased_lists(live, fault)
        else:
            generation.check_leased_lists(live)

    async def _read_changes(self, generation: Generation, live: LiveInstance) -> None:
        """List the tools of a leased instance for its lease.

        Raises:
            Fault: The listing failed.
        """
        reported = live.changes.reported
        try:
            await generation.relist(live)
            await self._leases.read_changes(live)
        finally:
            live.changes.settle_tools(reported)

    async def _relist_and_send(self, generation: Generation, live: LiveInstance) -> None:
        result = sync_pb2.ProbeResult(
            key=key_to_proto(generation.key), launch_hash=generation.launch_hash
        )
        try:
            await self._list_all(generation, live)
            add_lists(result, live)
        except Fault as fault:
            result.problem.CopyFrom(self._problem(generation.key, fault))
        digest = hashlib.sha256(result.SerializeToString(deterministic=True)).digest()
        if self._last_sent.get(generation) != digest or result.HasField("problem"):
            self._last_sent[generation] = digest
            self._send(result)

    def _problem(self, key: VariantKey, fault: Fault) -> admin_pb2.Problem:
        return problem_to_proto(WorkerProblem.of_fault(fault, key), self._context.worker_id)


async def _decode(probe: sync_pb2.Probe) -> ServerSpec:
    """Decode the spec of a probe; one of many tools in a thread."""
    key = key_from_proto(probe.key)
    if len(probe.spec) <= _DECODED_INLINE:
        return read_spec(key, probe.spec)
    return await asyncio.to_thread(read_spec, key, probe.spec)
