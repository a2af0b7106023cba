"""Tools, prompts and resources as callers get them, and where their names lead."""

from __future__ import annotations

from leaseway.control_plane.core.definition import (
    parse_definition,
    parse_prompt,
    parse_resource,
)
from leaseway.control_plane.core.fleet import WorkerRecord
from leaseway.control_plane.core.kinds import TOOLS
from leaseway.control_plane.core.refusal import Denied
from leaseway.control_plane.core.snapshot import NamedTarget, ResourceTarget
from leaseway.control_plane.edge.answers import denial, worker_ref
from leaseway.v1 import catalog_pb2
from leaseway.wire.durations import duration
from leaseway.wire.fault import status_from_fault

__all__ = ["prompt", "resolved", "resource", "tool"]


def tool(name: str, target: NamedTarget) -> catalog_pb2.Tool:
    """Return one exposed tool."""
    served = target.served
    definition = parse_definition(served.listing.by_name[target.item.original].definition)
    return catalog_pb2.Tool(
        name=name,
        original_name=target.item.original,
        server_id=served.key.server_id,
        title=definition.title,
        description=definition.description,
        input_schema=definition.input_schema,
        output_schema=definition.output_schema,
        annotations=definition.annotations,
        extra=definition.extra,
        shared=served.spec.truely_stateless,
    )


def prompt(name: str, target: NamedTarget) -> catalog_pb2.Prompt:
    """Return one exposed prompt."""
    served = target.served
    recorded = served.listing.prompts_by_name[target.item.original]
    definition = parse_prompt(recorded.definition)
    return catalog_pb2.Prompt(
        name=name,
        original_name=target.item.original,
        server_id=served.key.server_id,
        title=definition.title,
        description=definition.description,
        arguments=definition.arguments,
        extra=definition.extra,
        shared=served.spec.truely_stateless,
    )


def resource(target: ResourceTarget) -> catalog_pb2.Resource:
    """Return one listed resource or template."""
    assert target.recorded is not None, "what is not listed has no definition"
    definition = parse_resource(target.recorded.definition)
    return catalog_pb2.Resource(
        uri=target.uri,
        is_template=target.is_template,
        server_id=target.served.key.server_id,
        name=definition.name,
        title=definition.title,
        description=definition.description,
        mime_type=definition.mime_type,
        extra=definition.extra,
        shared=target.served.spec.truely_stateless,
    )


def resolved(
    name: str, outcome: NamedTarget | ResourceTarget | Denied, workers: list[WorkerRecord]
) -> catalog_pb2.ResolvedTool:
    """Return where a name leads, or why nowhere."""
    if isinstance(outcome, Denied):
        return catalog_pb2.ResolvedTool(name=name, error=status_from_fault(denial(outcome)))
    served = outcome.served
    answer = catalog_pb2.ResolvedTool(
        name=name,
        server_id=served.key.server_id,
        original_name=_original(outcome),
        shared=served.spec.truely_stateless,
        workers=[worker_ref(record) for record in workers],
        call_timeout=duration(served.spec.call_timeout),
    )
    if isinstance(outcome, NamedTarget) and outcome.kind is TOOLS:
        recorded = served.listing.by_name[outcome.item.original]
        definition = parse_definition(recorded.definition)
        answer.idempotent, answer.read_only = definition.idempotent, definition.read_only
    else:
        answer.read_only = True  # what gets a prompt or reads a resource changes nothing
    return answer


def _original(target: NamedTarget | ResourceTarget) -> str:
    return target.item.original if isinstance(target, NamedTarget) else target.uri
