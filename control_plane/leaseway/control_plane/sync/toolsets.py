"""Converts listings and served variants of Sync messages."""

from __future__ import annotations

from collections.abc import Container, Iterable

from leaseway.control_plane.core.catalog.kinds import (
    PROMPTS,
    RESOURCE_TEMPLATES,
    RESOURCES,
    TOOLS,
    ItemKind,
)
from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.variants import ExposedName, Hashes, Served
from leaseway.spec.codec import (
    decode_spec,
    encode_spec,
    filter_from_proto,
    filter_to_proto,
    key_from_proto,
    key_to_proto,
    name_rules_from_proto,
    name_rules_to_proto,
)
from leaseway.v1 import catalog_pb2, sync_pb2
from leaseway.wire.messages.mcp import Introduction, admit
from leaseway.wire.messages.portable_json import NotPortable, parse


class MalformedMessage(Exception):
    """A worker's message violates the protocol; the text says how."""


def listing_from_proto(message: sync_pb2.ProbeResult) -> ServerListing:
    """Convert the listing of a probe.

    What a server lists costs at most itself: definitions that cannot be read get an empty name and
    are skipped, with a warning, when the listing is exposed.
    """
    return ServerListing(
        tools=_recorded_from_proto((tool.definition for tool in message.tools), TOOLS),
        protocol_version=message.protocol_version,
        prompts=_recorded_from_proto(message.prompts, PROMPTS),
        resources=_recorded_from_proto(message.resources, RESOURCES),
        templates=_recorded_from_proto(message.resource_templates, RESOURCE_TEMPLATES),
        introduction=_introduction_from_proto(message.introduction),
    )


def served_from_proto(message: sync_pb2.Upsert) -> Served:
    """Convert a variant that a worker holds, without definitions that cannot be read.

    Raises:
        SpecNotUnderstood: Its spec cannot be read.
    """
    toolset = message.toolset
    listing = ServerListing(
        tools=_recorded_from_proto((tool.definition for tool in toolset.recorded), TOOLS),
        protocol_version=toolset.protocol_version,
        prompts=_recorded_from_proto(toolset.recorded_prompts, PROMPTS),
        resources=_recorded_from_proto(toolset.recorded_resources, RESOURCES),
        templates=_recorded_from_proto(toolset.recorded_templates, RESOURCE_TEMPLATES),
        introduction=_introduction_from_proto(toolset.introduction),
    )
    return Served(
        spec=decode_spec(key_from_proto(message.hashes.key), message.spec),
        hashes=hashes_from_proto(message.hashes),
        listing=listing,
        exposed=_exposed_from_proto(toolset.exposed, listing.by_name),
        prompts=_exposed_from_proto(toolset.prompts, listing.prompts_by_name),
        resource_filter=filter_from_proto(toolset.resource_filter),
        lease_rules=name_rules_from_proto(toolset),
    )


def served_to_proto(served: Served) -> sync_pb2.Upsert:
    """Convert a variant for workers."""
    return sync_pb2.Upsert(
        spec=encode_spec(served.spec),
        hashes=sync_pb2.HeldHashes(
            key=key_to_proto(served.key),
            launch_hash=served.hashes.launch,
            exposure_hash=served.hashes.exposure,
            toolset_hash=served.hashes.toolset,
        ),
        toolset=toolset_to_proto(served),
    )


def toolset_to_proto(served: Served) -> sync_pb2.Toolset:
    """Convert the tools, prompts and resources of a variant for workers."""
    listing, rules, lease_rules = served.listing, served.resource_filter, served.lease_rules
    return sync_pb2.Toolset(
        recorded=[
            sync_pb2.RecordedTool(definition=definition)
            for definition in _definitions(listing.tools)
        ],
        exposed=_exposed_to_proto(served.exposed),
        protocol_version=listing.protocol_version,
        recorded_prompts=_definitions(listing.prompts),
        prompts=_exposed_to_proto(served.prompts),
        recorded_resources=_definitions(listing.resources),
        recorded_templates=_definitions(listing.templates),
        resource_filter=filter_to_proto(rules) if rules else None,
        introduction=_introduction_to_proto(listing.introduction),
        lease_rules=name_rules_to_proto(lease_rules) if lease_rules is not None else None,
    )


def hashes_from_proto(message: sync_pb2.HeldHashes) -> Hashes:
    return Hashes(message.launch_hash, message.exposure_hash, message.toolset_hash)


def _exposed_to_proto(exposed: Iterable[ExposedName]) -> list[sync_pb2.ExposedTool]:
    return [
        sync_pb2.ExposedTool(original_name=tool.original, name=tool.name, skipped=tool.skipped)
        for tool in exposed
    ]


def _exposed_from_proto(
    messages: Iterable[sync_pb2.ExposedTool], recorded: Container[str]
) -> tuple[ExposedName, ...]:
    return tuple(
        ExposedName(message.original_name, message.name, message.skipped)
        for message in messages
        if message.original_name in recorded
    )


def _introduction_to_proto(said: Introduction) -> catalog_pb2.Introduction | None:
    """Convert an introduction; an empty one is unset."""
    if not said:
        return None
    return catalog_pb2.Introduction(
        instructions=said.instructions,
        extensions=said.extensions,
        capabilities=said.capabilities,
    )


def _introduction_from_proto(message: catalog_pb2.Introduction) -> Introduction:
    """Convert an introduction; what exceeds its bounds is left out."""
    return admit(message.instructions, message.extensions, message.capabilities)[0]


def _definitions(offers: Iterable[ListedItem]) -> list[bytes]:
    return [offer.definition for offer in offers if offer.name]


def _recorded_from_proto(definitions: Iterable[bytes], kind: ItemKind) -> tuple[ListedItem, ...]:
    return tuple(
        ListedItem(_member(definition, kind) or "", definition) for definition in definitions
    )


def _member(definition: bytes, kind: ItemKind) -> str | None:
    """Return the name or URI in a definition, or None if it has none."""
    try:
        value = parse(definition)
    except NotPortable:
        return None
    name = value.get(kind.member) if isinstance(value, dict) else None
    return name if isinstance(name, str) else None
