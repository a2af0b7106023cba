"""The last stage: it builds the request of a call and sends it to the instance."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.calls.call import ActiveCall, approved_meta, parse_input, parse_meta
from leaseway.data_plane.calls.subscriptions import WorkerSubscriptions
from leaseway.data_plane.core.artifacts.index import ArtifactReader
from leaseway.data_plane.core.calls.call import (
    NO_ANSWERS,
    Callbacks,
    Outcome,
    ToolRequest,
    answerable,
)
from leaseway.data_plane.core.tools.prompts_resources import SUBSCRIBE, AdmittedRequest
from leaseway.data_plane.core.tools.toolset import ToolPlan
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.data_plane.oauth.caller_tokens import CallToken
from leaseway.wire.channels.trace_context import meta_from
from leaseway.wire.messages.mcp import check_log_level


class SendStage:
    """Sends calls to their instances.

    Args:
        subscriptions: Calls that last until they are cancelled.
        artifacts: Read for servers that send bytes.
        meters: Instruments, or None if metrics are off.
    """

    def __init__(
        self,
        subscriptions: WorkerSubscriptions,
        artifacts: ArtifactStore,
        meters: WorkerMeters | None,
    ) -> None:
        self._subscriptions = subscriptions
        self._artifacts = artifacts
        self._meters = meters

    def enter(self, active: ActiveCall) -> bool:
        """Send a call; its instance's callback ends it, possibly before this returns."""
        call, live, plan = active.call, active.live, active.plan
        assert live is not None
        meta: dict[str, object] | None = None
        if active.trace is not None or call.traceparent or call.meta:
            meta = _request_meta(active, live)
        if isinstance(plan, ToolPlan):
            method, label, name = "", plan.label, plan.original_name
            head = live.head(active.generation.variant.toolset, name)
            read = partial(self._read_artifact, active) if live.spec.part.reads_artifacts else None
            request = ToolRequest(name, head, active.arguments, meta, read_artifact=read)
        else:
            method, label = plan.method, ""
            meta = {**(plan.meta or {}), **(meta or {})}
            request = ToolRequest(plan.name, b"", plan.params, meta, method=method)
        if (
            call.wants_progress
            or call.log_level
            or call.passes_input
            or active.client is not None
            or call.answers
        ):
            _listen(request, active)
        if active.client is not None and live.lease_id and live.sink is not active.sink:
            live.notify_through(active.sink, call.session, active.generation.variant.toolset)
        if self._meters is not None:
            active.timer = self._meters.timer(live.spec, label, method)
        active.sent_at = time.perf_counter()
        on_outcome: Callable[[Outcome], None] = active.handle_outcome
        if isinstance(plan, ToolPlan) and plan.results is not None:
            on_outcome = active.handle_unchecked
        if method == SUBSCRIBE and isinstance(plan, AdmittedRequest):
            self._subscribe(active, live, plan)
            return True
        if call.subject_token and active.generation.variant.subject == "caller":
            active.given = CallToken(active.generation.key, call.subject_token)
            with active.given.in_use():
                active.pending = live.instance.call(request, on_outcome)
        else:
            active.pending = live.instance.call(request, on_outcome)
        if active.trace is not None:
            active.trace.set_request_id(getattr(active.pending, "id", None))
        return True

    def _subscribe(self, active: ActiveCall, live: LiveInstance, plan: AdmittedRequest) -> None:
        """Start a subscription, which is no call of its instance: it would never rest."""
        active.live = None
        live.end_call()
        active.started_at = 0.0  # its duration is the caller's choice: not remembered
        self._subscriptions.subscribe(active, live, plan)

    async def _read_artifact(self, active: ActiveCall, ref: str, max_size: int) -> bytes:
        call = active.call
        reader = ArtifactReader.of(call.tenant, call.session, call.user, call.subject_token)
        return await self._artifacts.read(ref, reader, max_size)


def _listen(request: ToolRequest, active: ActiveCall) -> None:
    """Let a request's caller hear of it, answer questions, or continue it.

    Raises:
        Fault: INVALID_REQUEST: the log level or the input is not one of MCP.
    """
    call = active.call
    log_level, answers, passes_input = call.log_level, call.answers, call.passes_input
    if log_level:
        check_log_level(log_level)
    request.callbacks = Callbacks(
        on_progress=active.progress if call.wants_progress else None,
        on_log=active.log if log_level else None,
        log_level=log_level or "info",
        on_ask=active.ask if answers else None,
        answers=answerable(answers) if answers else NO_ANSWERS,
        passes_input=passes_input,
        client=active.client,
    )
    if passes_input:
        request.continuation = parse_input(call.input)


def _request_meta(active: ActiveCall, live: LiveInstance) -> dict[str, object] | None:
    """Return the `_meta` of a request: its trace context and the caller's own keys."""
    call = active.call
    meta: dict[str, object] | None = None
    if active.trace is not None:
        meta = active.trace.start_request(live)
    elif call.traceparent:
        meta = meta_from(call.traceparent, call.tracestate)
    if call.meta:
        of_caller = approved_meta(call.meta) if active.approval else parse_meta(call.meta)
        meta = {**of_caller, **(meta or {})}
    return meta
