"""Converts between protobuf messages and the core's types, and redacts outgoing messages."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from leaseway.data_plane.core.desired_state import HeldVariant, Update
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.core.subjects import user_of_subject
from leaseway.data_plane.core.tools.prompts_resources import (
    CompiledPromptsResources,
    compile_prompts,
)
from leaseway.data_plane.core.tools.toolset import CompiledToolset, ExposedTool, compile_toolset
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.reports import LeaseEnd
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.spec.codec import (
    SpecNotUnderstood,
    decode_spec,
    filter_from_proto,
    key_from_proto,
    key_to_proto,
    name_rules_from_proto,
)
from leaseway.spec.filters.uris import UriFilter
from leaseway.spec.kinds.transports import is_known, unavailable
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.v1 import admin_pb2, leases_pb2, sync_pb2
from leaseway.wire.messages.admin import reminder
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.timing.durations import duration, timestamp

REDACTED_FIELDS: Final = frozenset({"message", "advice", "details", "arguments", "extra"})
"""The fields with text of servers or callers."""
UNREDACTED_MESSAGES: Final = frozenset({"Upsert", "Introduction"})
"""Messages that the control plane itself sent, and texts whose secrets are hidden at the handshake,
because the digest of a listing covers them."""


def lease_end_to_proto(end: LeaseEnd) -> admin_pb2.LeaseEnd:
    key = end.lease.key
    return admin_pb2.LeaseEnd(
        lease_id=end.lease.id,
        tenant=key.tenant,
        how=end.outcome,
        session=key.session,
        server_id=key.server_id,
        unasked=end.unasked,
        message=end.message if end.unasked else "",
    )


_FAST: Final = 1
"""The level of compression: definitions become a tenth already, in 10 ms for each megabyte."""


class UnservableVariant(Exception):
    """A variant that this worker cannot serve; `reason` is a constant in capitals."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_specs: Final[WeakValueDictionary[tuple[VariantKey, bytes], ServerSpec]] = WeakValueDictionary()


def read_spec(key: VariantKey, data: bytes) -> ServerSpec:
    """Return the spec of its bytes; that of a probe is mostly that of the variant that follows.

    Raises:
        SpecNotUnderstood: See `decode_spec`.
    """
    place = key, hashlib.sha256(data).digest()
    spec = _specs.get(place)
    if spec is None:
        spec = _specs[place] = decode_spec(key, data)
        spec.drop_parts()
    return spec


def variant_from_proto(upsert: sync_pb2.Upsert, previous: CompiledToolset | None) -> HeldVariant:
    """Return a variant with its toolset compiled.

    Args:
        upsert: The message.
        previous: The current toolset; its compiled tools are reused if they are equal.

    Raises:
        UnservableVariant: The worker lacks the transport, or the spec or toolset is invalid.
    """
    try:
        spec = read_spec(key_from_proto(upsert.hashes.key), upsert.spec)
    except SpecNotUnderstood as error:
        if error.transport and not is_known(error.transport):
            raise _lacking(key_from_proto(upsert.hashes.key), error.transport) from error
        raise UnservableVariant("SPEC_NOT_UNDERSTOOD", str(error)) from error
    if not is_known(spec.transport):
        raise _lacking(spec.key, spec.transport)
    try:
        toolset = toolset_from_proto(upsert.toolset, previous)
    except ValueError as error:
        raise UnservableVariant("INVALID_TOOLSET", f"Server {spec.key}: {error}") from error
    return HeldVariant(
        spec=spec,
        launch_hash=upsert.hashes.launch_hash,
        exposure_hash=upsert.hashes.exposure_hash,
        toolset_hash=upsert.hashes.toolset_hash,
        toolset=toolset,
        sent=zlib.compress(upsert.SerializeToString(), _FAST),
    )


def toolset_from_proto(
    toolset: sync_pb2.Toolset, previous: CompiledToolset | None
) -> CompiledToolset:
    """Return a compiled toolset.

    Args:
        toolset: The message.
        previous: The current toolset; its compiled tools are reused if they are equal.

    Raises:
        ValueError: A definition or a name is invalid; the message says which.
    """
    return compile_toolset(
        (tool.definition for tool in toolset.recorded),
        (ExposedTool(tool.original_name, tool.name, tool.skipped) for tool in toolset.exposed),
        toolset.protocol_version,
        previous,
        _prompts_resources_from_proto(toolset),
        name_rules_from_proto(toolset),
    )


def _lacking(key: VariantKey, transport: str) -> UnservableVariant:
    message = f"Server {key} wants {unavailable(transport)}"
    return UnservableVariant("TRANSPORT_NOT_AVAILABLE", message)


