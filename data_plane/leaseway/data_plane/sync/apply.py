"""Applying what the control plane sends: all of it, or all but what is refused (DESIGN §8)."""

from __future__ import annotations

import asyncio
from typing import Final

from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.sync import convert
from leaseway.spec.protobuf import key_from_wire
from leaseway.telemetry.tracing import context_from, tracer
from leaseway.v1 import sync_pb2
from leaseway.wire.span_attributes import Attr

_tracer = tracer("leaseway.data_plane")
_SLICE: Final = 0.005
"""Seconds that compiling schemas may keep calls waiting at a time."""


async def apply_delta(pool: Pool, delta: sync_pb2.Delta) -> list[sync_pb2.Refusal]:
    """Apply a delta to a pool; return what of it this worker cannot serve, and why."""
    worker_id = pool.context.worker_id
    with _tracer.start_as_current_span(
        "leaseway.apply",
        context=context_from(delta.traceparent),
        attributes={
            Attr.WORKER: worker_id,
            Attr.REGISTRY_VERSION: delta.registry_version,
            "leaseway.upserts": len(delta.upserts),
            "leaseway.removals": len(delta.removals),
        },
    ) as span:
        refusals: list[sync_pb2.Refusal] = []
        variants = []
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + _SLICE
        for upsert in delta.upserts:
            key = key_from_wire(upsert.spec.key)
            held = pool.desired_state.variants.get(key)
            try:
                variants.append(convert.held_variant(upsert, held.toolset if held else None))
            except convert.Unrepresentable as error:
                problem = WorkerProblem("server", error.reason, str(error), key)
                refusals.append(
                    sync_pb2.Refusal(
                        key=upsert.spec.key,
                        problem=convert.problem_message(problem, worker_id),
                    )
                )
            if loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = loop.time() + _SLICE
        pool.commit(convert.update(delta, variants))
        span.set_attribute("leaseway.refused", len(refusals))
        return refusals
