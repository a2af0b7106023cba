"""How a spec travels between planes: as bytes that are signed, and hashed as the same bytes.

They are canonical JSON of two mappings, `exposure` and `launch`, without fields that have their
defaults; the fields of the part are among those of `launch`. The fields of `Naming` stay in the
control plane, and the key is sent beside them, as a message.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.table import part_type, split
from leaseway.spec.model import NameRules, ServerSpec, Transform, TransformKind, VariantKey
from leaseway.v1 import catalog_pb2, sync_pb2

_MAX_SAID: Final = 300
_Steps = list[tuple[TransformKind, str, str]]


class SpecNotUnderstood(ValueError):
    """The bytes of a spec have a field or value that this version does not know.

    Attributes:
        transport: The value of `transport:` in them; empty if it cannot be read.
    """

    def __init__(self, message: str, transport: str = "") -> None:
        super().__init__(message)
        self.transport = transport


class _Parts(msgspec.Struct, forbid_unknown_fields=True):
    exposure: dict[str, Any]
    launch: dict[str, Any]


_decode = msgspec.json.Decoder(_Parts).decode


def encode_spec(spec: ServerSpec) -> bytes:
    """Return the bytes of a spec, without its key, filters and transforms."""
    return b'{"exposure":%b,"launch":%b}' % (spec.exposure_part, spec.launch_part)


def decode_spec(key: VariantKey, data: bytes) -> ServerSpec:
    """Return the spec of its bytes.

    Raises:
        SpecNotUnderstood: A field or value is unknown. Nothing of it is dropped: it may be a
            restriction.
    """
    transport = ""
    try:
        parts = _decode(data)
        transport = str(parts.launch.get("transport"))
        kind = part_type(transport, parts.launch)
        own, launch = split(kind, parts.launch)
        fields = {**parts.exposure, **launch, "key": [key.server_id, key.tenant], "part": {}}
        part = msgspec.convert(own, kind)
        spec = replace(msgspec.convert(fields, ServerSpec), part=part)
        # The decoder ignores unknown fields at any depth; they are missing when encoded again.
        if encode_spec(spec) == data:
            return spec
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        said = str(error)[:_MAX_SAID]
    else:
        said = "it has a setting that this version does not know"
    raise SpecNotUnderstood(
        f"The definition of server {key} cannot be used: {said}. Its sender is probably newer;"
        " update this process.",
        transport,
    )


def key_to_proto(key: VariantKey) -> catalog_pb2.VariantKey:
    return catalog_pb2.VariantKey(server_id=key.server_id, tenant=key.tenant)


def key_from_proto(key: catalog_pb2.VariantKey) -> VariantKey:
    return VariantKey(key.server_id, key.tenant)


def filter_to_proto(rules: NameFilter) -> sync_pb2.NameFilter:
    also = None if rules.also is None else filter_to_proto(rules.also)
    return sync_pb2.NameFilter(whitelist=rules.whitelist, blacklist=rules.blacklist, also=also)


def filter_from_proto(message: sync_pb2.NameFilter) -> NameFilter:
    """Return the filter of a message; protobuf bounds how deep they are nested."""
    also = filter_from_proto(message.also) if message.HasField("also") else None
    return NameFilter(tuple(message.whitelist), tuple(message.blacklist), also)


def name_rules_to_proto(rules: NameRules) -> sync_pb2.NameRules:
    return sync_pb2.NameRules(
        tools=filter_to_proto(rules.tools) if rules.tools else None,
        transforms=[
            sync_pb2.NameTransform(kind=step.kind, add=step.add, remove=step.remove)
            for step in rules.transforms
        ],
        prompts=filter_to_proto(rules.prompts) if rules.prompts is not None else None,
    )


def name_rules_from_proto(toolset: sync_pb2.Toolset) -> NameRules | None:
    """Return the rules for names of a lease's own tools.

    None if there are none, or if they have a step that this version does not know: then a tool
    that only one instance lists has no name.
    """
    if not toolset.HasField("lease_rules"):
        return None
    message = toolset.lease_rules
    steps = [(step.kind, step.add, step.remove) for step in message.transforms]
    try:
        transforms = msgspec.convert(steps, _Steps)
    except msgspec.ValidationError:
        return None
    return NameRules(
        filter_from_proto(message.tools),
        tuple(Transform(kind, add, remove) for kind, add, remove in transforms),
        filter_from_proto(message.prompts) if message.HasField("prompts") else None,
    )