def _prompts_resources_from_proto(toolset: sync_pb2.Toolset) -> CompiledPromptsResources:
    prompts = compile_prompts(
        toolset.recorded_prompts,
        ((prompt.original_name, prompt.name, prompt.skipped) for prompt in toolset.prompts),
    )
    return CompiledPromptsResources(
        prompts=prompts,
        recorded_prompts=tuple(toolset.recorded_prompts),
        recorded_resources=tuple(toolset.recorded_resources),
        recorded_templates=tuple(toolset.recorded_templates),
        uris=UriFilter.from_names(filter_from_proto(toolset.resource_filter)),
    )


def sent_to_proto(variant: HeldVariant) -> sync_pb2.Upsert:
    """Return a variant as it was received."""
    return sync_pb2.Upsert.FromString(zlib.decompress(variant.sent))


def update_from_proto(delta: sync_pb2.Delta, variants: list[HeldVariant]) -> Update:
    """Return a delta with those of its variants that this worker can serve."""
    return Update(
        epoch=delta.epoch,
        registry_version=delta.registry_version,
        upserts=tuple(variants),
        removals=tuple(key_from_proto(key) for key in delta.removals),
    )


def hashes_to_proto(variant: HeldVariant) -> sync_pb2.HeldHashes:
    return sync_pb2.HeldHashes(
        key=key_to_proto(variant.key),
        launch_hash=variant.launch_hash,
        exposure_hash=variant.exposure_hash,
        toolset_hash=variant.toolset_hash,
    )


def problem_to_proto(problem: WorkerProblem, worker_id: str) -> admin_pb2.Problem:
    """Return a problem that was seen now."""
    now = timestamp(time.time())
    key = problem.key or VariantKey("")
    return admin_pb2.Problem(
        scope=problem.scope,
        server_id=key.server_id,
        tenant=key.tenant,
        worker_id=worker_id,
        reason=problem.reason,
        message=problem.message,
        advice=problem.advice,
        first_seen=now,
        last_seen=now,
        count=1,
        severity=problem.severity,
        subject=key.user,
    )


@dataclass(frozen=True)
class LeaseMessages:
    """Converts leases to messages for callers and the control plane."""

    worker_id: str
    leases: WorkerLeaseManager
    clock: Callable[[], float]

    def __call__(self, lease: WorkerLease) -> leases_pb2.Lease:
        live = self.leases.live_instance(lease)
        return leases_pb2.Lease(
            id=lease.id,
            server_id=lease.key.server_id,
            worker_id=self.worker_id,
            tenant=lease.key.tenant,
            session=lease.key.session,
            agent=lease.agent,
            ttl=duration(lease.ttl),
            reminder=reminder(lease.key.server_id),
            launch_hash=lease.launch_hash,
            instance_id=live.instance.id if live is not None else "",
            age=duration(max(0.0, self.clock() - lease.granted_at)),
            acquirer=lease.acquirer,
            user=user_of_subject(lease.user),
            holder=lease.holder,
        )


def redact_message(message: Message) -> None:
    """Redact values of references in the text fields of a message, in place.

    All messages to the control plane pass through here. Names and ids stay as they are, even if
    they equal a value; specs contain references only.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.name in REDACTED_FIELDS:
                _redact_field(message, field.name, value)
        elif (kind := field.message_type) is not None:
            if kind.name in UNREDACTED_MESSAGES or kind.GetOptions().map_entry:
                continue
            if isinstance(value, Message):
                redact_message(value)
            else:
                for item in value:
                    redact_message(item)


def _redact_field(message: Any, name: str, value: Any) -> None:
    if isinstance(value, str):
        redacted = redact(value)
        if redacted != value:
            setattr(message, name, redacted)
        return
    for index, item in enumerate(value):
        value[index] = redact(item)


def add_lists(result: sync_pb2.ProbeResult, live: LiveInstance, *, is_own: bool = False) -> None:
    """Add the lists of an instance to a message.

    Args:
        result: The message.
        live: The instance.
        is_own: Whether only the person that it acts for sees them; others do not see what the
            server says to a person.
    """
    instance = live.instance
    result.tools.extend(
        sync_pb2.RecordedTool(definition=definition) for definition in instance.tools.values()
    )
    result.protocol_version = instance.protocol_version
    said = instance.introduction
    result.introduction.capabilities.extend(said.capabilities)
    if is_own or not live.spec.part.auth.is_of_people:
        result.introduction.instructions = said.instructions
        result.introduction.extensions.extend(said.extensions)
    if instance.prompts_resources is not None:
        result.prompts.extend(instance.prompts_resources.prompts)
        result.resources.extend(instance.prompts_resources.resources)
        result.resource_templates.extend(instance.prompts_resources.templates)
