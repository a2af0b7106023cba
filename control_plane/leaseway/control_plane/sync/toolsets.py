"""Converts listings and served variants of Sync messages."""

from __future__ import annotations

import json
from collections.abc import Iterable

from leaseway.control_plane.core.catalog.kinds import (
    PROMPTS,
    RESOURCE_TEMPLATES,
    RESOURCES,
    TOOLS,
    ItemKind,
)
from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.variants import ExposedName, Hashes, Served
from leaseway.spec.protobuf import (
    filter_from_proto,
    filter_to_proto,
    key_to_proto,
    spec_from_proto,
    spec_to_proto,
)
from leaseway.v1 import sync_pb2


class MalformedMessage(Exception):
    """A worker's message violates the protocol; the text says how."""


def listing_from_proto(message: sync_pb2.ProbeResult) -> ServerListing:
    """Convert the listing of a probe.

    Workers reject listings with a nameless tool, so such a tool is an error. Malformed prompts and
    resources get an empty name; they are skipped when the listing is exposed.

    Raises:
        MalformedMessage: A tool is not a JSON object with a name.
    """
    return ServerListing(
        tuple(_tool_from_proto(tool) for tool in message.tools),
        message.protocol_version,
        _recorded_from_proto(message.prompts, PROMPTS),
        _recorded_from_proto(message.resources, RESOURCES),
        _recorded_from_proto(message.resource_templates, RESOURCE_TEMPLATES),
    )


def served_from_proto(message: sync_pb2.Upsert) -> Served:
    """Convert a variant that a worker holds.

    Raises:
        MalformedMessage: A recorded tool is not a JSON object with a name.
    """
    toolset = message.toolset
    return Served(
        spec=spec_from_proto(message.spec),
        hashes=hashes_from_proto(message.hashes),
        listing=ServerListing(
            tuple(_tool_from_proto(tool) for tool in toolset.recorded),
            toolset.protocol_version,
            _recorded_from_proto(toolset.recorded_prompts, PROMPTS),
            _recorded_from_proto(toolset.recorded_resources, RESOURCES),
            _recorded_from_proto(toolset.recorded_templates, RESOURCE_TEMPLATES),
        ),
        exposed=_exposed_from_proto(toolset.exposed),
        prompts=_exposed_from_proto(toolset.prompts),
        resource_filter=filter_from_proto(toolset.resource_filter),
    )


def served_to_proto(served: Served) -> sync_pb2.Upsert:
    """Convert a variant for workers."""
    listing, rules = served.listing, served.resource_filter
    return sync_pb2.Upsert(
        spec=spec_to_proto(served.spec),
        hashes=sync_pb2.HeldHashes(
            key=key_to_proto(served.key),
            launch_hash=served.hashes.launch,
            exposure_hash=served.hashes.exposure,
            toolset_hash=served.hashes.toolset,
        ),
        toolset=sync_pb2.Toolset(
            recorded=[sync_pb2.RecordedTool(definition=t.definition) for t in listing.tools],
            exposed=_exposed_to_proto(served.exposed),
            protocol_version=listing.protocol_version,
            recorded_prompts=_definitions(listing.prompts),
            prompts=_exposed_to_proto(served.prompts),
            recorded_resources=_definitions(listing.resources),
            recorded_templates=_definitions(listing.templates),
            resource_filter=filter_to_proto(rules) if rules else None,
        ),
    )


def hashes_from_proto(message: sync_pb2.HeldHashes) -> Hashes:
    return Hashes(message.launch_hash, message.exposure_hash, message.toolset_hash)


def _exposed_to_proto(exposed: Iterable[ExposedName]) -> list[sync_pb2.ExposedTool]:
    return [
        sync_pb2.ExposedTool(original_name=one.original, name=one.name, skipped=one.skipped)
        for one in exposed
    ]


def _exposed_from_proto(messages: Iterable[sync_pb2.ExposedTool]) -> tuple[ExposedName, ...]:
    return tuple(ExposedName(one.original_name, one.name, one.skipped) for one in messages)


def _definitions(offers: Iterable[ListedItem]) -> list[bytes]:
    return [one.definition for one in offers if one.name]


def _tool_from_proto(tool: sync_pb2.RecordedTool) -> ListedItem:
    name = _member(tool.definition, TOOLS)
    if name is None:
        raise MalformedMessage("A recorded tool is not a JSON object with a name.")
    return ListedItem(name, tool.definition)


def _recorded_from_proto(definitions: Iterable[bytes], kind: ItemKind) -> tuple[ListedItem, ...]:
    return tuple(ListedItem(_member(one, kind) or "", one) for one in definitions)


def _member(definition: bytes, kind: ItemKind) -> str | None:
    """Return the name or URI in a definition, or None if it has none."""
    try:
        name = json.loads(definition)[kind.member]
        name.encode()  # JSON may contain half of a surrogate pair, which cannot be encoded
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return name if isinstance(name, str) else None
