"""Probes: trying a server for the control plane, and listing again (DESIGN §3, step 4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry import trace

from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    InstancePort,
    ListedPromptsResources,
)
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.sync.convert import problem_message
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.protobuf import key_from_wire, key_to_wire, spec_from_wire
from leaseway.spec.transports import is_known, unavailable
from leaseway.telemetry.tracing import context_from, tracer
from leaseway.v1 import admin_pb2, sync_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.span_attributes import Attr
from leaseway.wire.timing.backoff import Backoff
from leaseway.wire.timing.durations import duration

_logger = logging.getLogger(__name__)
_tracer = tracer("leaseway.data_plane")
_LEAST_TO_LIST: Final = 1.0
"""Seconds that a server has to list prompts and resources, however long its start took."""

_BETWEEN_LISTINGS: Final = Backoff(0.5, 30.0)
"""Between two listings of a server that says, again and again, that its tools changed."""
_PROMPT_LISTINGS: Final = 4
"""So many in a row come with the shortest pause; clients hear of a few changes at once."""


class Prober:
    """Runs probes, at most 16 at once, each within its server's startup timeout.

    Args:
        pool: Where a probe's instance goes.
        send: Takes the results.
    """

    def __init__(self, pool: Pool, send: Callable[[sync_pb2.ProbeResult], None]) -> None:
        self._pool = pool
        self._send = send
        self._context = pool.context
        self._slots = asyncio.Semaphore(bounds.MAX_PROBES)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._relisting: dict[Generation, dict[LiveInstance, None]] = {}
        self._last_sent: WeakKeyDictionary[Generation, bytes] = WeakKeyDictionary()
        self._context.hooks.on_tools_changed = self._tools_changed

    def start(self, probe: sync_pb2.Probe) -> None:
        """Begin a probe; its result is sent when it ends."""
        task = self._context.background.spawn(self._run(probe), f"probe {probe.spec.key.server_id}")
        self._running[probe.id] = task
        task.add_done_callback(lambda _task: self._running.pop(probe.id, None))

    def cancel(self, probe_id: int) -> None:
        """Cancel a probe; nothing of it is left, and no result is sent."""
        task = self._running.get(probe_id)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel all probes: whoever asked for them is gone."""
        for task in self._running.values():
            task.cancel()

    def catch_up(self) -> None:
        """List again, and send, what shared instances have and the control plane does not.

        A change that a server announced while there was no Sync stream has reached nobody.
        """
        self._last_sent.clear()
        for generation in self._pool.current_generations:
            live = generation.shared
            if live is None or not live.is_ready:
                continue
            if live.lists_other(generation.variant.toolset):
                self._tools_changed(generation.key, live)

    async def _run(self, probe: sync_pb2.Probe) -> None:
        key = key_from_wire(probe.spec.key)
        with self._pool.probing(spec_from_wire(probe.spec)):
            async with self._slots:
                await self._try(probe, key)

    async def _try(self, probe: sync_pb2.Probe, key: VariantKey) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with _tracer.start_as_current_span(
            "leaseway.probe",
            context=context_from(probe.traceparent),
            attributes={
                Attr.SERVER: key.server_id,
                Attr.WORKER: self._context.worker_id,
                Attr.LAUNCH_HASH: probe.launch_hash,
            },
        ) as span:
            result = sync_pb2.ProbeResult(
                id=probe.id, key=key_to_wire(key), launch_hash=probe.launch_hash
            )
            try:
                live = await self._relist(probe) if probe.relist else await self._open(probe)
                _describe(result, live.instance)
            except Fault as fault:
                span.set_attribute(Attr.ERROR_TYPE, _reason(fault))
                span.set_status(trace.StatusCode.ERROR, _reason(fault))
                result.problem.CopyFrom(self._problem(key, fault))
                if _reason(fault) == "MISSING_REFERENCE":
                    self._context.hooks.on_reference_missing(spec_from_wire(probe.spec))
        result.duration.CopyFrom(duration(loop.time() - began))
        self._send(result)

    async def _open(self, probe: sync_pb2.Probe) -> LiveInstance:
        spec = spec_from_wire(probe.spec)
        _check_transport(spec)
        live = LiveInstance(self._context.open_instance, spec, None, meters=self._context.meters)
        loop = asyncio.get_running_loop()
        until = loop.time() + spec.startup_timeout
        try:
            await live.start()
        except Fault:
            self._context.logs.keep(spec.key, live.instance, "did not come up")
            raise
        try:
            await self._list_prompts_resources(live, max(_LEAST_TO_LIST, until - loop.time()))
        except BaseException:
            await asyncio.shield(live.close())
            raise
        self._pool.keep_probe_instance(probe.launch_hash, live)
        return live

    async def _relist(self, probe: sync_pb2.Probe) -> LiveInstance:
        key = key_from_wire(probe.spec.key)
        generation = self._pool.find(key)
        if generation is not None and generation.launch_hash == probe.launch_hash:
            live = next((live for live in generation.live_instances if live.is_ready), None)
            if live is not None:
                await generation.relist(live)
                await self._list_prompts_resources(live, live.spec.startup_timeout)
                return live
        raise Fault(
            Reason.SERVER_NOT_READY,
            f"Worker {self._context.worker_id} has no live instance of server {key} to list again.",
        )

    async def _list_prompts_resources(self, live: LiveInstance, timeout: float) -> None:
        """List prompts and resources; a list that fails is a warning, for tools serve without.

        Raises:
            Fault: The instance has ended.
        """
        listed = await live.instance.list_prompts_resources(
            timeout, self._recorded_prompts_resources(live.spec)
        )
        if listed.gaps and not live.is_ready:
            return  # its end is why: a lease that ends meanwhile says nothing of the server
        key, worker = live.spec.key, self._context.worker_id
        self._warn(
            key,
            "OFFERS_NOT_LISTED",
            f"Not all that server {key} offers could be listed on worker {worker}: "
            f"{' '.join(listed.gaps)} What was listed before stays; its tools are not affected. "
            "See the server's own log (`leaseway logs`).",
            bool(listed.gaps),
        )
        self._warn(
            key,
            "DEFINITIONS_LEFT_OUT",
            f"Not all that server {key} lists on worker {worker} can be used. "
            f"{' '.join(listed.skipped)} Mend the server.",
            bool(listed.skipped),
        )

    def _warn(self, key: VariantKey, reason: str, message: str, holds: bool) -> None:
        problem = WorkerProblem("server", reason, message, key, "warning")
        if holds:
            self._context.reports.report_problem(problem)
        else:
            self._context.reports.clear_problem(problem)

    def _recorded_prompts_resources(self, spec: ServerSpec) -> ListedPromptsResources:
        generation = self._pool.find(spec.key)
        if generation is None or generation.launch_hash != spec.launch_hash:
            return NO_PROMPTS_RESOURCES
        prompts_resources = generation.variant.toolset.prompts_resources
        return ListedPromptsResources(
            prompts_resources.recorded_prompts,
            prompts_resources.recorded_resources,
            prompts_resources.recorded_templates,
        )

    def _tools_changed(self, key: VariantKey, live: LiveInstance) -> None:
        generation = self._pool.find(key)
        if generation is None or generation.draining or live not in generation.live_instances:
            return  # it belongs to a generation that others have replaced
        if generation in self._relisting:
            self._relisting[generation][live] = None  # after the one under way, and a pause
        else:
            self._relisting[generation] = {live: None}
            self._context.background.spawn(
                self._relist_while_told(generation), f"list the tools of {generation.key}"
            )

    async def _relist_while_told(self, generation: Generation) -> None:
        # A server may say so with every listing: each one in a row waits longer for the next.
        listings = 0
        try:
            while changed := self._relisting[generation]:
                self._relisting[generation] = {}
                for live in changed:
                    if live.closed.is_set():
                        continue
                    if live.lease_id:
                        await self._relist_leased(generation, live)
                    else:
                        await self._relist_and_send(generation, live)
                pauses = max(0, listings - _PROMPT_LISTINGS)
                await asyncio.sleep(_BETWEEN_LISTINGS.ceiling(pauses))
                listings += 1
        finally:
            del self._relisting[generation]

    async def _relist_leased(self, generation: Generation, live: LiveInstance) -> None:
        # Many servers say so with each start: only a list that is another one is worth a warning.
        try:
            await generation.relist(live)
            await self._list_prompts_resources(live, live.spec.startup_timeout)
        except Fault as fault:
            generation.listed_leased(live, fault)
        else:
            generation.listed_leased(live)

    async def _relist_and_send(self, generation: Generation, live: LiveInstance) -> None:
        result = _result_of(generation)
        try:
            await generation.relist(live)
            await self._list_prompts_resources(live, live.spec.startup_timeout)
            _describe(result, live.instance)
        except Fault as fault:
            result.problem.CopyFrom(self._problem(generation.key, fault))
        self._send_new(generation, result)

    def _send_new(self, generation: Generation, result: sync_pb2.ProbeResult) -> None:
        said = result.SerializeToString(deterministic=True)
        if self._last_sent.get(generation) != said or result.HasField("problem"):
            self._last_sent[generation] = said
            self._send(result)

    def _problem(self, key: VariantKey, fault: Fault) -> admin_pb2.Problem:
        return problem_message(
            WorkerProblem("server", _reason(fault), fault.message, key), self._context.worker_id
        )


def _result_of(generation: Generation) -> sync_pb2.ProbeResult:
    return sync_pb2.ProbeResult(key=key_to_wire(generation.key), launch_hash=generation.launch_hash)


def _check_transport(spec: ServerSpec) -> None:
    if not is_known(spec.transport):
        raise Fault(
            Reason.INVALID_REQUEST,
            f"Server {spec.key} wants {unavailable(spec.transport)}",
            metadata={"problem": "TRANSPORT_NOT_AVAILABLE"},
        )


def _reason(fault: Fault) -> str:
    return fault.metadata.get("problem", fault.reason.value)


def _describe(result: sync_pb2.ProbeResult, instance: InstancePort) -> None:
    result.tools.extend(_recorded(instance.tools.values()))
    result.protocol_version = instance.protocol_version
    if instance.prompts_resources is not None:
        result.prompts.extend(instance.prompts_resources.prompts)
        result.resources.extend(instance.prompts_resources.resources)
        result.resource_templates.extend(instance.prompts_resources.templates)


def _recorded(definitions: Iterable[bytes]) -> Iterable[sync_pb2.RecordedTool]:
    return (sync_pb2.RecordedTool(definition=definition) for definition in definitions)
